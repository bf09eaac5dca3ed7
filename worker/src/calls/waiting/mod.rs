//! Calls whose tools rest: `breakers` (which do), `leave` (whether a call's tool is called at all).

pub(crate) mod breakers;
mod leave;
