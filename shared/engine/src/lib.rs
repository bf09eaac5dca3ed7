//! What schedulers and workers share: the policy that is in force and what was set at run time ([`force`]), who may
//! delegate what ([`delegation`]), and how results and endings are reported ([`report`]).

pub mod delegation;
pub mod force;
pub mod report;
