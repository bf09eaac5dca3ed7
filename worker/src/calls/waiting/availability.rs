//! Decides whether a call may use its tool.

use std::time::Duration;

use serde_json::value::RawValue;
use tickfleet_model::policy::Pause;
use tickfleet_model::{CallResult, Effect, Outcome};
use tickfleet_ops::metrics::BreakerEvent;

use crate::calls::call_attempt::{AttemptOutcome, CallAttempt, ToolUnavailable};
use crate::calls::messages;
use crate::calls::state::Calls;
use crate::calls::waiting::breakers::CallPermit;
use crate::calls::waiting::tool_access::ToolAccess;
use crate::tools::RegisteredTool;

/// The bounds of the time between two checks of a call to a paused tool. The time is a quarter of the pause so far.
const PAUSE_RECHECK: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

impl Calls {
    /// Decides whether the call may use its tool. Must precede any request for approval. A task is not checked, because
    /// its models have their own breakers.
    pub(in crate::calls) async fn permit_call<'a>(
        &'a self,
        attempt: &'a CallAttempt<'_>,
        tool: &'a RegisteredTool,
        arguments: &RawValue,
    ) -> Result<ToolAccess<'a>, AttemptOutcome> {
        let name = tool.spec.name.as_str();
        let tenant = &attempt.slice.name.tenant;
        if attempt.is_task() || attempt.waited {
            return Ok(ToolAccess::Call(CallPermit::always(&self.breakers, name, tenant)));
        }
        if let Some(pause) = attempt.config.active.policy.tool_pause(tenant, &tool.spec) {
            return self.wait_for_resume(attempt, tool, arguments, pause).await;
        }
        let open_breaker = match self.breakers.permit(name, tenant, &self.metrics) {
            Ok(permit) => return Ok(ToolAccess::Call(permit)),
            Err(open_breaker) => open_breaker,
        };
        // Invariant 21: without this check, a call that another attempt has begun would be reported as not sent.
        if self.begun_by_another(attempt).await.is_some() {
            return Ok(ToolAccess::Call(CallPermit::always(&self.breakers, name, tenant)));
        }
        let tries = attempt.tries();
        let error = messages::tool_unavailable(&attempt.call.tool, open_breaker.settings.failures_max, tries);
        let final_result = CallResult { attempts: tries, ..attempt.result(Outcome::Transient, error) };
        let unavailable = Box::new(ToolUnavailable {
            delay: open_breaker.recheck_after(&attempt.id),
            at_most: Some(self.settings.retry_delays.longest_from(attempt.number, open_breaker.slowest)),
            why: open_breaker.why(name),
            final_result: Box::new(final_result),
        });
        self.wait_or_use_known_result(attempt, tool, arguments, unavailable).await
    }

    async fn wait_for_resume<'a>(
        &'a self,
        attempt: &'a CallAttempt<'_>,
        tool: &'a RegisteredTool,
        arguments: &RawValue,
        pause: &Pause,
    ) -> Result<ToolAccess<'a>, AttemptOutcome> {
        let name = tool.spec.name.as_str();
        let tenant = &attempt.slice.name.tenant;
        if self.begun_by_another(attempt).await.is_some() {
            return Ok(ToolAccess::Call(CallPermit::always(&self.breakers, name, tenant)));
        }
        let held_ms = u64::try_from(self.store.state().now_ms - pause.since_ms).unwrap_or(0);
        let recheck = (Duration::from_millis(held_ms) / 4).clamp(PAUSE_RECHECK.0, PAUSE_RECHECK.1);
        let error = messages::tool_unavailable(&attempt.call.tool, 0, attempt.tries());
        let unavailable = Box::new(ToolUnavailable {
            delay: recheck,
            at_most: None,
            why: format!("{name} is paused by {}: {}", pause.by, pause.reason),
            // The wait has no maximum, so this result is never used: only the deadline ends the call.
            final_result: Box::new(attempt.result(Outcome::Transient, error)),
        });
        self.wait_or_use_known_result(attempt, tool, arguments, unavailable).await
    }

    async fn wait_or_use_known_result<'a>(
        &self,
        attempt: &CallAttempt<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
        unavailable: Box<ToolUnavailable>,
    ) -> Result<ToolAccess<'a>, AttemptOutcome> {
        let is_known = self.has_known_result(attempt, tool, arguments).await;
        if is_known {
            Ok(ToolAccess::KnownResult(unavailable))
        } else {
            Err(AttemptOutcome::ToolUnavailable(unavailable))
        }
    }

    async fn has_known_result(&self, attempt: &CallAttempt<'_>, tool: &RegisteredTool, arguments: &RawValue) -> bool {
        if tool.spec.effect == Effect::Once {
            return self.claims.is_end_known(attempt, tool, arguments).await;
        }
        match self.cache.lookup_of(attempt, tool, arguments) {
            Some(lookup) => self.cache.has(&lookup).await,
            None => false,
        }
    }

    pub(in crate::calls) fn count_exhausted_wait(&self, tool: &str, final_result: &CallResult) {
        self.metrics.breaker(tool, BreakerEvent::GaveUp);
        // A call that never ran is counted when its result is rendered.
        if final_result.attempts > 0 {
            self.metrics.call_ended(tool, final_result.outcome, None);
        }
    }
}
