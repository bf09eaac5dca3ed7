//! Tenants that were set at run time, beside those of the configuration.

use std::collections::BTreeMap;

use super::{Store, StoreError};
use crate::model::TenantId;
use crate::model::policy::TenantPolicy;

impl Store {
    /// All tenants that were set at run time.
    ///
    /// # Errors
    /// [`StoreError`]. A tenant whose declaration cannot be read is left out.
    pub async fn tenants(&self) -> Result<BTreeMap<TenantId, TenantPolicy>, StoreError> {
        let command = redis::cmd("HGETALL").arg(self.keys.key("tenants")).to_owned();
        let all: BTreeMap<String, String> = self.connection.query("tenants", &command).await?;
        let read =
            |(name, json): (String, String)| Some((TenantId::new(name).ok()?, serde_json::from_str(&json).ok()?));
        Ok(all.into_iter().filter_map(read).collect())
    }

    /// Sets a tenant; schedulers and workers see it within their next heartbeat.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn set_tenant(&self, tenant: &TenantId, policy: &TenantPolicy) -> Result<(), StoreError> {
        let json = serde_json::to_string(policy).unwrap_or_default();
        let command = redis::cmd("HSET").arg(self.keys.key("tenants")).arg(tenant.as_str()).arg(json).to_owned();
        self.connection.query::<i64>("set_tenant", &command).await.map(drop)
    }
}
