//! Connections to Redis: one multiplexed connection that reconnects, and dedicated connections for blocking reads.

pub(crate) mod cluster;
pub(crate) mod command;
pub(crate) mod confirm;
pub(crate) mod dial;
pub(crate) mod error;
pub(crate) mod no_redis;
pub(crate) mod pool;
pub(crate) mod refusal;
mod role;
mod sentinel;
mod tls;
pub(crate) mod tls_fault;
pub(crate) mod url;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use backoff::backoff::Backoff as _;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, InfoDict, Value};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use crate::script::{Function, Script};
use command::RedisCommand;
use dial::Dial;
use error::{StoreError, answer_of, is_of_this_connection, is_unknown_command, was_not_run};

/// A batch takes about 2 ms, and a lease is much longer than this timeout.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// For all retries of a command while servers redirect it or are not ready.
const REDIRECTED_MAX: Duration = Duration::from_secs(1);
/// In addition to the timeout of the blocking read.
const BLOCK_MARGIN: Duration = Duration::from_secs(5);

pub trait Observer: Send + Sync {
    /// `took` is `None` for a blocking read.
    fn answered(&self, verb: &'static str, took: Option<Duration>);
    fn failed(&self, verb: &'static str);
    fn primary_search_ended(&self, what: &str, found: Option<&str>);
    /// `answer` is the first word of the reply.
    fn redirected(&self, answer: &'static str);
}

/// Opened on first use and again after it breaks. Blocking commands never use it, because they would delay all later
/// commands.
#[derive(Clone)]
pub struct Connection {
    dial: Arc<dyn Dial>,
    current: Arc<Mutex<Option<OpenConnection>>>,
    last_primary: Arc<Mutex<Option<String>>>,
    /// Counts the changes of the primary. A dedicated connection from before a change still leads to the old primary.
    moves: Arc<AtomicU64>,
    observer: Option<Arc<dyn Observer>>,
}

#[derive(Clone)]
struct OpenConnection {
    connection: MultiplexedConnection,
    /// A restart of Redis closes the connection, so the ID is valid while the connection is open.
    run_id: Arc<OnceCell<String>>,
    without_functions: Arc<AtomicBool>,
}

impl OpenConnection {
    fn new(connection: MultiplexedConnection) -> Self {
        Self { connection, run_id: Arc::default(), without_functions: Arc::default() }
    }

    /// Empty if Redis does not report the ID. Scripts then read the ID themselves.
    async fn run_id(&self) -> Result<&str, redis::RedisError> {
        let ask = || async {
            let info: InfoDict = redis::cmd("INFO").arg("server").query_async(&mut self.connection.clone()).await?;
            Ok(info.get("run_id").unwrap_or_default())
        };
        self.run_id.get_or_try_init(ask).await.map(String::as_str)
    }

    fn refuses_functions(&self) -> bool {
        self.without_functions.load(Ordering::Relaxed)
    }

    fn refuse_functions(&self) {
        self.without_functions.store(true, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Connection({})", self.address())
    }
}

impl Connection {
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Ok(Self::over(url::dial_to(url)?))
    }

    pub(crate) fn over(dial: Arc<dyn Dial>) -> Self {
        Self { dial, current: Arc::default(), last_primary: Arc::default(), moves: Arc::default(), observer: None }
    }

    pub(crate) fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// `timed` is false for blocking reads. The returned future is boxed, because the future of a round trip takes 3
    /// kB.
    pub(crate) fn observe<T>(
        &self,
        verb: &'static str,
        timed: bool,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let answer = Box::pin(answer);
        async move {
            let Some(observer) = &self.observer else { return answer.await };
            let asked = Instant::now();
            let answer = answer.await;
            match &answer {
                Err(error) if !error.is_expected() => observer.failed(verb),
                _ => observer.answered(verb, timed.then(|| asked.elapsed())),
            }
            answer
        }
    }

    #[must_use]
    pub fn address(&self) -> String {
        self.dial.address()
    }

    #[must_use]
    pub fn primary(&self) -> Option<Result<String, String>> {
        self.dial.primary()
    }

    pub async fn get(&self) -> Result<MultiplexedConnection, StoreError> {
        Ok(self.live().await?.connection)
    }

    async fn live(&self) -> Result<OpenConnection, StoreError> {
        let mut current = self.current.lock().await;
        if let Some(live) = current.as_ref() {
            return Ok(live.clone());
        }
        let made = OpenConnection::new(self.connect(RESPONSE_TIMEOUT).await?);
        *current = Some(made.clone());
        if let Some(Ok(primary)) = self.dial.primary() {
            let before = self.last_primary.lock().await.replace(primary.clone());
            if before.is_some_and(|before| before != primary) {
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            self.watch(&made, primary);
        }
        Ok(made)
    }

    /// Drops `made` when another server is the primary, because an old primary still accepts commands until other nodes
    /// notify it.
    fn watch(&self, made: &OpenConnection, primary: String) {
        let Some(every) = self.dial.check_interval() else { return };
        let dial = Arc::clone(&self.dial);
        let moves = Arc::clone(&self.moves);
        let current = Arc::downgrade(&self.current);
        let made = Arc::downgrade(&made.run_id);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(every).await;
                if made.strong_count() == 0 {
                    return;
                }
                if dial.has_moved(&primary).await {
                    break;
                }
            }
            let Some(current) = current.upgrade() else { return };
            let mut current = current.lock().await;
            if current.as_ref().is_some_and(|live| Arc::as_ptr(&live.run_id) == made.as_ptr()) {
                *current = None;
                moves.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
    }

    /// The response timeout must be longer than `block` (the library's default is 500 ms). Otherwise Redis would
    /// deliver entries to a connection without a reader.
    pub async fn dedicated(&self, block: Duration) -> Result<MultiplexedConnection, StoreError> {
        self.connect(block + BLOCK_MARGIN).await
    }

    async fn connect(&self, response: Duration) -> Result<MultiplexedConnection, StoreError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(Some(response));
        let made = self.dial.dial(config).await;
        if let (Some(observer), Some(found)) = (&self.observer, self.dial.primary()) {
            observer.primary_search_ended(&self.address(), found.ok().as_deref());
        }
        made.map_err(|source| StoreError::Connect { address: self.address(), source })
    }

    /// Drops only `from`: another caller may already have replaced it with a new connection, which stays open.
    async fn drop_if_failed(&self, from: &OpenConnection, error: &redis::RedisError) {
        self.notify_observer(error);
        if !is_of_this_connection(error) {
            return;
        }
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|live| Arc::ptr_eq(&live.run_id, &from.run_id)) {
            *current = None;
        }
    }

    /// Also drops the multiplexed connection. Only blocked readers get `UNBLOCKED` when their server becomes a replica,
    /// so the multiplexed connection may notice nothing.
    pub(crate) async fn handle_reader_error(&self, error: &redis::RedisError) {
        self.notify_observer(error);
        if is_of_this_connection(error) && !error.is_io_error() {
            *self.current.lock().await = None;
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn notify_observer(&self, error: &redis::RedisError) {
        if let (Some(observer), Some(answer)) = (&self.observer, answer_of(error)) {
            observer.redirected(answer);
        }
    }

    pub(crate) async fn migration_redirect(&self, connection: &mut MultiplexedConnection) -> Option<redis::RedisError> {
        self.dial.migration_redirect(connection).await
    }

    /// Retries for up to `REDIRECTED_MAX`. The second parameter of `arguments` is the server's run ID.
    pub(crate) async fn run_function(
        &self,
        function: &Function,
        arguments: impl Fn(&mut redis::Cmd, &str),
    ) -> Result<Value, StoreError> {
        let verb = function.script.verb;
        let run = async {
            let asked = Instant::now();
            let mut backoff = Backoff::default();
            loop {
                let live = self.live().await?;
                let answer = match live.run_id().await {
                    Err(error) if is_of_this_connection(&error) => self.check_reply(verb, &live, Err(error)).await,
                    // The Redis user may lack the permission to read the run ID. The script then reads the ID itself.
                    known => {
                        let run_id = known.unwrap_or_default();
                        self.call(&live, function, |command| arguments(command, run_id)).await
                    }
                };
                let pause = match &answer {
                    Err(StoreError::Verb { source, .. }) if was_not_run(source) => backoff.pause(),
                    _ => return answer,
                };
                if asked.elapsed() + pause > REDIRECTED_MAX {
                    return answer;
                }
                tokio::time::sleep(pause).await;
            }
        };
        self.observe(verb, true, run).await
    }

    /// Loads the function if Redis does not know it. Runs the function's text as a script if functions are not
    /// supported or not permitted, or if memory is full.
    async fn call(
        &self,
        live: &OpenConnection,
        function: &Function,
        arguments: impl Fn(&mut redis::Cmd),
    ) -> Result<Value, StoreError> {
        let mut connection = live.connection.clone();
        let mut may_load = true;
        if !live.refuses_functions() {
            let mut command = redis::cmd("FCALL");
            arguments(command.arg(&function.name));
            let mut answer = command.query_async::<Value>(&mut connection).await;
            if matches!(&answer, Err(error) if error.detail() == Some("Function not found")) {
                let load = redis::cmd("FUNCTION").arg("LOAD").arg("REPLACE").arg(&function.source).to_owned();
                answer = match load.query_async::<()>(&mut connection).await {
                    Ok(()) => command.query_async::<Value>(&mut connection).await,
                    Err(error) => {
                        may_load = error.code() != Some("NOPERM");
                        Err(error)
                    }
                };
            }
            match answer {
                // Try the function again at the next call. Redis may have free memory then, or another process may have
                // loaded it.
                Err(error) if error.code() == Some("OOM") || !may_load => {}
                Err(error) if error.code() == Some("NOPERM") || is_unknown_command(&error) => live.refuse_functions(),
                answer => return self.check_reply(function.script.verb, live, answer).await,
            }
        }
        let mut command = redis::cmd("EVALSHA");
        arguments(command.arg(&function.script.digest));
        let answer = self.evaluate(live, &function.script, &command).await;
        if !may_load && answer.is_ok() {
            live.refuse_functions();
        }
        answer
    }

    async fn evaluate(
        &self,
        live: &OpenConnection,
        script: &Script,
        command: &redis::Cmd,
    ) -> Result<Value, StoreError> {
        let mut connection = live.connection.clone();
        let mut answer = command.query_async::<Value>(&mut connection).await;
        if matches!(&answer, Err(error) if error.code() == Some("NOSCRIPT")) {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(&script.source).query_async::<()>(&mut connection).await;
            answer = match load {
                Ok(()) => command.query_async::<Value>(&mut connection).await,
                // Some Redis users may run scripts but not load them (see roles.rs). The error is then that the script
                // is missing.
                Err(error) if error.code() == Some("NOPERM") => answer,
                Err(error) => Err(error),
            };
        }
        self.check_reply(script.verb, live, answer).await
    }

    async fn check_reply<T>(
        &self,
        verb: &'static str,
        from: &OpenConnection,
        answer: Result<T, redis::RedisError>,
    ) -> Result<T, StoreError> {
        match answer {
            Ok(value) => Ok(value),
            Err(error) => {
                self.drop_if_failed(from, &error).await;
                Err(StoreError::verb(verb, error))
            }
        }
    }

    pub async fn query<T: redis::FromRedisValue>(
        &self,
        name: RedisCommand,
        command: &redis::Cmd,
    ) -> Result<T, StoreError> {
        let ask = async {
            let live = self.live().await?;
            let answer = command.query_async::<T>(&mut live.connection.clone()).await;
            self.check_reply(name.as_str(), &live, answer).await
        };
        self.observe(name.as_str(), true, ask).await
    }

    pub async fn pipeline<T: redis::FromRedisValue>(
        &self,
        name: RedisCommand,
        pipe: &redis::Pipeline,
    ) -> Result<T, StoreError> {
        let ask = async {
            let live = self.live().await?;
            let answer = pipe.query_async::<T>(&mut live.connection.clone()).await;
            self.check_reply(name.as_str(), &live, answer).await
        };
        self.observe(name.as_str(), true, ask).await
    }

    /// One result for each command, so that a key of the wrong type affects only its own command. If the server does
    /// not own a key, the whole pipeline fails, because the key would seem to be missing.
    pub(crate) async fn replies(
        &self,
        name: RedisCommand,
        pipe: &redis::Pipeline,
    ) -> Result<PipelineReplies, StoreError> {
        let ask = async {
            let live = self.live().await?;
            let mut pipe = pipe.clone();
            let answers = pipe.ignore_errors().query_async::<PipelineReplies>(&mut live.connection.clone()).await;
            self.check_reply(name.as_str(), &live, answers.and_then(error::all_served)).await
        };
        self.observe(name.as_str(), true, ask).await
    }
}

pub(crate) type PipelineReplies = Vec<redis::RedisResult<Value>>;

/// From 50 ms to 2 s, with jitter, without a limit on attempts.
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
    pub fn pause(&mut self) -> Duration {
        self.policy.next_backoff().unwrap_or(Duration::from_secs(2))
    }

    /// Call this after a reply from Redis, so that the next failure starts with short delays.
    pub fn reset(&mut self) {
        self.policy.reset();
    }
}
