//! Submit, admit, release and reject on the store in memory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "intake/fleet.rs"]
mod fleet;
#[path = "intake/outcomes.rs"]
mod outcomes;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(future)
}
