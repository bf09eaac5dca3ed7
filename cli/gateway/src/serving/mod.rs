//! How requests come in: by connections that are bounded until they show a good key, over TLS where that is wanted, with
//! bodies that arrive in time, counted, and bounded where keys are wrong; and by what streams last that answer them.

pub(crate) mod access;
pub(crate) mod bodies;
pub(crate) mod bounds;
pub(crate) mod connections;
pub(crate) mod gate;
pub(crate) mod headers;
pub(crate) mod listening;
pub(crate) mod observed;
pub(crate) mod peer;
pub(crate) mod public;
pub(crate) mod shares;
pub(crate) mod strangers;
pub(crate) mod tls;
