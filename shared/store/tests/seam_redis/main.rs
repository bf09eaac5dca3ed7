//! What only the Redis store can do or suffer, on a real server. The conformance suite compares everything else with
//! the store in memory.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs, reason = "a test fails by panicking")]

mod shard;
mod streams;

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use redis::aio::MultiplexedConnection;
use tickfleet_core::{
    Committed, ConditionalDebit, Conflict, CounterKey, EntryId, Guard, InboxKey, Query, RecordKey, SetKey, StreamKey,
    Transaction, Value, Version, Window, Write,
};
use tickfleet_store::seam::redis::RedisStore;
use tickfleet_store::seam::{Store as _, TakeRequest};
use tickfleet_testkit::RedisServer;

pub struct Bench {
    pub server: RedisServer,
    pub store: RedisStore,
    pub raw: MultiplexedConnection,
}

static NEXT: AtomicU64 = AtomicU64::new(1);

pub fn with(guards: Vec<Guard>, writes: Vec<Write>) -> Transaction {
    let version = Version::new(format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed)));
    Transaction { guards, writes, ..Transaction::new(version) }
}

pub fn key(name: &str) -> RecordKey {
    RecordKey::new(name)
}

pub fn put(name: &str, content: &'static str) -> Write {
    Write::Put { key: key(name), content: Bytes::from_static(content.as_bytes()), ttl_ms: None }
}

pub fn queue(name: &str) -> StreamKey {
    StreamKey::new(name)
}

pub fn enqueue(name: &str, value: &'static str) -> Write {
    Write::Enqueue(queue(name), vec![("f".into(), Bytes::from_static(value.as_bytes()))])
}

pub fn counter(name: &str) -> CounterKey {
    CounterKey::new("tick", name)
}

pub fn debit(name: &str, amount: u64, max: u64) -> ConditionalDebit {
    ConditionalDebit {
        counter: counter(name),
        amount,
        max,
        window: Window::Total,
        behind_queue: false,
        shadow: false,
        counters_max: 100,
    }
}

pub fn inbox(name: &str) -> InboxKey {
    InboxKey { tenant: "acme".into(), inbox: name.into() }
}

pub fn join(name: &str, member: &str, score: u64) -> Write {
    Write::AddMember { set: SetKey::new(name), member: member.into(), score, queue_of: None }
}

impl Bench {
    pub async fn start() -> Self {
        let server = RedisServer::start().await;
        let store = RedisStore::open(&server.url(), 0, "test", 10_000).unwrap();
        let raw = server.connection().await;
        Self { server, store, raw }
    }

    pub async fn commit(&self, transaction: Transaction) -> Result<Committed, Conflict> {
        self.store.commit(&[transaction]).await.unwrap().results.pop().unwrap()
    }

    pub async fn commit_all(&self, batch: &[Transaction]) -> Vec<Result<Committed, Conflict>> {
        self.store.commit(batch).await.unwrap().results
    }

    pub async fn read(&self, query: Query) -> Value {
        self.store.read(&[query]).await.unwrap().pop().unwrap()
    }

    pub async fn record(&self, name: &str) -> Option<String> {
        match self.read(Query::Record(key(name))).await {
            Value::Record(stored) => stored.map(|stored| String::from_utf8(stored.to_vec()).unwrap()),
            other => panic!("{other:?}"),
        }
    }

    pub async fn used(&self, name: &str) -> Option<u64> {
        match self.read(Query::Counter(counter(name))).await {
            Value::Counter(state) => state.map(|state| state.used),
            other => panic!("{other:?}"),
        }
    }

    pub async fn take(&self, name: &str, count: usize) -> Vec<EntryId> {
        let take = TakeRequest { consumer: "c".into(), queues: vec![queue(name)], count, wait_ms: 0 };
        self.store.take(&take).await.unwrap().into_iter().map(|taken| taken.entry).collect()
    }

    pub async fn command<T: redis::FromRedisValue>(&self, words: &[&str]) -> T {
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query_async(&mut self.raw.clone()).await.unwrap()
    }

    pub fn full(&self, name: &str) -> String {
        format!("{}{name}", self.store.prefix())
    }
}
