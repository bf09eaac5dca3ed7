//! Code that schedulers and workers share:
//!
//! - [`active_policy`]: the active policy with its run-time settings.
//! - [`delegation`]: checks and plans delegated tasks.
//! - [`begin_turn`]: turns that calls begin.
//! - [`report`]: renders results for producers and auditors.
//! - [`suspect_permit`]: lets a process handle only one suspect. A suspect is work that a process held when it died.
//! - [`retry_until`]: retries until Redis responds.

pub mod active_policy;
pub mod begin_turn;
pub mod delegation;
pub mod report;
pub mod resolved_limits;
pub mod retry_until;
pub mod rules;
pub mod suspect_permit;
pub mod time;
