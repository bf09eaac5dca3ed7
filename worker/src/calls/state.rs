use std::sync::Arc;
use std::time::Duration;

use tickfleet_model::Durability;
use tickfleet_model::redaction::Redactor;
use tickfleet_model::retry::Ladder;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::Store;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::calls::claims::EffectClaims;
use crate::calls::governed::cache::ResultCache;
use crate::calls::governed::loops::{LoopBreaker, LoopOptions};
use crate::calls::waiting::breakers::Breakers;
use crate::decision_queues::DecisionQueues;
use crate::journal::WorkerJournal;
use crate::lease_clock::LeaseClock;

pub(crate) struct Calls {
    pub(super) store: Store,
    pub(super) lease_clock: Arc<LeaseClock>,
    pub(super) journal: Arc<WorkerJournal>,
    pub(super) decisions: Arc<DecisionQueues>,
    pub(super) claims: EffectClaims,
    pub(super) cache: ResultCache,
    pub(super) loops: LoopBreaker,
    pub(super) breakers: Breakers,
    pub(super) metrics: Arc<Metrics>,
    pub(super) ladder: Ladder,
    /// The default durability of a begin, and the longest wait for its confirmation. A tool can set another
    /// durability.
    pub(in crate::calls) durable: (Durability, Duration),
    pub(super) redactor: Arc<Redactor>,
    /// Canceled when running calls must stop at once.
    pub(super) now: CancellationToken,
}

impl Calls {
    /// `ladder` has the waits between attempts. `redactor` removes secrets from messages about calls. `durable` is
    /// the default durability of begins, with the longest wait for its confirmation. `loops` configures the loop
    /// breaker; `None` disables it.
    pub(crate) fn new(
        common: &Common,
        journal: &Arc<WorkerJournal>,
        decisions: &Arc<DecisionQueues>,
        ladder: Ladder,
        redactor: Arc<Redactor>,
        durable: (Durability, Duration),
        loops: Option<LoopOptions>,
    ) -> Self {
        Self {
            store: common.store.clone(),
            lease_clock: common.lease_clock.clone(),
            journal: journal.clone(),
            decisions: decisions.clone(),
            claims: EffectClaims::new(common),
            cache: ResultCache::new(common),
            loops: LoopBreaker::new(loops, &common.metrics),
            breakers: common.breakers.clone(),
            metrics: common.metrics.clone(),
            ladder,
            durable,
            redactor,
            now: common.now.clone(),
        }
    }
}
