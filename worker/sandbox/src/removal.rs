//! Removes a folder that a command has filled, at any depth and with any file modes.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Dir, Mode, OFlags, fchmod, openat, renameat, unlinkat};
use rustix::io::Errno;

/// Passes in addition to one for each moved folder. If more are needed, another process keeps filling the folder.
const IDLE_PASSES_MAX: u64 = 16;

/// Needs few descriptors and no recursion. Does not follow symbolic links. Accepts a missing folder.
pub fn remove(folder: &Path) -> io::Result<()> {
    let root = match open(CWD, folder) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened?,
    };
    let mut root = Dir::new(root)?;
    let mut moved = 0;
    let mut passes = 0;
    loop {
        let mut is_empty = true;
        while let Some(entry) = root.read() {
            let entry = entry?;
            if !is_dots(entry.file_name()) {
                is_empty = false;
                remove_entry(root.fd()?, entry.file_name(), &mut moved)?;
            }
        }
        if is_empty {
            break;
        }
        passes += 1;
        if passes > moved + IDLE_PASSES_MAX {
            return Err(io::Error::other("the folder is filled while it is removed"));
        }
        root.rewind();
    }
    match unlinkat(CWD, folder, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn remove_entry(root: BorrowedFd<'_>, name: &CStr, moved: &mut u64) -> io::Result<()> {
    if is_unlinked(root, name)? {
        return Ok(());
    }
    let mut folder = match open(root, name) {
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(()),
        opened => Dir::new(opened?)?,
    };
    while let Some(entry) = folder.read() {
        let entry = entry?;
        if !is_dots(entry.file_name()) && !is_unlinked(folder.fd()?, entry.file_name())? {
            move_up(folder.fd()?, entry.file_name(), root, moved)?;
        }
    }
    is_unlinked(root, name).map(drop)
}

/// Returns false for a folder that is not empty.
fn is_unlinked(at: BorrowedFd<'_>, name: &CStr) -> io::Result<bool> {
    match unlinkat(at, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(true),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    match unlinkat(at, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(true),
        Err(Errno::NOTEMPTY | Errno::EXIST) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn move_up(from: BorrowedFd<'_>, name: &CStr, root: BorrowedFd<'_>, moved: &mut u64) -> io::Result<()> {
    loop {
        *moved += 1;
        let free = format!(".tickfleet-removed-{moved}");
        match renameat(from, name, root, free.as_str()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) => {}
            // A folder can move to another parent only if the folder itself is writable. `open` makes it writable.
            Err(Errno::ACCESS) => {
                drop(open(from, name)?);
                renameat(from, name, root, free.as_str())?;
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_dots(name: &CStr) -> bool {
    matches!(name.to_bytes(), b"." | b"..")
}

/// Gives the owner the permissions to empty the folder.
fn open(at: impl AsFd, name: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = match openat(&at, name, flags, Mode::empty()) {
        Err(Errno::ACCESS) => {
            make_accessible(&at, name)?;
            openat(&at, name, flags, Mode::empty())?
        }
        opened => opened?,
    };
    // Fails if the folder belongs to another user. Root can empty the folder anyway.
    let _ = fchmod(&folder, Mode::RWXU);
    Ok(folder)
}

#[cfg(target_os = "linux")]
fn make_accessible(at: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<()> {
    use std::os::fd::AsRawFd;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = openat(at, name, flags, Mode::empty())?;
    rustix::fs::chmod(format!("/proc/self/fd/{}", folder.as_raw_fd()), Mode::RWXU)
}

#[cfg(not(target_os = "linux"))]
fn make_accessible(at: impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<()> {
    rustix::fs::chmodat(at, name, Mode::RWXU, AtFlags::SYMLINK_NOFOLLOW)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use rustix::fs::mkdirat;

    use super::*;

    #[test]
    fn removal_deletes_a_whole_workspace_and_follows_no_links() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("kept"), "x").unwrap();
        let root = folder.path().join("workspace");
        fs::create_dir_all(root.join("a/b/c")).unwrap();
        fs::create_dir_all(root.join("a/.tickfleet-removed-1/d")).unwrap();
        fs::write(root.join("a/b/c/file"), "x").unwrap();
        symlink(outside.path(), root.join("link")).unwrap();
        symlink(outside.path(), root.join("a/b/link")).unwrap();
        for path in ["a/b/c", "a/b", "a", ""] {
            fs::set_permissions(root.join(path), fs::Permissions::from_mode(0o000)).unwrap();
        }
        remove(&root).unwrap();
        assert!(!root.exists() && outside.path().join("kept").exists());
        remove(&root).unwrap();
    }

    #[test]
    fn folders_nested_deeper_than_the_open_file_limit_are_removed() {
        const DEPTH: usize = 3_000;
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("workspace");
        fs::create_dir(&root).unwrap();
        let mut here = open(CWD, &root).unwrap();
        for _ in 0..DEPTH {
            mkdirat(&here, "nested", Mode::RWXU).unwrap();
            mkdirat(&here, "beside", Mode::empty()).unwrap();
            here = open(&here, "nested").unwrap();
        }
        remove(&root).unwrap();
        assert!(!root.exists());
    }
}
