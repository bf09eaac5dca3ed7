//! A tool of a module: runs one call, from the arguments to the interpretation of the response.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tickfleet_model::limits;
use tickfleet_tools::{CallContext, Handler, ToolFailure, ToolOutput, usable_blocks, without_secrets, wording};

use crate::interpreter::{CallReply, HostOutput, InnerCall, PendingCall};
use crate::leases::{Lease, NoLease};
use crate::messages::{CallFacts, Failure, FailureKind};
use crate::pool::Pool;
use crate::runtime;

/// How long a call waits for capacity. A longer wait would waste the call's slot.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) struct ModuleTool {
    pool: Arc<Pool>,
    name: String,
    timeout: Duration,
}

impl ModuleTool {
    pub(crate) fn new(pool: Arc<Pool>, name: String, timeout: Duration) -> Self {
        Self { pool, name, timeout }
    }

    /// The failure of a call that was not sent. A retry does no harm, even for a `once` tool.
    fn unsent(&self, what: &str) -> ToolFailure {
        let shared = &self.pool.shared;
        let (runtime, name) = (runtime::name(shared.def.runtime), shared.entry_name());
        let message = format!("The {runtime} tools of '{name}' {what}; the call was not sent.");
        ToolFailure::Transient { message, retry_after: None, not_executed: true }
    }
}

#[async_trait]
impl Handler for ModuleTool {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        // Wait for at most half of the timeout. Otherwise an unsent call would be reported as timed out.
        let lease = self.pool.lease(PATIENCE.min(self.timeout / 2)).await.map_err(|why| {
            self.unsent(match why {
                NoLease::Away => "are not available right now",
                NoLease::Busy => "are all busy",
            })
        })?;
        let timeout_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let facts = CallFacts::of(context, timeout_ms);
        let ticket = match lease.interpreter.call(&self.name, arguments.get(), &facts) {
            Ok(Some(ticket)) => ticket,
            Ok(None) => return Err(self.unsent("have just lost their process")),
            Err(error) => return Err(ToolFailure::Internal { message: format!("the call cannot be sent: {error}") }),
        };
        let secrets = Arc::clone(&lease.interpreter.secrets);
        let runtime = self.pool.shared.def.runtime;
        let under_way = RunningCall { call: Some((lease, ticket)), grace: self.pool.shared.def.cancel_grace };
        let ran = match under_way.answer(context).await? {
            Some(answer) => outcome(&self.name, answer),
            // It is unknown whether the call ran to the end.
            None => Err(ToolFailure::Transient {
                message: format!("The {} process ended while the call ran.", runtime::name(runtime)),
                retry_after: None,
                not_executed: false,
            }),
        };
        without_secrets(ran, &secrets)
    }
}

fn outcome(tool: &str, answer: CallReply) -> Result<ToolOutput, ToolFailure> {
    match answer {
        Ok(HostOutput { json, content_blocks: true }) if let Some(blocks) = usable_blocks(&json) => {
            Ok(ToolOutput::content(&blocks))
        }
        Ok(HostOutput { json, .. }) => match RawValue::from_string(json) {
            Ok(json) => Ok(ToolOutput { json, content_type: "application/json" }),
            Err(error) => Err(ToolFailure::Internal { message: format!("{tool} returned invalid JSON: {error}") }),
        },
        Err(failure) => Err(failed(failure)),
    }
}

fn failed(failure: Failure) -> ToolFailure {
    let Failure { kind, message, details, retry_after, not_executed } = failure;
    let text = || wording::cut(&message, limits::ERROR_BYTES_MAX);
    match kind {
        FailureKind::InvalidArguments => ToolFailure::InvalidArguments { message: text() },
        FailureKind::Permanent => ToolFailure::permanent(text(), details),
        FailureKind::Transient => ToolFailure::Transient {
            message: text(),
            retry_after: retry_after.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()),
            not_executed,
        },
        // The worker did not cancel this call, so it is unknown whether the call ran to the end.
        FailureKind::Cancelled => ToolFailure::Transient { message: text(), retry_after: None, not_executed: false },
        FailureKind::Internal => ToolFailure::Internal { message },
    }
}

/// Dropping this value before the response cancels the call. If the call does not end in time, its process is ended.
struct RunningCall {
    call: Option<(Lease, PendingCall)>,
    grace: Duration,
}

impl RunningCall {
    /// `None` if the process was lost. Fails if an inner call is in progress or cannot be made.
    async fn answer(mut self, context: &CallContext) -> Result<Option<CallReply>, ToolFailure> {
        let Some((lease, ticket)) = self.call.as_mut() else { return Ok(None) };
        let answer = loop {
            let InnerCall { number, tool, arguments } = tokio::select! {
                biased;
                answer = &mut ticket.answer => break answer.ok(),
                Some(inner) = ticket.inner.recv() => inner,
                Ok(()) = ticket.progress.changed() => {
                    let (fraction, message) = ticket.progress.borrow_and_update().clone();
                    context.progress(fraction, &message);
                    continue;
                }
            };
            let arguments = RawValue::from_string(arguments).map_err(|error| ToolFailure::Internal {
                message: format!("the arguments of an inner call: {error}"),
            })?;
            let result = context.call(&tool, &arguments).await.map_err(ToolFailure::from)?;
            lease.interpreter.inner_ended(ticket.id, number, &result);
        };
        self.call = None;
        Ok(answer)
    }
}

impl Drop for RunningCall {
    fn drop(&mut self) {
        let Some((lease, ticket)) = self.call.take() else { return };
        lease.interpreter.cancel(ticket.id);
        // Without a runtime, the process is exiting, and its interpreters exit too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(abandon(lease, ticket, self.grace));
        }
    }
}

/// Keeps the capacity of a dropped call occupied until the call has ended.
async fn abandon(lease: Lease, ticket: PendingCall, grace: Duration) {
    if tokio::time::timeout(grace, ticket.answer).await.is_err() {
        lease.interpreter.stuck.cancel();
        lease.interpreter.retired.cancel();
    }
}
