<<<<<<< HEAD
//! One integration-test binary: linking twenty costs more than running them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod store;
=======
//! Every test across crates, in one binary: one link step instead of one per file.
#![allow(missing_docs, reason = "a test's name is its documentation")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and may look at the clock"
)]

mod tidy;
>>>>>>> ops
