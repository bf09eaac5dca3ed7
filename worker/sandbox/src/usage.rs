//! How much a workspace holds: blocks of disk, so that a sparse file counts what it takes, and files.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};

/// Deepest folder that is looked into.
const DEPTH_MAX: usize = 256;
/// Bytes of a block, as `stat` counts them.
const BLOCK: u64 = 512;

/// What a folder holds.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Held {
    /// Bytes of disk.
    pub bytes: u64,
    /// Files, folders and whatever else has a name.
    pub files: u64,
}

/// Adds a workspace up. Follows no symbolic link, and crosses into nothing that a command could put in its way; stops
/// where `files_max` is crossed.
#[must_use]
pub fn held(workspace: &std::path::Path, files_max: u64) -> Held {
    let mut total = Held::default();
    if let Ok(root) = open(CWD, workspace.as_os_str()) {
        walk(&root, files_max, &mut total, 0);
    }
    total
}

fn open(at: impl AsFd, name: &OsStr) -> rustix::io::Result<OwnedFd> {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

fn walk(folder: &OwnedFd, files_max: u64, total: &mut Held, depth: usize) {
    let Ok(entries) = Dir::read_from(folder) else { return };
    for entry in entries.flatten() {
        if matches!(entry.file_name().to_bytes(), b"." | b"..") {
            continue;
        }
        total.files += 1;
        if total.files > files_max || depth > DEPTH_MAX {
            return;
        }
        // What is gone again takes no room.
        let Ok(found) = statat(folder, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) else { continue };
        total.bytes += u64::try_from(found.st_blocks).unwrap_or(0) * BLOCK;
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            let name = std::os::unix::ffi::OsStrExt::from_bytes(entry.file_name().to_bytes());
            if let Ok(below) = open(folder, name) {
                walk(&below, files_max, total, depth + 1);
                if total.files > files_max {
                    return;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn sparse_files_count_their_blocks_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::File::create(folder.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
        std::fs::create_dir(folder.path().join("below")).unwrap();
        std::fs::write(folder.path().join("below/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", folder.path().join("link")).unwrap();
        let found = held(folder.path(), 1_000);
        assert_eq!(found.files, 4);
        assert!((100_000..1 << 20).contains(&found.bytes), "{found:?}");
        assert_eq!(held(folder.path(), 2).files, 3, "it stops where the limit is crossed");
    }
}
