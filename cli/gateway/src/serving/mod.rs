//! How requests arrive: connections, TLS, time limits, access log, metrics, rate limits and streams.

pub(crate) mod access;
pub(crate) mod bodies;
pub(crate) mod bounds;
pub(crate) mod connections;
pub(crate) mod gate;
pub(crate) mod headers;
pub(crate) mod invalid_credentials;
pub(crate) mod peer;
pub(crate) mod permits;
pub(crate) mod public;
pub(crate) mod request_metrics;
pub(crate) mod streams;
pub(crate) mod tls;
