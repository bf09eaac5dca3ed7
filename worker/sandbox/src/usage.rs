//! The size of a workspace: disk usage in blocks, and the number of files.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, fstat, openat, statat};
use rustix::io::Errno;

use crate::outcome::StopCause;
use crate::spec::Limits;

const BLOCK: u64 = 512;
/// A count starts again if a folder is moved meanwhile. After this number of attempts, the count fails.
const ATTEMPTS: usize = 5;

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FolderSize {
    /// Disk usage.
    pub bytes: u64,
    /// Includes folders and all other entries that have a name.
    pub files: u64,
}

/// Callers treat an uncountable workspace as if it exceeded its limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Uncountable {
    #[error("a folder of the workspace cannot be read ({0})")]
    Unreadable(Errno),
    #[error("the workspace cannot be counted, because its folders are being moved")]
    Moving,
}

/// Needs two descriptors and no recursion. Never leaves the workspace. Stops counting above `files_max` files.
pub fn folder_size(workspace: &Path, files_max: u64) -> Result<FolderSize, Uncountable> {
    for _ in 0..ATTEMPTS {
        match count(workspace, files_max) {
            Err(Uncountable::Moving) => {}
            counted => return counted,
        }
    }
    Err(Uncountable::Moving)
}

pub(crate) fn exceeded_limit(counted: Result<FolderSize, Uncountable>, limits: &Limits) -> Option<StopCause> {
    let Ok(FolderSize { bytes, files }) = counted else { return Some(StopCause::WorkspaceUncountable) };
    if bytes > limits.workspace_bytes {
        return Some(StopCause::WorkspaceBytes);
    }
    (files > limits.workspace_files).then_some(StopCause::WorkspaceFiles)
}

struct OpenFolder {
    /// Device and inode number.
    identity: (u64, u64),
    /// Subfolders that are not visited yet.
    waiting: Vec<CString>,
}

fn count(workspace: &Path, files_max: u64) -> Result<FolderSize, Uncountable> {
    let mut total = FolderSize::default();
    let Some(mut here) = open(CWD, workspace)? else { return Ok(total) };
    let mut levels = vec![list(&here, files_max, &mut total)?];
    while let Some(level) = levels.last_mut() {
        if total.files > files_max {
            break;
        }
        if let Some(name) = level.waiting.pop() {
            let Some(below) = open(&here, name.as_c_str())? else { continue };
            here = below;
            levels.push(list(&here, files_max, &mut total)?);
            continue;
        }
        levels.pop();
        let Some(parent) = levels.last() else { break };
        let above = open(&here, c"..")?.ok_or(Uncountable::Moving)?;
        // The parent of a moved folder can be outside the workspace, so the count starts again.
        if identity(&above)? != parent.identity {
            return Err(Uncountable::Moving);
        }
        here = above;
    }
    Ok(total)
}

/// `None` if the entry no longer exists or is not a folder.
fn open(at: impl AsFd, name: impl rustix::path::Arg) -> Result<Option<OwnedFd>, Uncountable> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(at, name, flags, Mode::empty()) {
        Ok(folder) => Ok(Some(folder)),
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(Uncountable::Unreadable(error)),
    }
}

fn identity(folder: &OwnedFd) -> Result<(u64, u64), Uncountable> {
    let found = fstat(folder).map_err(Uncountable::Unreadable)?;
    #[allow(clippy::useless_conversion, clippy::cast_sign_loss, reason = "the types differ by system")]
    Ok((found.st_dev as u64, u64::from(found.st_ino)))
}

fn list(folder: &OwnedFd, files_max: u64, total: &mut FolderSize) -> Result<OpenFolder, Uncountable> {
    let mut level = OpenFolder { identity: identity(folder)?, waiting: Vec::new() };
    for entry in Dir::read_from(folder).map_err(Uncountable::Unreadable)? {
        let entry = entry.map_err(Uncountable::Unreadable)?;
        let name: &CStr = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        total.files += 1;
        if total.files > files_max {
            break;
        }
        let found = match statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => found,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(Uncountable::Unreadable(error)),
        };
        let blocks = u64::try_from(found.st_blocks).unwrap_or(0);
        total.bytes = total.bytes.saturating_add(blocks.saturating_mul(BLOCK));
        if FileType::from_raw_mode(found.st_mode) == FileType::Directory {
            level.waiting.push(name.to_owned());
        }
    }
    Ok(level)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::os::unix::fs::PermissionsExt;

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn sparse_files_count_their_blocks_and_links_are_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::File::create(folder.path().join("sparse")).unwrap().set_len(1 << 40).unwrap();
        std::fs::create_dir(folder.path().join("below")).unwrap();
        std::fs::write(folder.path().join("below/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", folder.path().join("link")).unwrap();
        let found = folder_size(folder.path(), 1_000).unwrap();
        assert_eq!(found.files, 4);
        assert!((100_000..1 << 20).contains(&found.bytes), "{found:?}");
        assert_eq!(folder_size(folder.path(), 2).unwrap().files, 3, "it stops where the limit is crossed");
        assert_eq!(folder_size(&folder.path().join("none"), 2).unwrap(), FolderSize::default());
    }

    #[test]
    fn deeply_nested_folders_are_counted() {
        const DEPTH: u64 = 2_000;
        let folder = tempfile::tempdir().unwrap();
        let mut here = OwnedFd::from(std::fs::File::open(folder.path()).unwrap());
        for _ in 0..DEPTH {
            mkdirat(&here, "nested", Mode::RWXU).unwrap();
            here = open(&here, c"nested").unwrap().unwrap();
        }
        let flags = OFlags::CREATE | OFlags::WRONLY;
        let mut file = std::fs::File::from(openat(&here, "file", flags, Mode::RUSR).unwrap());
        std::io::Write::write_all(&mut file, &vec![1; 1 << 20]).unwrap();
        let found = folder_size(folder.path(), 10_000).unwrap();
        assert!(found.files == DEPTH + 1 && found.bytes >= 1 << 20, "{found:?}");
        crate::removal::remove(folder.path()).unwrap();
    }

    #[test]
    fn an_unreadable_folder_makes_a_workspace_uncountable() {
        if nix::unistd::geteuid().is_root() {
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("closed")).unwrap();
        std::fs::set_permissions(folder.path().join("closed"), PermissionsExt::from_mode(0o000)).unwrap();
        assert_eq!(folder_size(folder.path(), 10), Err(Uncountable::Unreadable(Errno::ACCESS)));
    }
}
