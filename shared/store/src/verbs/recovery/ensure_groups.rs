use tickfleet_core::settings::policy::{self, Policies};

use crate::{Store, StoreError, queues};

impl Store {
    /// [`StoreError::Shards`] means that the data was written with another number of shards.
    pub async fn ensure_groups(&self) -> Result<(), StoreError> {
        let stored = self.record_of::<Policies>(&policy::key()).await?.map_or(0, |stored| stored.value.shards);
        let ours = self.options().shards;
        if stored != 0 && stored != ours {
            return Err(StoreError::Shards { ours, stored: stored.to_string() });
        }
        self.seam().ensure_queues(&queues()).await
    }
}
