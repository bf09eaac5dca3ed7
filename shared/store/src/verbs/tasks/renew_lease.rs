use tickfleet_core::EntryId;
use tickfleet_core::task::external::RenewTaskLease;
pub use tickfleet_core::task::external::RenewTaskLeaseResult;

use crate::{Store, StoreError, TurnName};

impl Store {
    /// Renews the lease of an external runtime on its task. `lease` is the ID of the entry that the runtime took.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn renew_task_lease(&self, task: &TurnName, lease: &str) -> Result<RenewTaskLeaseResult, StoreError> {
        Ok(self.decide(RenewTaskLease { name: task.clone(), entry: EntryId::new(lease) }).await?.result)
    }
}
