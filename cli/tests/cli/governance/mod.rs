//! Guards besides caps and permission, operator commands, exports and webhooks, and decisions under another policy.

mod explain;
mod exports;
mod governed;
mod operators;
mod webhooks;
mod whatif;
