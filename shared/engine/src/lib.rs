//! Code that schedulers and workers share: the active policy with its run-time settings ([`active_policy`]), rights to
//! delegate ([`delegation`]), turns that calls begin ([`begin_turn`]), the reports of results and endings ([`report`]),
//! the permit that limits a process to one suspect at a time ([`suspect_permit`]), and the loop that retries until
//! Redis responds ([`retry_until`]).

pub mod active_policy;
pub mod begin_turn;
pub mod delegation;
pub mod limit_rows;
pub mod report;
pub mod retry_until;
pub mod rules;
pub mod suspect_permit;
pub mod time;
