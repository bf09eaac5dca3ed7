//! What is in force: the configuration's policy with the tenants that were set at run time, replaced as a whole.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use arc_swap::ArcSwap;

use crate::config::TaskHandlerDef;
use crate::model::policy::TenantPolicy;
use crate::model::{AgentId, ConsumerId, Policy, TenantId};

/// One consistent state of everything that decides.
#[derive(Debug, Clone, Default)]
pub struct Force {
    /// Agents, tenants, permissions, caps.
    pub policy: Policy,
    /// What carries out the tasks of each agent.
    pub task_handlers: BTreeMap<AgentId, TaskHandlerDef>,
    /// Digest of the configuration it came from.
    pub digest: String,
}

impl Force {
    /// The beginning of the digest: what logs, metrics and audit entries name a policy by.
    #[must_use]
    pub fn short_digest(&self) -> &str {
        short_digest(&self.digest)
    }
}

/// The first 12 characters of a policy's digest.
#[must_use]
pub fn short_digest(digest: &str) -> &str {
    digest.get(..12).unwrap_or(digest)
}

/// The state in force; readers take a snapshot and are never blocked.
#[derive(Debug)]
pub struct InForce {
    current: ArcSwap<Force>,
    /// What the current state is made of. Writers come one after the other, so that none undoes another's change.
    sources: Mutex<Sources>,
}

/// Tenants, by where they come from.
#[derive(Debug, Default)]
struct Sources {
    configured: BTreeMap<TenantId, TenantPolicy>,
    /// They go before those of the configuration.
    at_run_time: BTreeMap<TenantId, TenantPolicy>,
}

impl Sources {
    fn tenants(&self) -> BTreeMap<TenantId, TenantPolicy> {
        let mut tenants = self.configured.clone();
        tenants.extend(self.at_run_time.iter().map(|(id, tenant)| (id.clone(), tenant.clone())));
        tenants
    }
}

impl InForce {
    /// Puts `force` in force.
    #[must_use]
    pub fn new(force: Force) -> Self {
        let sources = Sources { configured: force.policy.tenants.clone(), ..Sources::default() };
        Self { current: ArcSwap::from_pointee(force), sources: Mutex::new(sources) }
    }

    /// The state in force now.
    #[must_use]
    pub fn load(&self) -> Arc<Force> {
        self.current.load_full()
    }

    /// Takes over tenants that were set at run time; they go before those of the configuration.
    pub fn set_tenants(&self, at_run_time: BTreeMap<TenantId, TenantPolicy>) {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.at_run_time = at_run_time;
        let tenants = sources.tenants();
        let current = self.current.load();
        if current.policy.tenants != tenants {
            let mut next = (**current).clone();
            next.policy.tenants = tenants;
            self.current.store(Arc::new(next));
        }
    }

    /// Puts a new configuration in force, in one step. Tenants that were set at run time stay. Answers what is in
    /// force now.
    pub fn replace(&self, mut force: Force) -> Arc<Force> {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.configured = std::mem::take(&mut force.policy.tenants);
        force.policy.tenants = sources.tenants();
        let force = Arc::new(force);
        self.current.store(Arc::clone(&force));
        force
    }
}

/// A fresh consumer name: what kind of process, which one, and which start of it. Never used twice, for a name
/// that two processes share hides the death of either.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "the edge: the start's time makes the name of an incarnation unique")]
pub fn incarnation(kind: &str, name: &str) -> ConsumerId {
    static STARTS: AtomicU64 = AtomicU64::new(0);
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let start = STARTS.fetch_add(1, Ordering::Relaxed);
    let plain: String =
        name.chars().filter(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_')).take(40).collect();
    let pid = std::process::id();
    // All parts are within the bounds of an id; the fallback only spares a panic.
    let id = ConsumerId::new(format!("{kind}-{plain}-{pid:x}-{since:x}-{start}"));
    id.or_else(|_| ConsumerId::new(format!("{kind}-{since:x}-{start}"))).unwrap_or_else(|_| unreachable_name())
}

#[allow(clippy::expect_used, reason = "a constant that its test checks")]
fn unreachable_name() -> ConsumerId {
    ConsumerId::new("unnamed").expect("a well-formed constant")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn force(digest: &str, tenants: &[&str]) -> Force {
        let mut force = Force { digest: digest.into(), ..Force::default() };
        force.policy.tenants = self::tenants(tenants);
        force
    }

    fn tenants(names: &[&str]) -> BTreeMap<TenantId, TenantPolicy> {
        names.iter().map(|name| (TenantId::new(*name).unwrap(), TenantPolicy::default())).collect()
    }

    fn names(force: &Force) -> Vec<&str> {
        force.policy.tenants.keys().map(TenantId::as_str).collect()
    }

    #[test]
    fn tenants_set_at_run_time_outlive_a_new_configuration() {
        let in_force = InForce::new(force("one", &["acme"]));
        in_force.set_tenants(tenants(&["guest"]));
        let now = in_force.replace(force("two", &["bolt"]));
        assert_eq!((now.digest.as_str(), names(&now)), ("two", vec!["bolt", "guest"]));
        in_force.set_tenants(BTreeMap::new());
        assert_eq!(names(&in_force.load()), ["bolt"]);
    }
}
