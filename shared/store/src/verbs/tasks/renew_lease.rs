use tickfleet_core::EntryId;
use tickfleet_core::task::external::RenewTaskLease;
pub use tickfleet_core::task::external::RenewTaskLeaseResult;

use crate::{Store, StoreError, TurnName};

impl Store {
    /// `lease` is the ID of the entry that the runtime took.
    pub async fn renew_task_lease(&self, task: &TurnName, lease: &str) -> Result<RenewTaskLeaseResult, StoreError> {
        Ok(self.decide(RenewTaskLease { name: task.clone(), entry: EntryId::new(lease) }).await?.result)
    }
}
