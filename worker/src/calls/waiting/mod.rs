//! Calls of unavailable tools: circuit breakers, and the decision whether a call may use its tool.

mod availability;
pub(crate) mod breakers;
pub(crate) mod tool_access;
