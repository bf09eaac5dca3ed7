//! The parts that schedulers and workers share: the policy that is in force and what was set at run time
//! ([`active_policy`]), who may delegate what ([`delegation`]), and how results and endings are reported ([`report`]).

pub mod active_policy;
pub mod delegation;
pub mod report;
pub mod time;
