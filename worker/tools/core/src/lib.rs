//! Tools: what runs a call. However a tool is made, it is a [`Handler`] behind one [`RegisteredTool`].
//!
//! Read on in [`registry`] (which tools there are), [`arguments`] (checking what they are called with and return),
//! [`typed`] (tools written in Rust), [`builtin`] (the ones that come with the worker) and [`kind`] (how tools of other
//! kinds come in: each kind is a crate beside this one).

pub mod arguments;
pub mod builtin;
mod environment;
pub mod kind;
mod lifecycle;
pub mod percent;
pub mod registry;
pub mod secrets;
pub mod standard_error;
mod tool_secrets;
mod toolbox;
pub mod typed;
mod unfit;
pub mod wording;

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tickfleet_model::{AgentId, CallId, Context, InboxName, TaskGrant, TaskId, TenantId, TurnId};
use tickfleet_ops::traces::{self, Outgoing};
use tokio_util::sync::CancellationToken;

/// JSON of services, as every reader can read it.
pub mod json {
    pub use tickfleet_protocol::json::{repaired, with_numbers_as_text};
}

pub use arguments::{ArgumentCheck, ArgumentError, OutputCheck, SchemaError, ValueCheck, check_schema};
pub use environment::{Environment, Unset};
pub use kind::{DeclarationError, Made, NoShell, ToolKind, ToolKinds};
pub use lifecycle::{HookError, Startup, StartupError, start_all, stop_all};
pub use registry::{RegisteredTool, Registry, RegistryError};
pub use secrets::Secrets;
pub use tool_secrets::{ToolSecrets, without_secrets};
pub use toolbox::{Ruled, RuledCall, Toolbox, Unusable};
pub use typed::{ToolError, TypedTool, inner};

/// The facts that a handler gets beside its arguments. Never another tenant's data.
#[derive(Debug, Clone)]
pub struct CallContext {
    /// Whose call.
    pub tenant: TenantId,
    /// The agent that makes it.
    pub agent: AgentId,
    /// Our own id of the call.
    pub call: CallId,
    /// The same for every try of this call and for a resubmitted turn: hand it to services that know such keys.
    pub idempotency_key: String,
    /// When the call must be over, ms since the epoch of the shard's clock.
    pub deadline_ms: i64,
    /// The number of this try, from 1.
    pub attempt: u32,
    /// The context that the producer sent along.
    pub context: Arc<Context>,
    /// The task that the turn runs under, with what it grants.
    pub task: Option<(TaskId, TaskGrant)>,
    /// The tools that the turn may use.
    pub tools: Toolbox,
    /// The inbox that the turn's reply goes to: a task that the call delegates is answered there too.
    pub reply_to: Option<InboxName>,
    /// The secrets that the tool declares, read for this call.
    pub secrets: ToolSecrets,
    /// The fence of the slice that the call is in: what a handler of the fleet's own writes of its progress holds under it
    /// alone. Empty where no slice is leased.
    pub fence: String,
    /// True if an earlier try of this call has begun a turn or a task, and waited for it.
    pub waited: bool,
    /// True if an earlier try may have begun a turn or a task so long ago that it may be forgotten by now: that nothing is
    /// known of one does not say that none was begun.
    pub may_be_forgotten: bool,
    /// Calls of other tools from within this one, see [`Self::call`].
    pub inner: inner::Inner,
    /// Cancelled when the call times out, is cancelled, or the worker must stop.
    pub cancel: CancellationToken,
}

impl CallContext {
    /// The first try of a call that has no deadline, task or secrets, to test a tool with. A worker fills in all fields.
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
            cancel: CancellationToken::new(),
        }
    }

    /// Returns what a request that the handler sends to another service should carry as `traceparent` and `tracestate`;
    /// none if the producer gave no trace context and spans are not exported.
    #[must_use]
    pub fn trace(&self) -> Option<Outgoing> {
        traces::outgoing(&self.context)
    }

    /// The context for a turn or a task that the call begins: the producer's, traced as a child of what runs now.
    #[must_use]
    pub fn for_begun_work(&self) -> Context {
        let mut context = (*self.context).clone();
        if let Some(trace) = self.trace() {
            (context.traceparent, context.tracestate) = (Some(trace.traceparent), trace.tracestate);
        }
        context
    }

    /// The value of a secret that the tool declares. It never shows: what the tool returns is searched for it.
    ///
    /// # Errors
    /// [`ToolError::Internal`] where the tool declares no secret of this name: a bug in the tool.
    pub fn secret(&self, name: &str) -> Result<&str, ToolError> {
        self.secrets.get(name)
    }
}

/// The output that a handler returns.
#[derive(Debug, Clone)]
pub struct ToolOutput {
    /// JSON, as the handler wrote it.
    pub json: Box<RawValue>,
    /// Media type (`application/json`).
    pub content_type: &'static str,
}

/// The event that a call waits for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Awaited {
    /// The end of a turn or task of the same tenant.
    Turn(TurnId),
    /// Room in a budget of tokens or money.
    Budget {
        /// The limit.
        limit: String,
        /// The counter within the limit.
        counter: String,
    },
    /// Only the time that the call gives.
    Time,
}

impl Awaited {
    /// The turn or task, if the call waits for one.
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

/// The failure of a handler. A failure is data: the pipeline turns it into an outcome by the tool's effect.
#[derive(Debug, Clone)]
pub enum ToolFailure {
    /// The arguments pass the schema, and still are not what the tool can take. Nothing was done.
    InvalidArguments {
        /// The text that the model is told.
        message: String,
    },
    /// For good: the tool or its service refused. The message is for the model.
    Permanent {
        /// The text that the model is told.
        message: String,
        /// The details that a program can act on.
        details: Option<serde_json::Value>,
    },
    /// It may pass.
    Transient {
        /// The text that the model is told after the last try.
        message: String,
        /// The far side's wish, a floor for the wait.
        retry_after: Option<Duration>,
        /// True only where it is certain that nothing took effect (no byte left, 429, a declared status).
        not_executed: bool,
    },
    /// It has begun a turn or a task of the same tenant, and goes on when that has ended: it is called again then, and
    /// holds no slot until then. For a tool whose effect is `read` or `idempotent`.
    Waits {
        /// What it waits for; none to be called again after a time.
        awaits: Awaited,
        /// The time after which it is called again in any case.
        at_most: Duration,
    },
    /// A bug: logged in full, told to the model in general words only.
    Internal {
        /// For the log.
        message: String,
    },
    /// The tool is declared, but this worker has nothing to run it with.
    NotConfigured {
        /// The text that says what is missing.
        message: String,
    },
}

/// Carries out one call. A timeout drops the future, and cancels [`CallContext::cancel`].
#[async_trait]
pub trait Handler: Send + Sync + 'static {
    /// Looks at arguments that have passed the tool's schema for what a schema cannot say. Runs before anything is
    /// recorded or done; must not wait for anything.
    ///
    /// # Errors
    /// The problem with them, for the model.
    fn validate(&self, arguments: &RawValue) -> Result<(), String> {
        let _ = arguments;
        Ok(())
    }

    /// Runs the call. `arguments` have passed the tool's schema.
    ///
    /// # Errors
    /// [`ToolFailure`] says why there is no output.
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure>;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    /// The context of a call in tests.
    pub(crate) fn context(attempt: u32) -> CallContext {
        let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
        let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
        CallContext { attempt, ..context }
    }

    /// Makes what runs a tool, in an empty environment.
    pub(crate) fn handler(tool: TypedTool) -> Arc<dyn Handler> {
        tool.into_parts(Duration::from_secs(9), &Environment::of([])).1
    }

    /// Arguments as a handler gets them.
    pub(crate) fn arguments(value: serde_json::Value) -> Box<RawValue> {
        serde_json::value::to_raw_value(&value).unwrap()
    }
}
