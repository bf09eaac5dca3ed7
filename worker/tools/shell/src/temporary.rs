//! A file that is written under a temporary name and then renamed.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::BorrowedFd;
use std::path::Path;

use rand::TryRngCore;
use rand::rngs::OsRng;
use rustix::fs::{AtFlags, Mode, OFlags, openat, renameat, unlinkat};

const PREFIX: &str = ".tickfleet-write-";

/// Dropping this value before the rename removes the file.
pub(crate) struct TemporaryFile<'folder> {
    folder: BorrowedFd<'folder>,
    name: String,
    file: File,
    is_named: bool,
}

impl<'folder> TemporaryFile<'folder> {
    /// Writers on several machines may use the same folder, so the name is random. An existing file is never opened.
    pub(crate) fn new(folder: BorrowedFd<'folder>, mode: Mode) -> io::Result<Self> {
        let random = OsRng.try_next_u64().map_err(io::Error::other)?;
        let name = format!("{PREFIX}{random:016x}");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = File::from(openat(folder, &name, flags, mode)?);
        Ok(Self { folder, name, file, is_named: false })
    }

    pub(crate) fn as_file(&self) -> &File {
        &self.file
    }

    /// Writes `content` and renames the file to `name`. Replaces an existing file. After an error, the temporary file
    /// is removed.
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
        // A command in the same workspace may have removed the file. The caller reports the error that came first.
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
    fn a_file_that_is_not_persisted_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let open = File::open(folder.path()).unwrap();
        let dropped = make(&open);
        let failed = make(&open);
        assert_eq!(read_dir(folder.path()).unwrap().count(), 2);
        drop(dropped);
        let longer_than_names_are = "x".repeat(300);
        assert!(failed.persist(b"x", Path::new(&longer_than_names_are)).is_err());
        assert_eq!(read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_persisted_file_replaces_the_existing_one() {
        let folder = tempfile::tempdir().unwrap();
        let open = File::open(folder.path()).unwrap();
        let one = make(&open);
        let other = make(&open);
        one.persist(b"one", Path::new("f")).unwrap();
        other.persist(b"other", Path::new("f")).unwrap();
        assert_eq!(std::fs::read(folder.path().join("f")).unwrap(), b"other");
        assert_eq!(read_dir(folder.path()).unwrap().count(), 1);
    }
}
