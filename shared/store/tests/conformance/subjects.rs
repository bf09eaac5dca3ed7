use std::sync::Arc;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use tempfile::TempDir;
use tickfleet_store::seam::Store;
use tickfleet_store::seam::memory::{FsyncPolicy, ManualClock, MemoryOptions, MemoryStore};
use tickfleet_store::seam::redis::RedisStore;
use tickfleet_store::seam::socket::{SocketServer, SocketStore};
use tickfleet_store::{StoreError, StoreOptions};

use super::plan::MemoryLevel;
use super::play::Subject;
use super::server::Server;

pub const LEASE_MS: i64 = 700;

pub struct InMemory {
    store: MemoryStore,
    clock: Arc<ManualClock>,
    dir: Option<TempDir>,
}

impl InMemory {
    pub fn new(now_ms: i64) -> Self {
        let clock = Arc::new(ManualClock::new(now_ms));
        Self { store: MemoryStore::new(options(&clock)), clock, dir: None }
    }

    /// Reloads its directory after a restart.
    pub fn on_disk(now_ms: i64) -> Self {
        let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().expect("a temporary folder");
        let clock = Arc::new(ManualClock::new(now_ms));
        Self { store: open(&dir, &clock), clock, dir: Some(dir) }
    }
}

fn options(clock: &Arc<ManualClock>) -> MemoryOptions {
    MemoryOptions { clock: Arc::<ManualClock>::clone(clock), lease_ms: LEASE_MS, bytes_max: 0 }
}

fn open(dir: &TempDir, clock: &Arc<ManualClock>) -> MemoryStore {
    loop {
        match MemoryStore::open_dir(dir.path(), FsyncPolicy::Never, options(clock)) {
            Ok(store) => return store,
            // A server that another test starts at this moment inherits the lock until its exec.
            Err(StoreError::DataInUse(_)) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    }
}

#[async_trait(?Send)]
impl Subject for InMemory {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn set_clock(&mut self, now_ms: i64) {
        self.clock.set(now_ms);
    }

    async fn restart(&mut self) {
        let Some(dir) = &self.dir else { return self.store.restart().await.unwrap() };
        // Drop the old store first, because only one store can have the directory open.
        self.store = MemoryStore::default();
        self.store = open(dir, &self.clock);
    }

    async fn sample_memory(&mut self, memory: MemoryLevel) -> Result<(), StoreError> {
        let (used, _) = self.store.sample_memory().await?;
        let bytes_max = match memory {
            MemoryLevel::Plenty => 0,
            MemoryLevel::Short => used + used / 8,
            MemoryLevel::Full => used / 2,
        };
        self.store.set_bytes_max(bytes_max);
        let sampled = self.store.sample_memory().await;
        self.store.set_bytes_max(0);
        sampled.map(|_| ())
    }
}

pub struct OverSocket {
    memory: InMemory,
    store: SocketStore,
    serving: tokio::task::JoinHandle<()>,
    _dir: TempDir,
}

impl OverSocket {
    pub fn new(now_ms: i64) -> Self {
        let memory = InMemory::new(now_ms);
        let dir = tempfile::Builder::new().prefix("tickfleet-").tempdir().expect("a temporary folder");
        let path = dir.path().join("dev.sock");
        let shard = tickfleet_store::Store::in_memory(memory.store.clone(), 0, Arc::new(StoreOptions::default()));
        let serving = tokio::spawn(SocketServer::bind(&path).unwrap().serve(vec![shard]));
        Self { memory, store: SocketStore::new(&path, 0), serving, _dir: dir }
    }
}

impl Drop for OverSocket {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

#[async_trait(?Send)]
impl Subject for OverSocket {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn set_clock(&mut self, now_ms: i64) {
        self.memory.set_clock(now_ms).await;
    }

    async fn restart(&mut self) {
        self.memory.restart().await;
    }

    async fn sample_memory(&mut self, memory: MemoryLevel) -> Result<(), StoreError> {
        self.memory.sample_memory(memory).await
    }
}

pub struct OnRedis<'a> {
    store: RedisStore,
    server: &'a mut Server,
    connection: MultiplexedConnection,
}

impl<'a> OnRedis<'a> {
    pub async fn new(server: &'a mut Server, now_ms: i64) -> Self {
        server.set_clock(now_ms).await;
        let mut connection = server.connection();
        let () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
        let store = RedisStore::open(&server.url(), 0, "conformance", LEASE_MS).unwrap();
        Self { store, server, connection }
    }

    async fn set_memory_max(&mut self, bytes: u64) {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg("maxmemory").arg(bytes);
        let () = set.query_async(&mut self.connection).await.unwrap();
    }
}

#[async_trait(?Send)]
impl Subject for OnRedis<'_> {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    async fn set_clock(&mut self, now_ms: i64) {
        self.server.set_clock(now_ms).await;
    }

    async fn restart(&mut self) {
        self.server.restart().await;
        self.connection = self.server.connection();
        // The first commands may fail, because the old connection is closed.
        for _ in 0..100 {
            if self.store.shard().await.is_ok() {
                return;
            }
        }
    }

    async fn sample_memory(&mut self, memory: MemoryLevel) -> Result<(), StoreError> {
        let (used, _) = self.store.sample_memory().await?;
        let bytes_max = match memory {
            MemoryLevel::Plenty => 0,
            MemoryLevel::Short => used + used / 8,
            MemoryLevel::Full => used / 2,
        };
        self.set_memory_max(bytes_max).await;
        let sampled = self.store.sample_memory().await;
        self.set_memory_max(0).await;
        sampled.map(|_| ())
    }
}
