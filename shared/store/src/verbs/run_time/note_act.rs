//! What operators do by many verbs, in one entry of the audit log.

use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Writes `entry` into the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn note_act(&self, entry: &str) -> Result<(), StoreError> {
        let mut args = self.args();
        args.text(entry);
        self.run(Verb::NoteAct, args).await.map(drop)
    }
}
