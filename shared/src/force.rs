//! What is in force: the configuration's policy with the tenants that were set at run time, replaced as a whole.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

/// The state in force; readers take a snapshot and are never blocked.
#[derive(Debug)]
pub struct InForce {
    current: ArcSwap<Force>,
    /// Tenants as configured, without those that were set at run time.
    configured: ArcSwap<BTreeMap<TenantId, TenantPolicy>>,
}

impl InForce {
    /// Puts `force` in force.
    #[must_use]
    pub fn new(force: Force) -> Self {
        let configured = ArcSwap::from_pointee(force.policy.tenants.clone());
        Self { current: ArcSwap::from_pointee(force), configured }
    }

    /// The state in force now.
    #[must_use]
    pub fn load(&self) -> Arc<Force> {
        self.current.load_full()
    }

    /// Takes over tenants that were set at run time; they go before those of the configuration.
    pub fn set_tenants(&self, at_run_time: BTreeMap<TenantId, TenantPolicy>) {
        let mut tenants = (**self.configured.load()).clone();
        tenants.extend(at_run_time);
        let current = self.current.load();
        if current.policy.tenants != tenants {
            let mut next = (**current).clone();
            next.policy.tenants = tenants;
            self.current.store(Arc::new(next));
        }
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
