//! Tenants that were set at run time, beside those of the configuration.

use std::collections::{BTreeMap, BTreeSet};

use super::words::Words;
use super::{Store, StoreError};
use crate::model::policy::TenantPolicy;
use crate::model::{TenantId, day};

/// What a shard holds of tenants that were set at run time. Only those at home there: what a shard says of others'
/// tenants counts for nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantsSet {
    /// Grows with every change. Who decides by an older one is told so.
    pub generation: u64,
    /// The declarations.
    pub declared: BTreeMap<TenantId, TenantPolicy>,
    /// Those that cannot be read, with the reason.
    pub unreadable: BTreeMap<TenantId, String>,
    /// Those that were set and never taken back, and whose declaration is gone.
    pub missing: BTreeSet<TenantId>,
}

/// What a shard answers about its tenants: generation and names, and the declarations.
type Answer = ((Option<u64>, Option<String>), Vec<(Vec<u8>, Vec<u8>)>);

impl Store {
    /// All tenants of this shard that were set at run time, as of one moment.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tenants(&self) -> Result<TenantsSet, StoreError> {
        let mut pipe = redis::pipe();
        pipe.atomic().cmd("HMGET").arg(self.keys.key("meta")).arg("tenants_gen").arg("tenants_set");
        pipe.cmd("HGETALL").arg(self.keys.key("tenants"));
        let ((generation, names), all): Answer = self.connection.pipeline("tenants", &pipe).await?;
        let mut set = TenantsSet { generation: generation.unwrap_or(0), ..TenantsSet::default() };
        let ours = |name: &str| TenantId::new(name).ok().filter(|tenant| self.is_home_of(tenant));
        for (name, declaration) in all {
            // What is no tenant's name declares none.
            let Some(tenant) = std::str::from_utf8(&name).ok().and_then(ours) else { continue };
            match read(&declaration) {
                Ok(policy) => drop(set.declared.insert(tenant, policy)),
                Err(problem) => drop(set.unreadable.insert(tenant, problem)),
            }
        }
        let there = |tenant: &TenantId| set.declared.contains_key(tenant) || set.unreadable.contains_key(tenant);
        let names = names.unwrap_or_default();
        set.missing = names.split_whitespace().filter_map(ours).filter(|tenant| !there(tenant)).collect();
        Ok(set)
    }

    /// The generation of the tenants that were set at run time: whether [`Self::tenants`] has news.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn tenants_generation(&self) -> Result<u64, StoreError> {
        let command = redis::cmd("HGET").arg(self.keys.key("meta")).arg("tenants_gen").to_owned();
        self.connection.query::<Option<u64>>("tenants", &command).await.map(Option::unwrap_or_default)
    }

    /// Sets a tenant. From the answer on, no call is admitted by what was declared before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn set_tenant(&self, tenant: &TenantId, policy: &TenantPolicy) -> Result<(), StoreError> {
        self.change_tenant("set", tenant, Some(policy)).await.map(drop)
    }

    /// Takes back what was set for a tenant: the configuration's declaration counts again, where there is one. False
    /// where nothing was set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn unset_tenant(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        self.change_tenant("unset", tenant, None).await
    }

    /// Puts a declaration back that the shard has lost. False where it is there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn restore_tenant(&self, tenant: &TenantId, policy: &TenantPolicy) -> Result<bool, StoreError> {
        self.change_tenant("restore", tenant, Some(policy)).await
    }

    async fn change_tenant(
        &self,
        what: &str,
        tenant: &TenantId,
        policy: Option<&TenantPolicy>,
    ) -> Result<bool, StoreError> {
        let json = policy.map(|policy| serde_json::to_string(policy).unwrap_or_default()).unwrap_or_default();
        let mut args = self.args();
        args.text(what).text(tenant.as_str()).text(json.as_str());
        let mut words = Words::new("set_tenant", self.run("set_tenant", args).await?)?;
        Ok(words.text()? == "OK")
    }
}

/// A declaration that nothing in it makes laxer than it was meant: an unknown time zone would count days in another.
fn read(declaration: &[u8]) -> Result<TenantPolicy, String> {
    let policy: TenantPolicy = serde_json::from_slice(declaration).map_err(|error| error.to_string())?;
    if let Some(zone) = &policy.time_zone {
        day::zone(zone).map_err(|error| error.to_string())?;
    }
    Ok(policy)
}
