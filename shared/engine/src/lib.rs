//! Code that schedulers and workers share. A *suspect* is work that a crashed process held.

pub mod active_policy;
pub mod begin_turn;
pub mod delegation;
pub mod report;
pub mod resolved_limits;
pub mod retry_until;
pub mod rules;
pub mod suspect_permit;
pub mod time;
