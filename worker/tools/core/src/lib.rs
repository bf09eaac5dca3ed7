//! Tools, and how their calls run. Every tool is a [`Handler`] in a [`RegisteredTool`].

#![warn(missing_docs)]

pub mod arguments;
pub mod builtin;
mod deserialize;
mod environment;
pub mod kind;
mod lifecycle;
pub mod percent;
pub mod process_group;
mod progress;
pub mod registry;
pub mod secrets;
pub mod standard_error;
mod tool_secrets;
mod toolbox;
pub mod typed;
pub mod wording;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tickfleet_model::{AgentId, CallId, Context, InboxName, Outcome, TaskGrant, TaskId, TenantId, TurnId};
use tickfleet_ops::traces::{self, TraceContext};
use tokio_util::sync::CancellationToken;

/// Repairs JSON from services so that every JSON parser accepts it.
pub mod json {
    pub use tickfleet_protocol::json::{repaired, with_numbers_as_text};
}

pub use tickfleet_protocol::{CONTENT_BLOCKS, ContentBlock, content_text, usable_blocks};

pub use arguments::{ArgumentCheck, ArgumentError, OutputCheck, SchemaError, ValueCheck, check_schema};
pub use environment::{Environment, UnsetVariable};
pub use kind::{DeclarationError, DeclaredHandler, NoShell, ToolKind, ToolKinds};
pub use lifecycle::{HookError, Startup, StartupError, start_all, stop_all};
pub use progress::{ProgressReport, ProgressSink};
pub use registry::{RegisteredTool, Registry, RegistryError};
pub use secrets::Secrets;
pub use tool_secrets::{ToolSecrets, without_secrets};
pub use toolbox::{RuleViolation, RuledCall, Toolbox, UnusableTool};
pub use typed::{ToolError, TypedTool, inner};

/// The context of a call, passed to the tool's handler. The context never contains another tenant's data.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The tenant of the call.
    pub tenant: TenantId,
    /// The calling agent.
    pub agent: AgentId,
    /// The fleet's own id of the call.
    pub call: CallId,
    /// The same for every attempt of this call, even after the turn is submitted again.
    pub idempotency_key: String,
    /// In Unix milliseconds, by the shard's clock.
    pub deadline_ms: i64,
    /// Counted from 1.
    pub attempt: u32,
    /// The context that the turn's producer gave.
    pub context: Arc<Context>,
    /// The task to which the turn belongs, with the task's grant.
    pub task: Option<(TaskId, TaskGrant)>,
    /// The tools that the turn may use.
    pub tools: Toolbox,
    /// The inbox for the turn's reply. Replies to tasks that the call delegates also go to this inbox.
    pub reply_to: Option<InboxName>,
    /// The values of the tool's secrets, read for this call.
    pub secrets: ToolSecrets,
    /// The version of the slice's record. A write with an old version fails. Empty if no slice is leased.
    pub fence: String,
    /// True if an earlier attempt of this call has begun a turn or a task and waited for its end.
    pub waited: bool,
    /// True if the store may have forgotten a turn or task that an earlier attempt began.
    pub may_be_forgotten: bool,
    /// Makes calls to other tools from within this call, see [`Self::call`].
    pub inner: inner::Inner,
    /// Receives the progress of the call, see [`Self::progress`].
    pub progress: ProgressSink,
    /// Canceled when the call times out, when the call is canceled, or when the worker must stop.
    pub cancel: CancellationToken,
}

impl CallContext {
    /// Makes the context of a first attempt without deadline, task or secrets, for tests of a tool.
    #[must_use]
    pub fn new(tenant: TenantId, agent: AgentId, call: CallId) -> Self {
        Self {
            tenant,
            agent,
            call,
            idempotency_key: "key-1".into(),
            deadline_ms: i64::MAX,
            attempt: 1,
            context: Arc::new(Context::default()),
            task: None,
            tools: Toolbox::default(),
            reply_to: None,
            secrets: ToolSecrets::default(),
            fence: String::new(),
            waited: false,
            may_be_forgotten: false,
            inner: inner::Inner::default(),
            progress: ProgressSink::default(),
            cancel: CancellationToken::new(),
        }
    }

    /// Returns the trace context for requests to other services, if there is one.
    #[must_use]
    pub fn trace(&self) -> Option<TraceContext> {
        traces::outgoing(&self.context)
    }

    /// Returns the context for a turn or task that the call begins, traced as a child of the current span.
    #[must_use]
    pub fn for_child_work(&self) -> Context {
        let mut context = (*self.context).clone();
        if let Some(trace) = self.trace() {
            (context.traceparent, context.tracestate) = (Some(trace.traceparent), trace.tracestate);
        }
        context
    }

    /// Returns a secret that the tool declares. The secret is removed from the tool's result.
    pub fn secret(&self, name: &str) -> Result<&str, ToolError> {
        self.secrets.get(name)
    }
}

/// The output of a handler.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    /// JSON, as the handler wrote it.
    pub json: Box<RawValue>,
    /// The media type (`application/json`).
    pub content_type: &'static str,
}

impl ToolOutput {
    /// Returns an output of texts and images. A model that cannot see images in results gets texts.
    #[must_use]
    pub fn content(blocks: &[ContentBlock]) -> Self {
        Self { json: tickfleet_protocol::write_blocks(blocks), content_type: CONTENT_BLOCKS }
    }
}

/// The event that a call waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// The end of a turn or task of the same tenant.
    Turn(TurnId),
    /// Free capacity in a budget of tokens or money.
    Budget {
        /// The limit.
        limit: String,
        /// The counter within the limit.
        counter: String,
    },
    /// No event: the call waits until its own time limit.
    Time,
}

impl Awaited {
    /// The turn or task that the call waits for, if any.
    #[must_use]
    pub fn turn(self) -> Option<TurnId> {
        match self {
            Self::Turn(turn) => Some(turn),
            Self::Budget { .. } | Self::Time => None,
        }
    }
}

impl From<Option<TurnId>> for Awaited {
    fn from(turn: Option<TurnId>) -> Self {
        turn.map_or(Self::Time, Self::Turn)
    }
}

/// The failure of a handler. The outcome also depends on the tool's effect.
#[derive(Debug, Clone)]
pub enum ToolFailure {
    /// The arguments fit the schema, but the tool cannot accept them. Nothing was executed.
    InvalidArguments {
        /// The text for the model.
        message: String,
    },
    /// The tool or its service ended the call, and a retry would change nothing.
    Ended {
        /// The outcome of the call.
        outcome: Outcome,
        /// The text for the model.
        message: String,
        /// The details for programs.
        details: Option<serde_json::Value>,
    },
    /// A retry may succeed.
    Transient {
        /// The text for the model after the last attempt.
        message: String,
        /// The minimum wait that the service asked for.
        retry_after: Option<Duration>,
        /// True only if it is certain that nothing took effect.
        not_executed: bool,
    },
    /// The call runs again after the event, and holds no slot meanwhile. Only for the effects `read` and `idempotent`.
    Waits {
        /// The event that the call waits for.
        awaits: Awaited,
        /// After this time the call runs again, even without the event.
        at_most: Duration,
    },
    /// A bug: logged in full, and hidden from the model.
    Internal {
        /// The text for the log.
        message: String,
    },
    /// The tool is declared, but this worker cannot run it.
    NotConfigured {
        /// The text, which names the missing part.
        message: String,
    },
}

impl ToolFailure {
    /// Makes the failure of a rejected call. `message` is for the model, `details` are for programs.
    #[must_use]
    pub const fn permanent(message: String, details: Option<serde_json::Value>) -> Self {
        Self::Ended { outcome: Outcome::Permanent, message, details }
    }
}

/// Executes the calls of a tool. On a timeout, the future is dropped and [`CallContext::cancel`] is canceled.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Checks conditions that a schema cannot express. Must not block. The error is a message for the model.
    fn validate(&self, arguments: &RawValue) -> Result<(), String> {
        let _ = arguments;
        Ok(())
    }

    /// Runs the call. `arguments` fit the tool's schema.
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure>;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    pub(crate) fn context(attempt: u32) -> CallContext {
        let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
        let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
        CallContext { attempt, ..context }
    }

    pub(crate) fn handler(tool: TypedTool) -> Arc<dyn Handler> {
        tool.into_parts(Duration::from_secs(9), &Environment::of([])).1
    }

    pub(crate) fn arguments(value: serde_json::Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(&value).unwrap()
    }
}
