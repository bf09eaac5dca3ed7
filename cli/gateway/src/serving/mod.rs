//! How requests come in: over TLS where that is wanted, counted, and bounded where keys are wrong; and by what streams last that answer them.

pub(crate) mod listening;
pub(crate) mod observed;
pub(crate) mod public;
pub(crate) mod strangers;
pub(crate) mod tls;
