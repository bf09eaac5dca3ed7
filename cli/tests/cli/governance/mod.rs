//! Tests the guards other than caps and permissions, operator commands, exports, webhooks, and what-if decisions.

mod explain;
mod exports;
mod governed;
mod operators;
mod webhooks;
mod whatif;
