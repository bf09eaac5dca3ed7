//! What was set at run time, beside the configuration: tenants, and tools that were switched off.

use std::collections::{BTreeMap, BTreeSet};

use crate::script::reply::{Reply, text_of};
use crate::{Store, StoreError};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{TenantId, day};

/// What was set at run time in a shard. Of tenants only those at home there: what a shard says of others' counts for
/// nothing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AtRunTime {
    /// Grows with every change. Who decides by an older one is told so.
    pub generation: u64,
    /// The declarations.
    pub declared: BTreeMap<TenantId, TenantPolicy>,
    /// Those that cannot be read, with the reason.
    pub unreadable: BTreeMap<TenantId, String>,
    /// Those that were set and never taken back, and whose declaration is gone.
    pub missing: BTreeSet<TenantId>,
    /// Tools that nobody may call, by name or id.
    pub tools_off: BTreeSet<String>,
}

impl Store {
    /// All that was set at run time in this shard, as of one moment.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn at_run_time(&self) -> Result<AtRunTime, StoreError> {
        let mut reply = Reply::new("at_run_time", self.run("at_run_time", self.args()).await?)?;
        let (generation, names, tools) = (reply.number()?.unsigned_abs(), reply.text()?, reply.text()?);
        let mut set = AtRunTime { generation, ..AtRunTime::default() };
        let ours = |name: &str| TenantId::new(name).ok().filter(|tenant| self.is_home_of(tenant));
        let mut declared = reply.rest().into_iter();
        while let (Some(name), Some(declaration)) = (declared.next(), declared.next()) {
            // What is no tenant's name declares none.
            let Some(tenant) = text_of(&name).as_deref().and_then(ours) else { continue };
            match read(text_of(&declaration).unwrap_or_default().as_bytes()) {
                Ok(policy) => drop(set.declared.insert(tenant, policy)),
                Err(problem) => drop(set.unreadable.insert(tenant, problem)),
            }
        }
        let there = |tenant: &TenantId| set.declared.contains_key(tenant) || set.unreadable.contains_key(tenant);
        set.missing = names.split_whitespace().filter_map(ours).filter(|tenant| !there(tenant)).collect();
        set.tools_off = tools.split_whitespace().map(String::from).collect();
        Ok(set)
    }

    /// The generation of the tenants that were set at run time: whether [`Self::at_run_time`] has news.
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

    /// Takes a tool away from everybody, by name or id, or gives it back where it was switched off at run time. False
    /// where it was so already.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn switch_tool(&self, tool: &str, on: bool) -> Result<bool, StoreError> {
        let mut args = self.args();
        args.text(if on { "on" } else { "off" }).text(tool);
        let mut reply = Reply::new("switch_tool", self.run("switch_tool", args).await?)?;
        Ok(reply.text()? == "OK")
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
        let mut reply = Reply::new("set_tenant", self.run("set_tenant", args).await?)?;
        Ok(reply.text()? == "OK")
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
