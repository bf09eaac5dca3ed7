//! Starts the schedulers and workers of a process, one of each per shard, and waits for their end.

pub(crate) mod extensions;
pub(crate) mod modules;
pub(crate) mod readiness;
pub(crate) mod registrar;
pub(crate) mod reload;
pub(crate) mod reloadable;

use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use scheduler::scrape::Scrape;
use scheduler::{AnchorTarget, Process, Scheduler, SealOptions};
use tickfleet_config::{self as config, LoopSettings, WorkerSettings};
use tickfleet_engine::active_policy::PolicyHandle;
use tickfleet_engine::suspect_permit::SuspectSemaphore;
use tickfleet_ops::health::{Health, HealthError};
use tickfleet_ops::metrics::{Metrics, ProcessRole};
use tickfleet_ops::progress::Progress;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::{Pool, Store, StoreError};
use tickfleet_tools::{start_all, stop_all};
use tokio::signal::unix::Signal;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use worker::{Breakers, ProcessParts, Worker};

use crate::checks::{Level, durable};
use crate::failure::Failure;
use crate::fleet::registrar::Registrar;
use crate::fleet::reload::Reload;
use crate::fleet::reloadable::ReloadableParts;
use crate::output::time_format::millis;
use crate::setup::Setup;

const ASK_AGAIN: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy)]
pub(crate) struct Roles {
    scheduler: bool,
    pub(crate) worker: bool,
}

impl Roles {
    pub(crate) const SCHEDULER: Self = Self { scheduler: true, worker: false };
    pub(crate) const WORKER: Self = Self { scheduler: false, worker: true };
    pub(crate) const BOTH: Self = Self { scheduler: true, worker: true };

    const fn part(self) -> ProcessRole {
        match (self.scheduler, self.worker) {
            (true, false) => ProcessRole::Scheduler,
            (false, true) => ProcessRole::Worker,
            _ => ProcessRole::Both,
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) enum ProbeAddress {
    /// If the address is taken, the start fails.
    On(SocketAddr),
    Preferred(SocketAddr),
}

pub(crate) struct Fleet {
    pub(crate) health: SocketAddr,
    running: JoinSet<Result<(), StoreError>>,
    shutdown: Shutdown,
    drained: CancellationToken,
    live: ReloadableParts,
}

struct Shared {
    active: Arc<PolicyHandle>,
    metrics: Arc<Metrics>,
    progress: Progress,
}

/// Does not wait for Redis: the schedulers and workers wait until it responds.
pub(crate) async fn start(
    setup: &Setup,
    roles: Roles,
    answer: ProbeAddress,
    shutdown: Shutdown,
) -> Result<Fleet, Failure> {
    if !roles.worker {
        // A worker makes this check when it builds its tools.
        setup.check_tools()?;
    }
    let metrics = Arc::new(Metrics::of(roles.part()).map_err(Failure::failed)?);
    let shared = Shared { active: setup.active(), metrics, progress: Progress::default() };
    // The generation is unknown until a scheduler has announced the policy, so the metric shows 0.
    shared.metrics.config_in_force(shared.active.load().short_digest(), 0);
    setup.warn_if_all_rejected();
    let stores = setup.stores()?;
    let workers = if roles.worker { workers(setup, &shared, &stores, &shutdown)? } else { Vec::new() };
    let schedulers = if roles.scheduler { schedulers(setup, &shared, &stores)? } else { Vec::new() };
    let drained = CancellationToken::new();
    let (health, address) =
        listen(&shared, &stores, roles, answer, setup.settings().seal.key.is_some(), &drained).await?;

    if roles.worker {
        // If a drain begins during the start hooks, the start continues: draining workers take no work.
        let started = shutdown.draining.run_until_cancelled(start_tools(setup)).await;
        if let Some(Err(failure)) = started {
            drained.cancel();
            return Err(failure);
        }
        setup.warn_about_sandbox(&shared.metrics);
        report_durability(setup, &shutdown.draining);
        setup.mcp.start();
        if let Some(pools) = &setup.pools {
            pools.start();
        }
        let servers = Arc::clone(&setup.mcp);
        shared.metrics.watch_mcp(move || servers.state());
    }
    let live = ReloadableParts {
        active: Arc::clone(&shared.active),
        metrics: Arc::clone(&shared.metrics),
        workers: workers.clone(),
        mcp: Arc::clone(&setup.mcp),
        knowledge: Arc::clone(&setup.knowledge),
        pools: setup.pools.clone(),
        extensions: setup.extensions.clone(),
    };
    let mut running = JoinSet::new();
    for scheduler in schedulers {
        running.spawn(scheduler.run(shutdown.draining.clone()));
    }
    for worker in workers {
        running.spawn(worker.run(shutdown.clone()));
    }
    health.started();
    tracing::info!(
        shards = stores.len(),
        scheduler = roles.scheduler,
        worker = roles.worker,
        health = %address,
        redis = %setup.shown_url(),
        policy = shared.active.load().short_digest(),
        "started"
    );
    Ok(Fleet { health: address, running, shutdown, drained, live })
}

impl Fleet {
    /// Applies new configuration. Also runs the program's companion task next to the workers.
    pub(crate) fn follow_configuration(&self, setup: &Setup, hangups: Option<Signal>) {
        let reload = Reload::new(setup, self.live.clone(), self.shutdown.draining.clone());
        let (registrar, requests) = Registrar::new(setup.tool_environment());
        let stop = self.drained.clone();
        tokio::spawn(async move { stop.run_until_cancelled(reload.run(hangups, requests)).await });
        if let Some(beside) = setup.extensions.beside.clone().filter(|_| !self.live.workers.is_empty()) {
            let draining = self.shutdown.draining.clone();
            tokio::spawn(async move {
                let running = AssertUnwindSafe(async { beside(registrar).await }).catch_unwind();
                if let Some(Err(_)) = draining.run_until_cancelled(running).await {
                    tracing::error!("worker side tasks panicked; no more tools are registered");
                }
            });
        }
    }

    /// If one part ends without a drain, the others drain too, because a process with missing parts is useless.
    pub(crate) async fn wait(mut self) -> Result<(), Failure> {
        let mut outcome = Ok(());
        while let Some(ended) = self.running.join_next().await {
            let failed = match ended {
                Ok(Ok(())) => None,
                Ok(Err(error)) => Some(Failure::from(error)),
                Err(error) => {
                    Some(Failure::failed(anyhow::anyhow!("a part of the process crashed because of a bug: {error}")))
                }
            };
            if let Some(failure) = failed
                && outcome.is_ok()
            {
                tracing::error!(reason = failure.message().unwrap_or_default(), "stopping");
                outcome = Err(failure);
            }
            self.shutdown.drain();
        }
        if !self.live.workers.is_empty() {
            let extensions = self.live.extensions.all();
            let modules = async {
                if let Some(pools) = &self.live.pools {
                    pools.stop().await;
                }
            };
            tokio::join!(self.live.mcp.stop(), modules, stop_all(&extensions));
        }
        self.drained.cancel();
        tracing::info!("stopped");
        outcome
    }
}

/// If another process of the fleet uses the configured address, a free port of the same host serves instead.
pub(crate) async fn serve_probes(
    setup: &Setup,
    metrics: &Arc<Metrics>,
    progress: &Progress,
    stores: &[Store],
    until: &CancellationToken,
) -> Result<SocketAddr, Failure> {
    let stores: Arc<[Store]> = stores.into();
    let ready = move || {
        let stores = Arc::clone(&stores);
        async move { readiness::ready(&stores).await }
    };
    let health = Health::new(progress.clone(), Arc::clone(metrics), ready);
    let address = setup.settings().http.address;
    let served = match health.clone().serve(address, until.clone()).await {
        Err(HealthError::Taken { addr }) => health.clone().serve(SocketAddr::new(addr.ip(), 0), until.clone()).await,
        served => served,
    };
    health.started();
    served.map_err(Failure::failed)
}

/// Logs the durability requirements that Redis cannot confirm: calls with such a requirement will not run.
fn report_durability(setup: &Setup, until: &CancellationToken) {
    let wanted = durable::durability_needs(setup);
    let Ok(pool) = setup.pool() else { return };
    if wanted.is_empty() || setup.is_in_memory() {
        return;
    }
    let asking = async move {
        let facts = loop {
            match pool.server().await {
                Ok(facts) => break facts,
                Err(_) => tokio::time::sleep(ASK_AGAIN).await,
            }
        };
        for finding in durable::check(&facts, &wanted).into_iter().filter(|finding| finding.level == Level::Fail) {
            tracing::error!(found = finding.says, "cannot meet the configured durability; run tickfleet doctor");
        }
    };
    let until = until.clone();
    tokio::spawn(async move { until.run_until_cancelled(asking).await });
}

async fn start_tools(setup: &Setup) -> Result<(), Failure> {
    start_all(&setup.extensions.fixed(), &setup.tool_environment()).await.map_err(|errors| {
        let lines: Vec<String> = errors.iter().map(|error| format!("\n  {error}")).collect();
        Failure::failed(anyhow::anyhow!("tools did not start:{}", lines.concat()))
    })
}

fn schedulers(setup: &Setup, shared: &Shared, stores: &[Store]) -> Result<Vec<Scheduler>, Failure> {
    let options = scheduler::Options { seal: seal_options(setup)?, ..scheduler::Options::of(setup.settings()) };
    let process = Process {
        active: Arc::clone(&shared.active),
        metrics: Arc::clone(&shared.metrics),
        progress: shared.progress.clone(),
        suspects: SuspectSemaphore::default(),
    };
    let make = |store: &Store| Scheduler::new(store.clone(), process.clone(), &options, setup.report(), &setup.name());
    Ok(stores.iter().map(make).collect())
}

fn seal_options(setup: &Setup) -> Result<Option<SealOptions>, Failure> {
    let settings = &setup.settings().seal;
    let Some(signer) = setup.signer()? else { return Ok(None) };
    let anchor = match &settings.anchor {
        config::AnchorPlace::None => None,
        config::AnchorPlace::Log => Some(AnchorTarget::Log),
        config::AnchorPlace::File(path) => Some(AnchorTarget::File(path.into())),
        config::AnchorPlace::Stream(None) => Some(AnchorTarget::Stream),
        config::AnchorPlace::Stream(Some(stream)) => {
            let place = settings.anchor_redis.as_ref();
            let url = place.map(|place| setup.secret("seal.anchor_redis", place)).transpose()?.unwrap_or_default();
            Some(AnchorTarget::OtherStream(Pool::open(url.trim(), 1)?, stream.clone()))
        }
    };
    Ok(Some(SealOptions { signer: Arc::new(signer), every: settings.every, anchor }))
}

fn workers(setup: &Setup, shared: &Shared, stores: &[Store], shutdown: &Shutdown) -> Result<Vec<Arc<Worker>>, Failure> {
    let worker = &setup.settings().worker;
    let options = worker::WorkerOptions {
        // The process has one worker per shard. Each worker gets an equal part of `worker.slots`.
        settings: WorkerSettings { slots: (worker.slots / stores.len().max(1)).max(1), ..worker.clone() },
        loops: loops(&setup.settings().loops),
        report: setup.report(),
        name: setup.name(),
    };
    let suspects = SuspectSemaphore::default();
    let breakers = Breakers::new(setup.configuration.breaker_settings());
    let make = |store: &Store| {
        let registry = Arc::new(setup.registry(store, &shared.active, crate::setup::Runs::Here)?);
        if store.shard() == 0 {
            setup.warn_about_rules(&registry);
        }
        let process = ProcessParts {
            suspects: suspects.clone(),
            breakers: breakers.clone(),
            active: Arc::clone(&shared.active),
            metrics: Arc::clone(&shared.metrics),
            progress: shared.progress.clone(),
            registry,
            task_handlers: setup.task_handlers(store, &shared.active, &shared.metrics)?,
        };
        Ok(Worker::new(store.clone(), process, options.clone(), shutdown.now.child_token()))
    };
    stores.iter().map(make).collect()
}

fn loops(settings: &LoopSettings) -> Option<worker::LoopOptions> {
    let bounds = worker::StreakBounds {
        deny_after: u64::from(settings.warn_after.saturating_add(settings.deny_after)),
        deny_ms: millis(settings.deny_for),
        keep_ms: millis(settings.reset_after),
    };
    let except = Arc::new(settings.except.clone());
    (settings.warn_after > 0).then_some(worker::LoopOptions { warn_after: settings.warn_after, bounds, except })
}

/// Serves until `drained` is canceled, because probes and metrics are also needed during a drain.
async fn listen(
    shared: &Shared,
    stores: &[Store],
    roles: Roles,
    answer: ProbeAddress,
    sealed: bool,
    drained: &CancellationToken,
) -> Result<(Health, SocketAddr), Failure> {
    let scrape = Arc::new(Scrape::new(stores, &shared.active, &shared.metrics).with_seals(sealed));
    let stores: Arc<[Store]> = stores.into();
    let active = Arc::clone(&shared.active);
    let ready = move || {
        let stores = Arc::clone(&stores);
        let active = Arc::clone(&active);
        async move { Ok(readiness::ready(&stores).await? + &readiness::warning(&active.load().policy)) }
    };
    let mut health = Health::new(shared.progress.clone(), Arc::clone(&shared.metrics), ready);
    if roles.scheduler {
        health = health.with_scrape(move || {
            let scrape = Arc::clone(&scrape);
            async move { scrape.scrape().await }
        });
    }
    let (ProbeAddress::On(address) | ProbeAddress::Preferred(address)) = answer;
    let served = match (health.clone().serve(address, drained.clone()).await, answer) {
        (Err(HealthError::Taken { addr }), ProbeAddress::Preferred(_)) => {
            health.clone().serve(SocketAddr::new(addr.ip(), 0), drained.clone()).await
        }
        (served, _) => served,
    };
    Ok((health, served.map_err(Failure::failed)?))
}
