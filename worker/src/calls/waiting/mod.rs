//! Decides about calls of unavailable tools. `breakers`: circuit breakers of tools. `availability`: whether a call's
//! tool is called at all. `tool_access`: whether a call may use its tool, or only a known result.

mod availability;
pub(crate) mod breakers;
pub(crate) mod tool_access;
