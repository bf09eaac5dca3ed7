//! Workers that an operator has drained, see [`tickfleet_core::settings::drain`].

use tickfleet_core::settings::drain::{ChangeDrain, DrainChange, DrainResult};
use tickfleet_model::policy::Pause;

use crate::verbs::run_time::PauseResult;
use crate::{Store, StoreError};

impl From<DrainResult> for PauseResult {
    fn from(result: DrainResult) -> Self {
        match result {
            DrainResult::Done => Self::Ok,
            DrainResult::Unchanged | DrainResult::Lifted => Self::None,
            DrainResult::Full => Self::Full,
        }
    }
}

impl Store {
    /// An `entry` that is not empty goes into the audit log. Also removes the drain flags of the workers in `gone`,
    /// which will not start again.
    pub async fn drain_worker(
        &self,
        worker: &str,
        note: &Pause,
        entry: &str,
        gone: &[String],
    ) -> Result<PauseResult, StoreError> {
        let entry = self.audit_entry(entry);
        self.change_drain(worker, DrainChange::Drain { note: note.clone(), gone: gone.to_vec(), entry }).await
    }

    pub async fn resume_worker(&self, worker: &str, entry: &str) -> Result<PauseResult, StoreError> {
        self.change_drain(worker, DrainChange::Resume { entry: self.audit_entry(entry) }).await
    }

    async fn change_drain(&self, worker: &str, change: DrainChange) -> Result<PauseResult, StoreError> {
        Ok(self.decide(ChangeDrain { worker: worker.to_owned(), change }).await?.result.into())
    }
}
