//! The code that schedulers and workers share: the policy that is in force and what was set at run time
//! ([`active_policy`]), who may delegate what ([`delegation`]), turns that calls begin ([`begun`]), how results and endings are reported ([`report`]), that a
//! process looks into one suspect at a time ([`one_suspect`]), and the loop that tries until Redis answers
//! ([`retry_until`]).

pub mod active_policy;
pub mod begun;
pub mod delegation;
pub mod limit_rows;
pub mod one_suspect;
pub mod report;
pub mod retry_until;
pub mod rules;
pub mod time;
