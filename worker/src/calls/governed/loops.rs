//! The loop breaker: an agent that makes the same call with the same result again and again is told so, and is then
//! refused that call for a while. Agents that the model loop runs have their own (`worker/llm`), and are left to it.

use std::collections::BTreeSet;
use std::sync::Arc;

use tickfleet_engine::time::rfc3339;
use tickfleet_model::loops::{IN_CIRCLES, call_hash, result_hash};
use tickfleet_model::turn::inner::outer_turn;
use tickfleet_model::{CallResult, Outcome};
use tickfleet_ops::metrics::{LoopAction, Metrics};
use tickfleet_store::{Repeat, RowBounds, RowCall, RowName};

use crate::calls::messages::{self, CallEnding};
use crate::calls::trying::{Disposition, Trying};
use crate::outbox::Outbox;

/// When an agent goes in circles.
#[derive(Debug, Clone)]
pub struct LoopOptions {
    /// After so many equal calls in a row, their agent is told so.
    pub tell_after: u32,
    /// When such a call is refused, and for how long.
    pub bounds: RowBounds,
    /// Tools that may be asked again and again, by name.
    pub except: Arc<BTreeSet<String>>,
}

/// Breaks loops; nothing where it is switched off.
pub(in crate::calls) struct Loops {
    options: Option<LoopOptions>,
    outbox: Arc<Outbox>,
    metrics: Arc<Metrics>,
}

impl Loops {
    /// The breaker of the worker's shard.
    pub(in crate::calls) fn new(options: Option<LoopOptions>, outbox: &Arc<Outbox>, metrics: &Arc<Metrics>) -> Self {
        Self { options, outbox: Arc::clone(outbox), metrics: Arc::clone(metrics) }
    }

    /// The call in its row, where it is watched. A turn that the model loop or a tool has begun is none of the agent's own.
    pub(in crate::calls) fn row_of(&self, trying: &Trying<'_>) -> Option<RowCall> {
        let options = self.options.as_ref()?;
        let (meta, name) = (&trying.slice.meta, &trying.slice.name);
        // However its model spells it: another spelling is no other call.
        let tool = trying.tool_name();
        let task = meta.task.as_ref().map(|(task, _)| task);
        // As the model loop names its turns.
        let turn = name.turn.as_str();
        let is_step = |task: &str| turn.strip_prefix(task).is_some_and(|rest| rest.starts_with(".step-"));
        let is_step = task.is_some_and(|task| is_step(task.as_str()) || turn.starts_with("step-"));
        if meta.is_task || is_step || outer_turn(&name.turn).is_some() || options.except.contains(tool) {
            return None;
        }
        let row = RowName { tenant: name.tenant.clone(), agent: meta.agent.clone(), task: task.cloned() };
        Some(RowCall { row, hash: call_hash(tool, &trying.call.arguments, &trying.context) })
    }

    /// The ending of a call that is refused for a while.
    pub(in crate::calls) async fn refusal(&self, row: &RowCall, trying: &Trying<'_>) -> Option<Box<CallEnding>> {
        // It has begun: what comes of it is told.
        if trying.attempt > 1 || trying.waited {
            return None;
        }
        let until_ms = self.outbox.brake(row.clone()).await.flatten()?;
        self.metrics.loop_broken(LoopAction::Refused);
        Some(Box::new(refused(trying, until_ms)))
    }

    /// Counts a call that has its result, and tells its agent where it goes in circles.
    pub(in crate::calls) async fn count(&self, row: RowCall, result: &mut CallResult) {
        let Some(options) = &self.options else { return };
        let repeat = Repeat { call: row, result: result_hash(result), by: result.call.clone(), bounds: options.bounds };
        let Some(repeated) = self.outbox.count_repeat(repeat).await else { return };
        if repeated.count < u64::from(options.tell_after) {
            return;
        }
        self.metrics.loop_broken(LoopAction::Told);
        result.note = Some(note(repeated.count, repeated.refused_until_ms));
    }
}

/// What an agent is told with the result of a call that it has made before.
fn note(count: u64, refused_until_ms: Option<i64>) -> String {
    let refused = refused_until_ms.map(|ms| format!(" It is refused until {}.", rfc3339(ms))).unwrap_or_default();
    format!(
        "You have made this same call {count} times in a row, and each time got the same result. {IN_CIRCLES}{refused}"
    )
}

/// The end of a call that is not carried out, for it came too often.
fn refused(trying: &Trying<'_>, until_ms: i64) -> CallEnding {
    let (tool, until) = (&trying.call.tool, rfc3339(until_ms));
    // A read that ran beside one that is tried again was dropped, and would be read again now.
    let not_executed = if trying.slice.may_have_been_held() { "" } else { ", and was not executed" };
    let told = format!(
        "You have made this same call of {tool:?} again and again, and each time got the same result. It is refused until \
         {until}{not_executed}. {IN_CIRCLES}"
    );
    let mut error = messages::error(Outcome::Denied, told);
    error.details = Some(serde_json::json!({ "reason": "loop", "until": until }));
    CallEnding { outcome: Outcome::Denied, error }
}

impl Loops {
    /// As [`Self::count`], of whatever has become of the call: one that goes on elsewhere has no result yet.
    pub(in crate::calls) async fn count_end(&self, row: Option<RowCall>, carried: &mut Disposition) {
        if let (Some(row), Disposition::Ended(result, _)) = (row, carried) {
            self.count(row, result).await;
        }
    }
}
