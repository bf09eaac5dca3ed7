//! The run-time settings of a shard, see [`tickfleet_core::settings`].

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_core::settings::{self, ReadSettings, Settings};
use tickfleet_model::TenantId;
use tickfleet_model::policy::{Pause, Paused, PausedTool, TenantPolicy};

use crate::{Store, StoreError};

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RunTimeConfig {
    /// Increases with every change. A decision based on older settings is refused.
    pub generation: u64,
    pub declared: BTreeMap<TenantId, TenantPolicy>,
    pub unreadable: BTreeMap<TenantId, String>,
    /// By name or ID.
    pub tools_off: BTreeSet<String>,
    /// An unreadable note is left empty, and the pause still applies.
    pub pauses: BTreeMap<Paused, Pause>,
    /// An unreadable note is left empty, and the pause still applies.
    pub tool_pauses: BTreeMap<PausedTool, Pause>,
}

impl Store {
    /// All settings are from one generation. Omits settings of tenants of other shards, because they have no effect.
    pub async fn run_time_config(&self) -> Result<RunTimeConfig, StoreError> {
        let mut set = self.decide(ReadSettings).await?.result;
        set.tenants.retain(|tenant, _| self.is_home_of(tenant));
        set.unreadable.retain(|tenant, _| self.is_home_of(tenant));
        set.pauses.retain(|paused, _| self.is_home_of(&paused.tenant));
        set.tool_pauses.retain(|paused, _| paused.tenant.as_ref().is_none_or(|tenant| self.is_home_of(tenant)));
        Ok(RunTimeConfig {
            generation: set.generation,
            declared: set.tenants,
            unreadable: set.unreadable,
            tools_off: set.tools_off,
            pauses: set.pauses,
            tool_pauses: set.tool_pauses,
        })
    }

    /// If the generation has changed, read [`Self::run_time_config`] again.
    pub async fn tenants_generation(&self) -> Result<u64, StoreError> {
        let stored = self.record_of::<Settings>(&settings::key()).await?;
        Ok(stored.map_or(0, |stored| stored.value.generation))
    }
}
