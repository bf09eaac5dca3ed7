//! Access to the files of a workspace, and to nothing outside: each path is resolved below one open folder.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, RawMode, fchown, mkdirat, openat, statat};
use rustix::io::Errno;
use tickfleet_sandbox::spec::WORKSPACE;
use tickfleet_tools::ToolError;

use crate::beneath;
use crate::temporary::TemporaryFile;
use crate::workspace::Workspace;

const DEPTH_MAX: usize = 64;
const FILE_MODE: RawMode = 0o644;
const FOLDER_MODE: RawMode = 0o755;

pub(crate) struct Files {
    root: OwnedFd,
    workspace: Workspace,
}

pub(crate) struct Entry {
    /// Relative to the workspace.
    pub(crate) path: String,
    pub(crate) is_folder: bool,
    /// In bytes; 0 for folders.
    pub(crate) size: u64,
}

impl Files {
    pub(crate) fn open(workspace: Workspace) -> Result<Self, ToolError> {
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let root = openat(CWD, &workspace.path, beneath::FOLDER | flags, Mode::empty()).map_err(ToolError::internal)?;
        Ok(Self { root, workspace })
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.workspace.path
    }

    pub(crate) fn read(&self, path: &str, max: u64) -> Result<Vec<u8>, ToolError> {
        let file = File::from(self.at(path, OFlags::RDONLY | OFlags::NONBLOCK, path)?);
        let found = file.metadata().map_err(|error| failed(path, &error))?;
        if !found.is_file() {
            let what = if found.is_dir() { "a folder" } else { "not a regular file" };
            return Err(ToolError::Permanent(format!("'{path}' is {what}.")));
        }
        if found.len() > max {
            let size = found.len();
            return Err(ToolError::Permanent(format!(
                "'{path}' has {size} bytes, and at most {max} can be read: read parts of it with a command."
            )));
        }
        let mut content = Vec::new();
        file.take(max).read_to_end(&mut content).map_err(|error| failed(path, &error))?;
        Ok(content)
    }

    /// Other processes see either the old or the new content. The last of several writers wins.
    pub(crate) fn write(&self, path: &str, content: &[u8]) -> Result<(), ToolError> {
        let inner = inner(path)?;
        let name = inner.file_name().ok_or_else(|| ToolError::Permanent(format!("'{path}' names no file.")))?;
        let above = self.make_folders(inner.parent().unwrap_or(Path::new("")), path)?;
        if let Ok(found) = statat(&above, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            && FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
        {
            return Err(ToolError::Permanent(format!("'{path}' exists and is not a regular file.")));
        }
        let mode = statat(&above, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)
            .map_or(FILE_MODE, |found| found.st_mode & 0o777);
        let file =
            TemporaryFile::new(above.as_fd(), Mode::from_raw_mode(mode)).map_err(|error| failed(path, &error))?;
        self.chown_to_owner(file.as_file())?;
        file.persist(content, Path::new(name)).map_err(|error| failed(path, &error))
    }

    /// Returns at most `max` entries, and true if the list is incomplete. Follows no links. Needs only one further
    /// descriptor.
    pub(crate) fn walk(&self, path: &str, max: usize) -> Result<(Vec<Entry>, bool), ToolError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let start = inner(path)?;
        drop(self.at(path, flags, path)?);
        let mut all = Vec::new();
        let mut waiting = vec![start];
        let mut has_more = false;
        while let Some(path) = waiting.pop() {
            let opened = beneath::open(&self.root, from_root(&path), flags).and_then(Dir::new);
            let Ok(mut folder) = opened else {
                has_more = true;
                continue;
            };
            let mut names = Vec::new();
            while let Some(entry) = folder.read() {
                names.push(entry.map_err(ToolError::internal)?.file_name().to_owned());
            }
            names.sort();
            for name in names.iter().filter(|name| !matches!(name.to_bytes(), b"." | b"..")) {
                if all.len() >= max {
                    return Ok((all, true));
                }
                let at = folder.fd().map_err(ToolError::internal)?;
                let Ok(found) = statat(at, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW) else {
                    continue;
                };
                let name: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name.to_bytes());
                let path = path.join(name);
                let kind = FileType::from_raw_mode(found.st_mode);
                let size = u64::try_from(found.st_size).unwrap_or(0);
                let is_folder = kind == FileType::Directory;
                if is_folder && path.components().count() < DEPTH_MAX {
                    waiting.push(path.clone());
                }
                has_more |= is_folder && path.components().count() >= DEPTH_MAX;
                let size = if is_folder { 0 } else { size };
                all.push(Entry { path: path.to_string_lossy().into_owned(), is_folder, size });
            }
        }
        Ok((all, has_more))
    }

    fn at(&self, path: &str, flags: OFlags, shown_path: &str) -> Result<OwnedFd, ToolError> {
        let inner = inner(path)?;
        beneath::open(&self.root, from_root(&inner), flags | OFlags::CLOEXEC)
            .map_err(|error| failed(shown_path, &error.into()))
    }

    fn make_folders(&self, path: &Path, shown_path: &str) -> Result<OwnedFd, ToolError> {
        let mut folder = self.at("", OFlags::RDONLY | OFlags::DIRECTORY, shown_path)?;
        for part in path.components() {
            match mkdirat(&folder, part.as_os_str(), Mode::from_raw_mode(FOLDER_MODE)) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed(shown_path, &error.into())),
            }
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let below = openat(&folder, part.as_os_str(), flags, Mode::empty());
            folder = below.map_err(|error| failed(shown_path, &error.into()))?;
            self.chown_to_owner(&folder)?;
        }
        Ok(folder)
    }

    /// Commands run as the workspace's user, so this user must own new files and folders.
    fn chown_to_owner(&self, made: impl AsFd) -> Result<(), ToolError> {
        let Some(owner) = self.workspace.owner else { return Ok(()) };
        let user = rustix::fs::Uid::from_raw(owner);
        let group = rustix::fs::Gid::from_raw(owner);
        fchown(made, Some(user), Some(group)).map_err(ToolError::internal)
    }
}

/// Returns the path inside the workspace. `path` is relative, or absolute and below `/app/workspace`.
fn inner(path: &str) -> Result<PathBuf, ToolError> {
    let path = Path::new(path);
    let relative = match path.strip_prefix(WORKSPACE) {
        Ok(relative) => relative,
        Err(_) if path.is_absolute() => {
            let shown_path = path.display();
            return Err(ToolError::Permanent(format!(
                "'{shown_path}' is outside the workspace: give a path relative to it, or one below {WORKSPACE}."
            )));
        }
        Err(_) => path,
    };
    let mut inner = PathBuf::new();
    for part in relative.components() {
        match part {
            Component::Normal(name) => inner.push(name),
            Component::CurDir => {}
            _ => {
                let shown_path = path.display();
                return Err(ToolError::Permanent(format!(
                    "'{shown_path}' leaves the workspace: paths may not have .."
                )));
            }
        }
    }
    if inner.components().count() > DEPTH_MAX {
        return Err(ToolError::Permanent(format!("The path has more than {DEPTH_MAX} folders.")));
    }
    Ok(inner)
}

fn from_root(inner: &Path) -> &Path {
    if inner.as_os_str().is_empty() { Path::new(".") } else { inner }
}

fn failed(path: &str, error: &io::Error) -> ToolError {
    let message = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => format!("No '{path}' in the workspace; list_files lists its files."),
        Some(Errno::XDEV | Errno::LOOP) => format!("'{path}' leads out of the workspace by a link."),
        Some(Errno::NOTDIR) => format!("A part of '{path}' is not a folder."),
        Some(Errno::ISDIR) => format!("'{path}' is a folder."),
        Some(Errno::ACCESS | Errno::PERM) => format!("'{path}' may not be opened: its mode forbids it."),
        Some(Errno::NAMETOOLONG) => format!("'{path}' is too long for a path."),
        Some(Errno::NOSPC | Errno::DQUOT) => "The disk of workspaces is full.".into(),
        Some(Errno::INVAL) => format!("'{path}' is not a valid path."),
        _ => format!("'{path}': {error}."),
    };
    ToolError::Permanent(message)
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn files(folder: &Path) -> Files {
        Files::open(Workspace { path: folder.to_owned(), owner: None }).unwrap()
    }

    #[test]
    fn relative_and_absolute_paths_name_the_same_file() {
        let folder = tempfile::tempdir().unwrap();
        let files = files(folder.path());
        files.write("a/b/c.txt", b"one").unwrap();
        files.write("/app/workspace/a/b/c.txt", b"two").unwrap();
        assert_eq!(files.read("./a/b/c.txt", 10).unwrap(), b"two");
        let (all, more) = files.walk("", 10).unwrap();
        let paths: Vec<&str> = all.iter().map(|entry| entry.path.as_str()).collect();
        assert_eq!((paths, more), (vec!["a", "a/b", "a/b/c.txt"], false));
        assert!(files.walk("", 2).unwrap().1);
    }

    #[allow(clippy::disallowed_methods, reason = "the variable says which of the two processes this is")]
    pub(crate) fn with_few_descriptors(test: &str, body: impl FnOnce()) {
        const ROLE: &str = "TICKFLEET_TEST_FEW_DESCRIPTORS";
        if std::env::var_os(ROLE).is_some() {
            return body();
        }
        let program = std::env::current_exe().unwrap();
        let mut limited = std::process::Command::new("sh");
        limited.args(["-c", "ulimit -n 32; exec \"$0\" --exact \"$1\""]).arg(program).arg(test).env(ROLE, "1");
        let ended = limited.output().unwrap();
        let output = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && output.contains("1 passed"), "{output}");
    }

    #[test]
    fn a_walk_of_many_folders_uses_few_descriptors_and_reports_omissions() {
        with_few_descriptors("files::tests::a_walk_of_many_folders_uses_few_descriptors_and_reports_omissions", || {
            let folder = tempfile::tempdir().unwrap();
            for number in 0..200 {
                fs::create_dir_all(folder.path().join(format!("wide/{number:03}/below"))).unwrap();
            }
            let files = files(folder.path());
            let (all, more) = files.walk("", 1_000).unwrap();
            assert_eq!((all.len(), more), (401, false));
            let deep = ["x"; DEPTH_MAX + 5].join("/");
            fs::create_dir_all(folder.path().join("deep").join(deep)).unwrap();
            let (all, more) = files.walk("deep", 1_000).unwrap();
            assert_eq!((all.len(), more), (DEPTH_MAX - 1, true), "folders too deep to look into are more");
        });
    }

    #[test]
    fn no_path_or_link_escapes_the_folder() {
        let folder = tempfile::tempdir().unwrap();
        let outside = tempfile::tempdir().unwrap();
        fs::write(outside.path().join("secret"), "hunter2").unwrap();
        symlink(outside.path(), folder.path().join("link")).unwrap();
        symlink(outside.path().join("secret"), folder.path().join("file")).unwrap();
        symlink("/proc/self/root", folder.path().join("magic")).unwrap();
        let files = files(folder.path());
        for path in ["link/secret", "file", "magic/etc/passwd", "../x", "/etc/passwd", "a/../../x", "missing", ""] {
            assert!(matches!(files.read(path, 1_000), Err(ToolError::Permanent(_))), "{path}");
        }
        for path in ["link/new", "file", "../new", "/new", "magic/tmp/new", ""] {
            assert!(files.write(path, b"x").is_err(), "{path}");
        }
        assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"hunter2");
        assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
    }

    #[test]
    fn concurrent_writers_do_not_interfere() {
        let folder = tempfile::tempdir().unwrap();
        let writers = 8;
        let times = 50;
        std::thread::scope(|scope| {
            for writer in 0..writers {
                let files = files(folder.path());
                scope.spawn(move || {
                    for _ in 0..times {
                        files.write("shared", format!("{writer}").repeat(100).as_bytes()).unwrap();
                        files.write(&format!("own-{writer}"), b"x").unwrap();
                    }
                });
            }
        });
        let shared = files(folder.path()).read("shared", 100).unwrap();
        assert!(shared.len() == 100 && shared.iter().all(|byte| *byte == shared[0]), "{shared:?}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), writers + 1);
    }

    #[test]
    fn a_failed_write_creates_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let longer_than_names_are = "x".repeat(300);
        assert!(files(folder.path()).write(&longer_than_names_are, b"x").is_err());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn reading_a_pipe_or_an_oversized_file_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(CWD, folder.path().join("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        fs::write(folder.path().join("big"), "0123456789").unwrap();
        let files = files(folder.path());
        assert!(files.read("pipe", 10).is_err());
        let refused = files.read("big", 9).unwrap_err().to_string();
        assert!(refused.contains("10 bytes") && refused.contains("at most 9"), "{refused}");
    }
}
