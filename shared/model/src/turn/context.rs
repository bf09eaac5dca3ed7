//! The context that a turn or a task carries besides its calls.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::SessionName;

/// The bounded context that the producer sets and every handler of the turn receives.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Context {
    /// The user on whose behalf the agent acts; any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_context: Option<Box<RawValue>>,
    /// The conversation's own data; any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_data: Option<Box<RawValue>>,
    /// The session that the calls belong to, beyond this turn or task. Facts are kept for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionName>,
    /// Echoed in the reply, so that a caller can pair it with its own request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// W3C trace context of the producer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// Vendor-specific data of the producer's tracing systems, passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}
