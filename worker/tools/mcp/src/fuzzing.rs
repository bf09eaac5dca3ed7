//! Entry points for fuzz targets: messages of servers, without a server.

use rmcp::model::{CustomResult, JsonRpcMessage, ServerResult};
use rmcp::service::ServiceError;
use serde_json::Value;
use tickfleet_config::mcp::McpServerDef;
use tickfleet_model::Effect;
use tickfleet_tools::{Secrets, ToolFailure, ToolOutput};

use super::listing::Listing;
use super::look::{Offer, offered};
use super::outcome;
use super::wire::{Decoded, Decoder};

/// The interpretation of a server's message.
#[derive(Debug)]
pub enum Heard {
    /// The response to a call: the outcome of the call.
    Outcome(Result<ToolOutput, ToolFailure>),
    /// The list of the server's tools, reduced to importable ones.
    Offer(Offer),
    /// A notification, or a request from the server.
    Other,
}

/// Reads a message of the server that `def` describes; `None` if it is not a message.
#[must_use]
pub fn heard(def: &McpServerDef, message: &[u8], secrets: &Secrets) -> Option<Heard> {
    let message = match Decoder::default().decode(message) {
        Decoded::Message(message) => message,
        Decoded::Ignored => return Some(Heard::Other),
        Decoded::Unreadable(_) => return None,
    };
    Some(match message {
        JsonRpcMessage::Response(response) => {
            let mut listing = Listing::default();
            let is_list = match &response.result {
                ServerResult::CustomResult(CustomResult(Value::String(text))) => listing.take(text).is_ok(),
                _ => false,
            };
            match is_list {
                true => Heard::Offer(offered(def, listing, None)),
                false => Heard::Outcome(outcome::output(response.result, Effect::Once, false, secrets)),
            }
        }
        JsonRpcMessage::Error(error) => {
            let failed = outcome::failure("server", &ServiceError::McpError(error.error), Effect::Once, secrets);
            Heard::Outcome(Err(failed.failure))
        }
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => Heard::Other,
    })
}
