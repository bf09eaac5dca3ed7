//! The run-time settings of a shard, see [`tickfleet_core::settings`].

pub use tickfleet_core::settings::RunTimeSettings;
use tickfleet_core::settings::{self, ReadSettings, Settings};

use crate::{Store, StoreError};

impl Store {
    /// All settings are from one generation. Omits settings of tenants of other shards, because they have no effect.
    pub async fn run_time_config(&self) -> Result<RunTimeSettings, StoreError> {
        let mut set = self.decide(ReadSettings).await?.result;
        set.tenants.retain(|tenant, _| self.is_home_of(tenant));
        set.unreadable.retain(|tenant, _| self.is_home_of(tenant));
        set.pauses.retain(|paused, _| self.is_home_of(&paused.tenant));
        set.tool_pauses.retain(|paused, _| paused.tenant.as_ref().is_none_or(|tenant| self.is_home_of(tenant)));
        Ok(set)
    }

    /// If the generation has changed, read [`Self::run_time_config`] again.
    pub async fn tenants_generation(&self) -> Result<u64, StoreError> {
        let stored = self.record_of::<Settings>(&settings::key()).await?;
        Ok(stored.map_or(0, |stored| stored.value.generation))
    }
}
