//! The working folder of one confined interpreter: empty at the start, and removed at the end.

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::geteuid;
use tickfleet_sandbox::removal;

/// If the worker is root, confined interpreters run as users from this range. Users of workspaces are in another range.
const FIRST_USER: u32 = 0x6000_0000;
const USERS: u32 = 0x1000_0000;

/// Dropping this value removes the folder, which blocks.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// If this process is root, no other interpreter of this process has the folder's user id.
    pub(crate) fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::Builder::new().prefix("tickfleet-tools-").tempdir()?;
        if geteuid().is_root() {
            // Two workers on one machine have different process ids, so they use different users.
            let number = std::process::id().wrapping_mul(4_099).wrapping_add(MADE.fetch_add(1, Ordering::Relaxed));
            let user = Some(FIRST_USER + number % USERS);
            chown(folder.path(), user, user)?;
        }
        Ok(Self(folder.keep()))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = removal::remove(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "cannot remove the folder of a tool process");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_dropped_folder_is_removed_with_its_contents() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        std::fs::write(path.join("a/b/file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
