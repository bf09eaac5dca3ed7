//! The store: the [`seam`] (the interface of a store) with its two implementations. Only this crate connects to Redis.
//! After a [`StoreError`], the caller may repeat a decision, because the store recognizes a transaction that it has
//! committed.

mod clock;
mod connection;
mod decide;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod incarnation;
mod keys;
mod reads;
mod roles;
mod script;
pub mod seam;
mod verbs;

pub use clock::ShardClock;
pub use connection::cluster::{ClusterView, HolderView, NodeReport};
pub use connection::command::RedisCommand;
pub use connection::confirm::Confirmed;
pub use connection::dial::{Dial, SentinelReport};
pub use connection::error::StoreError;
pub use connection::pool::Pool;
pub use connection::refusal::{Refusal, refusal_in};
pub use connection::tls_fault::TlsFault;
pub use connection::{Backoff, Connection, Observer};
pub use incarnation::{incarnation, worker_of};
pub use keys::{CounterName, Keys, Queue, TurnName};
pub use reads::audit::seals::{LogEntry, LogPage, LogSeal};
pub use reads::audit::{AuditSearch, AuditSearchResult};
pub use reads::backlog::ShardBacklog;
pub use reads::budgets::{AgentBudget, BudgetFacts, CounterFacts};
pub use reads::diagnosis::{ConsumerFacts, DeadLetter, ShardFacts};
pub use reads::inbox::{InboxEntry, InboxReader};
pub use reads::knowledge::KnowledgeState;
pub use reads::limits::{SeenCounters, TaskBudget};
pub use reads::load::{FleetLoad, ShardWorkers};
pub use reads::memory_usage::MemoryUsage;
pub use reads::nodes::{NodeView, Slots};
pub use reads::notes::{
    AdmissionNote, BreakerWait, FailedAttempt, admissions, breaker_waits, current_breaker_wait, failed_attempts,
};
pub use reads::preflight::{DefaultUser, ServerFacts};
pub use reads::tasks::{TaskSteps, ThrottledTurn};
pub use reads::tenant_usage::TenantUsage;
pub use reads::turn_view::{LiveTurn, TurnView};
pub use reads::usage::{DayUsage, Used};
pub use reads::watch::{EndedCall, FollowedTurn, ServerLoad, ShardView, StreamView, ThrottleQueueView, Watch};
pub use reads::{entry_ms, entry_number, queues, worker_queues};
pub use roles::{DEFAULT_USER, Role};
pub use verbs::approvals::*;
pub use verbs::audit::*;
pub use verbs::conversations::*;
pub use verbs::dead::*;
pub use verbs::knowledge::*;
pub use verbs::run_time::*;
pub use verbs::turns::*;
pub use verbs::upkeep::*;

use std::path::Path;
use std::sync::Arc;

use connection::no_redis::NoRedis;
use connection::url::{Target, target_of};
use decide::{Backend, ShardCache};
use seam::redis::RedisStore;
use seam::socket::{self, SocketStore};

#[must_use]
pub fn command_names() -> Vec<&'static str> {
    let mut words = [RedisCommand::WORDS, &[seam::redis::COMMIT]].concat();
    words.sort_unstable();
    words.dedup();
    words
}

/// [`Observer::redirected`] gets these words.
#[must_use]
pub fn refusal_names() -> Vec<&'static str> {
    connection::error::ANSWERS.to_vec()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreOptions {
    pub namespace: String,
    /// All processes must use the same number.
    pub shards: u32,
    /// A consumer counts as dead at this age of its last heartbeat.
    pub lease_ms: i64,
    pub retain_ms: i64,
    pub dedupe_ms: i64,
    pub reply_retain_ms: i64,
    pub audit_retain_ms: i64,
    pub audit_entries_max: u64,
    pub audit_admissions: bool,
    pub dead_entries_max: u64,
    pub turns_max: u64,
    /// At most half of the server's memory.
    pub turns_bytes_max: u64,
    pub tenant_turns_max: u64,
    /// At most a quarter of the server's memory.
    pub tenant_bytes_max: u64,
    pub tenant_ready_max: u64,
    pub inbox_unread_max: u64,
    pub inboxes_max: u64,
    /// After this number of crashes, a slice is quarantined.
    pub crashes_max: u32,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            namespace: "tickfleet".into(),
            shards: 1,
            lease_ms: 10_000,
            retain_ms: 3_600_000,
            dedupe_ms: 3_600_000,
            reply_retain_ms: 86_400_000,
            audit_retain_ms: 7 * 86_400_000,
            audit_entries_max: 1_000_000,
            audit_admissions: false,
            dead_entries_max: 10_000,
            turns_max: 100_000,
            turns_bytes_max: 256 << 20,
            tenant_turns_max: 20_000,
            tenant_bytes_max: 256 << 20,
            tenant_ready_max: 5_000,
            inbox_unread_max: 10_000,
            inboxes_max: 1_000,
            crashes_max: tickfleet_model::limits::CRASHES_MAX,
        }
    }
}

/// One shard. Clones share one multiplexed connection.
#[derive(Debug, Clone)]
pub struct Store {
    connection: Connection,
    keys: Keys,
    shard: u32,
    options: Arc<StoreOptions>,
    backend: Backend,
    known: Arc<ShardCache>,
}

impl Store {
    /// Connects lazily. The scheme selects the server:
    ///
    /// - `redis://`, `rediss://`, `unix://`: the server in the URL
    /// - `redis+sentinel://`, `rediss+sentinel://`: the primary that sentinels report
    /// - `redis+cluster://`, `rediss+cluster://`: a cluster
    /// - `tickfleet+unix://`: another process, which serves its own store at a socket
    pub fn open(url: &str, shard: u32, options: Arc<StoreOptions>) -> Result<Self, StoreError> {
        match url.strip_prefix(socket::SCHEME) {
            Some(path) => Ok(Self::in_memory(SocketStore::new(Path::new(path), shard), shard, options)),
            None => Ok(Self::at(&target_of(url)?, shard, options)),
        }
    }

    pub fn open_all(url: &str, options: &Arc<StoreOptions>) -> Result<Vec<Self>, StoreError> {
        let shards = 0..options.shards.max(1);
        if url.starts_with(socket::SCHEME) {
            return shards.map(|shard| Self::open(url, shard, Arc::clone(options))).collect();
        }
        let target = target_of(url)?;
        Ok(shards.map(|shard| Self::at(&target, shard, Arc::clone(options))).collect())
    }

    fn at(target: &Target, shard: u32, options: Arc<StoreOptions>) -> Self {
        let dial = target.dial(Some(Keys::new(&options.namespace, shard).prefix()));
        Self::on(Connection::over(dial), shard, options)
    }

    #[must_use]
    pub fn over(dial: Arc<dyn Dial>, shard: u32, options: Arc<StoreOptions>) -> Self {
        Self::on(Connection::over(dial), shard, options)
    }

    fn on(connection: Connection, shard: u32, options: Arc<StoreOptions>) -> Self {
        let keys = Keys::new(&options.namespace, shard);
        let redis = RedisStore::on(connection.clone(), keys.prefix(), options.lease_ms);
        Self { connection, keys, shard, options, backend: Backend::Redis(Arc::new(redis)), known: Arc::default() }
    }

    /// Uses a [`seam::memory::MemoryStore`] or a [`SocketStore`]. Simulations use a
    /// [`seam::memory::faults::FaultyStore`].
    #[must_use]
    pub fn in_memory(memory: impl seam::Store + 'static, shard: u32, options: Arc<StoreOptions>) -> Self {
        let none = Connection::over(Arc::new(NoRedis));
        Self { backend: Backend::Memory(Arc::new(memory)), ..Self::on(none, shard, options) }
    }

    #[must_use]
    pub fn observed_by(mut self, observer: Arc<dyn Observer>) -> Self {
        self.connection = self.connection.observed_by(observer);
        if let Backend::Redis(_) = self.backend {
            let redis = RedisStore::on(self.connection.clone(), self.keys.prefix(), self.options.lease_ms);
            self.backend = Backend::Redis(Arc::new(redis));
        }
        self
    }

    #[must_use]
    pub fn is_home_of(&self, tenant: &tickfleet_model::TenantId) -> bool {
        tickfleet_model::ids::shard_of(tenant, self.options.shards) == self.shard
    }

    #[must_use]
    pub const fn shard(&self) -> u32 {
        self.shard
    }

    #[must_use]
    pub const fn keys(&self) -> &Keys {
        &self.keys
    }

    #[must_use]
    pub fn options(&self) -> &StoreOptions {
        &self.options
    }

    #[must_use]
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }
}
