//! Opens only files and folders below a given folder. Links cannot lead out, even if they change at the same time.

#[cfg(target_os = "linux")]
pub(crate) use of_linux::{FOLDER, open};

#[cfg(not(target_os = "linux"))]
pub(crate) use step_by_step::{FOLDER, open};

/// The kernel resolves the path. Links that stay below the folder are followed.
#[cfg(target_os = "linux")]
mod of_linux {
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
    use rustix::io;

    pub(crate) const FOLDER: OFlags = OFlags::PATH;

    pub(crate) fn open(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        openat2(root, path, flags, Mode::empty(), ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS)
    }
}

/// Opens the path folder by folder, and follows no link. Tests on Linux also compile this module.
#[cfg(any(test, not(target_os = "linux")))]
mod step_by_step {
    use std::os::fd::OwnedFd;
    use std::path::{Component, Path};

    use rustix::fs::{Mode, OFlags, openat};
    use rustix::io::{self, Errno};

    #[cfg(not(target_os = "linux"))]
    pub(crate) const FOLDER: OFlags = OFlags::RDONLY;

    pub(crate) fn open(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        let mut parts = path.components().peekable();
        let mut folder: Option<OwnedFd> = None;
        while let Some(part) = parts.next() {
            // Callers have checked the path, but `..` must be rejected here too.
            if !matches!(part, Component::Normal(_) | Component::CurDir) {
                return Err(Errno::XDEV);
            }
            let here = folder.as_ref().unwrap_or(root);
            if parts.peek().is_none() {
                return openat(here, part.as_os_str(), flags | OFlags::NOFOLLOW, Mode::empty());
            }
            let through = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            folder = Some(openat(here, part.as_os_str(), through, Mode::empty())?);
        }
        Err(Errno::NOENT)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    use rustix::fs::OFlags;

    use super::step_by_step;

    #[test]
    fn step_by_step_open_stays_below_its_folder_and_follows_no_link() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/c"), "inside").unwrap();
        fs::write(outside.path().join("secret"), "outside").unwrap();
        symlink(outside.path(), folder.path().join("away")).unwrap();
        symlink("a", folder.path().join("within")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("a/secret")).unwrap();
        let root = OwnedFd::from(fs::File::open(folder.path()).unwrap());
        let open = |path: &str| step_by_step::open(&root, Path::new(path), OFlags::RDONLY | OFlags::CLOEXEC);
        for path in ["a/b/c", "a/./b/c", "a/b", "."] {
            assert!(open(path).is_ok(), "{path}");
        }
        for path in ["away/secret", "within/b/c", "a/secret", "away", "../x", "a/../../x", "/etc/passwd", "a/none", ""]
        {
            assert!(open(path).is_err(), "{path}");
        }
    }
}
