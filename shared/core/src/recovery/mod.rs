//! Recovery after crashes of workers, schedulers and the store: redelivers slices and messages, finds poison messages, and
//! loses no side effect in a restart of the store.
//!
//! # Suspects
//!
//! A crashed worker held up to a few hundred slices, and one may have caused the crash. They are redelivered as
//! *suspects*, in groups of at most half as many. After each further crash, the slices of the running group are redelivered
//! in groups of half the size ([`regroup`]). So innocent slices run again beside each other, and a poison slice is alone
//! after log2 steps. A slice that crashes workers alone [`crate::bounds::Bounds::crashes_max`] times is quarantined. A slice
//! that settles is cleared.
//!
//! A worker keeps these rules:
//! 1. It runs one group of suspects at a time. It takes one entry of a suspect queue; the slice's
//!    [`crate::turn::Suspect::group_max`] bounds the number of suspects that run together. It takes the rest of the
//!    group from the same queue without waiting: [`reap`] enqueues a group in one transaction, so its members are
//!    consecutive.
//! 2. [`regroup::choose`] decides which of the taken slices run together. It releases the others at once.
//! 3. The first slice of a group runs in the worker's slot for suspects, further ones only in free slots. So suspects
//!    never take others' slots, and a tenant's bound on slots holds for them.
//! 4. It begins each slice of a group before any call of it runs, even a call of a `read` tool. The state
//!    [`crate::turn::State::Running`] records that the slice ran. A suspect that did not run counts no crash.
//!
//! # Read next
//! [`regroup`] is the pure rule. [`reap`] applies it once [`crate::workers::MayReap`] grants it. [`inbound`] redelivers
//! messages that a scheduler had not decided. [`epoch`] handles restarts of the store, and [`journal`] holds the reports of
//! a worker after one.

pub mod epoch;
pub mod inbound;
pub mod journal;
pub mod lease;
pub mod reap;
pub mod regroup;

pub use lease::Lease;

#[cfg(test)]
mod tests;
