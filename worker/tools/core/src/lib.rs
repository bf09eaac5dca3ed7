//! Tools, and how their calls run. Every tool, of any kind, is a [`Handler`] in a [`RegisteredTool`].
//!
//! Continue with [`registry`] (the available tools), [`arguments`] (checks of arguments and results), and [`typed`]
//! (tools written in Rust). [`builtin`] has the tools that come with the worker. [`kind`] defines how other kinds of
//! tools are added, each in its own crate.

#![warn(missing_docs)]

pub mod arguments;
pub mod builtin;
mod deserialize;
mod environment;
pub mod kind;
mod lifecycle;
pub mod percent;
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

/// The context that a handler receives besides the arguments. It never contains another tenant's data.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// The tenant of the call.
    pub tenant: TenantId,
    /// The calling agent.
    pub agent: AgentId,
    /// The fleet's own id of the call.
    pub call: CallId,
    /// Idempotency key. Every attempt of this call has the same key, even after the turn is submitted again. Pass the
    /// key to services that support idempotency keys.
    pub idempotency_key: String,
    /// The call's deadline, in milliseconds since the epoch of the shard's clock.
    pub deadline_ms: i64,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// The turn's context, as the producer of the turn gave it.
    pub context: Arc<Context>,
    /// The task to which the turn belongs, with the task's grant.
    pub task: Option<(TaskId, TaskGrant)>,
    /// The tools that the turn may use.
    pub tools: Toolbox,
    /// The inbox for the turn's reply. Replies to tasks that the call delegates also go to this inbox.
    pub reply_to: Option<InboxName>,
    /// The values of the secrets that the tool declares, read for this call.
    pub secrets: ToolSecrets,
    /// The fence of the slice that contains the call: the version of the slice's record in the store. Handlers of the
    /// fleet write progress under this fence, so a write fails if another worker has taken the slice. Empty if no slice
    /// is leased.
    pub fence: String,
    /// True if an earlier attempt of this call has begun a turn or a task and waited for its end.
    pub waited: bool,
    /// True if an earlier attempt may have begun a turn or task so long ago that the store no longer has a record of
    /// that work. A missing record then does not prove that no turn or task was begun.
    pub may_be_forgotten: bool,
    /// Makes calls to other tools from within this call, see [`Self::call`].
    pub inner: inner::Inner,
    /// Receives the progress of the call, see [`Self::progress`].
    pub progress: ProgressSink,
    /// Canceled when the call times out, when the call is canceled, or when the worker must stop.
    pub cancel: CancellationToken,
}

impl CallContext {
    /// Makes the context of a first attempt without deadline, task or secrets, for tests of a tool. In a worker, all
    /// fields are set.
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

    /// Returns the `traceparent` and `tracestate` for requests that the handler sends to other services. Returns `None`
    /// if the producer gave no trace context and spans are not exported.
    #[must_use]
    pub fn trace(&self) -> Option<TraceContext> {
        traces::outgoing(&self.context)
    }

    /// Returns the context for a turn or task that the call begins: the producer's context, traced as a child of the
    /// current span.
    #[must_use]
    pub fn for_begun_work(&self) -> Context {
        let mut context = (*self.context).clone();
        if let Some(trace) = self.trace() {
            (context.traceparent, context.tracestate) = (Some(trace.traceparent), trace.tracestate);
        }
        context
    }

    /// Returns the value of a secret that the tool declares. If the tool's result contains the value, the value is
    /// removed from the result.
    ///
    /// # Errors
    /// [`ToolError::Internal`] if the tool declares no secret of this name, which is a bug in the tool.
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
    /// Returns an output of texts and images. A model sees the images if its protocol permits images in results. For
    /// other models, a text describes each image.
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
    /// Returns the turn or task, if the call waits for one.
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

/// The failure of a handler, as data. The pipeline converts the failure to an outcome that depends on the tool's
/// effect.
#[derive(Debug, Clone)]
pub enum ToolFailure {
    /// The arguments fit the schema, but the tool cannot accept them. Nothing was executed.
    InvalidArguments {
        /// The text for the model.
        message: String,
    },
    /// The tool or its service ended the call, and a retry would change nothing. The message is for the model.
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
        /// The minimum wait before the next attempt, as requested by the service.
        retry_after: Option<Duration>,
        /// True only if it is certain that nothing took effect (no byte was sent, a 429 response, a declared status).
        not_executed: bool,
    },
    /// The call waits for an event, such as the end of a turn or task that it has begun. After the event, the call runs
    /// again. While the call waits, it holds no slot. Only for tools with the effect `read` or `idempotent`.
    Waits {
        /// The event that the call waits for.
        awaits: Awaited,
        /// Maximum wait. After this time the call runs again, even if the event has not occurred.
        at_most: Duration,
    },
    /// A bug. It is logged in full, and the model receives only a generic message.
    Internal {
        /// The text for the log.
        message: String,
    },
    /// The tool is declared, but this worker cannot run it.
    NotConfigured {
        /// The text, which names what is missing.
        message: String,
    },
}

impl ToolFailure {
    /// Makes the failure of a call that the tool or its service rejected. `message` is for the model, and `details` are
    /// for programs.
    #[must_use]
    pub const fn permanent(message: String, details: Option<serde_json::Value>) -> Self {
        Self::Ended { outcome: Outcome::Permanent, message, details }
    }
}

/// Executes the calls of a tool. On a timeout, the future is dropped and [`CallContext::cancel`] is canceled.
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Checks arguments that fit the tool's schema for conditions that a schema cannot express. Runs before anything is
    /// recorded or executed, and must not block.
    ///
    /// # Errors
    /// The problem, as a message for the model.
    fn validate(&self, arguments: &RawValue) -> Result<(), String> {
        let _ = arguments;
        Ok(())
    }

    /// Runs the call. `arguments` have already been validated against the tool's schema.
    ///
    /// # Errors
    /// [`ToolFailure`] gives the reason for the failure.
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
