//! How requests come in: over TLS where that is wanted, and counted.

pub(crate) mod observed;
pub(crate) mod public;
pub(crate) mod tls;
