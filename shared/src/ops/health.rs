//! The probes and the scrape: `/livez`, `/readyz` and `/metrics` on one small HTTP server per process.

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use futures::FutureExt;
use futures::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use super::metrics::{Backlogs, Metrics};
pub use super::progress::{LoopHandle, LoopState, Progress};

/// How long a probe or a scrape waits for Redis: below the second or more that kubelet and Prometheus allow
/// in the chart, so that they hear an answer and not a time-out.
const ASK_TIMEOUT: Duration = Duration::from_millis(900);

type Ask<T> = Arc<dyn Fn() -> BoxFuture<'static, T> + Send + Sync>;

/// What the probes of one process answer from. Cloning shares it.
#[derive(Clone)]
pub struct Health {
    progress: Progress,
    metrics: Arc<Metrics>,
    ready: Ask<Result<(), String>>,
    backlog: Option<Ask<Option<Backlogs>>>,
}

impl std::fmt::Debug for Health {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Health").field("progress", &self.progress).finish_non_exhaustive()
    }
}

/// Why the server did not start.
#[derive(Debug, thiserror::Error)]
pub enum HealthError {
    /// Somebody else listens there.
    #[error("the address {addr} for metrics and health is taken by another process; configure another, or port 0")]
    Taken {
        /// The address asked for.
        addr: SocketAddr,
    },
    /// The system refuses the address.
    #[error("cannot listen on {addr} for metrics and health: {source}")]
    Listen {
        /// The address asked for.
        addr: SocketAddr,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Health {
    /// Probes that watch `progress` and show `metrics`. `ready` tells whether the process can do its work now:
    /// `Ok` when Redis answers, else a reason for people. It is given 0.9 s.
    pub fn new<F, Fut>(progress: Progress, metrics: Arc<Metrics>, ready: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), String>> + Send + 'static,
    {
        Self { progress, metrics, ready: Arc::new(move || ready().boxed()), backlog: None }
    }

    /// Asks `collect` for the backlog at each scrape. `None`, or no answer in 0.9 s, makes the backlog's gauges
    /// absent from that scrape.
    #[must_use]
    pub fn with_backlog<F, Fut>(mut self, collect: F) -> Self
    where
        F: Fn() -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Backlogs>> + Send + 'static,
    {
        self.backlog = Some(Arc::new(move || collect().boxed()));
        self
    }

    /// Listens on `addr` (port 0: any free one) until `shutdown`, and gives the address it listens on. Probes
    /// have to be answered during a drain too: `shutdown` is for its end.
    ///
    /// # Errors
    /// [`HealthError`] where the address cannot be had.
    pub async fn serve(self, addr: SocketAddr, shutdown: CancellationToken) -> Result<SocketAddr, HealthError> {
        let listener = TcpListener::bind(addr).await.map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => HealthError::Taken { addr },
            _ => HealthError::Listen { addr, source },
        })?;
        let bound = listener.local_addr().map_err(|source| HealthError::Listen { addr, source })?;
        tokio::spawn(async move {
            let served = axum::serve(listener, self.router()).with_graceful_shutdown(shutdown.cancelled_owned()).await;
            if let Err(error) = served {
                tracing::error!(%error, "the server for metrics and health ended");
            }
        });
        Ok(bound)
    }

    fn router(self) -> Router {
        Router::new()
            .route("/livez", get(livez))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self)
    }
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
    match answer.unwrap_or_else(|_| Err(format!("no answer within {ASK_TIMEOUT:?}"))) {
        Ok(()) => (StatusCode::OK, "ok\n").into_response(),
        Err(reason) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {reason}\n")).into_response(),
    }
}

async fn metrics(State(health): State<Health>) -> Response {
    if let Some(collect) = &health.backlog {
        match timeout(ASK_TIMEOUT, collect()).await.ok().flatten() {
            Some(places) => health.metrics.backlog(&places),
            None => health.metrics.backlog_unknown(),
        }
    }
    let now = seconds_since_epoch();
    for state in health.progress.loops() {
        health.metrics.loop_progress(state.name, now - state.age.as_secs_f64());
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], health.metrics.render()).into_response()
}

#[allow(clippy::disallowed_methods, reason = "Prometheus wants a time stamp of its own world; nothing decides by it")]
fn seconds_since_epoch() -> f64 {
    std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::metrics::{Backlog, Place};
    use super::*;

    const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

    fn healthy() -> Health {
        Health::new(Progress::default(), Arc::new(Metrics::new().unwrap()), || async { Ok(()) })
    }

    /// The whole answer to one GET, head and body.
    async fn ask(addr: SocketAddr, path: &str) -> String {
        let mut stream = tokio::net::TcpStream::connect(addr).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn a_stalled_loop_fails_liveness_by_name_and_an_advancing_one_mends_it() {
        let health = healthy();
        let tick = health.progress.register("tick", Duration::ZERO);
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();

        // Some time passes, however short: a loop that may take none is then late.
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
    async fn liveness_does_not_ask_redis_and_readiness_does() {
        let progress = Progress::default();
        let metrics = Arc::new(Metrics::new().unwrap());
        let health = Health::new(progress, metrics, || async { Err("redis: connection refused".into()) });
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();

        assert!(ask(addr, "/livez").await.starts_with("HTTP/1.1 200"));
        let unready = ask(addr, "/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503"), "{unready}");
        assert!(unready.contains("not ready: redis: connection refused"), "{unready}");
    }

    #[tokio::test]
    async fn a_redis_that_does_not_answer_leaves_the_process_unready_instead_of_hanging_the_probe() {
        let progress = Progress::default();
        let health = Health::new(progress, Arc::new(Metrics::new().unwrap()), std::future::pending);
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();
        assert!(ask(addr, "/readyz").await.contains("no answer within"));
    }

    #[tokio::test]
    async fn a_scrape_asks_for_the_backlog_and_shows_the_loops() {
        let full = Backlog { count: 3, oldest: None };
        let health = healthy().with_backlog(move || async move { Some(vec![(Place::Parked, full)]) });
        let _tick = health.progress.register("tick", Duration::from_secs(60));
        let addr = health.serve(ANY_PORT, CancellationToken::new()).await.unwrap();
        let scrape = ask(addr, "/metrics").await;
        assert!(scrape.contains("tickfleet_backlog{state=\"parked\"} 3"), "{scrape}");
        assert!(scrape.contains("tickfleet_loop_progress_timestamp_seconds{loop=\"tick\"} 1"), "{scrape}");
        assert!(scrape.contains("text/plain; version=0.0.4"), "{scrape}");
    }

    #[tokio::test]
    async fn a_taken_port_is_an_error_that_says_so() {
        let shutdown = CancellationToken::new();
        let addr = healthy().serve(ANY_PORT, shutdown.clone()).await.unwrap();
        let error = healthy().serve(addr, shutdown).await.unwrap_err();
        assert!(matches!(error, HealthError::Taken { .. }), "{error}");
        assert!(error.to_string().contains(&addr.to_string()), "{error}");
    }
}
