//! The HTTP API of a fleet, for services without a connection to Redis.
//!
//! START HERE: [`Gateway`] is what a process runs. Any number can run side by side: Redis checks every decision, and no
//! gateway needs the state of another one.

mod agui;
mod caller;
mod chat;
mod console;
mod doc;
mod events;
mod keys;
mod local;
mod mcp;
mod names;
mod operate;
mod operator_backend;
mod owners;
mod problem;
mod progress;
mod rates;
mod serving;
mod shapes;
mod tasks;
mod tokens;
mod tools;
mod turns;
mod verbs;
mod waiting;

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::extract::connect_info::Connected;
use axum::http::{HeaderName, HeaderValue, header};
use axum::middleware::{from_fn, from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{any, get};
use axum::serve::{IncomingStream, Listener};
use tickfleet_client::Client;
use tickfleet_model::limits;
use tickfleet_ops::metrics::Metrics;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

pub use caller::Credentials;
pub use doc::openapi;
pub use keys::{ApiKeys, KeyError, KeyRow, KeysFile, NewKey};
pub use mcp::{LocalApprover, META, serve_stdio};
pub use operator_backend::{BackendFuture, LimitFilter, OperatorBackend};
pub use serving::gate::Gate;
pub use serving::public::PublicUrl;
pub use serving::tls::{TlsError, TlsFiles};
pub use tokens::{Algorithm, ClientSecret, SignInOptions, TokenError, TokenOptions, Tokens};
pub use verbs::{CredentialKind, Grant, Rate, Role, TenantScope, Verb};

use mcp::McpServer;
use operate::live::FleetPoller;
use problem::Problem;
use progress::FollowedTurns;
use rates::RequestRates;
use serving::connections::{Connections, PlainListener, RequestConnection};
use serving::invalid_credentials::InvalidCredentialLimiter;
use serving::streams::Streams;
use serving::tls::TlsListener;
use serving::{access, bodies, gate, headers, public, request_metrics};
use waiting::ReplyWaiters;

/// A body may exceed the maximum size of a turn, mostly by white space.
const BODY_SLACK_BYTES: usize = 64 * 1024;

struct Shared {
    client: Client,
    credentials: Credentials,
    rates: RequestRates,
    invalid_credentials: InvalidCredentialLimiter,
    backend: Arc<dyn OperatorBackend>,
    waiting: ReplyWaiters,
    mcp: mcp::HttpServer,
    live: FleetPoller,
    followed: FollowedTurns,
    streams: Streams,
    metrics: Arc<Metrics>,
    /// Requests stop waiting when this token is canceled.
    draining: CancellationToken,
    public: Option<PublicUrl>,
    gate: Gate,
}

#[derive(Clone)]
pub struct Gateway {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for Gateway {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").finish_non_exhaustive()
    }
}

impl Gateway {
    /// `backend` answers operator requests that need the configuration. `public` is the base URL for callers, if known.
    #[must_use]
    pub fn new(
        client: Client,
        credentials: impl Into<Credentials>,
        backend: Arc<dyn OperatorBackend>,
        metrics: Arc<Metrics>,
        draining: CancellationToken,
        public: Option<PublicUrl>,
    ) -> Self {
        let credentials = credentials.into();
        let waiting = ReplyWaiters::new(client.clone(), draining.clone());
        let waits = waiting.clone();
        metrics.gateway.watch_waiting(move || waits.count());
        let server = McpServer::for_keys(
            client.clone(),
            waiting.clone(),
            Arc::clone(&metrics),
            draining.clone(),
            public.clone(),
        );
        let mcp = mcp::http_server(server);
        let live = FleetPoller::new();
        let rates = RequestRates::default();
        let streams = Streams::default();
        let invalid_credentials = InvalidCredentialLimiter::new(credentials.wrong);
        let followed = FollowedTurns::new(client.clone(), waiting.clone());
        let shared = Shared {
            client,
            credentials,
            rates,
            invalid_credentials,
            backend,
            waiting,
            mcp,
            live,
            followed,
            streams,
            metrics,
            draining,
            public,
            gate: Gate::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The gate is open at first. A process that starts while Redis may be unavailable closes the gate until the fleet
    /// is known.
    #[must_use]
    pub fn gate(&self) -> Gate {
        self.shared.gate.clone()
    }

    /// Returns the bound address. On drain, waiting requests return, so that their callers can repeat them.
    pub async fn serve(
        self,
        addr: SocketAddr,
        tls: Option<TlsFiles>,
    ) -> std::io::Result<(SocketAddr, tokio::task::JoinHandle<()>)> {
        let listener = TcpListener::bind(addr).await?;
        let bound = listener.local_addr()?;
        let connections = Connections::default();
        let serving = match tls {
            Some(files) => tokio::spawn(self.serve_on(TlsListener::new(listener, files, connections)?)),
            None => tokio::spawn(self.serve_on(PlainListener::new(listener, connections))),
        };
        Ok((bound, serving))
    }

    async fn serve_on<L: Listener<Addr: std::fmt::Debug>>(self, listener: L)
    where
        for<'a> RequestConnection: Connected<IncomingStream<'a, L>>,
    {
        let shared = Arc::clone(&self.shared);
        let draining = self.shared.draining.clone();
        tokio::spawn(shared.live.clone().poll(Arc::clone(&shared.backend), draining.clone()));
        tokio::spawn(shared.followed.clone().poll(draining.clone()));
        let router = self.router().into_make_service_with_connect_info::<RequestConnection>();
        let served = axum::serve(listener, router).with_graceful_shutdown(draining.cancelled_owned()).await;
        if let Err(error) = served {
            tracing::error!(%error, "gateway server stopped unexpectedly");
        }
        shared.waiting.ended().await;
    }

    fn router(self) -> Router {
        Router::from(doc::routes())
            .route("/v1/agents/{agent}/mcp", any(mcp::answer))
            .route("/v1/openapi.json", get(doc::document))
            .route(public::METADATA, get(public::of_gateway))
            .route(&format!("{}/{{*path}}", public::METADATA), get(public::of_path))
            .merge(console::routes())
            .fallback(|| async { Problem::not_found("unknown path; GET /v1/openapi.json lists all paths") })
            .method_not_allowed_fallback(|| async { Problem::method_not_allowed() })
            .layer(DefaultBodyLimit::max(limits::TURN_BYTES_MAX + BODY_SLACK_BYTES))
            .layer(from_fn(bodies::in_time))
            .layer(from_fn(headers::once))
            .layer(map_response(guarded))
            .layer(from_fn_with_state(Arc::clone(&self.shared), public::challenge))
            .layer(from_fn_with_state(self.shared.gate.clone(), gate::pass))
            .layer(from_fn_with_state(Arc::clone(&self.shared.metrics), request_metrics::observe))
            .layer(from_fn(access::log))
            .with_state(self.shared)
    }
}

/// The headers keep browsers and proxies from guessing the content type, rendering the response as a page, and caching
/// it.
async fn guarded(mut response: Response) -> Response {
    const GUARDS: [(HeaderName, &str); 3] = [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CONTENT_SECURITY_POLICY, "default-src 'none'; frame-ancestors 'none'"),
        (header::CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in GUARDS {
        // The console's pages have their own content security policy.
        response.headers_mut().entry(name).or_insert(HeaderValue::from_static(value));
    }
    response
}
