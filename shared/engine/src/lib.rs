//! Code that schedulers and workers share:
//!
//! - [`active_policy`]: the active policy with its run-time settings.
//! - [`delegation`]: rights to delegate.
//! - [`begin_turn`]: turns that calls begin.
//! - [`report`]: reports of results and endings.
//! - [`suspect_permit`]: limits a process to one suspect at a time.
//! - [`retry_until`]: retries until Redis responds.

pub mod active_policy;
pub mod begin_turn;
pub mod delegation;
pub mod limit_rows;
pub mod report;
pub mod retry_until;
pub mod rules;
pub mod suspect_permit;
pub mod time;
