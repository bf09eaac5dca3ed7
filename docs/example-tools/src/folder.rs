//! Opens files in a folder without leaving it. No step of a path can be a link, `..` or a hidden name. Even a link that
//! is created during the opening is not followed.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, openat, renameat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use tickfleet::{CallContext, ToolError};

const STEPS_MAX: usize = 8;
const NAME_BYTES_MAX: usize = 100;

/// An open folder below `data/<tenant>`.
pub struct Folder(OwnedFd);

type Place<'a> = (Folder, &'a str);

fn steps(path: &str) -> Result<Vec<&str>, ToolError> {
    let steps: Vec<&str> = path.split('/').collect();
    let sound = |name: &&str| {
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && !name.starts_with('.') && name.chars().all(plain)
    };
    if steps.len() > STEPS_MAX || !steps.iter().all(sound) {
        return Err(ToolError::InvalidArguments(format!(
            "{path:?} is no path here: at most {STEPS_MAX} names of letters, digits, _ - and ., none of which begins \
             with a point, with / between them."
        )));
    }
    Ok(steps)
}

fn failed(what: &str, error: Errno) -> ToolError {
    match error {
        Errno::ELOOP | Errno::ENOTDIR => ToolError::Permanent(format!("{what} is not what it has to be here.")),
        Errno::ENOENT => ToolError::Permanent(format!("There is no {what}.")),
        error => ToolError::Internal(format!("{what}: {error}")),
    }
}

const FOLDER: OFlag = OFlag::O_RDONLY.union(OFlag::O_DIRECTORY).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

impl Folder {
    /// Without a path, opens the tenant's own folder.
    pub fn of(context: &CallContext, path: Option<&str>, make: bool) -> Result<Self, ToolError> {
        let data = openat(AT_FDCWD, "data", FOLDER, Mode::empty()).map_err(|error| failed("folder data", error))?;
        let tenant = context.tenant.to_string();
        let path = path.map_or_else(|| tenant.clone(), |path| format!("{tenant}/{path}"));
        steps(&path)?.into_iter().try_fold(Self(data), |folder, name| folder.step(name, make))
    }

    fn step(&self, name: &str, make: bool) -> Result<Self, ToolError> {
        if make {
            match mkdirat(&self.0, name, Mode::S_IRWXU) {
                Ok(()) | Err(Errno::EEXIST) => {}
                Err(error) => return Err(failed(name, error)),
            }
        }
        openat(&self.0, name, FOLDER, Mode::empty()).map(Self).map_err(|error| failed(name, error))
    }

    fn place<'a>(self, path: &'a str, make: bool) -> Result<Place<'a>, ToolError> {
        let mut steps = steps(path)?;
        let name = steps.pop().unwrap_or_default();
        Ok((steps.into_iter().try_fold(self, |folder, step| folder.step(step, make))?, name))
    }

    /// `None` if the file does not exist.
    pub fn read(self, path: &str, bytes_max: u64) -> Result<Option<String>, ToolError> {
        let (folder, name) = self.place(path, false)?;
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC;
        let file = match openat(&folder.0, name, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::ENOENT) => return Ok(None),
            Err(error) => return Err(failed(name, error)),
        };
        let mut text = String::new();
        let is_file = file.metadata().is_ok_and(|about| about.is_file());
        let read = file.take(bytes_max + 1).read_to_string(&mut text);
        match read {
            Ok(read) if is_file && read as u64 <= bytes_max => Ok(Some(text)),
            Ok(_) if is_file => Err(ToolError::Permanent(format!("{name} has more than {bytes_max} bytes."))),
            _ => Err(ToolError::Permanent(format!("{name} is no text file."))),
        }
    }

    /// Replaces a file in one step: a concurrent reader gets either the previous text or the new text.
    pub fn write(self, path: &str, text: &str, unique: &str) -> Result<(), ToolError> {
        let (folder, name) = self.place(path, true)?;
        let draft = format!(".draft-{unique}");
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        // A killed worker may have left a draft with this name.
        let _ = unlinkat(&folder.0, draft.as_str(), UnlinkatFlags::NoRemoveDir);
        let file = openat(&folder.0, draft.as_str(), flags, Mode::S_IRUSR | Mode::S_IWUSR);
        let mut file = File::from(file.map_err(|error| failed(name, error))?);
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
        let moved = match written {
            // If the target name is a link, the rename replaces the link and does not follow it.
            Ok(()) => renameat(&folder.0, draft.as_str(), &folder.0, name).map_err(|error| failed(name, error)),
            Err(error) => Err(ToolError::Transient(format!("{name} could not be written: {error}"))),
        };
        if moved.is_err() {
            let _ = unlinkat(&folder.0, draft.as_str(), UnlinkatFlags::NoRemoveDir);
        }
        moved
    }

    pub fn names(&self, end: &str, count_max: usize) -> Result<Vec<String>, ToolError> {
        let copy = openat(&self.0, ".", FOLDER, Mode::empty()).map_err(|error| failed("folder", error))?;
        let mut folder = nix::dir::Dir::from_fd(copy).map_err(|error| failed("folder", error))?;
        let names = folder.iter().flatten().filter_map(|entry| entry.file_name().to_str().ok().map(ToOwned::to_owned));
        let mut names: Vec<String> =
            names.filter(|name| name.ends_with(end) && !name.starts_with('.')).take(count_max).collect();
        names.sort();
        Ok(names)
    }
}

/// The work blocks, so it runs on a separate thread.
pub async fn on_disk<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ToolError> + Send + 'static,
) -> Result<T, ToolError> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|error| Err(ToolError::internal(error)))
}
