//! `tickfleet gateway`: serves the HTTP API of a fleet, and creates API keys.

mod configuration_view;
pub(crate) mod console;
mod local_backend;
mod tokens;

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, SubsecRound, TimeDelta, Utc};
use clap::{Args, Subcommand};
use tickfleet_client::Client;
use tickfleet_config::units::parse_duration;
use tickfleet_gateway::{
    Credentials, Gateway, KeyRow, KeysFile, NewKey, PublicUrl, Rate, Role, TenantScope, TlsFiles, Tokens, Verb, openapi,
};
use tickfleet_ops::health::Health;
use tickfleet_ops::metrics::{Metrics, ProcessRole};
use tickfleet_ops::progress::Progress;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::{Store, StoreError};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::failure::Failure;
use crate::fleet::readiness::ready;
use crate::output::Output;
use crate::setup::Setup;
use crate::words::word_of;

const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Serve the HTTP API until SIGTERM, or create an API key.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "\
Examples:
  tickfleet gateway key --id shop --tenant demo --agent kelly >> keys.yaml
  tickfleet gateway key --id anna --tenant '*' --role operator >> keys.yaml
  tickfleet gateway --keys keys.yaml --address 127.0.0.1:8080 --metrics 127.0.0.1:9090
  curl -H 'Authorization: Bearer tfk_…' 'http://127.0.0.1:8080/v1/turns?wait=30' \\
    -d '{\"agent\":\"kelly\",\"calls\":[{\"name\":\"echo\",\"arguments\":{\"text\":\"hi\"}}]}'"
)]
pub(crate) struct GatewayArgs {
    #[command(subcommand)]
    command: Option<GatewayCommand>,
    /// File of API keys, as `tickfleet gateway key` prints them. Changes apply without a restart.
    #[arg(long, value_name = "FILE", required_unless_present = "oidc_issuer")]
    keys: Option<PathBuf>,
    /// Address and port to listen on.
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    address: SocketAddr,
    /// PEM file with the TLS certificate and its chain. Changes apply without a restart.
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// PEM file with the private key of the certificate.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Public URL of the gateway, such as https://fleet.example.com, for MCP discovery, links to approvals and sign-in.
    #[arg(long, value_name = "URL")]
    public_url: Option<PublicUrl>,
    /// Address and port of /metrics, /livez and /readyz, which need no key. Keep it private.
    #[arg(long, value_name = "ADDRESS")]
    metrics: Option<SocketAddr>,
    /// Wrong keys and tokens per second that an address (or IPv6 /64 network) can try. 0 disables the limit.
    #[arg(long, value_name = "PER_SECOND", default_value_t = 10, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    auth_failure_rate: u32,
    /// Burst size of that limit.
    #[arg(long, value_name = "REQUESTS", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    auth_failure_burst: u32,
    #[command(flatten)]
    tokens: tokens::TokenArgs,
}

#[derive(Debug, Subcommand)]
enum GatewayCommand {
    /// Create a key. The entry for the key file goes to standard output, the key itself to standard error.
    Key(Key),
    /// Print the OpenAPI document.
    Openapi,
}

#[derive(Debug, Args)]
struct Key {
    /// Name of the key, for people and logs.
    #[arg(long)]
    id: String,
    /// Tenant of the key. '*' grants operators all tenants.
    #[arg(long)]
    tenant: TenantScope,
    /// Agent that the key can act for, or a prefix followed by *. Repeatable. If missing, all agents.
    #[arg(long, value_name = "AGENT")]
    agent: Vec<String>,
    /// Permission to grant: submit turns, tasks and chats; read replies, tasks and tool lists; cancel turns and tasks;
    /// view all operator views; operate (pause, cancel many, replay); approve calls. Repeatable. If missing, submit,
    /// read and cancel.
    #[arg(long, value_name = "VERB", value_parser = word_of::<Verb>(&["submit", "read", "cancel", "view", "operate", "approve"]))]
    verb: Vec<Verb>,
    /// Operator role to grant, instead of single permissions: viewer (view), operator (view, operate) or approver
    /// (view, approve).
    #[arg(long, conflicts_with = "verb", value_parser = word_of::<Role>(&["viewer", "operator", "approver"]))]
    role: Option<Role>,
    /// Approver of permissions.yaml who decides with this key. Required with `approve`.
    #[arg(long, value_name = "NAME")]
    approver: Option<String>,
    /// Requests per second through one gateway. If missing, unlimited.
    #[arg(long, value_name = "PER_SECOND")]
    rate: Option<u32>,
    /// Burst size of that rate. Default: the requests of one second.
    #[arg(long, value_name = "REQUESTS", requires = "rate")]
    burst: Option<u32>,
    /// Lifetime of the key, such as 90d.
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    expires_in: Option<Duration>,
}

impl Key {
    fn verbs(&self) -> BTreeSet<Verb> {
        match self.role {
            Some(role) => role.verbs(),
            None if self.verb.is_empty() => Verb::OF_SERVICES.into(),
            None => self.verb.iter().copied().collect(),
        }
    }
}

impl GatewayArgs {
    fn credentials(&self, setup: &Setup) -> Result<Credentials, Failure> {
        let keys = self.keys.as_deref().map(KeysFile::open).transpose().map_err(Failure::failed)?;
        let tokens = self.tokens.open(setup)?;
        if keys.is_none() && tokens.is_none() {
            return Err(Failure::usage("--keys FILE or --oidc-issuer URL is required"));
        }
        let wrong = Rate { per_second: self.auth_failure_rate, burst: Some(self.auth_failure_burst) };
        Ok(Credentials { keys, tokens, wrong: Some(wrong).filter(|wrong| wrong.per_second > 0) })
    }

    fn tls(&self) -> Result<Option<TlsFiles>, Failure> {
        let (Some(certificate), Some(key)) = (&self.tls_cert, &self.tls_key) else { return Ok(None) };
        TlsFiles::open(certificate, key).map(Some).map_err(|error| Failure::usage(error.to_string()))
    }
}

/// Subcommands need neither a configuration nor Redis.
pub(crate) const fn needs_no_fleet(args: &GatewayArgs) -> bool {
    args.command.is_some()
}

pub(crate) fn aside(args: &GatewayArgs, output: &Output) -> Result<(), Failure> {
    match &args.command {
        Some(GatewayCommand::Key(key)) => make_key(key, output),
        Some(GatewayCommand::Openapi) => output.show(&openapi(), |document| format!("{document:#}")),
        None => Ok(()),
    }
}

pub(crate) async fn run(setup: &Setup, args: &GatewayArgs) -> Result<(), Failure> {
    let traces = setup.start_log()?;
    let credentials = args.credentials(setup)?;
    let tls = args.tls()?;
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let metrics = Arc::new(Metrics::of(ProcessRole::Gateway).map_err(Failure::failed)?);
    let public = args.public_url.clone();
    let client = Client::open(&setup.url, setup.store_options())?.observed_by(metrics.clone());
    let gateway =
        of(setup, client.clone(), credentials.clone(), Arc::clone(&metrics), shutdown.draining.clone(), public)?;
    let gate = gateway.gate();
    let is_unreachable = !is_fleet_known(&client).await?;
    if is_unreachable {
        gate.close();
    }
    if let Some(files) = tls.clone() {
        tokio::spawn(files.follow(shutdown.draining.clone()));
    }
    let (address, serving) = listen(gateway, args.address, tls).await?;
    let ended = CancellationToken::new();
    let health = match args.metrics {
        Some(address) => Some(probed(setup, address, metrics, &ended).await?),
        None => None,
    };
    let Credentials { keys, tokens, .. } = credentials;
    let tls = args.tls_cert.is_some();
    let health = health.map(|health| health.to_string());
    let issuer = tokens.as_ref().map(Tokens::issuer);
    let known = keys.as_ref().map_or(0, |keys| keys.in_force().len());
    tracing::info!(%address, tls, health, keys = known, issuer, redis = %setup.shown_url(), "gateway ready");
    if let Some(keys) = keys {
        tokio::spawn(keys.follow(shutdown.draining.clone()));
    }
    if let Some(tokens) = tokens {
        tokio::spawn(tokens.follow(shutdown.draining.clone()));
    }
    let opening = async {
        while !is_fleet_known(&client).await? {
            tokio::time::sleep(ASK_AGAIN).await;
        }
        gate.open();
        tracing::info!("Redis reachable; accepting requests");
        std::future::pending::<Result<Infallible, Failure>>().await
    };
    tokio::select! {
        failed = opening, if is_unreachable => failed.map(|never| match never {})?,
        ended = serving => ended
            .map_err(|error| Failure::failed(anyhow::anyhow!("the gateway crashed because of a bug: {error}")))?,
        () = shutdown.now.cancelled() => {}
    }
    ended.cancel();
    tracing::info!("stopped");
    if let Some(traces) = traces {
        traces.flush().await;
    }
    Ok(())
}

/// False if Redis is unreachable. Fails if Redis contains a fleet with another number of shards.
async fn is_fleet_known(client: &Client) -> Result<bool, Failure> {
    match client.check().await {
        Ok(()) => Ok(true),
        Err(error @ StoreError::Shards { .. }) => Err(error.into()),
        Err(error) => {
            tracing::warn!(%error, remedy = error.remedy(), "Redis unreachable; answering requests with 503");
            Ok(false)
        }
    }
}

fn of(
    setup: &Setup,
    client: Client,
    credentials: impl Into<Credentials>,
    metrics: Arc<Metrics>,
    draining: CancellationToken,
    public: Option<PublicUrl>,
) -> Result<Gateway, Failure> {
    let backend = Arc::new(local_backend::LocalBackend::new(setup, &client)?);
    Ok(Gateway::new(client, credentials, backend, metrics, draining, public))
}

/// Serves probes and metrics until `ended` is canceled, including during a drain.
async fn probed(
    setup: &Setup,
    address: SocketAddr,
    metrics: Arc<Metrics>,
    ended: &CancellationToken,
) -> Result<SocketAddr, Failure> {
    let stores: Arc<[Store]> = setup.stores()?.into_iter().map(|store| store.observed_by(metrics.clone())).collect();
    let ready = move || {
        let stores = Arc::clone(&stores);
        async move { ready(&stores).await }
    };
    let health = Health::new(Progress::default(), metrics, ready);
    health.started();
    health.serve(address, ended.clone()).await.map_err(Failure::failed)
}

async fn listen(
    gateway: Gateway,
    address: SocketAddr,
    tls: Option<TlsFiles>,
) -> Result<(SocketAddr, JoinHandle<()>), Failure> {
    let served = gateway.serve(address, tls).await;
    served.map_err(|error| Failure::failed(anyhow::anyhow!("cannot listen on {address}: {error}")))
}

fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).filter(|time| !time.is_zero()).ok_or_else(|| "expected a duration such as 12h or 90d".into())
}

fn make_key(args: &Key, output: &Output) -> Result<(), Failure> {
    let key = NewKey::random().map_err(Failure::failed)?;
    let expires = args.expires_in.map(ends_after).transpose()?;
    let agents = if args.agent.is_empty() { vec!["*".into()] } else { args.agent.clone() };
    let row = KeyRow {
        id: args.id.clone(),
        sha256: key.sha256.clone(),
        tenant: args.tenant.clone(),
        agents,
        verbs: args.verbs(),
        approver: args.approver.clone(),
        rate: args.rate.map(|per_second| Rate { per_second, burst: args.burst }),
        expires,
    };
    let rows = [row];
    let text = serde_saphyr::to_string(&rows).map_err(|error| Failure::failed(anyhow::anyhow!("{error}")))?;
    // Check the key first: an invalid key must not be printed.
    tickfleet_gateway::ApiKeys::parse(&text).map_err(Failure::usage)?;
    output.show(&rows, |_| text.trim_end().to_owned())?;
    output.note(&format!("The key, shown only once: {}", key.secret));
    Ok(())
}

#[allow(clippy::disallowed_methods, reason = "the edge: a key ends by the clock on the wall")]
fn ends_after(time: Duration) -> Result<DateTime<Utc>, Failure> {
    let end = TimeDelta::from_std(time).ok().and_then(|time| Utc::now().checked_add_signed(time));
    let end = end.map(|end| end.trunc_subsecs(0));
    end.ok_or_else(|| Failure::usage("--expires-in: too far in the future"))
}
