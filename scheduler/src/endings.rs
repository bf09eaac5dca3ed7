//! Endings: what nobody runs is rendered here and settled like any result.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_engine::report;
use tickfleet_model::redaction::Redactor;
use tickfleet_model::{Call, limits};
use tickfleet_ops::metrics::{LimitAction, Metrics};
use tickfleet_store::{EndReason, Ending, Settled, Settlement, ShardClock, SliceMeta, Store, StoreError};

use crate::Common;
use crate::decider::Decider;

/// Endings that one script settles.
const ENDINGS_MAX: usize = 64;

/// Settles endings.
pub(crate) struct Endings {
    store: Store,
    clock: Arc<ShardClock>,
    metrics: Arc<Metrics>,
    decider: Arc<Decider>,
}

impl Endings {
    /// Settles endings on the scheduler's shard.
    pub(crate) fn new(common: &Common) -> Self {
        let (store, clock) = (common.store.clone(), common.clock.clone());
        Self { store, clock, metrics: common.metrics.clone(), decider: common.decider.clone() }
    }

    /// Settles endings. What fails is given out again by its timer.
    pub(crate) async fn settle(&self, endings: Vec<Ending>) {
        if endings.is_empty() {
            return;
        }
        let now_ms = self.clock.now_ms();
        let mut rest = endings.as_slice();
        while !rest.is_empty() {
            let (chunk, later) = rest.split_at(length(rest));
            rest = later;
            let (mut endings, mut batch): (Vec<&Ending>, Vec<Settlement>) = (Vec::new(), Vec::new());
            for ending in chunk {
                match self.render(ending, now_ms).await {
                    Ok(rendered) => {
                        endings.extend(rendered.is_some().then_some(ending));
                        batch.extend(rendered);
                    }
                    Err(error) => self.unsettled(&error),
                }
            }
            match self.store.settle(&batch).await {
                Ok(settled) => self.count(&endings, &settled),
                Err(error) if error.is_script_error() && batch.len() > 1 => self.one_by_one(&endings, &batch).await,
                Err(error) => self.unsettled(&error),
            }
        }
    }

    /// Counts the time that a turn took since `submitted_ms`, ms of shard time, if that is known.
    pub(crate) fn turn_ended(&self, submitted_ms: Option<i64>) {
        if let Some(since_ms) = submitted_ms {
            self.metrics.turn_ended(Duration::from_millis((self.clock.now_ms() - since_ms).max(0).unsigned_abs()));
        }
    }

    /// None if nobody can: only a foreign writer leaves such an ending.
    ///
    /// # Errors
    /// [`StoreError`]; its timer gives it out again.
    async fn render(&self, ending: &Ending, now_ms: i64) -> Result<Option<Settlement>, StoreError> {
        let consent = match ending.may_have_begun() {
            true => self.store.used_consent(&ending.name).await?,
            false => None,
        };
        let rendered =
            report::ending(&self.decider.report(), &self.decider.active().policy, ending, consent.as_ref(), now_ms);
        if let Err(problem) = &rendered {
            tracing::error!(turn = %ending.name, problem, "cannot render the reply of an ended turn");
        }
        Ok(rendered.ok())
    }

    async fn one_by_one(&self, endings: &[&Ending], batch: &[Settlement]) {
        for (ending, item) in endings.iter().zip(batch) {
            match self.store.settle(std::slice::from_ref(item)).await {
                Ok(settled) => self.count(&[ending], &settled),
                Err(error) => self.unsettled(&error),
            }
        }
    }

    fn unsettled(&self, error: &StoreError) {
        tracing::warn!(%error, "failed to settle ended turns; their timers retry");
    }

    fn count(&self, endings: &[&Ending], settled: &[Settled]) {
        for (ending, settled) in endings.iter().zip(settled) {
            match settled {
                Settled::Stale => {
                    self.metrics.fenced("settle");
                    continue;
                }
                // Another scheduler has counted it.
                Settled::Already | Settled::Gap => continue,
                Settled::Done => self.turn_ended(SliceMeta::submitted_of(&ending.meta)),
                Settled::Laned | Settled::Continue | Settled::Cancelled => {}
            }
            if ending.is_of_no_calls() {
                continue;
            }
            let redactor = Redactor::default();
            let outcome = |position| report::ended_call(ending, position, "", &redactor).0;
            let active = self.decider.active();
            let mut calls = ending.calls.iter();
            for position in ending.first..ending.upto {
                let call: Option<Call> = calls.next().and_then(|blob| serde_json::from_str(blob).ok());
                let tool = call.as_ref().and_then(|call| active.policy.tool_name(&call.tool));
                self.metrics.call_not_run(tool, outcome(position));
            }
            if let Some(limit) = &ending.limit {
                let calls = ending.upto.saturating_sub(ending.first) as u64;
                self.metrics.limit_reached(&limit.name, LimitAction::Reject, calls);
            }
            if ending.reason == EndReason::Internal {
                self.metrics.quarantined(1);
                tracing::error!(turn = %ending.name, crashes = ending.info, "a slice killed its workers and was quarantined");
            } else if ending.reason != EndReason::Expired {
                tracing::debug!(turn = %ending.name, reason = ending.reason.as_str(), "calls ended without execution");
            }
        }
    }
}

/// Counts the endings that one script settles, by number and by all the calls of their turns; at least one.
fn length(endings: &[Ending]) -> usize {
    let mut calls = 0;
    let fits = |ending: &&Ending| {
        calls += ending.upto;
        calls <= limits::BATCH_CALLS_MAX
    };
    endings.iter().take(ENDINGS_MAX).take_while(fits).count().max(1)
}
