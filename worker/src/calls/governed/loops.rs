//! The loop breaker: an agent that repeats a call with the same result gets a note, and then a denial.

use std::collections::BTreeSet;
use std::sync::Arc;

use tickfleet_core::call::begin::StreakCheck;
use tickfleet_core::call::streak::{Repeat, Streak, StreakBounds, StreakCount, StreakName};
use tickfleet_engine::time::rfc3339;
use tickfleet_model::loops::{LOOP_ADVICE, call_hash, result_hash};
use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{CallResult, Outcome};
use tickfleet_ops::metrics::{LoopAction, Metrics};

use crate::calls::call_attempt::{AttemptOutcome, CallAttempt, may_have_been_held};
use crate::calls::messages;

#[derive(Debug, Clone)]
pub struct LoopOptions {
    /// Equal calls in a row after which the agent gets a note.
    pub warn_after: u32,
    pub bounds: StreakBounds,
    pub except: Arc<BTreeSet<String>>,
}

pub(in crate::calls) struct LoopBreaker {
    options: Option<LoopOptions>,
    metrics: Arc<Metrics>,
}

impl LoopBreaker {
    pub(in crate::calls) fn new(options: Option<LoopOptions>, metrics: &Arc<Metrics>) -> Self {
        Self { options, metrics: Arc::clone(metrics) }
    }

    /// `None` also in turns that the model loop or a tool has begun: such calls do not count as the agent's own.
    pub(in crate::calls) fn check_of(&self, attempt: &CallAttempt<'_>) -> Option<StreakCheck> {
        let options = self.options.as_ref()?;
        let head = attempt.head();
        let name = &attempt.slice.name;
        // Models may spell the tool's name differently, so use the tool's own name.
        let tool = attempt.tool_name();
        let task = head.task.as_ref().map(|(task, _)| task);
        // The model loop gives its turns these names, so its turns are recognized by name.
        let turn = name.turn.as_str();
        let is_step = |task: &str| turn.strip_prefix(task).is_some_and(|rest| rest.starts_with(".step-"));
        let is_step = task.is_some_and(|task| is_step(task.as_str()) || turn.starts_with("step-"));
        if attempt.is_task() || is_step || outer_turn(&name.turn).is_some() || options.except.contains(tool) {
            return None;
        }
        let name = StreakName { tenant: name.tenant.clone(), agent: head.agent.clone(), task: task.cloned() };
        Some(StreakCheck { name, hash: call_hash(tool, &attempt.call.arguments, &attempt.context) })
    }

    /// Checks the unsettled calls of this slice, because the stored streak does not contain them yet.
    pub(in crate::calls) fn refused_by_unsettled(
        &self,
        check: &StreakCheck,
        attempt: &CallAttempt<'_>,
        now_ms: i64,
    ) -> Option<AttemptOutcome> {
        // A call that has begun is not denied, because its outcome must be reported.
        if !attempt.is_first() || attempt.unsettled.is_empty() {
            return None;
        }
        let stored = attempt.view.record::<Streak>(&check.name.key()).ok().flatten();
        let mut streak = stored.map(|stored| stored.value).unwrap_or_default();
        for (_, bounds, repeat) in attempt.unsettled.iter().filter(|(name, ..)| *name == check.name) {
            streak.count(repeat, bounds, now_ms);
        }
        let until_ms = streak.refused_until(&check.hash, now_ms)?;
        Some(self.refused(attempt, until_ms))
    }

    pub(in crate::calls) fn refused(&self, attempt: &CallAttempt<'_>, until_ms: i64) -> AttemptOutcome {
        self.metrics.loop_broken(LoopAction::Denied);
        let tool = &attempt.call.tool;
        let until = rfc3339(until_ms);
        // This call may be a read that ran in parallel to a retried call, and is repeated now. So it may already have
        // been executed.
        let not_executed = if may_have_been_held(attempt.slice) { "" } else { ", and was not executed" };
        let message = format!(
            "You have made the same call of {tool:?} repeatedly and got the same result each time. It is denied until \
             {until}{not_executed}. {LOOP_ADVICE}"
        );
        let mut error = messages::error(Outcome::Denied, message);
        error.details = Some(serde_json::json!({ "reason": "loop", "until": until }));
        attempt.refused(Outcome::Denied, error)
    }

    /// A call that continues elsewhere has no result yet, so it is not counted.
    pub(in crate::calls) fn count_end(
        &self,
        check: Option<StreakCheck>,
        attempt: &CallAttempt<'_>,
        outcome: &AttemptOutcome,
    ) {
        let (Some(options), Some(check), AttemptOutcome::Ended(result, _)) = (&self.options, check, outcome) else {
            return;
        };
        let repeat = repeat_of(&check, attempt, result);
        attempt.progress.lock().effects.repeat = Some((check.name, options.bounds, repeat));
    }

    pub(in crate::calls) fn note(&self, counted: StreakCount) -> Option<String> {
        let options = self.options.as_ref()?;
        let StreakCount { count, refused_until_ms } = counted;
        if count < u64::from(options.warn_after) {
            return None;
        }
        self.metrics.loop_broken(LoopAction::Warned);
        let refused = refused_until_ms.map(|ms| format!(" It is denied until {}.", rfc3339(ms))).unwrap_or_default();
        Some(format!(
            "You have made the same call {count} times in a row and got the same result each time. {LOOP_ADVICE}{refused}"
        ))
    }
}

fn repeat_of(check: &StreakCheck, attempt: &CallAttempt<'_>, result: &CallResult) -> Repeat {
    Repeat { hash: check.hash.clone(), result: result_hash(result), by: attempt.name() }
}
