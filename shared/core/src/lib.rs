//! Records, their states, and every decision about them.
//!
//! A decision is a pure function: it reads a [`View`] and returns a [`Transaction`] for the store, or a refusal. This
//! crate has no Redis, runtime, clock or randomness. Times are milliseconds of shard time.
//!
//! # Read in this order
//!
//! 1. [`transaction`]: the operations of a store, guards and writes
//! 2. [`record`] and [`view`]: how records are stored and read
//! 3. [`decision`]: the interface of every decision
//! 4. [`turn`]: the states of a turn, one file for each transition
//! 5. [`call`]: decisions about one call: consent, facts, idempotency claims, streaks, cached reads
//! 6. [`task`] and [`recovery`]: delegated work; crashes and restarts
//! 7. [`workers`], [`settings`], [`audit`] and the rest: everything that is not a turn
//!
//! A transition is a type with its input, an enum with its results, and `impl Decision`. A transition guards every
//! record that its result depends on. If the decision depends on the time, the transition guards the time.
//! [`Context::conflicts`] holds the conflicts of earlier attempts.
//!
//! # Invariants
//!
//! Each invariant prevents an interleaving that would break a promise. [`mutants`] lists the guards that enforce the
//! invariants.
//!
//! 1. A counter stores the end of its window, and resets only when shard time has reached this end.
//! 2. A shard has one clock, which never steps back.
//! 3. Every turn ends through one transition. Each unfinished turn is in exactly one place: a throttle queue, a timer,
//!    or a slice.
//! 4. The version of the turn's record is the fence of a slice. An entry is never claimed from another consumer.
//! 5. Streams are trimmed, but never past entries that are held or unread.
//! 6. A call has one writer. The result of a `once` call is committed before the next call begins.
//! 7. A `once` call begins with a transaction of its own, and only under a lease. The call is retried only if it
//!    certainly did nothing.
//! 8. For one lease after a restart of the store, nothing is reaped, no `once` call begins, and nothing is admitted in
//!    a window that began before the restart. Workers report the calls that they began.
//! 9. Records of unfinished work have no lifetime. An accepted ID is never refused because a bound is reached.
//! 10. All records of a tenant are in one shard.
//! 11. The work of a transaction is bounded.
//! 12. A consumer sends a heartbeat before it takes work. Only consumers without a lease are reaped.
//! 13. A write that frees memory is never refused.
//! 14. Inboxes are bounded for each tenant.
//! 15. Everything that waits has a deadline and one timer.
//! 16. A decision relies only on the policy that is in force when it is committed.
//! 17. A poison item affects only itself.
//! 18. Events may come in any order: a cancel before its turn, or a result before its begin was seen.
//! 19. No tenant uses up another tenant's bound.
//! 20. A connection error counts against the connection, not against an item.
//! 21. A call that began is never reported as not run.

pub mod audit;
pub mod bounds;
pub mod call;
pub mod check;
pub mod conversation;
pub mod counters;
pub mod dead;
pub mod decision;
pub mod grants;
pub mod keys;
pub mod knowledge;
pub mod leases;
pub mod mutants;
pub mod record;
pub mod recovery;
pub mod section;
pub mod settings;
pub mod task;
pub mod tools;
pub mod transaction;
#[cfg(test)]
mod trial;
pub mod turn;
pub mod usage;
pub mod view;
pub mod workers;

pub use decision::{Context, Decision, Receipt, Step};
pub use record::{Record, Stored};
pub use section::Section;
pub use transaction::{
    Committed, ConditionalDebit, Conflict, CounterState, EntryId, Guard, InboxKey, StreamKey, TimerRule, Transaction,
    Version, Window, Write,
};
pub use transaction::{CounterKey, RecordKey, SetKey};
pub use view::{Missing, Query, Value, View};
