//! Connections to Redis: one multiplexed connection that heals, and dedicated ones for blocking reads.
//!
//! This is the reconnect helper: beside `model/retry` the only place that names `backoff`.

pub(crate) mod inbox;
pub(crate) mod pool;
pub(crate) mod question;
pub(crate) mod reader;

use std::sync::Arc;
use std::time::Duration;

use backoff::backoff::Backoff as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::script::Script;
use question::Question;

use crate::script::args::Args;

/// Longest wait for the answer to one script, ms: far above the 2 ms that a batch takes, far below a lease.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// What a blocking read's answer may be late.
const BLOCK_MARGIN: Duration = Duration::from_secs(5);

/// Redis did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The URL cannot be read.
    #[error("the Redis URL cannot be read: {0}")]
    Url(#[source] redis::RedisError),
    /// No connection could be made.
    #[error("Redis at {address} cannot be reached: {source}")]
    Connect {
        /// Host and port, or socket path; never a password.
        address: String,
        /// Why.
        source: redis::RedisError,
    },
    /// A verb failed. Whether it was applied is unknown where the connection broke; it may be repeated.
    #[error("{verb} failed in Redis: {source}")]
    Verb {
        /// Which verb.
        verb: &'static str,
        /// Why.
        source: redis::RedisError,
    },
    /// The streams or groups of the shard are gone (a flush): they are made anew, what was in them is lost.
    #[error("the shard's streams or groups are gone: {0}")]
    StateLost(String),
    /// Another number of shards is in force.
    #[error("this process counts {ours} shards, the data was written with {stored}; all processes must agree")]
    Shards {
        /// Ours.
        ours: u32,
        /// The stored number.
        stored: String,
    },
    /// A reply that no version of the script gives.
    #[error("{verb} answered what it never should: {found}")]
    Reply {
        /// Which verb.
        verb: &'static str,
        /// The reply, bounded.
        found: String,
    },
}

impl StoreError {
    /// Whether a script ran and failed over what it was given (a bug or foreign data), so that repeating the same batch
    /// cannot help. Everything else that Redis refuses is the connection's fault, or that of Redis' state and
    /// permissions, and nobody's who waits behind it: it is asked again until it passes (rule 24).
    #[must_use]
    pub fn is_script_error(&self) -> bool {
        match self {
            Self::Verb { source, .. } => was_raised_by_a_script(source),
            Self::Reply { .. } => true,
            _ => false,
        }
    }

    /// Whether Redis refused a script because its memory is full.
    #[must_use]
    pub fn is_out_of_memory(&self) -> bool {
        matches!(self, Self::Verb { source, .. } if source.code() == Some("OOM"))
    }

    /// Whether it is an answer that is asked for: that a group is there already.
    fn is_expected(&self) -> bool {
        matches!(self, Self::Verb { source, .. } if source.code() == Some("BUSYGROUP"))
    }

    pub(crate) fn verb(verb: &'static str, source: redis::RedisError) -> Self {
        let text = source.to_string();
        if source.code() == Some("NOGROUP") || text.contains("no such key") || text.contains("NOGROUP") {
            return Self::StateLost(text);
        }
        Self::Verb { verb, source }
    }
}

/// What Lua itself raised, or a command over the data that it met. Redis names the place in the script for both; it also
/// does for a command that it does not let the script run, which says nothing about the data.
fn was_raised_by_a_script(error: &redis::RedisError) -> bool {
    const NOT_ALLOWED: [&str; 2] = ["The user executing the script", "Unknown Redis command called from script"];
    let said = error.detail().unwrap_or_default();
    matches!(error.code(), Some("ERR" | "WRONGTYPE"))
        && said.contains("user_script:")
        && !NOT_ALLOWED.iter().any(|why| said.contains(why))
}

/// Whether another connection may do better: this one is broken, leads to a server that is no primary (any more), or has
/// lost its login.
fn is_of_this_connection(error: &redis::RedisError) -> bool {
    const ELSEWHERE: [&str; 7] = ["READONLY", "MOVED", "ASK", "MASTERDOWN", "UNBLOCKED", "NOAUTH", "WRONGPASS"];
    error.is_io_error()
        || error.is_timeout()
        || error.is_connection_dropped()
        || error.is_unrecoverable_error()
        || error.code().is_some_and(|code| ELSEWHERE.contains(&code))
}

/// Is told of every question to Redis: for metrics.
pub trait Observer: Send + Sync {
    /// Redis answered `verb` after `took`; none for a read that waits on purpose.
    fn answered(&self, verb: &'static str, took: Option<Duration>);
    /// `verb` failed: no connection, no answer in time, or an error.
    fn failed(&self, verb: &'static str);
}

/// A multiplexed connection that is made when first used and made anew after it broke. Never used for blocking
/// commands: whatever stands behind one waits for it.
#[derive(Clone)]
pub struct Connection {
    client: redis::Client,
    current: Arc<Mutex<Option<MultiplexedConnection>>>,
    observer: Option<Arc<dyn Observer>>,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.address())
    }
}

impl Connection {
    /// A connection to `url`, not yet made.
    ///
    /// # Errors
    /// [`StoreError::Url`].
    pub fn open(url: &str) -> Result<Self, StoreError> {
        let client = redis::Client::open(url).map_err(StoreError::Url)?;
        Ok(Self { client, current: Arc::default(), observer: None })
    }

    pub(crate) fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Waits for an answer to `verb`, and tells the observer of it. `timed` is false for reads that wait on purpose.
    pub(crate) async fn observe<T>(
        &self,
        verb: &'static str,
        timed: bool,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let Some(observer) = &self.observer else { return answer.await };
        let asked = Instant::now();
        let answer = answer.await;
        match &answer {
            Err(error) if !error.is_expected() => observer.failed(verb),
            _ => observer.answered(verb, timed.then(|| asked.elapsed())),
        }
        answer
    }

    /// Host and port, or socket path. Never a password.
    #[must_use]
    pub fn address(&self) -> String {
        self.client.get_connection_info().addr().to_string()
    }

    /// The live connection, made if there is none.
    ///
    /// # Errors
    /// [`StoreError::Connect`].
    pub async fn get(&self) -> Result<MultiplexedConnection, StoreError> {
        let mut current = self.current.lock().await;
        if let Some(connection) = current.as_ref() {
            return Ok(connection.clone());
        }
        let made = self.connect(RESPONSE_TIMEOUT).await?;
        *current = Some(made.clone());
        Ok(made)
    }

    /// A connection of one's own for blocking reads of up to `block`: its response timeout is longer than that
    /// (the library's default of 500 ms would cut every blocking read short, and the entry would be delivered
    /// to a connection that nobody reads).
    ///
    /// # Errors
    /// [`StoreError::Connect`].
    pub async fn dedicated(&self, block: Duration) -> Result<MultiplexedConnection, StoreError> {
        self.connect(block + BLOCK_MARGIN).await
    }

    async fn connect(&self, response: Duration) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response));
        self.client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|source| StoreError::Connect { address: self.address(), source })
    }

    /// Drops the connection where a new one may do better.
    pub(crate) async fn look_at(&self, error: &redis::RedisError) {
        if is_of_this_connection(error) {
            *self.current.lock().await = None;
        }
    }

    /// Runs a script by digest, loading it where Redis does not know it. `at_brim` is run in its place where Redis
    /// refuses it because its memory is full.
    pub(crate) async fn run(
        &self,
        script: &Script,
        at_brim: Option<&Script>,
        prefix: &str,
        args: &Args,
    ) -> Result<Value, StoreError> {
        let run = async {
            match (self.run_unobserved(script, prefix, args).await, at_brim) {
                (Err(error), Some(second)) if error.is_out_of_memory() => {
                    self.run_unobserved(second, prefix, args).await
                }
                (answer, _) => answer,
            }
        };
        self.observe(script.verb, true, run).await
    }

    async fn run_unobserved(&self, script: &Script, prefix: &str, args: &Args) -> Result<Value, StoreError> {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&script.digest).arg(1).arg(prefix);
        for value in &args.values {
            command.arg(value.as_slice());
        }
        let mut connection = self.get().await?;
        let mut answer = command.query_async::<Value>(&mut connection).await;
        if matches!(&answer, Err(error) if error.code() == Some("NOSCRIPT")) {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(&script.source).query_async::<()>(&mut connection).await;
            answer = match load {
                Ok(()) => command.query_async::<Value>(&mut connection).await,
                Err(error) => Err(error),
            };
        }
        self.judge(script.verb, answer).await
    }

    /// Names the verb in an error, and drops a connection that it says is broken.
    async fn judge<T>(&self, verb: &'static str, answer: Result<T, redis::RedisError>) -> Result<T, StoreError> {
        match answer {
            Ok(value) => Ok(value),
            Err(error) => {
                self.look_at(&error).await;
                Err(StoreError::verb(verb, error))
            }
        }
    }

    /// Runs any command. For what only looks.
    ///
    /// # Errors
    /// [`StoreError::Verb`] with the question's word.
    pub async fn query<T: redis::FromRedisValue>(
        &self,
        question: Question,
        command: &redis::Cmd,
    ) -> Result<T, StoreError> {
        let ask = async {
            let mut connection = self.get().await?;
            let answer = command.query_async::<T>(&mut connection).await;
            self.judge(question.as_str(), answer).await
        };
        self.observe(question.as_str(), true, ask).await
    }

    /// Runs a pipeline. For what only looks, or is set up once.
    ///
    /// # Errors
    /// [`StoreError::Verb`] with the question's word.
    pub async fn pipeline<T: redis::FromRedisValue>(
        &self,
        question: Question,
        pipe: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let ask = async {
            let mut connection = self.get().await?;
            let answer = pipe.query_async::<T>(&mut connection).await;
            self.judge(question.as_str(), answer).await
        };
        self.observe(question.as_str(), true, ask).await
    }
}

/// Waits between attempts while Redis is away: 50 ms growing to 2 s, with jitter, without end.
pub struct Backoff {
    policy: backoff::ExponentialBackoff,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            policy: backoff::ExponentialBackoff {
                current_interval: Duration::from_millis(50),
                initial_interval: Duration::from_millis(50),
                max_interval: Duration::from_secs(2),
                max_elapsed_time: None,
                ..backoff::ExponentialBackoff::default()
            },
        }
    }
}

impl Backoff {
    /// How long to wait before the next attempt.
    pub fn pause(&mut self) -> Duration {
        self.policy.next_backoff().unwrap_or(Duration::from_secs(2))
    }

    /// Redis answered: the next trouble begins with short waits again.
    pub fn reset(&mut self) {
        self.policy.reset();
    }
}
