//! Live configuration. When the folder changes, or on SIGHUP, policy and tools are replaced completely or not at all.
//! Tools that a program registers at run time are applied in the same way.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::{Configuration, ModulesDef, Sources};
use tickfleet_engine::active_policy::short_digest;
use tickfleet_ops::telemetry;
use tickfleet_tools::{Registry, TypedTool, stop_all};
use tokio::signal::unix::Signal;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use worker::agents::TaskHandlers;

use crate::failure::Failure;
use crate::fleet::modules::fingerprint;
use crate::fleet::registrar::{RegisterError, Request};
use crate::fleet::reloadable::ReloadableParts;
use crate::setup::Setup;

/// A change is applied after two checks with the same fingerprint. Files that are written one by one then apply
/// together.
const POLL_EVERY: Duration = Duration::from_secs(1);
const PROBLEMS_MAX: usize = 20;

type Modules = BTreeMap<String, ModulesDef>;

pub(crate) struct Reload {
    sources: Arc<Sources>,
    /// Settings that need a restart keep these values.
    started: Configuration,
    current: Setup,
    live: ReloadableParts,
    draining: CancellationToken,
    modules: Arc<Modules>,
    /// Fingerprints: `tried` at the last attempt to apply a change, `seen` at the last check.
    tried: String,
    seen: String,
}

struct ReloadResult {
    setup: Setup,
    registries: Vec<Arc<Registry>>,
    task_handlers: Vec<Arc<TaskHandlers>>,
}

impl Reload {
    pub(crate) fn new(setup: &Setup, live: ReloadableParts, draining: CancellationToken) -> Self {
        Self {
            sources: Arc::new(setup.sources().clone()),
            started: setup.configuration.clone(),
            current: setup.clone(),
            live,
            draining,
            modules: Arc::new(setup.configuration.tools.modules.clone()),
            tried: setup.fingerprint.clone(),
            seen: setup.fingerprint.clone(),
        }
    }

    pub(crate) async fn run(mut self, mut hangups: Option<Signal>, mut requests: mpsc::Receiver<Request>) {
        let mut looks = tokio::time::interval(POLL_EVERY);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let asked = tokio::select! {
                () = hangup(&mut hangups) => true,
                _ = looks.tick() => false,
                Some(request) = requests.recv() => {
                    self.answer(request);
                    continue;
                }
            };
            if asked || self.has_changed().await {
                self.reload().await;
            }
        }
    }

    fn answer(&self, request: Request) {
        // The requester may have stopped waiting, so errors of `send` are ignored.
        match request {
            Request::May(name, answer) => drop(answer.send(self.may_register(&name))),
            Request::Register(tool, answer) => drop(answer.send(self.register(*tool))),
            Request::Unregister(name, answer) => drop(answer.send(self.unregister(&name))),
        }
    }

    fn may_register(&self, name: &str) -> Result<(), RegisterError> {
        if self.draining.is_cancelled() {
            return Err(RegisterError::Stopped);
        }
        if !self.current.settings().worker.allow_dynamic_registration {
            return Err(RegisterError::NotAllowed);
        }
        let taken = self.live.workers.iter().any(|worker| worker.tools().get(name).is_some_and(|t| t.spec.configured));
        if taken { Err(RegisterError::Refused(format!("there is a tool {name:?} already"))) } else { Ok(()) }
    }

    /// The tool's start hook has already run.
    fn register(&self, tool: TypedTool) -> Result<(), RegisterError> {
        let name = tool.spec().name.clone();
        self.may_register(&name)?;
        let file = &self.current.configuration.tools;
        let timeout = self.current.settings().worker.tool_timeout;
        let environment = self.current.tool_environment();
        let with = |worker: &Arc<worker::Worker>| worker.tools().with(tool.clone(), file, &environment, timeout);
        let registries: Result<Vec<_>, _> = self.live.workers.iter().map(with).collect();
        self.configure(registries.map_err(|error| RegisterError::Refused(error.to_string()))?);
        self.live.extensions.add(tool);
        tracing::info!(tool = name, "tool registered");
        Ok(())
    }

    fn unregister(&self, name: &str) -> Result<(), RegisterError> {
        let tool = self.live.extensions.retire(name).ok_or_else(|| RegisterError::Unknown(name.to_owned()))?;
        self.configure(self.live.workers.iter().map(|worker| worker.tools().without(name)).collect());
        tracing::info!(tool = name, "tool removed");
        let extensions = self.live.extensions.clone();
        tokio::spawn(async move {
            while tool.is_held() {
                tokio::time::sleep(POLL_EVERY).await;
            }
            stop_all(std::slice::from_ref(&tool)).await;
            extensions.forget(&tool.spec().name);
        });
        Ok(())
    }

    /// `registries` has the order of the workers.
    fn configure(&self, registries: Vec<Registry>) {
        let active = self.live.active.load();
        for (worker, registry) in self.live.workers.iter().zip(registries) {
            worker.configure_tools(Arc::clone(&active), Arc::new(registry));
        }
    }

    async fn has_changed(&mut self) -> bool {
        if self.sources.dir.is_none() {
            return false;
        }
        let sources = Arc::clone(&self.sources);
        let modules = self.modules.clone();
        let Some(now) = run_blocking(move || fingerprint(&sources, &modules)).await else { return false };
        let rests = now == self.seen;
        self.seen = now;
        rests && self.seen != self.tried
    }

    async fn reload(&mut self) {
        let sources = Arc::clone(&self.sources);
        let live = self.live.clone();
        let read = move || {
            let modules = Arc::new(tickfleet_config::load_modules(&sources));
            let (fingerprint, result) = make(&sources, &modules, &live);
            (modules, fingerprint, result)
        };
        let Some((modules, fingerprint, result)) = run_blocking(read).await else { return };
        (self.modules, self.tried, self.seen) = (modules, fingerprint.clone(), fingerprint);
        match result {
            Ok(result) => {
                self.take_over(&result);
                self.current = result.setup;
            }
            Err(failure) => {
                self.live.metrics.config_reloaded(false);
                tracing::error!(
                    problems = in_one_line(&failure.message().unwrap_or_default()),
                    policy = self.live.active.load().short_digest(),
                    "configuration not reloaded; the previous one stays in force"
                );
            }
        }
    }

    /// No step can fail, so the replacement is never partial.
    fn take_over(&self, result: &ReloadResult) {
        let configuration = &result.setup.configuration;
        let before = self.live.active.load().digest.clone();
        let active = self.live.active.replace(result.setup.configured());
        for ((worker, registry), handlers) in
            self.live.workers.iter().zip(&result.registries).zip(&result.task_handlers)
        {
            worker.configure(Arc::clone(&active), Arc::clone(registry), Arc::clone(handlers));
        }
        let level = &configuration.settings.log.level;
        if let Err(error) = telemetry::set_level(level) {
            tracing::error!(%error, "log level unchanged");
        }
        self.live.metrics.config_reloaded(true);
        result.setup.warn_if_all_rejected();
        if let Some(registry) = result.registries.first() {
            result.setup.warn_about_sandbox(&self.live.metrics);
            result.setup.warn_about_rules(registry);
        }
        if !self.live.workers.is_empty() && active.digest != before {
            // The generation of the new policy is unknown until a later heartbeat, so the metric shows 0.
            self.live.metrics.config_in_force(active.short_digest(), 0);
        }
        tracing::info!(
            policy = active.short_digest(),
            policy_before = short_digest(&before),
            log_level = level,
            "configuration reloaded"
        );
        let waiting = tickfleet_config::needs_restart(&self.started, configuration);
        if !waiting.is_empty() {
            tracing::warn!(settings = waiting.join(", "), "changed settings need a restart");
        }
    }
}

fn make(sources: &Sources, modules: &Modules, live: &ReloadableParts) -> (String, Result<ReloadResult, Failure>) {
    // The fingerprint is taken before reading, so that the next check detects a change during the read.
    let before = fingerprint(sources, modules);
    let setup = match Setup::of(sources, &live.extensions, live.pools.as_ref()) {
        Ok(setup) => setup.sharing(&live.mcp, &live.knowledge),
        Err(failure) => return (before, Err(failure)),
    };
    // Every role must reject the same configurations as a worker, so the other roles check the tools too.
    let sound = if live.workers.is_empty() { setup.check_tools() } else { Ok(()) };
    let built = sound.and_then(|()| Ok((registries(&setup, live)?, task_handlers(&setup, live)?)));
    (before, built.map(|(registries, task_handlers)| ReloadResult { setup, registries, task_handlers }))
}

fn registries(setup: &Setup, live: &ReloadableParts) -> Result<Vec<Arc<Registry>>, Failure> {
    live.workers
        .iter()
        .map(|worker| setup.registry(worker.store(), &live.active, crate::setup::Runs::Here).map(Arc::new))
        .collect()
}

fn task_handlers(setup: &Setup, live: &ReloadableParts) -> Result<Vec<Arc<TaskHandlers>>, Failure> {
    live.workers
        .iter()
        .map(|worker| setup.task_handlers(worker.store(), &live.active, &live.metrics).map(Arc::new))
        .collect()
}

/// Without a signal stream, waits forever.
async fn hangup(hangups: &mut Option<Signal>) {
    let signal = match hangups {
        Some(signal) => signal.recv().await,
        None => None,
    };
    match signal {
        Some(()) => tracing::info!("SIGHUP received; reloading the configuration"),
        None => std::future::pending().await,
    }
}

/// Slow work, such as reading files, would block the runtime's threads. `None` if the work panicked.
async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.inspect_err(|error| tracing::error!(%error, "configuration reload panicked")).ok()
}

fn in_one_line(message: &str) -> String {
    let lines: Vec<&str> = message.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let mut text = lines.iter().take(PROBLEMS_MAX + 1).copied().collect::<Vec<_>>().join(" | ");
    if let Some(more) = lines.len().checked_sub(PROBLEMS_MAX + 1).filter(|more| *more > 0) {
        text.push_str(&format!(" | and {more} more"));
    }
    text
}
