//! `/startupz`, `/livez`, `/readyz` and `/metrics` on a small HTTP server in each process.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use futures::future::BoxFuture;
use tickfleet_store::Refusal;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::metrics::{Metrics, RedisScrape, seconds_since_epoch};
pub use super::progress::{LoopHandle, LoopState, Progress};

/// Shorter than the timeouts of kubelet and Prometheus in the Helm chart (1 s or more).
const ASK_TIMEOUT: Duration = Duration::from_millis(900);

type HealthCheck<T> = Arc<dyn Fn() -> BoxFuture<'static, T> + Send + Sync>;

/// Clones share the state.
#[derive(Clone)]
pub struct Health {
    progress: Progress,
    metrics: Arc<Metrics>,
    started: Arc<AtomicBool>,
    ready: HealthCheck<Result<String, NotReady>>,
    scrape: Option<HealthCheck<Option<RedisScrape>>>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("progress", &self.progress).finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotReady {
    pub reason: String,
    /// Set if Redis responds, but rejects writes.
    pub refusal: Option<Refusal>,
}

impl From<String> for NotReady {
    fn from(reason: String) -> Self {
        Self { reason, refusal: None }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    #[error("the address {addr} for metrics and health is taken by another process; configure another, or port 0")]
    Taken { addr: SocketAddr },
    #[error("cannot listen on {addr} for metrics and health: {source}")]
    Listen { addr: SocketAddr, source: std::io::Error },
}

impl Health {
    /// `ready` must return within 0.9 s. `Ok` has lines for the response, and means that Redis responds and accepts
    /// writes.
    pub fn new<F, Fut>(progress: Progress, metrics: Arc<Metrics>, ready: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<String, NotReady>> + Send + 'static,
    {
        let started = Arc::default();
        Self { progress, metrics, started, ready: Arc::new(move || ready().boxed()), scrape: None }
    }

    /// `/startupz` returns 200 from now on. Do not wait for Redis first: a process that waits for Redis must not be
    /// restarted.
    pub fn started(&self) {
        self.started.store(true, Ordering::Relaxed);
    }

    /// If `scrape` returns `None` or takes longer than 0.9 s, the values from Redis are absent.
    #[must_use]
    pub fn with_scrape<F, Fut>(mut self, scrape: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<RedisScrape>> + Send + 'static,
    {
        self.scrape = Some(Arc::new(move || scrape().boxed()));
        self
    }

    /// Port 0 means any free port. Probes must also respond during a drain, so cancel `shutdown` only at the end of the
    /// drain.
    pub async fn serve(self, addr: SocketAddr, shutdown: CancellationToken) -> Result<SocketAddr, HealthError> {
        let listener = TcpListener::bind(addr).await.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => HealthError::Taken { addr },
            _ => HealthError::Listen { addr, source },
        })?;
        let bound = listener.local_addr().map_err(|source| HealthError::Listen { addr, source })?;
        tokio::spawn(async move {
            let served = axum::serve(listener, self.router()).with_graceful_shutdown(shutdown.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "metrics and health server stopped unexpectedly");
            }
        });
        Ok(bound)
    }

    fn router(self) -> Router {
        Router::new()
            .route("/startupz", get(startupz))
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn startupz(State(health): State<Health>) -> Response {
    if health.started.load(Ordering::Relaxed) {
        return (StatusCode::OK, "ok\n").into_response();
    }
    (StatusCode::SERVICE_UNAVAILABLE, "starting\n").into_response()
}

async fn livez(State(health): State<Health>) -> Response {
    let stalled = health.progress.stalled();
    if stalled.is_empty() {
        return (StatusCode::OK, "ok\n").into_response();
    }
    let mut text = String::new();
    for LoopState { name, age, gap_max } in stalled {
        text.push_str(&format!("{name} has not advanced for {age:.1?}; at most {gap_max:.1?} are allowed\n"));
    }
    (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
}

async fn readyz(State(health): State<Health>) -> Response {
    let answer = timeout(ASK_TIMEOUT, (health.ready)()).await;
    match answer.unwrap_or_else(|_| Err(format!("no answer within {ASK_TIMEOUT:?}").into())) {
        Ok(details) => (StatusCode::OK, format!("ok\n{details}")).into_response(),
        Err(NotReady { reason, .. }) => {
            (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response()
        }
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    // Both run at the same time, so that a request waits for Redis only once.
    let ready = timeout(ASK_TIMEOUT, (health.ready)());
    let scraped = async {
        let scrape = health.scrape.as_ref()?;
        timeout(ASK_TIMEOUT, scrape()).await.ok().flatten()
    };
    let (ready, scraped) = futures::join!(ready, scraped);
    health.metrics.redis_up(matches!(ready, Ok(Ok(_))));
    health.metrics.redis_rejecting(ready.ok().and_then(Result::err).and_then(|why| why.refusal));
    health.metrics.scraped(scraped.as_ref());
    show_loops(&health);
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], health.metrics.render()).into_response()
}

/// Loops with the same name (one per shard) share a series with the time of the slowest loop.
fn show_loops(health: &Health) {
    let mut oldest: BTreeMap<&'static str, Duration> = BTreeMap::new();
    for LoopState { name, age, .. } in health.progress.loops() {
        let known = oldest.entry(name).or_default();
        *known = age.max(*known);
    }
    let now = seconds_since_epoch();
    health.metrics.loops(oldest.into_iter().map(|(name, age)| (name, now - age.as_secs_f64())));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::Barrier;

    use super::super::metrics::{Backlog, WorkStage};
    use super::*;

    const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn healthy() -> Health {
        Health::new(Progress::default(), Arc::new(Metrics::new().unwrap()), || async { Ok(String::new()) })
    }

    async fn ask(addr: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_stalled_loop_fails_liveness_until_it_finishes() {
        let health = healthy();
        let tick = health.progress.register("tick", Duration::ZERO);
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();

        // Wait until some time has passed. A loop with a maximum gap of zero is then late.
        let stalled = loop {
            let answer = ask(addr, "/livez").await;
            if answer.starts_with("HTTP/1.1 503") {
                break answer;
            }
        };
        assert!(stalled.contains("tick has not advanced for"), "{stalled}");

        tick.finished();
        assert!(ask(addr, "/livez").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn readiness_checks_redis_but_liveness_does_not() {
        let progress = Progress::default();
        let metrics = Arc::new(Metrics::new().unwrap());
        let health = Health::new(progress, metrics, || async { Err(String::from("redis: connection refused").into()) });
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();

        assert!(ask(addr, "/livez").await.starts_with("HTTP/1.1 200"));
        let unready = ask(addr, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(unready.contains("not ready: redis: connection refused"), "{unready}");
    }

    #[tokio::test]
    async fn a_redis_refusal_is_exported_with_its_reason_until_it_ends() {
        let refusal = Arc::new(parking_lot::Mutex::new(Some(Refusal::Disk)));
        let seen = Arc::clone(&refusal);
        let health = Health::new(Progress::default(), Arc::new(Metrics::new().unwrap()), move || {
            let refusal = *seen.lock();
            async move {
                match refusal {
                    Some(_) => Err(NotReady { reason: "MISCONF: free its disk".into(), refusal }),
                    None => Ok(String::new()),
                }
            }
        });
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();
        assert!(ask(addr, "/readyz").await.contains("not ready: MISCONF: free its disk"));
        let scrape = ask(addr, "/metrics").await;
        for line in ["redis_rejecting{reason=\"misconf\"} 1", "redis_rejecting{reason=\"noperm\"} 0", "redis_up 0"] {
            assert!(scrape.contains(&format!("tickfleet_{line}")), "{line}:\n{scrape}");
        }
        *refusal.lock() = None;
        let scrape = ask(addr, "/metrics").await;
        assert!(scrape.contains("tickfleet_redis_rejecting{reason=\"misconf\"} 0"), "{scrape}");
    }

    #[tokio::test]
    async fn startup_does_not_depend_on_redis() {
        let metrics = Arc::new(Metrics::new().unwrap());
        let health = Health::new(Progress::default(), metrics, || async {
            Err(String::from("redis: connection refused").into())
        });
        let addr = health.clone().serve(ANY_PORT, CancellationToken::new()).await.unwrap();

        assert!(ask(addr, "/startupz").await.starts_with("HTTP/1.1 503"));
        health.started();
        assert!(ask(addr, "/startupz").await.starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn readiness_times_out_when_redis_does_not_answer() {
        let progress = Progress::default();
        let health = Health::new(progress, Arc::new(Metrics::new().unwrap()), std::future::pending);
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();
        assert!(ask(addr, "/readyz").await.contains("no answer within"));
    }

    #[tokio::test]
    async fn a_scrape_shows_the_backlog_and_the_loops() {
        let full = Backlog { count: 3, oldest: None };
        let scraped = RedisScrape { backlog: vec![(WorkStage::ParkedCapped, full)], ..RedisScrape::default() };
        let health = healthy().with_scrape(move || {
            let scraped = scraped.clone();
            async move { Some(scraped) }
        });
        let _tick = health.progress.register("tick", Duration::from_secs(60));
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();
        let scrape = ask(addr, "/metrics").await;
        assert!(scrape.contains("tickfleet_backlog{state=\"parked_capped\"} 3"), "{scrape}");
        assert!(scrape.contains("tickfleet_redis_up 1"), "{scrape}");
        assert!(scrape.contains("tickfleet_loop_progress_timestamp_seconds{loop=\"tick\"} 1"), "{scrape}");
        assert!(scrape.contains("text/plain; version=0.0.4"), "{scrape}");
    }

    #[tokio::test]
    async fn a_scrape_queries_redis_concurrently_and_reports_it_down() {
        let progress = Progress::default();
        let metrics = Arc::new(Metrics::new().unwrap());
        metrics.scraped(Some(&RedisScrape {
            backlog: vec![(WorkStage::Ready, Backlog::default())],
            ..RedisScrape::default()
        }));
        // Both requests wait at the barrier, so both complete only if they run at the same time.
        let meeting = Arc::new(Barrier::new(2));
        let have_met = Arc::new(AtomicBool::new(false));
        let asked = (Arc::clone(&meeting), Arc::clone(&have_met));
        let meets = move || {
            let (meeting, have_met) = asked.clone();
            async move {
                meeting.wait().await;
                have_met.store(true, Ordering::SeqCst);
            }
        };
        let scraped = meets.clone();
        let health = Health::new(progress, metrics, move || meets().then(|()| std::future::pending()))
            .with_scrape(move || scraped().then(|()| std::future::pending()));
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();
        let scrape = ask(addr, "/metrics").await;
        assert!(have_met.load(Ordering::SeqCst), "it waited once for each question");
        assert!(scrape.contains("tickfleet_redis_up 0"), "{scrape}");
        for absent in ["tickfleet_backlog", "tickfleet_oldest_age_seconds", "tickfleet_redis_memory_used_bytes"] {
            assert!(!scrape.contains(absent), "{scrape}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_slowest_of_equally_named_loops_is_shown() {
        let health = healthy();
        let stuck = health.progress.register("tick", Duration::from_secs(60));
        tokio::time::advance(Duration::from_secs(3_600)).await;
        let alive = health.progress.register("tick", Duration::from_secs(60));
        alive.advanced();
        show_loops(&health);
        let shown: f64 = health
            .metrics
            .render()
            .lines()
            .find_map(|line| line.strip_prefix("tickfleet_loop_progress_timestamp_seconds{loop=\"tick\"} "))
            .unwrap()
            .parse()
            .unwrap();
        assert!(seconds_since_epoch() - shown >= 3_600.0, "{shown}");
        drop(stuck);
        alive.finished();
    }

    #[tokio::test]
    async fn a_finished_loop_is_not_shown() {
        let health = healthy();
        let tick = health.progress.register("tick", Duration::from_secs(60));
        show_loops(&health);
        assert!(health.metrics.render().contains("{loop=\"tick\"}"));
        tick.finished();
        show_loops(&health);
        assert!(!health.metrics.render().contains("{loop=\"tick\"}"));
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_with_its_address() {
        let shutdown = CancellationToken::new();
        let addr = healthy().serve(ANY_PORT, shutdown.clone()).await.unwrap();
        let error = healthy().serve(addr, shutdown).await.unwrap_err();
        assert!(matches!(error, HealthError::Taken { .. }), "{error}");
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }
}
