use std::sync::Arc;

use tickfleet_config::WorkerSettings;
use tickfleet_engine::report::ReportOptions;
use tickfleet_model::redaction::Redactor;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::Store;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::calls::claims::EffectClaims;
use crate::calls::governed::cache::ResultCache;
use crate::calls::governed::consent::Approvals;
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
    pub(super) approvals: Approvals,
    pub(super) claims: EffectClaims,
    pub(super) cache: ResultCache,
    pub(super) loops: LoopBreaker,
    pub(super) breakers: Breakers,
    pub(super) metrics: Arc<Metrics>,
    pub(super) settings: WorkerSettings,
    pub(super) redactor: Arc<Redactor>,
    /// Canceled when running calls must stop at once.
    pub(super) now: CancellationToken,
}

impl Calls {
    pub(crate) fn new(
        common: &Common,
        journal: &Arc<WorkerJournal>,
        decisions: &Arc<DecisionQueues>,
        settings: &WorkerSettings,
        loops: Option<LoopOptions>,
        report: &ReportOptions,
    ) -> Self {
        Self {
            store: common.store.clone(),
            lease_clock: common.lease_clock.clone(),
            journal: journal.clone(),
            decisions: decisions.clone(),
            approvals: Approvals::new(common, &report.redactor),
            claims: EffectClaims::new(common),
            cache: ResultCache::new(common),
            loops: LoopBreaker::new(loops, &common.metrics),
            breakers: common.breakers.clone(),
            metrics: common.metrics.clone(),
            settings: settings.clone(),
            redactor: report.redactor.clone(),
            now: common.now.clone(),
        }
    }
}
