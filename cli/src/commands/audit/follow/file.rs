//! Writes lines to a file and rotates the file when it is large. Each file begins with a header that contains its start
//! position, so a later process can continue. A batch is on disk (`fdatasync`) before the next batch is read.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, BufRead as _, BufReader, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use tickfleet_client::audit::{LogBatch, LogPosition};
use tickfleet_proof::lines::{Header, Line};

use super::batch_text::text;

type Positions = BTreeMap<u32, LogPosition>;

pub(super) struct Files {
    path: PathBuf,
    size_max: u64,
    files_max: u32,
    /// The file and its length in bytes; `None` between two files.
    current: Option<(File, u64)>,
    /// Stays locked as long as this process writes.
    _lock: File,
}

struct FileContent {
    positions: Positions,
    length: u64,
}

impl Files {
    /// Returns the position of each shard. Does not change a file that belongs to another fleet or is not an export.
    pub(super) fn open(path: &Path, fleet: &str, size_max: u64, files_max: u32) -> io::Result<(Self, Positions)> {
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(with_suffix(path, ".lock"))?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => io::Error::other("another process exports to this file"),
            TryLockError::Error(error) => error,
        })?;
        let files = Self { path: path.to_owned(), size_max, files_max, current: None, _lock: lock };
        let here = if path.exists() { read_content(path, fleet)? } else { None };
        if here.is_none() && path.exists() && std::fs::read(path)?.contains(&b'\n') {
            return Err(io::Error::other("the file is not an export made with --follow: choose another file"));
        }
        if path.exists() {
            let length = here.as_ref().map_or(0, |found| found.length);
            let file = OpenOptions::new().write(true).open(path)?;
            let cut = file.metadata()?.len().saturating_sub(length);
            if cut > 0 {
                tracing::warn!(bytes = cut, "removed an incomplete last line from the export");
            }
            file.set_len(length)?;
        }
        if let Some(found) = here {
            return Ok((files, found.positions));
        }
        // The last writer may have died between a rotation and the new header. Then a closed file has the positions.
        for (_, closed) in files.closed()?.into_iter().rev() {
            if let Some(found) = read_content(&closed, fleet)? {
                return Ok((files, found.positions));
            }
        }
        Ok((files, Positions::new()))
    }

    pub(super) const fn is_empty(&self) -> bool {
        !matches!(self.current, Some((_, length)) if length > 0)
    }

    /// Returns when the batch is on disk. On failure, removes the part that was already written.
    pub(super) fn append(&mut self, header: &Header, batch: &LogBatch) -> io::Result<()> {
        if batch.items.is_empty() {
            return Ok(());
        }
        let (mut file, length) = match self.current.take() {
            Some(current) => current,
            None => self.opened()?,
        };
        let text = text((length == 0).then_some(header), batch);
        let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_data());
        if let Err(error) = written {
            file.set_len(length)?;
            file.seek(SeekFrom::End(0))?;
            self.current = Some((file, length));
            return Err(error);
        }
        let length = length + text.len() as u64;
        if length >= self.size_max {
            drop(file);
            // The batch is on disk, so a failed rotation is not an error. The next batch tries again.
            if let Err(error) = self.close() {
                tracing::warn!(%error, "cannot rotate the export file; it keeps growing");
            }
        } else {
            self.current = Some((file, length));
        }
        Ok(())
    }

    fn opened(&self) -> io::Result<(File, u64)> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(&self.path)?;
        let length = file.seek(SeekFrom::End(0))?;
        self.sync_folder()?;
        Ok((file, length))
    }

    fn close(&self) -> io::Result<()> {
        let closed = self.closed()?;
        let number = closed.last().map_or(1, |(number, _)| number + 1);
        std::fs::rename(&self.path, with_suffix(&self.path, &format!(".{number:06}")))?;
        let kept = (self.files_max as usize).saturating_sub(2);
        for (_, old) in closed.iter().take(closed.len().saturating_sub(kept)) {
            std::fs::remove_file(old)?;
        }
        self.sync_folder()
    }

    /// The oldest first.
    fn closed(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let name = self.path.file_name().unwrap_or_default().to_string_lossy().into_owned() + ".";
        let mut found = Vec::new();
        for entry in folder(&self.path).read_dir()? {
            let path = entry?.path();
            let number = path.file_name().and_then(|file| file.to_str()?.strip_prefix(&name)?.parse().ok());
            found.extend(number.map(|number| (number, path)));
        }
        found.sort();
        Ok(found)
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(folder(&self.path))?.sync_all()
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name: OsString = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// `None` if the file has no header. Fails if the file belongs to another fleet.
fn read_content(path: &Path, fleet: &str) -> io::Result<Option<FileContent>> {
    let mut reader = BufReader::with_capacity(1 << 20, File::open(path)?);
    let mut line = Vec::new();
    let mut found = None;
    let mut read = 0_u64;
    loop {
        line.clear();
        read += reader.read_until(b'\n', &mut line)? as u64;
        if line.last() != Some(&b'\n') {
            return Ok(found);
        }
        let text = String::from_utf8_lossy(&line);
        let parsed = Line::read(text.trim_end());
        match (&mut found, &parsed) {
            (_, Some(Line::Header(header))) if header.fleet != fleet => {
                let theirs = &header.fleet;
                let why =
                    format!("the file is an export of the fleet {theirs:?}, and this is {fleet:?}: name another file");
                return Err(io::Error::other(why));
            }
            (None, Some(Line::Header(header))) if !header.follows.is_empty() => {
                let positions = header.follows.iter().filter_map(|(shard, text)| Some((*shard, text.parse().ok()?)));
                found = Some(FileContent { positions: positions.collect(), length: read });
            }
            (Some(found), Some(line)) => {
                let shard = match line {
                    Line::Entry(entry) => Some(entry.shard),
                    Line::Seal(seal) => Some(seal.shard),
                    Line::Lost(lost) => Some(lost.shard),
                    Line::Header(_) | Line::End(_) => None,
                };
                if let Some(position) = shard.and_then(|shard| found.positions.get_mut(&shard)) {
                    position.take(line);
                }
                found.length = read;
            }
            // Unknown lines at the end of the file are removed. Other unknown lines are kept.
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::collections::BTreeMap;

    use tickfleet_proof::lines;

    use super::*;

    #[test]
    fn a_foreign_or_non_export_file_is_rejected_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("audit.jsonl");
        let header = |fleet: &str| {
            let follows = BTreeMap::from([(0, "0-0 0-0".to_owned())]);
            lines::header(&Header { fleet: fleet.to_owned(), follows, ..Header::default() })
        };
        for (text, why) in [
            (format!("{}\n", header("north")), "the fleet \"north\", and this is \"south\""),
            ("notes of somebody\n".to_owned(), "not an export made with --follow"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let error =
                Files::open(&path, "south", 1 << 20, 2).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(why), "{error}");
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        std::fs::write(&path, "{\"export\":").unwrap();
        assert!(Files::open(&path, "south", 1 << 20, 2).is_ok());
    }
}
