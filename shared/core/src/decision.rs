//! The loop of a decision: read, decide, commit. After a conflict, the loop decides again with the current values.
//!
//! The store's module `seam` implements the loop. Tests and the simulator use the same loop.

use crate::record::Record;
use crate::transaction::{Committed, Conflict, RecordKey, Transaction, Version};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone)]
pub struct Context {
    /// A decision that depends on shard time must add [`crate::Guard::Before`] or [`crate::Guard::Since`].
    pub now_ms: i64,
    pub epoch: u64,
    /// 0 for the first epoch.
    pub epoch_began_ms: i64,
    /// True if memory is short. Only optional writes may depend on this field.
    pub pressure: bool,
    /// The transaction writes this version.
    pub version: Version,
    /// Oldest first. The view already has the current value of a record or counter with a conflict.
    pub conflicts: Vec<Conflict>,
}

impl Context {
    #[must_use]
    pub fn failed(&self, is_it: impl Fn(&Conflict) -> bool) -> bool {
        self.conflicts.iter().any(is_it)
    }

    /// Returns the record's value, and a transaction that fails if the record changes.
    pub fn update<T: Record>(&self, view: &View, key: &RecordKey) -> Result<(Transaction, Option<T>), Undecided> {
        let stored = view.record::<T>(key)?;
        let mut transaction = Transaction::new(self.version.clone());
        transaction.guard_read(key, stored.as_ref());
        Ok((transaction, stored.map(|stored| stored.value)))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step<T> {
    Commit(Transaction, T),
    Return(T),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Receipt<T> {
    pub result: T,
    /// `None` if nothing was written.
    pub committed: Option<Committed>,
}

pub trait Decision: Sync {
    type Output: Send;

    /// Read in one request before the first attempt, to save round trips.
    fn reads(&self) -> Vec<Query> {
        Vec::new()
    }

    /// Fails with [`Undecided`] if a value is missing, or if a record is unreadable.
    fn decide(&self, view: &View, context: &Context) -> Result<Step<Self::Output>, Undecided>;
}
