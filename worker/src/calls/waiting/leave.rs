//! Decides whether a call's tool is called at all.

use std::time::Duration;

use serde_json::value::RawValue;
use tickfleet_model::policy::Pause;
use tickfleet_model::{CallResult, Effect, Outcome};
use tickfleet_ops::metrics::BreakerEvent;

use crate::calls::messages;
use crate::calls::state::Calls;
use crate::calls::trying::{Disposition, RestingCall, Trying};
use crate::calls::waiting::breakers::Leave;
use crate::calls::waiting::permit::Permit;
use crate::tools::RegisteredTool;

/// Calls to a paused tool are checked again after a quarter of the time that it has been paused, within these bounds.
/// Thus many waiting calls cost little, and short pauses end quickly.
const PAUSED_LOOK: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(60));

impl Calls {
    /// Returns what the call may do, before people are asked and before their consent is used. If its tool is
    /// unavailable and no result is known without it, returns the call's disposition. The tool of a task is its agent,
    /// whose models have circuit breakers of their own. A call that has begun work elsewhere continues.
    pub(in crate::calls) async fn leave<'a>(
        &'a self,
        trying: &'a Trying<'_>,
        tool: &'a RegisteredTool,
        arguments: &RawValue,
    ) -> Result<Permit<'a>, Disposition> {
        let (name, tenant) = (tool.spec.name.as_str(), &trying.slice.name.tenant);
        if trying.is_task() || trying.waited {
            return Ok(Permit::Call(Leave::always(&self.breakers, name, tenant)));
        }
        if let Some(pause) = trying.config.active.policy.tool_pause(tenant, &tool.spec) {
            return self.wait_for_resume(trying, tool, arguments, pause).await;
        }
        let resting = match self.breakers.leave(name, tenant, &self.metrics) {
            Ok(leave) => return Ok(Permit::Call(leave)),
            Err(resting) => resting,
        };
        // Invariant 21: otherwise it would be reported as not sent. A call that has begun is not begun again, and may
        // be reconciled.
        if self.begun_by_another(trying).await.is_some() {
            return Ok(Permit::Call(Leave::always(&self.breakers, name, tenant)));
        }
        let tries = trying.tries();
        let error = messages::rested(&trying.call.tool, resting.endurance.failures_max, tries);
        let over = CallResult { attempts: tries, ..trying.result(Outcome::Transient, error) };
        let rests = Box::new(RestingCall {
            delay: resting.looks_again_after(&trying.id),
            at_most: Some(self.ladder.longest_from(trying.attempt, resting.slowest)),
            why: resting.why(name),
            over: Box::new(over),
        });
        self.rest_or_answer(trying, tool, arguments, rests).await
    }

    /// A call of a tool that an operator has paused. It waits until the pause ends, at most until its deadline.
    async fn wait_for_resume<'a>(
        &'a self,
        trying: &'a Trying<'_>,
        tool: &'a RegisteredTool,
        arguments: &RawValue,
        pause: &Pause,
    ) -> Result<Permit<'a>, Disposition> {
        let (name, tenant) = (tool.spec.name.as_str(), &trying.slice.name.tenant);
        if self.begun_by_another(trying).await.is_some() {
            return Ok(Permit::Call(Leave::always(&self.breakers, name, tenant)));
        }
        let held_ms = u64::try_from(self.store.state().now_ms - pause.since_ms).unwrap_or(0);
        let look = (Duration::from_millis(held_ms) / 4).clamp(PAUSED_LOOK.0, PAUSED_LOOK.1);
        let error = messages::rested(&trying.call.tool, 0, trying.tries());
        let rests = Box::new(RestingCall {
            delay: look,
            at_most: None,
            why: format!("{name} is paused by {}: {}", pause.by, pause.reason),
            // Waiting never ends this call; only its deadline does.
            over: Box::new(trying.result(Outcome::Transient, error)),
        });
        self.rest_or_answer(trying, tool, arguments, rests).await
    }

    /// Lets a call wait, unless its result is known without the tool.
    async fn rest_or_answer<'a>(
        &self,
        trying: &Trying<'_>,
        tool: &RegisteredTool,
        arguments: &RawValue,
        rests: Box<RestingCall>,
    ) -> Result<Permit<'a>, Disposition> {
        let has_answer = self.has_kept_answer(trying, tool, arguments).await;
        if has_answer { Ok(Permit::KeptAnswer(rests)) } else { Err(Disposition::Rests(rests)) }
    }

    /// Returns true if the call's result is known without its tool: it is cached, or an equal call has it.
    async fn has_kept_answer(&self, trying: &Trying<'_>, tool: &RegisteredTool, arguments: &RawValue) -> bool {
        if tool.spec.effect == Effect::Once {
            return self.ledger.knows_end(trying, tool, arguments).await;
        }
        match self.cache.asked(trying, tool, arguments) {
            Some(question) => self.cache.has(&question).await,
            None => false,
        }
    }

    /// Counts the end of a call that has waited for its tool as long as it may.
    pub(in crate::calls) fn gave_up_resting(&self, tool: &str, over: &CallResult) {
        self.metrics.breaker(tool, BreakerEvent::GaveUp);
        // A call that never ran is counted when its result is rendered.
        if over.attempts > 0 {
            self.metrics.call_ended(tool, over.outcome, None);
        }
    }
}
