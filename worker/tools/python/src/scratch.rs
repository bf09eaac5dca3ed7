//! The folder that a confined interpreter works in: its own, empty at first, and gone after its end.

use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::geteuid;
use tickfleet_sandbox::removal;

/// The first of the users that confined interpreters run as where the worker is root, and how many there are: others than
/// those of workspaces.
const FIRST_USER: u32 = 0x6000_0000;
const USERS: u32 = 0x1000_0000;

/// A folder. Dropping it removes it with what is in it, which blocks.
#[derive(Debug)]
pub(crate) struct Scratch(PathBuf);

impl Scratch {
    /// Makes one in the system's folder for temporary files. Where this process is root, it belongs to a user that no other
    /// process runs as.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub(crate) fn new() -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let folder = tempfile::Builder::new().prefix("tickfleet-python-").tempdir()?;
        if geteuid().is_root() {
            // Two workers on one machine, as in tests, take different ones by their numbers.
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
            tracing::warn!(folder = %self.0.display(), %error, "cannot remove the folder of a Python process");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_folder_goes_with_whatever_an_interpreter_left_in_it() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.path().to_owned();
        std::fs::create_dir_all(path.join("a/b")).unwrap();
        std::fs::write(path.join("a/b/file"), "x").unwrap();
        drop(scratch);
        assert!(!path.exists());
    }
}
