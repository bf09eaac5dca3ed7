//! Further guards in addition to caps and permission, operator commands, exports, webhooks, and what-if decisions.

mod explain;
mod exports;
mod governed;
mod operators;
mod webhooks;
mod whatif;
