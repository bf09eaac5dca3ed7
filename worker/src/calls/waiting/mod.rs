//! Calls whose tools rest: `breakers` (which do), `leave` (whether a call's tool is called at all), `permit` (what else a call may have).

pub(crate) mod breakers;
mod leave;
pub(crate) mod permit;
