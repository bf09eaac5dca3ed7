use tickfleet_core::settings::policy::{self, Policies};
use tickfleet_core::{StreamKey, keys};
use tickfleet_model::Priority;

use crate::{Store, StoreError};

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

fn queues() -> Vec<StreamKey> {
    let of_workers = Priority::ALL.into_iter().flat_map(|priority| [keys::ready(priority), keys::suspect(priority)]);
    [keys::turns(), keys::tasks()].into_iter().chain(of_workers).collect()
}
