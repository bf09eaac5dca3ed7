use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::SessionName;

/// The producer sets this data for every handler of the turn. The size is bounded.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Context {
    /// Any JSON about the agent's user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_context: Option<Box<RawValue>>,
    /// Any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_data: Option<Box<RawValue>>,
    /// A session may span many turns and tasks. Facts are kept per session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionName>,
    /// Returned in the reply, so that a producer can match the reply with its request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Data of the producer's tracing system, passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}
