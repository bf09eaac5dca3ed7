//! The context that travels with a turn or a task beside its calls.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::SessionName;

/// The bounded context that the producer gives and every handler of the turn sees.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Context {
    /// The user that the agent acts for; any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_context: Option<Box<RawValue>>,
    /// The conversation's own data; any JSON.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_data: Option<Box<RawValue>>,
    /// The session that the calls belong to, beyond this turn or task: facts are kept for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_id: Option<SessionName>,
    /// Echoed in the reply, so that a caller can pair it with its own request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// W3C trace context of the producer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The vendors' data beside it, from the producer's tracing systems; passed on unchanged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tracestate: Option<String>,
}
