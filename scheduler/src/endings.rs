//! Endings: what nobody runs is rendered here and settled like any result.

use shared::model::Outcome;
use shared::report;
use shared::store::{EndReason, Ending, Settled, Settlement, StoreError};

use crate::Scheduler;

impl Scheduler {
    /// Settles endings. What fails is given out again by its timer.
    pub(crate) async fn settle_endings(&self, endings: Vec<Ending>) {
        if endings.is_empty() {
            return;
        }
        let now_ms = self.clock.now_ms();
        for chunk in endings.chunks(64) {
            let batch: Vec<Settlement> = chunk.iter().filter_map(|e| self.render(e, now_ms)).collect();
            match self.store.settle(&batch).await {
                Ok(settled) => self.count(chunk, &settled),
                Err(error) if error.is_script_error() && batch.len() > 1 => self.one_by_one(&batch).await,
                Err(error) => self.unsettled(&error),
            }
        }
    }

    fn render(&self, ending: &Ending, now_ms: i64) -> Option<Settlement> {
        let rendered = report::ending(&self.report(), ending, now_ms);
        if let Err(problem) = &rendered {
            tracing::error!(turn = %ending.name, problem, "an ending cannot be rendered");
        }
        rendered.ok()
    }

    async fn one_by_one(&self, batch: &[Settlement]) {
        for item in batch {
            if let Err(error) = self.store.settle(std::slice::from_ref(item)).await {
                self.unsettled(&error);
            }
        }
    }

    fn unsettled(&self, error: &StoreError) {
        self.metrics.redis_error("settle");
        tracing::warn!(%error, "endings are not settled; their timers give them out again");
    }

    fn count(&self, endings: &[Ending], settled: &[Settled]) {
        for (ending, settled) in endings.iter().zip(settled) {
            if *settled == Settled::Stale {
                self.metrics.fenced("settle");
                continue;
            }
            let outcome = report::ended(ending.reason, ending.info).0;
            for _ in ending.first..ending.upto {
                self.metrics.call_ended("", outcome, None);
            }
            if ending.reason == EndReason::Internal {
                self.metrics.quarantined(1);
                tracing::error!(turn = %ending.name, crashes = ending.info, "a slice killed its workers and was quarantined");
            } else if outcome != Outcome::Expired {
                tracing::debug!(turn = %ending.name, reason = ending.reason.as_str(), "calls ended without running");
            }
        }
    }
}
