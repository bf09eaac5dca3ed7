use std::sync::Arc;
use std::time::Duration;

use tickfleet_model::Durability;
use tickfleet_model::redaction::Redactor;
use tickfleet_model::retry::RetryDelays;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::Store;
use tokio_util::sync::CancellationToken;

use crate::calls::claims::EffectClaims;
use crate::calls::governed::cache::ResultCache;
use crate::calls::governed::loops::LoopBreaker;
use crate::calls::waiting::breakers::Breakers;
use crate::decision_queues::DecisionQueues;
use crate::journal::WorkerJournal;
use crate::lease_clock::LeaseClock;
use crate::{Common, WorkerOptions};

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
    pub(super) retry_delays: RetryDelays,
    /// The default durability of begin records, and the longest wait for this durability. A tool can set another
    /// durability.
    pub(in crate::calls) durable: (Durability, Duration),
    pub(in crate::calls) output_bytes_max: usize,
    pub(super) redactor: Arc<Redactor>,
    /// Canceled when running calls must stop at once.
    pub(super) now: CancellationToken,
}

impl Calls {
    pub(crate) fn new(
        common: &Common,
        journal: &Arc<WorkerJournal>,
        decisions: &Arc<DecisionQueues>,
        options: &WorkerOptions,
    ) -> Self {
        Self {
            store: common.store.clone(),
            lease_clock: common.lease_clock.clone(),
            journal: journal.clone(),
            decisions: decisions.clone(),
            claims: EffectClaims::new(common),
            cache: ResultCache::new(common),
            loops: LoopBreaker::new(options.loops.clone(), &common.metrics),
            breakers: common.breakers.clone(),
            metrics: common.metrics.clone(),
            retry_delays: options.retry_delays.clone(),
            durable: (options.durable, options.durable_wait),
            output_bytes_max: options.output_bytes_max,
            redactor: options.report.redactor.clone(),
            now: common.now.clone(),
        }
    }
}
