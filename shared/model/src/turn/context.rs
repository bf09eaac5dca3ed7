use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::SessionName;

/// The context of a turn or task, whose size is bounded. The producer sets the context, and every handler of the turn
/// receives it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Context {
    /// The user on whose behalf the agent acts; any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_context: Option<Box<RawValue>>,
    /// Data of the conversation; any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_data: Option<Box<RawValue>>,
    /// The session to which the calls belong. A session may span many turns and tasks. Facts are kept per session.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionName>,
    /// Text that the reply returns, so that a producer can match the reply with its request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// W3C trace context of the producer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Vendor-specific data of the producer's tracing system (`tracestate`), passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}
