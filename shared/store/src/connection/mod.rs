//! Connections to Redis: one multiplexed connection that heals, and dedicated ones for blocking reads.
//!
//! This is the reconnect helper: beside `model/retry` the only place that names `backoff`.

pub(crate) mod cluster;
pub(crate) mod confirm;
pub(crate) mod dial;
pub(crate) mod error;
pub(crate) mod no_redis;
pub(crate) mod pool;
pub(crate) mod question;
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
use redis::{AsyncConnectionConfig, Value};
use tokio::sync::{Mutex, OnceCell};
use tokio::time::Instant;

use crate::script::{Function, Script};
use dial::Dial;
use error::{StoreError, answer_of, is_of_this_connection, is_unknown_command, was_not_run};
use question::Question;

/// Longest wait for the answer to one script, ms: far above the 2 ms that a batch takes, far below a lease.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(4);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longest wait within one question for a server that will do what it was asked, or tells who does.
const TURNED_AWAY_MAX: Duration = Duration::from_secs(1);
/// The time by which a blocking read's answer may be late.
const BLOCK_MARGIN: Duration = Duration::from_secs(5);

/// Is told of every question to Redis: for metrics.
pub trait Observer: Send + Sync {
    /// Redis answered `verb` after `took`; none for a read that waits on purpose.
    fn answered(&self, verb: &'static str, took: Option<Duration>);
    /// `verb` failed: no connection, no answer in time, or an error.
    fn failed(&self, verb: &'static str);
    /// A connection was to be made, and those who were asked for the primary of `what` led it to `found`, or to none.
    fn sought_primary(&self, what: &str, found: Option<&str>);
    /// A server answered that it is not the one, or not now: the first word of its answer.
    fn turned_away(&self, answer: &'static str);
}

/// A multiplexed connection that is made when first used and made anew after it broke. Never used for blocking
/// commands: whatever stands behind one waits for it.
#[derive(Clone)]
pub struct Connection {
    dial: Arc<dyn Dial>,
    current: Arc<Mutex<Option<Live>>>,
    /// The primary that the last connection was made to, where sentinels named it.
    led_to: Arc<Mutex<Option<String>>>,
    /// How often the primary turned out to be another one: dedicated connections of before lead to the old one.
    moves: Arc<AtomicU64>,
    observer: Option<Arc<dyn Observer>>,
}

/// A connection that was made.
#[derive(Clone)]
struct Live {
    connection: MultiplexedConnection,
    /// What the Redis at its other end calls itself, once that was asked. A Redis that restarts takes its connections
    /// with it, so it holds as long as they do.
    run_id: Arc<OnceCell<String>>,
    /// Whether its user may not use functions, or it knows none.
    without_functions: Arc<AtomicBool>,
}

impl Live {
    fn new(connection: MultiplexedConnection) -> Self {
        Self { connection, run_id: Arc::default(), without_functions: Arc::default() }
    }

    /// The `run_id` of the Redis at the other end; empty where it does not say: then scripts ask it themselves.
    async fn run_id(&self) -> Result<&str, redis::RedisError> {
        let ask = || async {
            let info = redis::cmd("INFO").arg("server").query_async::<String>(&mut self.connection.clone()).await?;
            Ok(run_id_of(&info).to_owned())
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
    /// A connection to `url`, not yet made.
    ///
    /// # Errors
    /// [`StoreError::Url`].
    pub fn open(url: &str) -> Result<Self, StoreError> {
        Ok(Self::over(url::dial_to(url)?))
    }

    /// A connection that `dial` makes, not yet made.
    pub(crate) fn over(dial: Arc<dyn Dial>) -> Self {
        Self { dial, current: Arc::default(), led_to: Arc::default(), moves: Arc::default(), observer: None }
    }

    pub(crate) fn observed_by(self, observer: Arc<dyn Observer>) -> Self {
        Self { observer: Some(observer), ..self }
    }

    /// Waits for an answer to `verb`, and tells the observer of it. `timed` is false for reads that wait on purpose.
    ///
    /// What is waited for is boxed: a round trip is a future of 3 kB, and whoever waits for one, and may wait for another, would
    /// be as large, and be copied as often as it moves.
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

    /// Host and port, or socket path. Never a password.
    #[must_use]
    pub fn address(&self) -> String {
        self.dial.address()
    }

    /// Where the primary was found last, or why it was not; none where the URL names no sentinels, or nobody has asked
    /// them yet.
    #[must_use]
    pub fn primary(&self) -> Option<Result<String, String>> {
        self.dial.primary()
    }

    /// The live connection, made if there is none.
    ///
    /// # Errors
    /// [`StoreError::Connect`].
    pub async fn get(&self) -> Result<MultiplexedConnection, StoreError> {
        Ok(self.live().await?.connection)
    }

    async fn live(&self) -> Result<Live, StoreError> {
        let mut current = self.current.lock().await;
        if let Some(live) = current.as_ref() {
            return Ok(live.clone());
        }
        let made = Live::new(self.connect(RESPONSE_TIMEOUT).await?);
        *current = Some(made.clone());
        if let Some(Ok(primary)) = self.dial.primary() {
            let before = self.led_to.lock().await.replace(primary.clone());
            if before.is_some_and(|before| before != primary) {
                self.moves.fetch_add(1, Ordering::Relaxed);
            }
            self.watch(&made, primary);
        }
        Ok(made)
    }

    /// Looks now and then whether the primary is still the one that `made` leads to, as long as somebody uses it; else
    /// drops it. A primary that was replaced, and does not know it, answers as before.
    fn watch(&self, made: &Live, primary: String) {
        let Some(every) = self.dial.looks_every() else { return };
        let (dial, moves) = (Arc::clone(&self.dial), Arc::clone(&self.moves));
        let (current, made) = (Arc::downgrade(&self.current), Arc::downgrade(&made.run_id));
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

    /// How often the primary has turned out to be another one.
    pub(crate) fn moves(&self) -> u64 {
        self.moves.load(Ordering::Relaxed)
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
        let made = self.dial.dial(config).await;
        if let (Some(observer), Some(found)) = (&self.observer, self.dial.primary()) {
            observer.sought_primary(&self.address(), found.ok().as_deref());
        }
        made.map_err(|source| StoreError::Connect { address: self.address(), source })
    }

    /// Drops the connection that `error` came from, where a new one may do better. One that was made meanwhile stays:
    /// else all who failed on the old one would have it made once each.
    async fn look_at(&self, from: &Live, error: &redis::RedisError) {
        self.tell_of(error);
        if !is_of_this_connection(error) {
            return;
        }
        let mut current = self.current.lock().await;
        if current.as_ref().is_some_and(|live| Arc::ptr_eq(&live.run_id, &from.run_id)) {
            *current = None;
        }
    }

    /// Drops the connection where a dedicated one heard from the server that it is no primary any more. Waiting readers
    /// are the first to hear it (`UNBLOCKED`); whoever only reads may never.
    pub(crate) async fn heard_by_a_reader(&self, error: &redis::RedisError) {
        self.tell_of(error);
        if is_of_this_connection(error) && !error.is_io_error() {
            *self.current.lock().await = None;
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn tell_of(&self, error: &redis::RedisError) {
        if let (Some(observer), Some(answer)) = (&self.observer, answer_of(error)) {
            observer.turned_away(answer);
        }
    }

    /// Where keys are gone that a reader had on `connection`: whether they have gone to another server, and are not lost.
    pub(crate) async fn is_on_its_way(&self, connection: &mut MultiplexedConnection) -> Option<redis::RedisError> {
        self.dial.is_on_its_way(connection).await
    }

    /// Runs a function; once more if a server only said who runs it, or that nobody does for the moment. `arguments` adds those
    /// of the call to a command, given what the server calls itself.
    pub(crate) async fn run_function(
        &self,
        function: &Function,
        arguments: impl Fn(&mut redis::Cmd, &str),
    ) -> Result<Value, StoreError> {
        let verb = function.script.verb;
        let run = async {
            let (asked, mut backoff) = (Instant::now(), Backoff::default());
            loop {
                let live = self.live().await?;
                let answer = match live.run_id().await {
                    Err(error) if is_of_this_connection(&error) => self.judge(verb, &live, Err(error)).await,
                    // A user of Redis who may not ask carries on without.
                    known => {
                        let run_id = known.unwrap_or_default();
                        self.call(&live, function, |command| arguments(command, run_id)).await
                    }
                };
                let pause = match &answer {
                    Err(StoreError::Verb { source, .. }) if was_not_run(source) => backoff.pause(),
                    _ => return answer,
                };
                if asked.elapsed() + pause > TURNED_AWAY_MAX {
                    return answer;
                }
                tokio::time::sleep(pause).await;
            }
        };
        self.observe(verb, true, run).await
    }

    /// Calls a function, loading it where Redis does not know it; where it may not be loaded, or called, its text is run as a
    /// script. Whoever may not load either calls the function again as soon as another process has loaded it.
    async fn call(
        &self,
        live: &Live,
        function: &Function,
        arguments: impl Fn(&mut redis::Cmd),
    ) -> Result<Value, StoreError> {
        let (mut connection, mut may_load) = (live.connection.clone(), true);
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
                // Memory, or the function, may be there for the next call.
                Err(error) if error.code() == Some("OOM") || !may_load => {}
                Err(error) if error.code() == Some("NOPERM") || is_unknown_command(&error) => live.refuse_functions(),
                answer => return self.judge(function.script.verb, live, answer).await,
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

    /// Runs a script by the command that names its digest, loading it where Redis does not know it.
    async fn evaluate(&self, live: &Live, script: &Script, command: &redis::Cmd) -> Result<Value, StoreError> {
        let mut connection = live.connection.clone();
        let mut answer = command.query_async::<Value>(&mut connection).await;
        if matches!(&answer, Err(error) if error.code() == Some("NOSCRIPT")) {
            let load = redis::cmd("SCRIPT").arg("LOAD").arg(&script.source).query_async::<()>(&mut connection).await;
            answer = match load {
                Ok(()) => command.query_async::<Value>(&mut connection).await,
                // A user of Redis who runs only what others have loaded (roles.rs).
                Err(error) if error.code() == Some("NOPERM") => answer,
                Err(error) => Err(error),
            };
        }
        self.judge(script.verb, live, answer).await
    }

    /// Names the verb in an error, and drops the connection `from` if the error says that it is broken.
    async fn judge<T>(
        &self,
        verb: &'static str,
        from: &Live,
        answer: Result<T, redis::RedisError>,
    ) -> Result<T, StoreError> {
        match answer {
            Ok(value) => Ok(value),
            Err(error) => {
                self.look_at(from, &error).await;
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
            let live = self.live().await?;
            let answer = command.query_async::<T>(&mut live.connection.clone()).await;
            self.judge(question.as_str(), &live, answer).await
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
            let live = self.live().await?;
            let answer = pipe.query_async::<T>(&mut live.connection.clone()).await;
            self.judge(question.as_str(), &live, answer).await
        };
        self.observe(question.as_str(), true, ask).await
    }

    /// Runs a pipeline, and answers for each command by itself: a key that holds something else costs its own answer
    /// alone (rule 18). A server that does not serve a key now, for its slot is on its way, costs all: what it leaves
    /// out would seem not to be there.
    ///
    /// # Errors
    /// [`StoreError::Verb`] with the question's word.
    pub(crate) async fn answers(&self, question: Question, pipe: &redis::Pipeline) -> Result<Answers, StoreError> {
        let ask = async {
            let (live, mut pipe) = (self.live().await?, pipe.clone());
            let answers = pipe.ignore_errors().query_async::<Answers>(&mut live.connection.clone()).await;
            self.judge(question.as_str(), &live, answers.and_then(error::all_served)).await
        };
        self.observe(question.as_str(), true, ask).await
    }
}

/// Answers of a pipeline, one by one.
pub(crate) type Answers = Vec<redis::RedisResult<Value>>;

/// What Redis calls itself, by what it says of itself; empty where it does not say.
fn run_id_of(info: &str) -> &str {
    info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default().trim_end()
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
    /// Returns the time to wait before the next attempt.
    pub fn pause(&mut self) -> Duration {
        self.policy.next_backoff().unwrap_or(Duration::from_secs(2))
    }

    /// Redis answered: the next trouble begins with short waits again.
    pub fn reset(&mut self) {
        self.policy.reset();
    }
}
