//! Budgets that say nothing any more are forgotten.

use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Forgets budgets that say nothing any more, a few hundred agents a call. Answers where to go on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn prune(&self, cursor: u64) -> Result<u64, StoreError> {
        let mut args = self.args();
        args.show(cursor);
        let mut reply = self.ask(Verb::Prune, args).await?;
        Ok(reply.number()?.unsigned_abs())
    }
}
