//! Evaluates the limits of the active policy in one shard.

use std::sync::Arc;

use tickfleet_core::keys::TurnName;
use tickfleet_core::turn::Head;
use tickfleet_core::turn::limit::{Debit, Generations, LimitDecision, ResolvedCaps, ResolvedLimit};
use tickfleet_model::limit::counters::{Debits, LimitCaller, counters};
use tickfleet_model::policy::{AgentPolicy, TenantPolicy, UnknownCaller};
use tickfleet_model::{AgentId, Call, Limit, Policy, TenantId};

use crate::active_policy::ActivePolicy;
use crate::resolved_limits::{counter_of, known_zone};

/// The maxima of limits on slots depend on the number of slots that a process has counted.
pub trait SlotBounds: Sync {
    /// False for a limit on a share of the slots, while there are enough slots for every tenant.
    fn counts(&self, limit: &Limit) -> bool;

    fn max_of(&self, limit: &Limit, tenant: &TenantId) -> Option<u64>;
}

#[derive(Debug, Clone, Copy)]
pub struct NoSlotBounds;

impl SlotBounds for NoSlotBounds {
    fn counts(&self, limit: &Limit) -> bool {
        !limit.bound.is_of_slots()
    }

    fn max_of(&self, _limit: &Limit, _tenant: &TenantId) -> Option<u64> {
        None
    }
}

#[derive(Clone)]
pub struct ActiveRules<'a> {
    pub active: Arc<ActivePolicy>,
    pub generations: Generations,
    /// The shard, and the number of shards.
    pub shard: (u32, u32),
    pub slots: &'a dyn SlotBounds,
}

impl std::fmt::Debug for ActiveRules<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ActiveRules({:?}, shard {:?})", self.generations, self.shard)
    }
}

impl tickfleet_core::turn::limit::Policy for ActiveRules<'_> {
    fn rules(&self, name: &TurnName, head: &Head, calls: &[Call]) -> LimitDecision {
        let policy = &self.active.policy;
        match policy.look_up(&name.tenant, &head.agent) {
            Ok((owner, agent)) => LimitDecision::Debits(self.debits(name, head, calls, owner, agent)),
            Err(UnknownCaller::Tenant | UnknownCaller::Agent) => LimitDecision::AgentRemoved,
            Err(UnknownCaller::Withheld) => LimitDecision::Withheld,
        }
    }

    fn generations(&self) -> Generations {
        self.generations
    }
}

impl ActiveRules<'_> {
    fn debits(
        &self,
        name: &TurnName,
        head: &Head,
        calls: &[Call],
        owner: &TenantPolicy,
        agent: &AgentPolicy,
    ) -> Vec<Debit> {
        let policy = &self.active.policy;
        let tenant = &name.tenant;
        let mut caps = policy.caps(owner, agent);
        // With 0 calls per tick, turns of a paused agent wait in the tick queue, at most until their deadlines.
        if policy.pause(tenant, &head.agent).is_some() {
            caps.calls_per_tick = 0;
        }
        let rows = ResolvedCaps::new(&caps, known_zone(policy.time_zone(owner)));
        let stagger_ms = stagger_ms(tenant, &head.agent, caps.tick_ms);
        let mut debits = rows.debits(tenant, &head.agent, stagger_ms, calls.len());
        debits.extend(self.limit_debits(tenant, head, calls, owner, agent));
        debits
    }

    fn limit_debits(
        &self,
        tenant: &TenantId,
        head: &Head,
        calls: &[Call],
        owner: &TenantPolicy,
        agent: &AgentPolicy,
    ) -> Vec<Debit> {
        let policy = &self.active.policy;
        if !policy.limits.iter().any(|limit| self.slots.counts(limit)) {
            return Vec::new();
        }
        let caller = LimitCaller {
            tenant,
            owner,
            agent: &head.agent,
            policy: agent,
            context: &head.context,
            task: head.task.as_ref().map(|(task, _)| task),
            parallel_reads: head.parallel_reads,
        };
        let found = counters(&policy.limits, &policy.known_tools, &caller, calls);
        found.into_iter().filter_map(|debits| self.limit_debit(policy, owner, tenant, debits)).collect()
    }

    fn limit_debit(
        &self,
        policy: &Policy,
        owner: &TenantPolicy,
        tenant: &TenantId,
        Debits { limit, key, amounts }: Debits,
    ) -> Option<Debit> {
        let limit = policy.limits.get(limit).filter(|limit| self.slots.counts(limit))?;
        let mut resolved = ResolvedLimit::configured(policy, owner, limit, self.shard);
        if let Some(max) = self.slots.max_of(&owner.limit(limit), tenant) {
            resolved.max = max;
        }
        let (counter, stagger_ms) = counter_of(&resolved, &key);
        Some(Debit { limit: Arc::new(resolved), counter, stagger_ms, amounts })
    }
}

/// Smaller than a tick. A stable hash keeps a million agents from waking at the same moment.
#[must_use]
pub fn stagger_ms(tenant: &TenantId, agent: &AgentId, tick_ms: i64) -> i64 {
    let mut hash = crc32fast::Hasher::new();
    hash.update(tenant.as_str().as_bytes());
    hash.update(b":");
    hash.update(agent.as_str().as_bytes());
    i64::from(hash.finalize()) % tick_ms.max(1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, clippy::indexing_slicing, reason = "a test fails by panicking")]

    use tickfleet_core::turn::limit::Policy as _;
    use tickfleet_model::policy::{Pause, Paused};

    use super::*;

    fn rules(active: ActivePolicy) -> ActiveRules<'static> {
        ActiveRules {
            active: Arc::new(active),
            generations: Generations::default(),
            shard: (0, 1),
            slots: &NoSlotBounds,
        }
    }

    #[test]
    fn a_pause_sets_the_agents_tick_limit_to_zero() {
        let tenant = TenantId::new("acme").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        let name = TurnName::parse("acme:t1").unwrap();
        let head: Head = serde_json::from_str(r#"{"ag": "kelly", "dl": 0, "dg": "d", "n": 1}"#).unwrap();
        let calls = [Call { provider_id: None, tool: "echo".into(), arguments: "{}".into() }];
        let mut active = ActivePolicy::default();
        assert!(matches!(rules(active.clone()).rules(&name, &head, &calls), LimitDecision::AgentRemoved));
        active.policy.tenants.insert(tenant.clone(), TenantPolicy::default());
        active.policy.agents = Arc::new([(agent, AgentPolicy::default())].into());
        let tick = |active: &ActivePolicy| {
            let LimitDecision::Debits(debits) = rules(active.clone()).rules(&name, &head, &calls) else {
                panic!("no debits")
            };
            let tick = debits.iter().find(|debit| &*debit.limit.name == "_tick").unwrap();
            (tick.limit.max, tick.amounts.clone())
        };
        assert_eq!(tick(&active), (10, vec![Some(1)]));
        active
            .policy
            .paused
            .insert(Paused { tenant, agent: None }, Pause { by: "ann".into(), reason: String::new(), since_ms: 0 });
        assert_eq!(tick(&active).0, 0);
    }
}
