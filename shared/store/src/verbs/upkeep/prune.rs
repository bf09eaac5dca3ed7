//! Budgets that say nothing any more are forgotten.

use crate::verbs::Verb;
use crate::{Store, StoreError};

/// How far the forgetting has come.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PruneAt {
    /// The cursor in the budgets; 0 begins a round.
    budgets: u64,
    /// The limit whose counters were looked at last.
    limit: String,
    /// The cursor in them; 0 where they are done.
    counters: u64,
}

impl Store {
    /// Forgets budgets and counters that say nothing any more, a few hundred a call. Answers where to go on.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn prune(&self, at: &PruneAt) -> Result<PruneAt, StoreError> {
        let mut args = self.args();
        args.show(at.budgets).text(at.limit.as_str()).show(at.counters);
        let mut reply = self.ask(Verb::Prune, args).await?;
        let (budgets, _) = (reply.number()?.unsigned_abs(), reply.number()?);
        Ok(PruneAt { budgets, limit: reply.text()?, counters: reply.number()?.unsigned_abs() })
    }
}
