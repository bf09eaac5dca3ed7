//! By which policy this scheduler decides, under which name, and until when.

use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tickfleet_core::turn::limit::Generations;
use tickfleet_engine::active_policy::{ActivePolicy, PolicyHandle};
use tickfleet_engine::report::ReportOptions;
use tickfleet_model::ConsumerId;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::{Announced, Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::policy::{Deciding, PolicyClock, ShardSlots};

/// The state that tells whether a scheduler may decide, and by what.
pub(crate) struct Decider {
    store: Store,
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    policy: PolicyClock,
    /// Cancelled when the present incarnation ends: loops that wait for Redis give up then.
    stopping: ArcSwap<CancellationToken>,
    /// The name of the present incarnation.
    consumer: ArcSwapOption<ConsumerId>,
    report: ReportOptions,
}

impl Decider {
    /// Decides nothing before a policy is announced.
    pub(crate) fn new(store: Store, active: Arc<PolicyHandle>, metrics: Arc<Metrics>, report: ReportOptions) -> Self {
        let (policy, stopping, consumer) = (PolicyClock::default(), ArcSwap::default(), ArcSwapOption::default());
        Self { store, active, metrics, policy, stopping, consumer, report }
    }

    /// The name of a new incarnation.
    pub(crate) fn take_name(&self, consumer: &ConsumerId) {
        self.consumer.store(Some(Arc::new(consumer.clone())));
    }

    /// An incarnation begins, which is over when `stop` is cancelled.
    pub(crate) fn begin(&self, stop: &CancellationToken) {
        self.stopping.store(Arc::new(stop.clone()));
    }

    /// Returns true if the present incarnation is over.
    pub(crate) fn is_over(&self) -> bool {
        self.stopping.load().is_cancelled()
    }

    /// The generation of the policy that was announced, and the days of its time zones.
    pub(crate) const fn policy(&self) -> &PolicyClock {
        &self.policy
    }

    /// The policy and tools in force here.
    pub(crate) fn active(&self) -> Arc<ActivePolicy> {
        self.active.load()
    }

    /// Returns what a call costs at admission, where 1 is one without limits: each may have to be looked at, and of eight
    /// about one meets a call.
    pub(crate) fn cost_of_call(&self) -> usize {
        1 + self.active.load().policy.limits.len() / 8
    }

    /// Returns how endings are reported.
    pub(crate) fn report(&self) -> ReportOptions {
        let policy = self.policy.announced();
        ReportOptions {
            policy_version: Some(policy.generation),
            policy_digest: Arc::clone(&policy.short),
            ..self.report.clone()
        }
    }

    /// Reports what the last commits say about the store: a restart, a jump of its clock. Ends the incarnation if a newer
    /// policy is in force, and reads changed run-time settings.
    pub(crate) async fn heard(&self) {
        let state = self.store.state();
        self.policy.saw_jump(self.store.take_jump_ms(), &self.metrics);
        self.policy.saw_epoch(state.epoch_began_ms, &self.metrics);
        if state.policy > self.policy.generation() && self.policy.generation() > 0 {
            self.policy_stale();
        }
        // A decision that relies on older settings is refused, so a failure here is repeated there.
        if let Err(error) = self.active.refresh(&self.store).await {
            tracing::warn!(%error, "failed to read run-time settings; the last ones read stay in force");
        }
    }

    /// A decision relied on a policy or on settings that are not in force any more. Ends the incarnation, or reads the settings.
    ///
    /// # Errors
    /// [`StoreError`].
    pub(crate) async fn stale(&self) -> Result<(), StoreError> {
        if self.store.refresh_state().await?.policy > self.policy.generation() {
            self.policy_stale();
            return Ok(());
        }
        tracing::debug!("run-time settings changed; reading them");
        self.active.refresh(&self.store).await
    }

    /// Says by which policy we decide: at the start, after a reload, and when Redis has lost it.
    pub(crate) async fn announce(&self, active: &ActivePolicy, take: bool) -> Result<Announced, StoreError> {
        let consumer = self.consumer.load();
        let announced = self.store.announce(&active.digest, consumer.as_deref(), take).await?;
        if let Announced::InForce { generation } = announced {
            let before = self.policy.announced();
            self.policy.set_announced(&active.digest, generation);
            self.metrics.config_in_force(active.short_digest(), generation);
            if (before.digest.as_str(), before.generation) != (active.digest.as_str(), generation) {
                tracing::info!(policy = active.short_digest(), generation, "policy in force");
            }
        }
        Ok(announced)
    }

    /// The policy to decide by. After a reload the new policy is announced first: no batch is decided by a policy under
    /// another's generation. None if a newer one is in force; then this incarnation ends.
    pub(crate) async fn deciding(&self) -> Result<Option<Deciding>, StoreError> {
        let active = self.active.load();
        let announced = self.policy.announced();
        if announced.digest == active.digest {
            return Ok(Some(self.by(active, announced.generation)));
        }
        match self.announce(&active, false).await? {
            Announced::InForce { generation } => Ok(Some(self.by(active, generation))),
            Announced::Older { .. } => {
                self.policy_stale();
                Ok(None)
            }
        }
    }

    /// A policy with what was set at run time, and the generations that this shard knows them under.
    fn by(&self, active: Arc<ActivePolicy>, policy: u64) -> Deciding {
        let generations = Generations { policy, settings: active.tenants_generation(self.store.shard()) };
        let (shard, shards) = (self.store.shard(), self.store.options().shards);
        let slots = ShardSlots {
            active: Arc::clone(&active),
            slots: Arc::clone(self.policy.slots()),
            shards,
            now_ms: self.store.state().now_ms,
        };
        Deciding { active, generations, shard: (shard, shards), slots, report: self.report() }
    }

    /// As the one that begins is about to hear again, for as long as it stands by.
    pub(crate) fn still_stale(&self) {
        self.metrics.policy_stale();
    }

    /// A newer policy is in force than ours: another replica has a newer configuration. This incarnation ends.
    pub(crate) fn policy_stale(&self) {
        self.metrics.policy_stale();
        self.stopping.load().cancel();
    }

    /// Streams or groups are gone: somebody has flushed Redis. They are made anew, with a signal that people see.
    pub(crate) async fn state_lost(&self, what: &str) {
        self.metrics.state_lost();
        tracing::error!(what, "streams or groups of the shard are missing; recreating them");
        if let Err(error) = self.store.ensure_groups().await {
            tracing::warn!(%error, "failed to recreate streams and groups");
        }
        if let Err(error) = self.announce(&self.active.load(), false).await {
            tracing::warn!(%error, "failed to announce the policy again");
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}
