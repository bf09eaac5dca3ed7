//! Resources that the callers of a gateway share: waiting requests, streams and connections. No tenant and no caller
//! can take all of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use parking_lot::Mutex;

pub(crate) use super::bounds::Bounds;
use crate::verbs::{Holder, Whose};

/// A shared resource with its bounds. Clones share the counts.
#[derive(Debug, Clone)]
pub(crate) struct Shares {
    bounds: Bounds,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    all: usize,
    tenants: HashMap<Whose, usize>,
    callers: HashMap<Holder, usize>,
}

/// One unit of the resource, released on drop.
#[derive(Debug)]
pub(crate) struct Share {
    holder: Holder,
    taken: Arc<Mutex<Taken>>,
}

impl Shares {
    pub(crate) fn new(bounds: Bounds) -> Self {
        Self { bounds, taken: Arc::default() }
    }

    /// Takes one unit for a caller; `None` if that would exceed a bound.
    pub(crate) fn take(&self, holder: &Holder) -> Option<Share> {
        let Bounds { all, tenant, caller } = self.bounds;
        let mut taken = self.taken.lock();
        let of_tenant = taken.tenants.get(&holder.tenant).copied().unwrap_or_default();
        let of_caller = taken.callers.get(holder).copied().unwrap_or_default();
        if taken.all >= all || of_tenant >= tenant || of_caller >= caller {
            return None;
        }
        taken.all += 1;
        taken.tenants.insert(holder.tenant.clone(), of_tenant + 1);
        taken.callers.insert(holder.clone(), of_caller + 1);
        Some(Share { holder: holder.clone(), taken: Arc::clone(&self.taken) })
    }

    /// The number of units in use.
    pub(crate) fn count(&self) -> usize {
        self.taken.lock().all
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut taken = self.taken.lock();
        taken.all = taken.all.saturating_sub(1);
        one_less(&mut taken.tenants, self.holder.tenant.clone());
        one_less(&mut taken.callers, self.holder.clone());
    }
}

fn one_less<N: Eq + Hash>(counts: &mut HashMap<N, usize>, name: N) {
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
    use crate::verbs::Held;

    fn holder(tenant: &str, id: &str) -> Holder {
        let tenant = Whose::One(tickfleet_model::TenantId::new(tenant).unwrap());
        Holder { held: Held::Key, tenant, id: id.into() }
    }

    #[test]
    fn one_caller_leaves_some_to_its_tenant_and_one_tenant_some_to_others() {
        let shares = Shares::new(Bounds { all: 10, tenant: 6, caller: 4 });
        let take = |tenant: &str, id: &str| std::iter::from_fn(|| shares.take(&holder(tenant, id))).collect::<Vec<_>>();
        let shop = take("acme", "shop");
        let till = take("acme", "till");
        let bolt = take("bolt", "shop");
        assert_eq!((shop.len(), till.len(), bolt.len()), (4, 2, 4), "of a caller, of its tenant, of all");
        assert_eq!(shares.count(), 10);
        drop(shop);
        assert_eq!((take("bolt", "shop").len(), take("acme", "shop").len()), (0, 4), "given back to whom it belongs");
        drop((till, bolt));
        assert_eq!(shares.count(), 0);
        assert!(shares.taken.lock().callers.is_empty() && shares.taken.lock().tenants.is_empty());
    }
}
