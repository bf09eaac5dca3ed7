//! Calls whose tools are unavailable: `breakers` (circuit breakers of tools), `leave` (whether a call's tool is called
//! at all), `permit` (what a call may do).

pub(crate) mod breakers;
mod leave;
pub(crate) mod permit;
