//! Recovery after crashes of workers, schedulers and the store.
//!
//! # Suspects
//!
//! A crashed worker may have held a few hundred slices, and one of them may have caused the crash. All of them are
//! redelivered as *suspects*, in groups of at most half their number. After each further crash, the slices of the group
//! that ran are redelivered in groups of half the size ([`regroup`]). So innocent slices still run concurrently, and
//! after a logarithmic number of crashes, a poison slice runs alone. A slice that crashes
//! [`crate::bounds::Bounds::crashes_max`] workers while it runs alone is quarantined. A slice that settles is no longer
//! a suspect.
//!
//! A worker keeps these rules:
//! 1. The worker runs groups of suspects one after another. It takes one entry of a suspect queue, and then the rest of
//!    the group from the same queue without waiting. The slice's [`crate::turn::Suspect::group_max`] bounds the number
//!    of suspects that run together. [`reap`] enqueues a group in one transaction, so that the members of a group are
//!    consecutive on the queue.
//! 2. The worker calls [`regroup::choose`], and releases at once all slices that are not chosen.
//! 3. The first slice of a group runs in the worker's slot for suspects. The other slices run only in free slots. So
//!    suspects never take slots from regular slices, and a tenant's bound on slots applies to suspects, too.
//! 4. The worker begins each slice of a group before any call of the slice runs, even a call of a `read` tool. The
//!    state [`crate::turn::State::Running`] records that the slice ran. No crash counts against a suspect that did not
//!    run.
//!
//! # Read next
//! [`regroup`] forms the groups. [`reap`] redelivers them. [`inbound`] redelivers messages. [`epoch`] and [`journal`]
//! handle restarts of the store.

pub mod epoch;
pub mod inbound;
pub mod journal;
pub mod lease;
pub mod reap;
pub mod regroup;

pub use lease::Lease;

#[cfg(test)]
mod tests;
