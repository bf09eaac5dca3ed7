//! Calls to other tools from within a call ([`CallContext::call`]).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};

use crate::{CallContext, ToolError};

/// The error of calls outside a fleet, and of tools that do not run again.
const NO_INNER_CALLS: &str = "No other tool can be called from here: only tools with the effect read or idempotent can, and only in a \
                         fleet. The effects belong to the calls that they make.";

/// The result of an inner call, as a model would see it.
#[derive(Debug, Clone)]
pub struct InnerResult {
    /// One of the words that results use (`ok`, `denied`, `invalid_arguments`…).
    pub outcome: String,
    /// `None` if the call did not succeed.
    pub output: Option<Box<RawValue>>,
    /// The reason for a failure, worded so that a model can act on it.
    pub error: Option<String>,
}

impl InnerResult {
    /// Returns the tool's output. Fails with [`ToolError::Permanent`] if the inner call did not succeed.
    pub fn output(self) -> Result<Box<RawValue>, ToolError> {
        let Self { outcome, output, error } = self;
        output.ok_or_else(|| ToolError::Permanent(error.unwrap_or(outcome)))
    }
}

/// Makes inner calls on behalf of the worker.
#[async_trait]
pub trait InnerCalls: Send + Sync {
    /// Begins inner call `number`, or returns its result. Fails with [`ToolError::Waits`] while the inner call runs.
    async fn call(
        &self,
        context: &CallContext,
        number: usize,
        tool: &str,
        arguments: Box<RawValue>,
    ) -> Result<InnerResult, ToolError>;
}

/// The inner calls of one attempt. Clones share one counter. By default, inner calls are not available.
#[derive(Clone, Default)]
pub struct Inner {
    calls: Option<Arc<dyn InnerCalls>>,
    made: Arc<AtomicUsize>,
}

impl Inner {
    /// Makes inner calls through `calls`.
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
    /// Calls another tool as the same agent, with the agent's permissions, limits and caps. Only for the effects `read`
    /// and `idempotent`.
    ///
    /// The first attempt ends with [`ToolError::Waits`], and the function must return this error (`?`). After the inner
    /// call, the function runs again from the start and receives the result. So the nth inner call must be the same on
    /// each run, and earlier code must have no side effects. A function that returns [`ToolError::Waits`] for other
    /// reasons must make its inner calls first.
    ///
    /// A denied or failed inner call is not an error: [`InnerResult`] reports it.
    pub async fn call(&self, tool: &str, arguments: impl Serialize) -> Result<InnerResult, ToolError> {
        let arguments = to_raw_value(&arguments).map_err(ToolError::internal)?;
        let number = self.inner.made.fetch_add(1, Ordering::Relaxed) + 1;
        match &self.inner.calls {
            Some(calls) => calls.call(self, number, tool, arguments).await,
            None => Err(ToolError::Permanent(NO_INNER_CALLS.to_owned())),
        }
    }
}
