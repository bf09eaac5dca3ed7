//! Doors for the fuzz targets: messages of servers, without a server.

use rmcp::model::{JsonRpcMessage, ServerJsonRpcMessage, ServerResult};
use rmcp::service::ServiceError;
use tickfleet_config::mcp::McpServerDef;
use tickfleet_model::Effect;
use tickfleet_tools::{Secrets, ToolFailure, ToolOutput};

use super::look::{Offer, offered};
use super::{definition, outcome};

/// A message of a server, as it is understood.
#[derive(Debug)]
pub enum Heard {
    /// The answer to a call: what the call comes to.
    Outcome(Result<ToolOutput, ToolFailure>),
    /// The list of its tools: what can be imported.
    Offer(Offer),
    /// A notification, or a request of its own.
    Other,
}

/// Reads one message of the server that `def` describes; none where it is no message.
#[must_use]
pub fn heard(def: &McpServerDef, message: &[u8], secrets: &Secrets) -> Option<Heard> {
    Some(match serde_json::from_slice::<ServerJsonRpcMessage>(message).ok()? {
        JsonRpcMessage::Response(response) => match response.result {
            ServerResult::ListToolsResult(list) => {
                Heard::Offer(offered(def, list.tools.iter().map(definition::of).collect(), None))
            }
            result => Heard::Outcome(outcome::output(result, Effect::Once, secrets)),
        },
        JsonRpcMessage::Error(error) => {
            let failed = outcome::failure("server", &ServiceError::McpError(error.error), Effect::Once, secrets);
            Heard::Outcome(Err(failed.failure))
        }
        JsonRpcMessage::Request(_) | JsonRpcMessage::Notification(_) => Heard::Other,
    })
}
