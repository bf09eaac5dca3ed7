//! The messages between a worker and a host process that runs tools. The host's side is in
//! `python/src/tickfleet/host` and `typescript/src/host`.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_tools::CallContext;

use crate::definition::Definition;

pub(crate) const PROTOCOL: u32 = 1;

#[derive(Debug, Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum ToHost<'a> {
    Describe,
    /// The arguments are JSON text, so that numbers keep their digits.
    Call {
        id: u64,
        tool: &'a str,
        arguments: &'a str,
        context: &'a CallFacts<'a>,
    },
    /// The output is JSON text.
    Inner {
        id: u64,
        number: u64,
        outcome: &'a str,
        output: Option<&'a str>,
        error: Option<&'a str>,
    },
    /// No one waits for the result of this call anymore.
    Cancel {
        id: u64,
    },
    Bye,
}

#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum FromHost {
    /// All modules are imported.
    Ready { protocol: u32 },
    /// The message contains only those lines of the traceback that belong to the user's code.
    Failed { message: String },
    /// The tool host starts no interpreter for this connection. The message is the reason.
    Refused { message: String },
    /// The response to `describe`.
    Tools { tools: Vec<Definition> },
    /// The output is JSON text. With `content_blocks`, it is a list of texts and images.
    Result {
        id: u64,
        output: Option<String>,
        #[serde(default)]
        content_blocks: bool,
        error: Option<Failure>,
    },
    /// Inner call `number` of the call `id`. The arguments are JSON text.
    Inner { id: u64, number: u64, tool: String, arguments: String },
    /// `fraction` is from 0 to 1.
    Progress { id: u64, fraction: Option<f64>, message: String },
    /// A line of a tool's log.
    Log { call: String, level: String, message: String },
}

#[derive(Debug, Deserialize)]
pub(crate) struct Failure {
    pub(crate) kind: FailureKind,
    pub(crate) message: String,
    #[serde(default)]
    pub(crate) details: Option<Value>,
    /// The minimum wait before a retry, in seconds.
    #[serde(default)]
    pub(crate) retry_after: Option<f64>,
    #[serde(default)]
    pub(crate) not_executed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FailureKind {
    /// The arguments have the right types but cannot be used.
    InvalidArguments,
    Permanent,
    Transient,
    /// The host cancels a call only at the worker's request.
    Cancelled,
    /// The message contains the traceback.
    Internal,
}

#[derive(Debug, Serialize)]
pub(crate) struct CallFacts<'a> {
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
    /// Milliseconds since the epoch. `None` if the call has no deadline.
    deadline_ms: Option<i64>,
    timeout_ms: u64,
}

impl<'a> CallFacts<'a> {
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
