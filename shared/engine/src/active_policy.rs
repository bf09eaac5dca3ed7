//! The active policy: the configured policy combined with the run-time settings.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use tickfleet_config::TaskHandlerDef;
use tickfleet_core::settings::{ChangeSetting, Origin};
use tickfleet_model::policy::{Pause, Paused, PausedTool, TenantPolicy};
use tickfleet_model::{AgentId, Policy, TenantId};
use tickfleet_rules::Rulebook;
use tickfleet_store::{RunTimeSettings, Store, StoreError};

#[derive(Debug, Clone, Default)]
pub struct ActivePolicy {
    pub policy: Policy,
    pub task_handlers: BTreeMap<AgentId, TaskHandlerDef>,
    /// Compiled from the permissions in `policy` when the snapshot takes effect.
    pub rules: Rulebook,
    /// Digest of the configuration files, without the run-time settings.
    pub digest: String,
    /// By shard: the generation of the run-time tenants in `policy`.
    pub tenants_generation: BTreeMap<u32, u64>,
}

impl ActivePolicy {
    #[must_use]
    pub fn tenants_generation(&self, shard: u32) -> u64 {
        self.tenants_generation.get(&shard).copied().unwrap_or(0)
    }

    #[must_use]
    pub fn short_digest(&self) -> &str {
        short_digest(&self.digest)
    }
}

#[must_use]
pub fn short_digest(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// Readers take a snapshot and are never blocked. Run-time settings are kept per shard and merged.
#[derive(Debug)]
pub struct PolicyHandle {
    current: ArcSwap<ActivePolicy>,
    /// Writers hold this lock, so that no change is lost.
    sources: Mutex<PolicySources>,
    /// Responses can arrive out of order. A response that is older than the applied response is dropped.
    reads: AtomicU64,
}

#[derive(Debug, Default)]
struct PolicySources {
    configured: BTreeMap<TenantId, TenantPolicy>,
    /// These settings override the configuration.
    shards: BTreeMap<u32, ShardSettings>,
}

/// One read returns all settings that affect decisions. No decision is made before the first read.
#[derive(Debug, Default)]
struct ShardSettings {
    read_number: u64,
    generation: u64,
    tenants: BTreeMap<TenantId, TenantPolicy>,
    /// Tenants with unreadable settings that were never read successfully.
    withheld: BTreeSet<TenantId>,
    tools_off: BTreeSet<String>,
    pauses: BTreeMap<Paused, Pause>,
    tool_pauses: BTreeMap<PausedTool, Pause>,
}

#[derive(Debug, Default, PartialEq, Eq)]
struct LostSettings {
    tenants: BTreeMap<TenantId, TenantPolicy>,
    tools_off: BTreeSet<String>,
    pauses: BTreeMap<Paused, Pause>,
    tool_pauses: BTreeMap<PausedTool, Pause>,
}

impl ShardSettings {
    /// The last readable declaration of a tenant stays in force. A tenant without a readable declaration is withheld.
    /// Returns the settings that the store has lost.
    fn apply_read(&mut self, read_number: u64, read: RunTimeSettings) -> LostSettings {
        let known = std::mem::take(&mut self.tenants);
        let mut lost = BTreeSet::new();
        let mut tools_off = read.tools_off;
        let mut lost_tools = BTreeSet::new();
        let mut pauses = read.pauses;
        let mut lost_pauses = BTreeMap::new();
        let mut tool_pauses = read.tool_pauses;
        let mut lost_tool_pauses = BTreeMap::new();
        if read.generation < self.generation {
            // The store has restarted and lost changes, so the settings that were known before stay in force.
            lost_tools = self.tools_off.difference(&tools_off).cloned().collect();
            tools_off.extend(lost_tools.iter().cloned());
            lost_pauses = keep_known(&self.pauses, &mut pauses);
            lost_tool_pauses = keep_known(&self.tool_pauses, &mut tool_pauses);
            lost.extend(known.keys().filter(|t| !read.tenants.contains_key(*t)).cloned());
        }
        let mut tenants = read.tenants;
        let mut withheld = BTreeSet::new();
        let mut restored = BTreeMap::new();
        for tenant in lost.iter().chain(read.unreadable.keys()) {
            match known.get(tenant) {
                Some(policy) => {
                    tenants.insert(tenant.clone(), policy.clone());
                    if !read.unreadable.contains_key(tenant) {
                        restored.insert(tenant.clone(), policy.clone());
                    }
                }
                None => drop(withheld.insert(tenant.clone())),
            }
        }
        for tenant in withheld.difference(&self.withheld) {
            let problem = read.unreadable.get(tenant).map_or("", String::as_str);
            tracing::error!(%tenant, problem, "unreadable declaration of a run-time tenant; admission for it stops");
        }
        *self = Self { read_number, generation: read.generation, tenants, withheld, tools_off, pauses, tool_pauses };
        LostSettings { tenants: restored, tools_off: lost_tools, pauses: lost_pauses, tool_pauses: lost_tool_pauses }
    }
}

fn keep_known<K: Ord + Clone, V: Clone>(known: &BTreeMap<K, V>, read: &mut BTreeMap<K, V>) -> BTreeMap<K, V> {
    let mut lost = known.clone();
    lost.retain(|who, _| !read.contains_key(who));
    read.extend(lost.iter().map(|(who, what)| (who.clone(), what.clone())));
    lost
}

impl PolicySources {
    fn put_into(&self, active: &mut ActivePolicy) {
        let policy = &mut active.policy;
        policy.tenants = self.configured.clone();
        policy.withheld.clear();
        policy.permissions.switched_off.clear();
        policy.paused.clear();
        policy.tools_paused.clear();
        for shard in self.shards.values() {
            policy.tenants.extend(shard.tenants.iter().map(|(id, tenant)| (id.clone(), tenant.clone())));
            policy.tenants.retain(|tenant, _| !shard.withheld.contains(tenant));
            policy.withheld.extend(shard.withheld.iter().cloned());
            // A tool that one shard switches off is off in every shard.
            policy.permissions.switched_off.extend(shard.tools_off.iter().cloned());
            policy.paused.extend(shard.pauses.iter().map(|(who, pause)| (who.clone(), pause.clone())));
            policy.tools_paused.extend(shard.tool_pauses.iter().map(|(tool, pause)| (tool.clone(), pause.clone())));
        }
        active.tenants_generation = self.shards.iter().map(|(number, shard)| (*number, shard.generation)).collect();
    }
}

impl PolicyHandle {
    #[must_use]
    pub fn new(mut active: ActivePolicy) -> Self {
        active.rules = Rulebook::of(&active.policy.permissions.matrix);
        let sources = PolicySources { configured: active.policy.tenants.clone(), ..PolicySources::default() };
        Self { current: ArcSwap::from_pointee(active), sources: Mutex::new(sources), reads: AtomicU64::new(0) }
    }

    #[must_use]
    pub fn load(&self) -> Arc<ActivePolicy> {
        self.current.load_full()
    }

    /// No decision is made before the first successful read in each shard (invariant 16). Callers repeat the read at
    /// each heartbeat, and after each reported change. An error changes nothing.
    pub async fn refresh(&self, store: &Store) -> Result<(), StoreError> {
        let read_number = self.reads.fetch_add(1, Ordering::Relaxed) + 1;
        let read = store.run_time_config().await?;
        let lost = self.apply_read(store.shard(), read_number, read);
        for (tenant, policy) in &lost.tenants {
            let change = ChangeSetting::set_tenant(tenant.clone(), policy, Origin::Restored);
            let restored = store.decide(change).await.map(|receipt| receipt.result);
            tracing::error!(%tenant, ?restored, "run-time tenant was missing from Redis; restoring");
        }
        for tool in &lost.tools_off {
            let change = ChangeSetting::switch_off(tool.clone(), Origin::Restored);
            let restored = store.decide(change).await.map(|receipt| receipt.result);
            tracing::error!(tool, ?restored, "disabled tool was missing from Redis; disabling it again");
        }
        for (who, pause) in &lost.pauses {
            let change = ChangeSetting::pause(who.clone(), pause, Origin::Restored);
            let restored = store.decide(change).await.map(|receipt| receipt.result);
            tracing::error!(?who, ?restored, "pause was missing from Redis; restoring");
        }
        for (tool, pause) in &lost.tool_pauses {
            let change = ChangeSetting::pause_tool(tool.clone(), pause, Origin::Restored);
            let restored = store.decide(change).await.map(|receipt| receipt.result);
            tracing::error!(?tool, ?restored, "pause of a tool was missing from Redis; restoring");
        }
        Ok(())
    }

    /// Returns true if the shard has reported a change. After an error, the current state is unchanged.
    pub async fn refresh_if_changed(&self, store: &Store) -> Result<bool, StoreError> {
        if store.tenants_generation().await? == self.load().tenants_generation(store.shard()) {
            return Ok(false);
        }
        self.refresh(store).await?;
        Ok(true)
    }

    /// Does nothing if a newer read was already applied. Returns the settings that Redis has lost.
    fn apply_read(&self, shard: u32, read_number: u64, read: RunTimeSettings) -> LostSettings {
        let mut sources = self.sources.lock();
        let held = sources.shards.entry(shard).or_default();
        if held.read_number > read_number {
            return LostSettings::default();
        }
        let lost = held.apply_read(read_number, read);
        let current = self.current.load();
        let mut next = (**current).clone();
        sources.put_into(&mut next);
        if !is_same(&current, &next) {
            self.current.store(Arc::new(next));
        }
        lost
    }

    pub fn replace(&self, mut active: ActivePolicy) -> Arc<ActivePolicy> {
        let mut sources = self.sources.lock();
        active.rules = Rulebook::of(&active.policy.permissions.matrix);
        sources.configured = std::mem::take(&mut active.policy.tenants);
        sources.put_into(&mut active);
        let active = Arc::new(active);
        self.current.store(Arc::clone(&active));
        active
    }
}

fn is_same(one: &ActivePolicy, other: &ActivePolicy) -> bool {
    one.policy.tenants == other.policy.tenants
        && one.policy.withheld == other.policy.withheld
        && one.policy.permissions.switched_off == other.policy.permissions.switched_off
        && one.policy.paused == other.policy.paused
        && one.policy.tools_paused == other.policy.tools_paused
        && one.tenants_generation == other.tenants_generation
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn active(digest: &str, configured: &[&str]) -> ActivePolicy {
        let mut active = ActivePolicy { digest: digest.into(), ..ActivePolicy::default() };
        active.policy.tenants = configured.iter().map(|name| capped(name, None)).collect();
        active
    }

    fn capped(name: &str, cap: Option<u32>) -> (TenantId, TenantPolicy) {
        (TenantId::new(name).unwrap(), TenantPolicy { max_actions_per_day: cap, ..TenantPolicy::default() })
    }

    fn read(generation: u64, declared: &[(&str, u32)]) -> RunTimeSettings {
        let declared = declared.iter().map(|(name, cap)| capped(name, Some(*cap))).collect();
        RunTimeSettings { generation, tenants: declared, ..RunTimeSettings::default() }
    }

    fn seen(in_force: &PolicyHandle) -> (Vec<(String, Option<u32>)>, Vec<String>) {
        let policy = &in_force.load().policy;
        let tenants = policy.tenants.iter().map(|(name, tenant)| (name.to_string(), tenant.max_actions_per_day));
        (tenants.collect(), policy.withheld.iter().map(ToString::to_string).collect())
    }

    fn tenants(expected: &[(&str, Option<u32>)]) -> Vec<(String, Option<u32>)> {
        expected.iter().map(|(name, cap)| ((*name).to_owned(), *cap)).collect()
    }

    #[test]
    fn tenants_set_at_run_time_survive_a_new_configuration() {
        let in_force = PolicyHandle::new(active("one", &["acme"]));
        in_force.apply_read(0, 1, read(1, &[("guest", 3)]));
        assert_eq!(in_force.replace(active("two", &["bolt"])).digest, "two");
        assert_eq!(seen(&in_force).0, tenants(&[("bolt", None), ("guest", Some(3))]));
        in_force.apply_read(0, 2, read(2, &[]));
        assert_eq!(seen(&in_force).0, tenants(&[("bolt", None)]), "taken back");
    }

    #[test]
    fn each_shard_sets_only_its_own_tenants() {
        let in_force = PolicyHandle::new(active("one", &["acme", "bolt"]));
        in_force.apply_read(0, 1, read(1, &[("acme", 3)]));
        in_force.apply_read(1, 2, read(7, &[("bolt", 5)]));
        in_force.apply_read(0, 3, read(1, &[("acme", 3)]));
        assert_eq!(seen(&in_force).0, tenants(&[("acme", Some(3)), ("bolt", Some(5))]));
        let active = in_force.load();
        assert_eq!((active.tenants_generation(0), active.tenants_generation(1)), (1, 7));
    }

    #[test]
    fn an_unreadable_tenant_keeps_its_last_settings_or_is_withheld() {
        let unreadable = |generation, declared: &[(&str, u32)]| {
            let unreadable = [(TenantId::new("acme").unwrap(), "no JSON".to_owned())].into();
            RunTimeSettings { unreadable, ..read(generation, declared) }
        };
        let fresh = PolicyHandle::new(active("one", &["acme", "bolt"]));
        fresh.apply_read(0, 1, unreadable(2, &[("bolt", 5)]));
        let withheld = vec!["acme".to_owned()];
        assert_eq!(
            seen(&fresh),
            (tenants(&[("bolt", Some(5))]), withheld.clone()),
            "one poison item costs itself alone"
        );
        fresh.replace(active("two", &["acme"]));
        assert_eq!(seen(&fresh), (tenants(&[("bolt", Some(5))]), withheld));
        fresh.apply_read(0, 2, read(3, &[("acme", 4)]));
        assert_eq!(seen(&fresh), (tenants(&[("acme", Some(4))]), vec![]), "repaired");
        assert!(
            fresh.apply_read(0, 3, unreadable(4, &[])).tenants.is_empty(),
            "what is there is nobody's to write over"
        );
        assert_eq!(seen(&fresh), (tenants(&[("acme", Some(4))]), vec![]), "the last good one");
    }

    #[test]
    fn settings_lost_by_redis_stay_in_force_and_are_reported() {
        let in_force = PolicyHandle::new(active("one", &["acme"]));
        in_force.apply_read(0, 1, read(5, &[("acme", 3), ("bolt", 4)]));
        let lost = in_force.apply_read(0, 2, read(4, &[("acme", 3)]));
        assert_eq!(lost.tenants, [capped("bolt", Some(4))].into());
        // After a flush, Redis has no settings at all.
        let _ = in_force.apply_read(0, 2, read(5, &[("acme", 3), ("bolt", 4)]));
        let lost = in_force.apply_read(0, 3, read(0, &[]));
        assert_eq!(lost.tenants.len(), 2, "{lost:?}");
        assert_eq!(seen(&in_force).0, tenants(&[("acme", Some(3)), ("bolt", Some(4))]));
    }

    #[test]
    fn a_switched_off_tool_stays_off_until_it_is_switched_on() {
        let off = |generation, tools: &[&str]| {
            let tools_off = tools.iter().map(ToString::to_string).collect();
            RunTimeSettings { tools_off, ..read(generation, &[]) }
        };
        let in_force = PolicyHandle::new(active("one", &[]));
        let now = || in_force.load().policy.permissions.switched_off.iter().cloned().collect::<Vec<_>>();
        in_force.apply_read(0, 1, off(1, &["pay"]));
        in_force.replace(active("two", &[]));
        assert_eq!(now(), ["pay"], "a new configuration does not know of it");
        let lost = in_force.apply_read(0, 2, off(0, &[]));
        assert_eq!((lost.tools_off.len(), now()), (1, vec!["pay".to_owned()]), "a flush switches nothing on");
        in_force.apply_read(0, 3, off(2, &[]));
        assert!(now().is_empty());
    }

    #[test]
    fn an_outdated_read_changes_nothing() {
        let in_force = PolicyHandle::new(active("one", &[]));
        in_force.apply_read(0, 2, read(6, &[("acme", 3)]));
        in_force.apply_read(0, 1, read(5, &[("acme", 9)]));
        assert_eq!(seen(&in_force).0, tenants(&[("acme", Some(3))]));
    }
}
