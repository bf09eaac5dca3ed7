//! Resources that the callers of a gateway share. No tenant and no caller can take all of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

pub(crate) use super::bounds::PermitBounds;
use crate::verbs::{CallerIdentity, TenantScope};

#[derive(Debug, Clone)]
pub(crate) struct PermitPool {
    bounds: PermitBounds,
    in_use: Arc<Mutex<PermitCounts>>,
}

#[derive(Debug, Default)]
struct PermitCounts {
    all: usize,
    tenants: HashMap<TenantScope, usize>,
    callers: HashMap<CallerIdentity, usize>,
}

#[derive(Debug)]
pub(crate) struct Permit {
    holder: CallerIdentity,
    in_use: Arc<Mutex<PermitCounts>>,
}

impl PermitPool {
    pub(crate) fn new(bounds: PermitBounds) -> Self {
        Self { bounds, in_use: Arc::default() }
    }

    pub(crate) fn take(&self, holder: &CallerIdentity) -> Option<Permit> {
        let PermitBounds { all, tenant, caller } = self.bounds;
        let mut in_use = self.in_use.lock();
        let of_tenant = in_use.tenants.get(&holder.tenant).copied().unwrap_or_default();
        let of_caller = in_use.callers.get(holder).copied().unwrap_or_default();
        if in_use.all >= all || of_tenant >= tenant || of_caller >= caller {
            return None;
        }
        in_use.all += 1;
        in_use.tenants.insert(holder.tenant.clone(), of_tenant + 1);
        in_use.callers.insert(holder.clone(), of_caller + 1);
        Some(Permit { holder: holder.clone(), in_use: Arc::clone(&self.in_use) })
    }

    pub(crate) fn count(&self) -> usize {
        self.in_use.lock().all
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut in_use = self.in_use.lock();
        in_use.all = in_use.all.saturating_sub(1);
        decrement(&mut in_use.tenants, self.holder.tenant.clone());
        decrement(&mut in_use.callers, self.holder.clone());
    }
}

fn decrement<N: Eq + Hash>(counts: &mut HashMap<N, usize>, name: N) {
    if let Entry::Occupied(mut count) = counts.entry(name) {
        *count.get_mut() = count.get().saturating_sub(1);
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::verbs::CredentialKind;

    fn holder(tenant: &str, id: &str) -> CallerIdentity {
        let tenant = TenantScope::One(tickfleet_model::TenantId::new(tenant).unwrap());
        CallerIdentity { credential: CredentialKind::Key, tenant, id: id.into() }
    }

    #[test]
    fn permits_are_limited_per_caller_per_tenant_and_in_total() {
        let pool = PermitPool::new(PermitBounds { all: 10, tenant: 6, caller: 4 });
        let take = |tenant: &str, id: &str| std::iter::from_fn(|| pool.take(&holder(tenant, id))).collect::<Vec<_>>();
        let shop = take("acme", "shop");
        let till = take("acme", "till");
        let bolt = take("bolt", "shop");
        assert_eq!((shop.len(), till.len(), bolt.len()), (4, 2, 4), "of a caller, of its tenant, of all");
        assert_eq!(pool.count(), 10);
        drop(shop);
        assert_eq!((take("bolt", "shop").len(), take("acme", "shop").len()), (0, 4), "given back to whom it belongs");
        drop((till, bolt));
        assert_eq!(pool.count(), 0);
        assert!(pool.in_use.lock().callers.is_empty() && pool.in_use.lock().tenants.is_empty());
    }
}
