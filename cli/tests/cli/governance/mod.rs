//! Guards besides caps and permission, operator commands, exports and webhooks, and decisions under another policy.

mod exports;
mod governed;
mod operators;
mod questions;
mod webhooks;
mod whatif;
