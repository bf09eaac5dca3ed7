//! Recovery after crashes of workers, schedulers and the store. It redelivers slices and messages, and finds poison
//! messages. No side effect is lost in a restart of the store.
//!
//! # Suspects
//!
//! A crashed worker may have held a few hundred slices, and one of them may have caused the crash. All of them are
//! redelivered as *suspects*, in groups of at most half their number. After each further crash, the slices of the
//! running group are redelivered in groups of half the size ([`regroup`]). So innocent slices still run concurrently,
//! and after a logarithmic number of crashes, a poison slice runs alone. If a slice that runs alone crashes
//! [`crate::bounds::Bounds::crashes_max`] workers, it is quarantined. A slice that settles is no longer a suspect.
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
