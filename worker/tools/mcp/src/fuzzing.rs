//! Entry points for fuzz targets: messages of servers, without a server.

use rmcp::model::{CustomResult, JsonRpcMessage, ServerResult};
use rmcp::service::ServiceError;
use serde_json::Value;
use tickfleet_config::mcp::McpServerDef;
use tickfleet_model::Effect;
use tickfleet_tools::{Secrets, ToolFailure, ToolOutput};

use super::list_tools::{ServerTools, server_tools};
use super::listing::Listing;
use super::outcome;
use super::wire::{Decoded, Decoder};

#[derive(Debug)]
pub enum ServerMessage {
    Outcome(Result<ToolOutput, ToolFailure>),
    ServerTools(ServerTools),
    /// A notification, or a request from the server.
    Other,
}

#[must_use]
pub fn read_message(def: &McpServerDef, message: &[u8], secrets: &Secrets) -> Option<ServerMessage> {
    let message = match Decoder::default().decode(message) {
        Decoded::Message(message) => message,
        Decoded::Ignored => return Some(ServerMessage::Other),
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
                true => ServerMessage::ServerTools(server_tools(def, listing, None)),
                false => ServerMessage::Outcome(outcome::output(response.result, Effect::Once, false, secrets)),
            }
        }
        JsonRpcMessage::Error(error) => {
            let failed = outcome::failure("server", &ServiceError::McpError(error.error), Effect::Once, secrets);
            ServerMessage::Outcome(Err(failed.failure))
        }
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => ServerMessage::Other,
    })
}
