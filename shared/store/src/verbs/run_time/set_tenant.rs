//! Tenants that are declared in addition to the configuration.

use tickfleet_core::settings::{ChangeSetting, Origin, Setting, SettingResult};
use tickfleet_model::TenantId;
use tickfleet_model::policy::TenantPolicy;

use crate::{Store, StoreError};

impl Store {
    /// After the response, no call is admitted under an earlier declaration. An `entry` that is not empty goes into the
    /// audit log.
    pub async fn set_tenant(&self, tenant: &TenantId, policy: &TenantPolicy, entry: &str) -> Result<(), StoreError> {
        let origin = Origin::Operator(self.audit_entry(entry));
        match self.decide(ChangeSetting::set_tenant(tenant.clone(), policy, origin)).await?.result {
            SettingResult::Done { .. } | SettingResult::Unchanged { .. } => Ok(()),
            SettingResult::Full => Err(StoreError::Undecided("too many tenants are declared at run time".to_owned())),
        }
    }

    /// A declaration in the configuration then applies again. An `entry` that is not empty goes into the audit log.
    /// Returns false if the tenant was not declared.
    pub async fn unset_tenant(&self, tenant: &TenantId, entry: &str) -> Result<bool, StoreError> {
        let remove = ChangeSetting::remove(Setting::Tenant(tenant.clone()), self.audit_entry(entry));
        Ok(matches!(self.decide(remove).await?.result, SettingResult::Done { .. }))
    }
}
