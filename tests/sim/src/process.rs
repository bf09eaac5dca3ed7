//! A simulated process: a runtime of its own, whose clock moves when the simulation says so, on a machine of its own.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, LazyLock};
use std::task::Poll;
use std::time::Duration;

use async_trait::async_trait;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo, RedisResult};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::Dial;
use tokio::runtime::{Builder, Runtime};
use tokio::time::Instant;

use crate::machine::{self, Machine};
use crate::net::Net;

/// What a process runs.
pub(crate) type Main = Pin<Box<dyn Future<Output = ()> + Send>>;

/// How it runs.
pub(crate) struct Process {
    runtime: Option<Runtime>,
    machine: Machine,
    began: Instant,
    /// The true time of its start, µs.
    born_us: i64,
    /// The true time that its runtime has come to, µs.
    now_us: i64,
    pub(crate) shutdown: Shutdown,
    /// Until when it is stopped, as by SIGSTOP; true time, µs.
    pub(crate) stopped_us: i64,
    /// Whether its main function has returned.
    has_ended: Arc<std::sync::atomic::AtomicBool>,
}

/// Beyond this the time has jumped for it, µs: it did not run meanwhile.
const JUMP_US: i64 = 20_000;

impl Process {
    /// A process that starts at `now_us` with what `main` makes inside of it. `ahead_us` is by how much its machine's
    /// clock differs from the true time.
    pub(crate) fn start(
        now_us: i64,
        ahead_us: i64,
        seed: u64,
        main: impl FnOnce(Shutdown) -> Main,
    ) -> io::Result<Self> {
        let machine = Machine { monotonic_ns: now_us * 1_000, wall_ns: (now_us + ahead_us) * 1_000, chance: seed };
        let shutdown = Shutdown::default();
        let has_ended = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let (made, machine) = machine::on(machine, || {
            // One task at a time, and then the clock: whoever dies may die between any two polls.
            let runtime = Builder::new_current_thread().enable_time().start_paused(true).event_interval(1).build()?;
            let began = {
                let _inside = runtime.enter();
                let began = Instant::now();
                let (main, ended) = (main(shutdown.clone()), Arc::clone(&has_ended));
                tokio::spawn(async move {
                    main.await;
                    ended.store(true, std::sync::atomic::Ordering::SeqCst);
                });
                began
            };
            io::Result::Ok((runtime, began))
        });
        let (runtime, began) = made?;
        Ok(Self { runtime: Some(runtime), machine, began, born_us: now_us, now_us, shutdown, stopped_us: 0, has_ended })
    }

    /// Runs until its clock shows `to_us` of true time and nothing is left to do until then.
    pub(crate) fn run_to(&mut self, to_us: i64) {
        if self.runtime.is_none() || self.stopped_us > to_us {
            return;
        }
        let passed_us = to_us - self.now_us;
        self.pass(passed_us);
        let target = self.began + Duration::from_micros((to_us - self.born_us).max(0).unsigned_abs());
        self.inside(async move {
            if passed_us > JUMP_US
                && let Some(jump) = target.checked_duration_since(Instant::now())
            {
                tokio::time::advance(jump).await;
            }
            tokio::time::sleep_until(target).await;
        });
    }

    /// Runs this many polls of its tasks, and dies: `kill -9`.
    pub(crate) fn die_after(&mut self, polls: u32) {
        let mut left = polls;
        self.inside(poll_fn(move |cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let runtime = self.runtime.take();
        (_, self.machine) = machine::on(self.machine, || drop(runtime));
    }

    /// Does something inside of the process, between two runs of it.
    pub(crate) fn enter(&mut self, what: impl FnOnce()) {
        if let Some(runtime) = &self.runtime {
            (_, self.machine) = machine::on(self.machine, || {
                let _inside = runtime.enter();
                what();
            });
        }
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.runtime.is_some()
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(std::sync::atomic::Ordering::SeqCst)
    }

    /// Its machine's clock steps, µs.
    pub(crate) fn step_clock(&mut self, by_us: i64) {
        self.machine.wall_ns += by_us * 1_000;
    }

    fn pass(&mut self, passed_us: i64) {
        self.now_us += passed_us;
        self.machine.monotonic_ns += passed_us * 1_000;
        self.machine.wall_ns += passed_us * 1_000;
    }

    fn inside(&mut self, until: impl Future<Output = ()>) {
        if let Some(runtime) = &self.runtime {
            (_, self.machine) = machine::on(self.machine, || runtime.block_on(until));
        }
    }
}

/// Connects a process to the simulated Redis.
#[derive(Debug)]
pub(crate) struct SimDial {
    pub(crate) net: Net,
    pub(crate) process: usize,
}

#[async_trait]
impl Dial for SimDial {
    async fn dial(&self, config: AsyncConnectionConfig) -> RedisResult<MultiplexedConnection> {
        let made = tokio::time::timeout(CONNECT_TIMEOUT, async {
            tokio::time::sleep(Duration::from_micros(300)).await;
            let stream = self.net.connect(self.process)?;
            MultiplexedConnection::new_with_config(&NO_LOGIN, stream, config).await
        });
        let (connection, driver) =
            made.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))?;
        tokio::spawn(driver);
        Ok(connection)
    }

    fn address(&self) -> String {
        "the simulated Redis".into()
    }
}

/// The simulated Redis asks nobody who they are.
static NO_LOGIN: LazyLock<RedisConnectionInfo> = LazyLock::new(RedisConnectionInfo::default);
/// As the store asks of a real one.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
