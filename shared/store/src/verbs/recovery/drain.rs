//! Workers that an operator has take no new work.

use tickfleet_model::limits;
use tickfleet_model::policy::Pause;

use crate::verbs::Verb;
use crate::verbs::run_time::PauseSet;
use crate::{Store, StoreError};

/// What came of a drain that a worker puts back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Restored {
    /// It stands in Redis.
    Ok,
    /// Somebody has resumed the worker since.
    Lifted,
    /// Too many are drained: it is as lost as before.
    Full,
}

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
        self.change_drain("drain", worker, Some(note), entry, gone).await.map(|word| PauseSet::of(&word))
    }

    /// Puts back that `worker` takes no new work, where Redis has lost it: the audit log has had it.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be asked again.
    pub async fn restore_drain(&self, worker: &str, note: &Pause) -> Result<Restored, StoreError> {
        let since = note.since_ms.to_string();
        let word = self.change_drain("restore", worker, Some(note), &since, &[]).await?;
        Ok(match word.as_str() {
            "LIFTED" => Restored::Lifted,
            "FULL" => Restored::Full,
            _ => Restored::Ok,
        })
    }

    /// Lets `worker` take new work again; `entry` goes into the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn resume_worker(&self, worker: &str, entry: &str) -> Result<PauseSet, StoreError> {
        self.change_drain("resume", worker, None, entry, &[]).await.map(|word| PauseSet::of(&word))
    }

    /// Asks for a change, and answers by which word it was done or refused.
    async fn change_drain(
        &self,
        what: &str,
        worker: &str,
        note: Option<&Pause>,
        entry: &str,
        gone: &[String],
    ) -> Result<String, StoreError> {
        let note = note.map(|note| serde_json::to_string(note).unwrap_or_default()).unwrap_or_default();
        let mut args = self.args();
        args.text(what).text(worker).text(note).show(limits::DRAINS_MAX).text(entry);
        for name in gone.iter().take(limits::DRAINS_FORGOTTEN_MAX) {
            args.text(name.as_str());
        }
        let mut reply = self.ask(Verb::Drain, args).await?;
        reply.text()
    }
}
