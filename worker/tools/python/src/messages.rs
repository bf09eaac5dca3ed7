//! The messages between a worker and the host that runs tools. `python/src/tickfleet/host` is the other end.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_tools::CallContext;

use crate::definition::Definition;

/// The version of these messages.
pub(crate) const PROTOCOL: u32 = 1;

/// A message to the host.
#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum ToHost<'a> {
    /// Which tools are there?
    Describe,
    /// Run one. The arguments are JSON text: numbers keep their digits.
    Call { id: u64, tool: &'a str, arguments: &'a str, context: &'a Facts<'a> },
    /// What the `number`th call that call `id` made of another tool came to. The output is JSON text.
    Inner { id: u64, number: u64, outcome: &'a str, output: Option<&'a str>, error: Option<&'a str> },
    /// Nobody waits for this call any more.
    Cancel { id: u64 },
    /// End.
    Bye,
}

/// A message of the host.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum FromHost {
    /// Everything is imported.
    Ready { protocol: u32 },
    /// Something cannot be imported: the user's own lines of the stack.
    Failed { message: String },
    /// A tool host starts no interpreter for this connection: why not.
    Refused { message: String },
    /// The answer to `describe`.
    Tools { tools: Vec<Definition> },
    /// The end of a call: JSON text, or an error.
    Result { id: u64, output: Option<String>, error: Option<Failure> },
    /// The `number`th call that call `id` makes of another tool. The arguments are JSON text.
    Inner { id: u64, number: u64, tool: String, arguments: String },
    /// A line of a tool's log.
    Log { call: String, level: String, message: String },
}

/// Why a call has no output.
#[derive(Debug, Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) details: Option<Value>,
    /// Seconds.
    #[serde(default)]
    pub(crate) retry_after: Option<f64>,
    #[serde(default)]
    pub(crate) not_executed: bool,
}

/// What a failure is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    /// The arguments fit their types, and still cannot be used.
    InvalidArguments,
    /// The tool refuses for good.
    Permanent,
    /// It may pass.
    Transient,
    /// It was cancelled: whoever asked knows.
    Cancelled,
    /// A bug; the message has the stack.
    Internal,
}

/// What a tool may know of its call.
#[derive(Debug, Serialize)]
pub(crate) struct Facts<'a> {
    tenant: &'a str,
    agent: &'a str,
    call_id: String,
    idempotency_key: &'a str,
    attempt: u32,
    user_context: Option<&'a RawValue>,
    session_data: Option<&'a RawValue>,
    correlation_id: Option<&'a str>,
    traceparent: Option<String>,
    task: Option<&'a str>,
    /// The end of the call, ms since the epoch; none where it has none.
    deadline_ms: Option<i64>,
    /// The limit of this try, ms.
    timeout_ms: u64,
}

impl<'a> Facts<'a> {
    /// The facts of a call whose try may take `timeout_ms`.
    pub(crate) fn of(context: &'a CallContext, timeout_ms: u64) -> Self {
        Self {
            tenant: context.tenant.as_str(),
            agent: context.agent.as_str(),
            call_id: context.call.to_string(),
            idempotency_key: &context.idempotency_key,
            attempt: context.attempt,
            user_context: context.context.user_context.as_deref(),
            session_data: context.context.session_data.as_deref(),
            correlation_id: context.context.correlation_id.as_deref(),
            traceparent: context.trace().map(|trace| trace.traceparent),
            task: context.task.as_ref().map(|(task, _)| task.as_str()),
            deadline_ms: (context.deadline_ms != i64::MAX).then_some(context.deadline_ms),
            timeout_ms,
        }
    }
}
