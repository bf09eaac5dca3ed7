#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod commits;
mod counters;
mod debits;
mod faults;
mod journal;
mod streams;

pub use super::*;
use bytes::Bytes;
use tickfleet_core::{
    Committed, ConditionalDebit, Conflict, CounterKey, EntryId, Guard, InboxKey, SetKey, TimerRule, Version, Window,
    Write, keys,
};

const START: i64 = 1_000_000;

struct Bench {
    clock: Arc<ManualClock>,
    store: MemoryStore,
    next: u64,
}

impl Bench {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new(START));
        let store = MemoryStore::new(MemoryOptions { clock: clock.clone(), bytes_max: 10_000, ..Default::default() });
        Self { clock, store, next: 0 }
    }

    fn transaction(&mut self) -> Transaction {
        self.next += 1;
        Transaction::new(Version::new(format!("v{}", self.next)))
    }

    async fn commit(&self, transaction: &Transaction) -> Result<Committed, Conflict> {
        self.store.commit(std::slice::from_ref(transaction)).await.unwrap().results.remove(0)
    }

    async fn write(&mut self, writes: Vec<Write>) -> Committed {
        let transaction = Transaction { writes, ..self.transaction() };
        self.commit(&transaction).await.unwrap()
    }

    async fn guard(&mut self, guards: Vec<Guard>) -> Result<Committed, Conflict> {
        let transaction = Transaction { guards, ..self.transaction() };
        self.commit(&transaction).await
    }

    async fn read(&self, query: Query) -> Value {
        self.store.read(&[query]).await.unwrap().remove(0)
    }

    async fn text(&self, key: &str) -> Option<String> {
        let Value::Record(text) = self.read(Query::Record(record(key))).await else { unreachable!() };
        text.map(|text| String::from_utf8(text.to_vec()).unwrap())
    }

    async fn counter(&self, key: &CounterKey) -> Option<CounterState> {
        let Value::Counter(state) = self.read(Query::Counter(key.clone())).await else { unreachable!() };
        state
    }
}

fn record(key: &str) -> RecordKey {
    RecordKey::new(key)
}

fn put(key: &str, content: &str, ttl_ms: Option<i64>) -> Write {
    Write::Put { key: record(key), content: Bytes::copy_from_slice(content.as_bytes()), ttl_ms }
}

fn fields(value: &str) -> Vec<(Arc<str>, Bytes)> {
    vec![("f".into(), Bytes::copy_from_slice(value.as_bytes()))]
}

fn debit(counter: &str, amount: u64, max: u64, window: Window) -> ConditionalDebit {
    ConditionalDebit {
        counter: CounterKey::new("limit", counter),
        amount,
        max,
        window,
        behind_queue: false,
        shadow: false,
        counters_max: 2,
    }
}

fn take(count: usize, wait_ms: u64) -> TakeRequest {
    TakeRequest { consumer: "c".into(), queues: vec![StreamKey::new("q1"), StreamKey::new("q2")], count, wait_ms }
}
