//! Calls of other tools from within a call ([`CallContext::call`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{CallContext, ToolError};

/// Why there are no inner calls: outside of a fleet, and for tools that are never run again.
const NONE_HERE: &str = "No other tool can be called from here: only tools with the effect read or idempotent do so, on a \
                         fleet. What has effects are the calls that they make.";

/// What an inner call came to: what the model would have been told of it.
#[derive(Debug, Clone)]
pub struct InnerResult {
    /// The outcome in a word, as results have it (`ok`, `denied`, `invalid_arguments`…).
    pub outcome: String,
    /// What the tool returned; none where it did not succeed.
    pub output: Option<Box<RawValue>>,
    /// Why it did not succeed, in words that a model can act on.
    pub error: Option<String>,
}

impl InnerResult {
    /// What the tool returned.
    ///
    /// # Errors
    /// [`ToolError::Permanent`] with the inner call's own words, where it did not succeed.
    pub fn output(self) -> Result<Box<RawValue>, ToolError> {
        let Self { outcome, output, error } = self;
        output.ok_or_else(|| ToolError::Permanent(error.unwrap_or(outcome)))
    }
}

/// Carries out inner calls, as the worker does.
#[async_trait]
pub trait InnerCalls: Send + Sync {
    /// Makes the `number`th call of `context`'s call, or says what it came to.
    ///
    /// # Errors
    /// [`ToolError::Waits`] while it is under way; or why it cannot be made.
    async fn call(
        &self,
        context: &CallContext,
        number: usize,
        tool: &str,
        arguments: Box<RawValue>,
    ) -> Result<InnerResult, ToolError>;
}

/// The inner calls of one try of a call. Clones count together. By default there can be none.
#[derive(Clone, Default)]
pub struct Inner {
    calls: Option<Arc<dyn InnerCalls>>,
    made: Arc<AtomicUsize>,
}

impl Inner {
    /// Inner calls are carried out by `calls`.
    #[must_use]
    pub fn of(calls: Arc<dyn InnerCalls>) -> Self {
        Self { calls: Some(calls), made: Arc::default() }
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").field("made", &self.made).finish_non_exhaustive()
    }
}

impl CallContext {
    /// Calls another tool, as the same agent would: with its permissions, limits and caps, and with an audit entry of its
    /// own. For a tool whose effect is `read` or `idempotent`: what has effects are the inner calls.
    ///
    /// The first time, it begins a turn with the id `<turn>.<position>.call-<number>` and ends this try with
    /// [`ToolError::Waits`], which the function passes on (`?`): no slot is held while that runs. When it has ended the
    /// function is run again from its beginning, and gets the result. So what is before a call should have no effect of
    /// its own, and the nth call be the same each time; it is carried out once, however often the function is run.
    ///
    /// A function that returns [`ToolError::Waits`] for other reasons too makes its inner calls first: once the call has
    /// waited, its first inner call is taken for made.
    ///
    /// # Errors
    /// [`ToolError::Waits`]; [`ToolError::Permanent`] where a bound on inner calls is reached; others where it cannot be
    /// made now. That it was denied, or failed, is no error: [`InnerResult`] says so.
    pub async fn call(&self, tool: &str, arguments: impl Serialize) -> Result<InnerResult, ToolError> {
        let arguments = to_raw_value(&arguments).map_err(ToolError::internal)?;
        let number = self.inner.made.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.inner.calls {
            Some(calls) => calls.call(self, number, tool, arguments).await,
            None => Err(ToolError::Permanent(NONE_HERE.to_owned())),
        }
    }
}
