//! The journal of a shard: a snapshot, and a log of the effects after the snapshot.
//!
//! ```text
//! lock          held by the one process that has the directory open
//! snapshot-7    the contents when generation 7 began; the file gets this name once it is complete
//! log-7         the effects since then, one frame for each batch
//! ```

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::effects::Effect;
use super::frames::{Frames, MAGIC, write_frame};
use super::shard::Contents;
use crate::StoreError;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FsyncPolicy {
    /// Before the reply.
    Always,
    /// Within a second. A crash of the machine may lose the last second; a crash of the process loses nothing.
    #[default]
    EverySecond,
    /// The operating system decides.
    Never,
}

/// In bytes. Until the log has this size, no new generation begins.
const LOG_MIN: u64 = 64 << 20;
/// In bytes, approximately.
const SNAPSHOT_FRAME: usize = 1 << 20;

#[derive(Debug)]
struct LogFile {
    file: File,
    path: PathBuf,
    written: AtomicU64,
    /// In bytes. The lock is held during an fsync, so all callers that wait for the lock need only one further fsync.
    synced: Mutex<u64>,
}

impl LogFile {
    fn sync(&self, upto: u64) -> Result<(), StoreError> {
        let mut synced = self.synced.lock().unwrap_or_else(PoisonError::into_inner);
        if *synced < upto {
            let written = self.written.load(Ordering::SeqCst);
            self.file.sync_data().map_err(|error| data_error("sync", &self.path, error))?;
            *synced = written;
        }
        Ok(())
    }
}

/// The log must be synced up to this position before the reply.
#[derive(Debug)]
pub struct Position {
    log: Arc<LogFile>,
    upto: u64,
}

impl Position {
    pub async fn synced(self) -> Result<(), StoreError> {
        let Self { log, upto } = self;
        let path = log.path.clone();
        let sync = tokio::task::spawn_blocking(move || log.sync(upto));
        sync.await.unwrap_or_else(|error| Err(data_error("sync", &path, io::Error::other(error))))
    }
}

#[derive(Debug)]
pub struct Journal {
    dir: PathBuf,
    policy: FsyncPolicy,
    generation: u64,
    log: Arc<LogFile>,
    snapshot_bytes: u64,
    log_min: u64,
    buffer: Vec<u8>,
    /// True after a failed write. Memory then has changes that are not on disk, and all further calls fail.
    failed: bool,
    syncing: Option<Syncing>,
    _lock: File,
}

#[derive(Debug)]
struct Syncing {
    logs: mpsc::Sender<Arc<LogFile>>,
}

impl Syncing {
    fn start(log: Arc<LogFile>) -> Result<Self, StoreError> {
        let (logs, new_logs) = mpsc::channel();
        let path = log.path.clone();
        let every_second = move || {
            let mut log: Arc<LogFile> = log;
            loop {
                match new_logs.recv_timeout(Duration::from_secs(1)) {
                    Ok(new) => log = new,
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => {
                        if let Err(error) = log.sync(log.written.load(Ordering::SeqCst)) {
                            tracing::error!(%error, "journal not synced: a crash of the machine loses more than a second");
                        }
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("journal".into()).spawn(every_second);
        thread.map_err(|error| data_error("sync", &path, error))?;
        Ok(Self { logs })
    }
}

#[derive(Debug)]
pub struct Opened {
    pub contents: Option<Contents>,
    lock: File,
    generation: u64,
}

impl Opened {
    pub fn read(dir: &Path) -> Result<Self, StoreError> {
        let failed = |error| data_error("open", dir, error);
        // Stored data contains messages of agents and tenants, so other users must not read it.
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
        let lock = OpenOptions::new().create(true).truncate(false).write(true).open(dir.join("lock"));
        let lock = lock.map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::DataInUse(dir.to_owned())),
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let newest = |kind: &str| generations(dir, kind).map(|found| found.into_iter().max()).map_err(failed);
        let snapshot = newest("snapshot-")?;
        let log = newest("log-")?;
        let Some(generation) = snapshot else {
            // A snapshot is complete before the first log begins, so a log without a snapshot is damage.
            return match log {
                Some(log) => Err(StoreError::DataDamaged { path: dir.join(format!("snapshot-{log}")), at: 0 }),
                None => Ok(Self { contents: None, lock, generation: 0 }),
            };
        };
        let mut contents = Contents::default();
        read_snapshot(&dir.join(format!("snapshot-{generation}")), &mut contents)?;
        read_log(&dir.join(format!("log-{generation}")), &mut contents)?;
        Ok(Self { contents: Some(contents), lock, generation })
    }

    pub fn begin(self, dir: &Path, policy: FsyncPolicy, contents: &Contents) -> Result<Journal, StoreError> {
        let generation = self.generation + 1;
        let snapshot_bytes = write_snapshot(dir, generation, contents)?;
        let log = Arc::new(create_log(dir, generation)?);
        remove_older(dir, generation);
        let syncing = match policy {
            FsyncPolicy::EverySecond => Some(Syncing::start(Arc::clone(&log))?),
            FsyncPolicy::Always | FsyncPolicy::Never => None,
        };
        Ok(Journal {
            dir: dir.to_owned(),
            policy,
            generation,
            log,
            snapshot_bytes,
            log_min: LOG_MIN,
            buffer: Vec::new(),
            failed: false,
            syncing,
            _lock: self.lock,
        })
    }
}

impl Journal {
    #[cfg(test)]
    pub const fn set_log_min(&mut self, bytes: u64) {
        self.log_min = bytes;
    }

    #[cfg(test)]
    pub fn log_path(&self) -> &Path {
        &self.log.path
    }

    pub fn check(&self) -> Result<(), StoreError> {
        if self.failed {
            let error = io::Error::other("an earlier write failed; restart the process once the disk has room again");
            return Err(data_error("write", &self.log.path, error));
        }
        Ok(())
    }

    /// `contents` is the state after the batch. The log must be synced up to the returned position before the reply.
    /// After an error, the journal accepts no writes.
    pub fn append(&mut self, effects: &[Effect], contents: &Contents) -> Result<Option<Position>, StoreError> {
        if !effects.is_empty() {
            let appended = self.write(effects).and_then(|()| self.rotate(contents));
            self.failed = appended.is_err();
            appended?;
        }
        Ok((self.policy == FsyncPolicy::Always).then(|| self.position()))
    }

    pub fn position(&self) -> Position {
        Position { log: Arc::clone(&self.log), upto: self.log.written.load(Ordering::SeqCst) }
    }

    fn write(&mut self, effects: &[Effect]) -> Result<(), StoreError> {
        self.buffer.clear();
        let written = write_frame(effects, &mut self.buffer).and_then(|()| (&self.log.file).write_all(&self.buffer));
        written.map_err(|error| data_error("write", &self.log.path, error))?;
        self.log.written.fetch_add(self.buffer.len() as u64, Ordering::SeqCst);
        self.buffer.shrink_to(SNAPSHOT_FRAME);
        Ok(())
    }

    /// Begins a new generation if the log is at least as large as the snapshot. So the cost of snapshots is in
    /// proportion to the logs.
    fn rotate(&mut self, contents: &Contents) -> Result<(), StoreError> {
        if self.log.written.load(Ordering::SeqCst) < self.snapshot_bytes.max(self.log_min) {
            return Ok(());
        }
        let generation = self.generation + 1;
        self.snapshot_bytes = write_snapshot(&self.dir, generation, contents)?;
        self.log = Arc::new(create_log(&self.dir, generation)?);
        self.generation = generation;
        remove_older(&self.dir, generation);
        if let Some(syncing) = &self.syncing
            && syncing.logs.send(Arc::clone(&self.log)).is_err()
        {
            tracing::error!("journal is no longer synced every second");
        }
        Ok(())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.policy == FsyncPolicy::Never {
            return;
        }
        if let Err(error) = self.log.sync(self.log.written.load(Ordering::SeqCst)) {
            tracing::warn!(%error, "journal not synced at the end");
        }
    }
}

fn data_error(doing: &'static str, path: &Path, source: io::Error) -> StoreError {
    StoreError::Data { doing, path: path.to_owned(), source }
}

fn generations(dir: &Path, kind: &str) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for file in fs::read_dir(dir)? {
        let name = file?.file_name();
        found.extend(name.to_str().and_then(|name| name.strip_prefix(kind)?.parse::<u64>().ok()));
    }
    Ok(found)
}

fn read_snapshot(path: &Path, contents: &mut Contents) -> Result<(), StoreError> {
    let failed = |error| data_error("read", path, error);
    let file = BufReader::new(File::open(path).map_err(failed)?);
    let damaged = |at| StoreError::DataDamaged { path: path.to_owned(), at };
    let mut frames = Frames::of(file).map_err(failed)?.ok_or_else(|| damaged(0))?;
    loop {
        let effects = frames.next_frame().map_err(failed)?.ok_or_else(|| damaged(frames.good))?;
        if effects.is_empty() {
            return Ok(());
        }
        effects.into_iter().for_each(|effect| contents.apply(effect));
    }
}

fn read_log(path: &Path, contents: &mut Contents) -> Result<(), StoreError> {
    let failed = |error| data_error("read", path, error);
    let file = match File::open(path) {
        Ok(file) => file,
        // The log does not exist if the process stopped after the snapshot and before the log.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
    };
    let bytes = file.metadata().map_err(failed)?.len();
    let mut good = 0;
    if let Some(mut frames) = Frames::of(BufReader::new(file)).map_err(failed)? {
        while let Some(effects) = frames.next_frame().map_err(failed)? {
            effects.into_iter().for_each(|effect| contents.apply(effect));
        }
        good = frames.good;
    }
    if good < bytes {
        let aside = path.with_file_name("damaged-log");
        tracing::warn!(
            log = %path.display(), kept_bytes = good, cut_bytes = bytes - good, copy = %aside.display(),
            "journal ends in a torn or damaged frame; cut there"
        );
        if let Err(error) = fs::copy(path, aside) {
            tracing::warn!(%error, "damaged journal not copied");
        }
    }
    Ok(())
}

/// Returns the size in bytes. The file gets its name once it is complete.
fn write_snapshot(dir: &Path, generation: u64, contents: &Contents) -> Result<u64, StoreError> {
    let draft = dir.join("snapshot.draft");
    let path = dir.join(format!("snapshot-{generation}"));
    let write = || {
        let mut file = BufWriter::new(File::create(&draft)?);
        file.write_all(MAGIC)?;
        let mut effects = Vec::new();
        let mut frame = Vec::new();
        let mut about = 0;
        let mut flush = |effects: &mut Vec<Effect>| {
            frame.clear();
            write_frame(effects, &mut frame)?;
            effects.clear();
            file.write_all(&frame)
        };
        contents.write_effects(|effect| {
            about += effect.bytes();
            effects.push(effect);
            if about < SNAPSHOT_FRAME {
                return Ok(());
            }
            about = 0;
            flush(&mut effects)
        })?;
        if !effects.is_empty() {
            flush(&mut effects)?;
        }
        // An empty frame ends a snapshot.
        flush(&mut Vec::new())?;
        let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(dir)?.sync_all()?;
        Ok(file.metadata()?.len())
    };
    write().map_err(|error| data_error("write", &path, error))
}

fn create_log(dir: &Path, generation: u64) -> Result<LogFile, StoreError> {
    let path = dir.join(format!("log-{generation}"));
    let create = || {
        let mut file = File::create(&path)?;
        file.write_all(MAGIC)?;
        file.sync_all()?;
        File::open(dir)?.sync_all()?;
        Ok(file)
    };
    let file = create().map_err(|error| data_error("create", &path, error))?;
    let bytes = MAGIC.len() as u64;
    Ok(LogFile { file, path, written: AtomicU64::new(bytes), synced: Mutex::new(bytes) })
}

/// A file that cannot be removed only costs disk space, because only the newest generation is read.
fn remove_older(dir: &Path, generation: u64) {
    for kind in ["snapshot-", "log-"] {
        for old in generations(dir, kind).unwrap_or_default().into_iter().filter(|found| *found < generation) {
            let path = dir.join(format!("{kind}{old}"));
            if let Err(error) = fs::remove_file(&path) {
                tracing::warn!(file = %path.display(), %error, "old journal file not removed");
            }
        }
    }
}
