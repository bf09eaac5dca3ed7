//! The loop of a decision: read, decide, commit. After a conflict, it decides again with the current values.
//!
//! The store's module `seam` implements the loop. Tests and the simulator use the same loop.

use crate::transaction::{Committed, Conflict, Transaction, Version};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone)]
pub struct Context {
    /// Shard time, as known to the caller. If the decision depends on the time, the transaction guards it with
    /// [`crate::Guard::Before`] or [`crate::Guard::Since`].
    pub now_ms: i64,
    /// The restart epoch, as known to the caller.
    pub epoch: u64,
    /// Start of this epoch; 0 for the first epoch.
    pub epoch_began_ms: i64,
    /// True if the store's memory was short at its last sample. Only optional writes depend on this flag.
    pub pressure: bool,
    /// The version that the transaction will write. Slices carry this version.
    pub version: Version,
    /// Conflicts of earlier attempts of this decision, oldest first. If a record or counter conflicted, the view
    /// already has its current value. All other conflicts (memory pressure, bounds, an entry without a holder) are
    /// listed only here.
    pub conflicts: Vec<Conflict>,
}

impl Context {
    #[must_use]
    pub fn failed(&self, is_it: impl Fn(&Conflict) -> bool) -> bool {
        self.conflicts.iter().any(is_it)
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

/// A transition: computes a transaction from a view.
pub trait Decision {
    type Output;

    /// Returns the queries to run in one request before the first attempt, to save round trips. Other values are read
    /// when [`Self::decide`] needs them.
    fn reads(&self) -> Vec<Query> {
        Vec::new()
    }

    /// Fails with [`Undecided`] if a read is missing, or if a record is unreadable.
    fn decide(&self, view: &View, context: &Context) -> Result<Step<Self::Output>, Undecided>;
}
