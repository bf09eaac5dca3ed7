//! Tests of the journal: effects before a damaged end of the log survive. The conformance suite compares a store that
//! reloads its directory with one that keeps its contents.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use tickfleet_core::{Conflict, CounterKey, Guard, InboxKey, RecordKey, StreamKey, Transaction, Version, Write};

use crate::seam::memory::*;

struct Bench {
    dir: tempfile::TempDir,
    clock: Arc<ManualClock>,
    versions: crate::seam::Versions,
    store: Option<MemoryStore>,
}

impl Bench {
    fn new() -> Self {
        let mut bench = Self {
            dir: tempfile::tempdir().unwrap(),
            clock: Arc::new(ManualClock::new(1_000)),
            versions: crate::seam::Versions::new("v"),
            store: None,
        };
        bench.reopen();
        bench
    }

    fn options(&self) -> MemoryOptions {
        MemoryOptions { clock: self.clock.clone(), lease_ms: 100, bytes_max: 1_500 }
    }

    fn open(&self) -> Result<MemoryStore, StoreError> {
        MemoryStore::open_dir(self.dir.path(), FsyncPolicy::Never, self.options())
    }

    fn store(&self) -> &MemoryStore {
        self.store.as_ref().unwrap()
    }

    fn reopen(&mut self) {
        self.store = None;
        self.store = Some(self.open().unwrap());
    }

    fn contents(&self) -> Contents {
        self.store().lock().shard.contents.clone()
    }

    fn log(&self) -> PathBuf {
        self.store().lock().journal.as_ref().unwrap().log_path().to_owned()
    }

    async fn commit(&self, writes: Vec<Write>) {
        let transaction = Transaction { writes, ..Transaction::new(self.versions.draw()) };
        self.store().commit(&[transaction]).await.unwrap();
    }
}

/// A restart changes these fields, or the journal writes them with a delay.
fn without_time(mut contents: Contents) -> Contents {
    (contents.epoch, contents.epoch_began_ms, contents.clock) = Default::default();
    contents
}

fn writes(text: &str) -> Vec<Write> {
    let content = Bytes::copy_from_slice(format!("1{text}\"\n").as_bytes());
    vec![
        Write::Put { key: RecordKey::new(text), content, ttl_ms: None },
        Write::Enqueue(StreamKey::new("q"), vec![("f".into(), text.to_owned().into())]),
        Write::Add { counter: CounterKey::new("limit", text), amount: 3, ends_ms: None },
        Write::Reply(InboxKey { tenant: "t".into(), inbox: text.into() }, "r".into()),
    ]
}

#[tokio::test]
async fn damage_in_the_last_frame_loses_only_that_frame() {
    for damage in [false, true] {
        let mut bench = Bench::new();
        bench.commit(writes("a")).await;
        bench.commit(writes("ü c")).await;
        let before = without_time(bench.contents());
        let whole = fs::read(bench.log()).unwrap().len();
        bench.commit(writes("a")).await;
        let log = bench.log();
        let frames = fs::read(&log).unwrap();
        bench.store = None;
        for at in whole..frames.len() {
            let mut torn = frames.clone();
            if damage {
                torn[at] ^= 0x10;
            } else {
                torn.truncate(at);
            }
            fs::write(&log, torn).unwrap();
            let opened = Opened::read(bench.dir.path()).unwrap();
            assert_eq!(without_time(opened.contents.unwrap()), before, "at {at} of {}", frames.len());
        }
        bench.reopen();
        assert_eq!(without_time(bench.contents()), before);
        assert!(bench.dir.path().join("damaged-log").exists() && !log.exists());
    }
}

#[tokio::test]
async fn a_second_open_of_the_directory_fails() {
    let bench = Bench::new();
    let error = bench.open().unwrap_err();
    assert!(matches!(error, StoreError::DataInUse(_)), "{error}");
    assert!(error.to_string().contains("in use by another process"));
}

#[tokio::test]
async fn a_new_directory_starts_at_epoch_1_and_counts_restarts() {
    let mut bench = Bench::new();
    let shard = bench.store().shard().await.unwrap();
    assert_eq!((shard.epoch, shard.epoch_began_ms), (1, 0));
    bench.clock.step(500);
    bench.reopen();
    let shard = bench.store().shard().await.unwrap();
    assert_eq!((shard.epoch, shard.epoch_began_ms), (2, 1_500));
    bench.clock.set(0);
    bench.reopen();
    let shard = bench.store().shard().await.unwrap();
    assert_eq!((shard.epoch, shard.epoch_began_ms, shard.now_ms), (3, 1_500, 1_500));
}

#[tokio::test]
async fn a_large_log_begins_a_new_generation() {
    let mut bench = Bench::new();
    bench.store().lock().journal.as_mut().unwrap().set_log_min(2_000);
    let first = bench.log();
    for n in 0..100 {
        let content = Bytes::from(vec![b'x'; 100]);
        let put = Write::Put { key: RecordKey::new(format!("r{n}")), content, ttl_ms: None };
        bench.commit(vec![put]).await;
        assert!(fs::metadata(bench.log()).unwrap().len() < 20_000);
    }
    assert_ne!(bench.log(), first);
    assert!(!first.exists());
    let before = without_time(bench.contents());
    bench.reopen();
    assert_eq!(without_time(bench.contents()), before);
    let files = fs::read_dir(bench.dir.path()).unwrap().count();
    assert_eq!(files, 3, "lock, snapshot, log");
}

#[tokio::test]
async fn a_damaged_snapshot_is_an_error_and_not_an_empty_store() {
    let mut bench = Bench::new();
    bench.reopen();
    bench.store = None;
    let snapshot = bench.dir.path().join("snapshot-2");
    let mut bytes = fs::read(&snapshot).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::write(&snapshot, bytes).unwrap();
    let error = bench.open().unwrap_err();
    assert!(matches!(error, StoreError::DataDamaged { .. }), "{error}");
    fs::remove_file(snapshot).unwrap();
    let error = bench.open().unwrap_err();
    assert!(matches!(error, StoreError::DataDamaged { .. }), "{error}");
}

#[tokio::test]
async fn every_fsync_policy_keeps_committed_data() {
    for policy in [FsyncPolicy::Always, FsyncPolicy::EverySecond, FsyncPolicy::Never] {
        let bench = Bench::new();
        let dir = bench.dir.path().join("own");
        let store = MemoryStore::open_dir(&dir, policy, bench.options()).unwrap();
        let mut transaction = Transaction::new(Version::new("v1"));
        transaction.write(Write::Put { key: RecordKey::new("a"), content: "1{}".into(), ttl_ms: None });
        transaction.dedupe_record = Some(RecordKey::new("a"));
        store.commit(std::slice::from_ref(&transaction)).await.unwrap();
        drop(store);
        let store = MemoryStore::open_dir(&dir, policy, bench.options()).unwrap();
        let again = store.commit(&[transaction]).await.unwrap().results.remove(0);
        assert!(again.unwrap().was_committed);
        let absent =
            Transaction { guards: vec![Guard::Absent(RecordKey::new("a"))], ..Transaction::new(Version::new("v2")) };
        let refused = store.commit(&[absent]).await.unwrap().results.remove(0);
        assert!(matches!(refused, Err(Conflict::Record { stored: Some(_), .. })));
    }
}
