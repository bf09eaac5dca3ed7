//! Tests of the journal: committed effects survive a restart. Effects before a damaged end of the log survive.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::PathBuf;

use bytes::Bytes;
use proptest::prelude::*;
use tickfleet_core::{
    ConditionalDebit, Conflict, CounterKey, EntryId, Guard, InboxKey, SetKey, TimerRule, Version, Window, Write,
};
use tickfleet_core::{RecordKey, StreamKey, Transaction};

use crate::seam::memory::*;

#[derive(Debug, Clone)]
enum Call {
    Commit(Vec<(Vec<Guard>, Vec<Write>)>),
    Take(usize),
    Acknowledge,
    Trim(u64),
    RemoveConsumer,
    Sample,
    Step(i64),
    Reopen,
}

fn name() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec!["a", "b", "ü c"])
}

fn counter() -> impl Strategy<Value = CounterKey> {
    name().prop_map(|name| CounterKey::new("limit", name))
}

fn window() -> impl Strategy<Value = Window> {
    prop_oneof![
        (1..50_i64).prop_map(|length_ms| Window::Rolling { length_ms }),
        Just(Window::Concurrency),
        Just(Window::Total),
        Just(Window::Fixed { start_ms: 0, end_ms: 5_000, length_ms: 5_000 }),
    ]
}

fn guard() -> impl Strategy<Value = Guard> {
    let debit = (counter(), 0..3_u64, window(), any::<bool>());
    prop_oneof![
        name().prop_map(|name| Guard::Absent(RecordKey::new(name))),
        debit.prop_map(|(counter, amount, window, shadow)| {
            Guard::Debit(ConditionalDebit {
                counter,
                amount,
                max: 5,
                window,
                behind_queue: true,
                shadow,
                counters_max: 2,
            })
        }),
        name().prop_map(|name| Guard::Inbox {
            inbox: InboxKey { tenant: "t".into(), inbox: name.into() },
            unread_max: 3,
            inboxes_max: 2
        }),
    ]
}

fn write() -> impl Strategy<Value = Write> {
    let fields = |text: &str| vec![("f".into(), Bytes::copy_from_slice(text.as_bytes()))];
    let set = SetKey::new("s");
    let leave = set.clone();
    prop_oneof![
        (name(), prop::option::of(0..100_i64)).prop_map(|(name, ttl_ms)| Write::Put {
            key: RecordKey::new(name),
            content: Bytes::from_static(b"1\"\n\xff"),
            ttl_ms
        }),
        (name(), name()).prop_map(|(key, part)| Write::PutPart(RecordKey::new(key), part.into(), part.into())),
        (name(), name()).prop_map(|(key, part)| Write::DeleteParts(RecordKey::new(key), vec![part.into()])),
        name().prop_map(|name| Write::Delete(RecordKey::new(name))),
        name().prop_map(move |name| Write::Enqueue(StreamKey::new("q"), fields(name))),
        (name(), 0..99_i64).prop_map(|(name, due_ms)| Write::Timer {
            name: name.into(),
            due_ms,
            rule: TimerRule::Earlier
        }),
        name().prop_map(|name| Write::ClearTimer(name.into())),
        (name(), 0..9_u64, prop::option::of(counter())).prop_map(move |(member, score, queue_of)| Write::AddMember {
            set: set.clone(),
            member: member.into(),
            score,
            queue_of
        }),
        (name(), prop::option::of(counter())).prop_map(move |(member, queue_of)| Write::RemoveMember {
            set: leave.clone(),
            member: member.into(),
            queue_of
        }),
        (counter(), -3..3_i64).prop_map(|(counter, amount)| Write::Add { counter, amount, ends_ms: None }),
        counter().prop_map(Write::DeleteCounter),
        name().prop_map(move |name| Write::Append { log: StreamKey::new("log"), fields: fields(name), max_entries: 4 }),
        name().prop_map(|name| Write::Reply(InboxKey { tenant: "t".into(), inbox: name.into() }, name.into())),
        (0..4_u64).prop_map(Write::PolicyGeneration),
        (0..4_u64).prop_map(Write::SettingsGeneration),
    ]
}

fn call() -> impl Strategy<Value = Call> {
    let transaction = (prop::collection::vec(guard(), 0..2), prop::collection::vec(write(), 0..5));
    prop_oneof![
        8 => prop::collection::vec(transaction, 1..4).prop_map(Call::Commit),
        2 => (1..4_usize).prop_map(Call::Take),
        1 => Just(Call::Acknowledge),
        1 => (0..4_u64).prop_map(Call::Trim),
        1 => Just(Call::RemoveConsumer),
        1 => Just(Call::Sample),
        2 => (-40..80_i64).prop_map(Call::Step),
        1 => Just(Call::Reopen),
    ]
}

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

    async fn play(&mut self, call: &Call) {
        let queue = StreamKey::new("q");
        let store = self.store().clone();
        match call {
            Call::Commit(batch) => {
                let batch = batch.iter().map(|(guards, writes)| Transaction {
                    guards: guards.clone(),
                    writes: writes.clone(),
                    ..Transaction::new(self.versions.draw())
                });
                store.commit(&batch.collect::<Vec<_>>()).await.unwrap();
            }
            Call::Take(count) => {
                let take = TakeRequest { consumer: "c".into(), queues: vec![queue], count: *count, wait_ms: 0 };
                store.take(&take).await.unwrap();
            }
            Call::Acknowledge => {
                let holds = Query::Holds { stream: queue.clone(), consumer: "c".into(), count: 1 };
                let Value::Holds(held) = store.read(&[holds]).await.unwrap().remove(0) else { unreachable!() };
                let entry = held.first().cloned().unwrap_or_else(|| EntryId::new("1-1"));
                let guards = vec![Guard::Held(queue, entry)];
                let transaction = Transaction { guards, ..Transaction::new(self.versions.draw()) };
                store.commit(&[transaction]).await.unwrap();
            }
            Call::Trim(entries) => {
                let keep = TrimBounds { entries: *entries, age_ms: 50, read_through: None };
                store.trim(&StreamKey::new("log"), keep).await.unwrap();
            }
            Call::RemoveConsumer => {
                store.remove_consumer(&queue, "c").await.unwrap();
            }
            Call::Sample => {
                store.sample_memory().await.unwrap();
            }
            Call::Step(by_ms) => self.clock.step(*by_ms),
            Call::Reopen => {
                drop(store);
                self.reopen();
            }
        }
    }
}

/// A restart changes these fields, or the journal writes them with a delay.
fn without_time(mut contents: Contents) -> Contents {
    (contents.epoch, contents.epoch_began_ms, contents.clock) = Default::default();
    contents
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn committed_data_survives_a_restart(calls in prop::collection::vec(call(), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut bench = Bench::new();
            for call in &calls {
                bench.play(call).await;
                // If a read detects an expiry, the journal writes it only with the next change.
                bench.store().shard().await.unwrap();
            }
            let before = bench.contents();
            bench.reopen();
            let after = bench.contents();
            assert_eq!(after.epoch, before.epoch + 1);
            assert!(after.clock.last_ms >= before.clock.last_ms);
            assert_eq!(without_time(after), without_time(before));
        });
    }

}

proptest! {
    // Only a few cases, because each case reads the directory once for each byte of the last frame.
    #![proptest_config(ProptestConfig { cases: 16, ..ProptestConfig::default() })]

    #[test]
    fn damage_in_the_last_frame_loses_only_that_frame(
        calls in prop::collection::vec(call(), 1..12),
        last in prop::collection::vec(write(), 1..4),
        damage in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut bench = Bench::new();
            for call in &calls {
                bench.play(call).await;
            }
            bench.store().shard().await.unwrap();
            let before = without_time(bench.contents());
            let whole = fs::read(bench.log()).unwrap().len();
            bench.play(&Call::Commit(vec![(vec![], last.clone())])).await;
            let log = bench.log();
            let frames = fs::read(&log).unwrap();
            let options = bench.options();
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
            let cut = MemoryStore::open_dir(bench.dir.path(), FsyncPolicy::Never, options).unwrap();
            assert_eq!(without_time(cut.lock().shard.contents.clone()), before);
            // Writes that change nothing have no frame to damage.
            assert_eq!(bench.dir.path().join("damaged-log").exists(), whole < frames.len());
            assert!(!log.exists());
        });
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
        bench.play(&Call::Commit(vec![(vec![], vec![put])])).await;
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
