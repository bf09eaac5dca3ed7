//! Calls of unavailable tools: `breakers` (circuit breakers of tools), `availability` (whether a call's tool is called
//! at all), `tool_access` (what a call may do).

mod availability;
pub(crate) mod breakers;
pub(crate) mod tool_access;
