//! The place where `tickfleet dev` keeps its private Redis.

use std::path::{Path, PathBuf};

/// The folder where `dev` keeps its data unless it is told otherwise.
pub(crate) const DIR: &str = ".tickfleet";

/// The socket of a `dev` that was started in this folder; none where there is none.
pub(crate) fn socket_of_dev_here() -> Option<PathBuf> {
    let socket = Path::new(DIR).canonicalize().ok()?.join("redis.sock");
    // One that nobody listens on was left behind.
    std::os::unix::net::UnixStream::connect(&socket).ok().map(|_| socket)
}
