//! Workers that an operator has take no new work.

use tickfleet_model::limits;
use tickfleet_model::policy::Pause;

use crate::verbs::Verb;
use crate::verbs::run_time::PauseSet;
use crate::{Store, StoreError};

impl Store {
    /// Has `worker` take no new work of this shard; `entry` goes into the audit log. `gone` are drained workers of whom
    /// nothing is left: they are forgotten.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn drain_worker(
        &self,
        worker: &str,
        note: &Pause,
        entry: &str,
        gone: &[String],
    ) -> Result<PauseSet, StoreError> {
        self.change_drain("drain", worker, Some(note), entry, gone).await
    }

    /// Puts back that `worker` takes no new work, where Redis has lost it: the audit log has had it.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be asked again.
    pub async fn restore_drain(&self, worker: &str, note: &Pause) -> Result<PauseSet, StoreError> {
        self.change_drain("drain", worker, Some(note), "", &[]).await
    }

    /// Lets `worker` take new work again; `entry` goes into the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn resume_worker(&self, worker: &str, entry: &str) -> Result<PauseSet, StoreError> {
        self.change_drain("resume", worker, None, entry, &[]).await
    }

    async fn change_drain(
        &self,
        what: &str,
        worker: &str,
        note: Option<&Pause>,
        entry: &str,
        gone: &[String],
    ) -> Result<PauseSet, StoreError> {
        let note = note.map(|note| serde_json::to_string(note).unwrap_or_default()).unwrap_or_default();
        let mut args = self.args();
        args.text(what).text(worker).text(note).show(limits::DRAINS_MAX).text(entry);
        for name in gone.iter().take(limits::DRAINS_FORGOTTEN_MAX) {
            args.text(name.as_str());
        }
        let mut reply = self.ask(Verb::Drain, args).await?;
        Ok(PauseSet::of(&reply.text()?))
    }
}
