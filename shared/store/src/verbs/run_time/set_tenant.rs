//! Tenants that are declared beside the configuration.

use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::TenantId;
use tickfleet_model::policy::TenantPolicy;

impl Store {
    /// Sets a tenant; `entry` goes into the audit log, unless it is empty. From the answer on, no call is admitted by what was declared before.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn set_tenant(&self, tenant: &TenantId, policy: &TenantPolicy, entry: &str) -> Result<(), StoreError> {
        self.change_tenant("set", tenant, Some(policy), entry).await.map(drop)
    }

    /// Takes back what was set for a tenant: the configuration's declaration counts again, where there is one;
    /// `entry` goes into the audit log, unless it is empty. False where nothing was set.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn unset_tenant(&self, tenant: &TenantId, entry: &str) -> Result<bool, StoreError> {
        self.change_tenant("unset", tenant, None, entry).await
    }

    /// Puts a declaration back that the shard has lost. False where it is there.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn restore_tenant(&self, tenant: &TenantId, policy: &TenantPolicy) -> Result<bool, StoreError> {
        self.change_tenant("restore", tenant, Some(policy), "").await
    }

    async fn change_tenant(
        &self,
        what: &str,
        tenant: &TenantId,
        policy: Option<&TenantPolicy>,
        entry: &str,
    ) -> Result<bool, StoreError> {
        let json = policy.map(|policy| serde_json::to_string(policy).unwrap_or_default()).unwrap_or_default();
        let mut args = self.args();
        args.text(what).text(tenant.as_str()).text(json.as_str()).text(entry);
        let mut reply = self.ask(Verb::SetTenant, args).await?;
        Ok(reply.text()? == "OK")
    }
}
