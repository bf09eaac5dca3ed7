//! A file that is written under a name of its own and then takes the name that it is for.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rand::TryRngCore;
use rand::rngs::OsRng;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

/// What the names of all such files begin with.
const PREFIX: &str = ".tickfleet-write-";

/// A file that has not taken its name yet. Dropped before that, it is removed.
pub(crate) struct TemporaryFile<'folder> {
    folder: BorrowedFd<'folder>,
    name: String,
    file: File,
    is_named: bool,
}

impl<'folder> TemporaryFile<'folder> {
    /// Makes an empty file in a folder. Its name is random, so that writers in one folder, be they workers of several
    /// machines, do not meet; and it is never a file or a link that is there already.
    ///
    /// # Errors
    /// The folder takes no file.
    pub(crate) fn new(folder: BorrowedFd<'folder>, mode: Mode) -> io::Result<Self> {
        let random = OsRng.try_next_u64().map_err(io::Error::other)?;
        let name = format!("{PREFIX}{random:016x}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(folder, &name, flags, mode)?);
        Ok(Self { folder, name, file, is_named: false })
    }

    /// The open file.
    pub(crate) fn as_file(&self) -> &File {
        &self.file
    }

    /// Writes the content, and gives the file its name; what had the name is replaced.
    ///
    /// # Errors
    /// The content does not fit on the disk, or the name cannot be had. The file is gone then.
    pub(crate) fn persist(mut self, content: &[u8], name: &Path) -> io::Result<()> {
        self.file.write_all(content)?;
        renameat(self.folder, &self.name, self.folder, name)?;
        self.is_named = true;
        Ok(())
    }
}

impl Drop for TemporaryFile<'_> {
    fn drop(&mut self) {
        if self.is_named {
            return;
        }
        // The failure that led here is told; a command of the same workspace may have removed the file meanwhile.
        let _ = unlinkat(self.folder, &self.name, AtFlags::empty());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs::read_dir;
    use std::os::fd::AsFd;

    use super::*;

    fn make(folder: &File) -> TemporaryFile<'_> {
        TemporaryFile::new(folder.as_fd(), Mode::from_raw_mode(0o600)).unwrap()
    }

    #[test]
    fn what_gets_no_name_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let open = File::open(folder.path()).unwrap();
        let (dropped, failed) = (make(&open), make(&open));
        assert_eq!(read_dir(folder.path()).unwrap().count(), 2);
        drop(dropped);
        let longer_than_names_are = "x".repeat(300);
        assert!(failed.persist(b"x", Path::new(&longer_than_names_are)).is_err());
        assert_eq!(read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_gets_its_name_replaces_what_had_it_and_stays() {
        let folder = tempfile::tempdir().unwrap();
        let open = File::open(folder.path()).unwrap();
        let (one, other) = (make(&open), make(&open));
        one.persist(b"one", Path::new("f")).unwrap();
        other.persist(b"other", Path::new("f")).unwrap();
        assert_eq!(std::fs::read(folder.path().join("f")).unwrap(), b"other");
        assert_eq!(read_dir(folder.path()).unwrap().count(), 1);
    }
}
