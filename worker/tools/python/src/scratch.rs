//! The folder that a confined interpreter works in: its own, empty at first, and gone after its end.

use std::io;
use std::os::unix::fs::chown;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::unistd::geteuid;
use tempfile::TempDir;

/// The first of the users that confined interpreters run as where the worker is root, and how many there are: others than
/// those of workspaces.
const FIRST_USER: u32 = 0x6000_0000;
const USERS: u32 = 0x1000_0000;

/// A folder. Dropping it removes it with what is in it.
#[derive(Debug)]
pub(crate) struct Scratch(TempDir);

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
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}
