//! Hooks of tools written in Rust, which run before the tool's first call and after its last call.

use std::error::Error;
use std::fmt;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::FutureExt;
use futures::future::join_all;
use tickfleet_model::limits;

use super::Environment;
use super::{ToolError, ToolSecrets, TypedTool, wording};

/// The limit of one start hook. The process accepts no work before the hooks have finished.
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// The limit for all stop hooks together. They run when most of the orchestrator's grace period is used up.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The error of a hook, of any type.
pub type HookError = Box<dyn Error + Send + Sync>;

type Boxed<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type StartHook = dyn Fn(Startup) -> Boxed<Result<(), HookError>> + Send + Sync;
type StopHook = dyn Fn() -> Boxed<()> + Send + Sync;

/// The values that a start hook receives.
#[derive(Debug, Clone)]
pub struct Startup {
    secrets: ToolSecrets,
}

impl Startup {
    /// Returns a secret that the tool declares. Fails if the secret is not set, or differs by tenant.
    pub fn secret(&self, name: &str) -> Result<&str, HookError> {
        self.secrets.get(name).map_err(|_: ToolError| format!("the secret {name} is missing").into())
    }
}

#[derive(Clone, Default)]
pub(super) struct Hooks {
    start: Option<Arc<StartHook>>,
    stop: Option<Arc<StopHook>>,
    /// True while the tool is started. All clones of the tool share this flag, so a tool that is used twice starts and
    /// stops once.
    running: Arc<AtomicBool>,
}

impl Hooks {
    pub(super) fn on_start<Hook, Running>(&mut self, hook: Hook)
    where
        Hook: Fn(Startup) -> Running + Send + Sync + 'static,
        Running: Future<Output = Result<(), HookError>> + Send + 'static,
    {
        self.start = Some(Arc::new(move |startup| Box::pin(hook(startup))));
    }

    pub(super) fn on_stop<Hook, Running>(&mut self, hook: Hook)
    where
        Hook: Fn() -> Running + Send + Sync + 'static,
        Running: Future<Output = ()> + Send + 'static,
    {
        self.stop = Some(Arc::new(move || Box::pin(hook())));
    }
}

/// Why a tool did not start.
#[derive(Debug, thiserror::Error)]
#[error("tool '{tool}': its start hook {why}")]
pub struct StartupError {
    /// The tool's name.
    pub tool: String,
    why: String,
}

/// Runs all start hooks concurrently, each for at most 30 s. If one fails, the started tools are stopped.
pub async fn start_all(tools: &[TypedTool], environment: &Environment) -> Result<(), Vec<StartupError>> {
    let mut once: Vec<&TypedTool> = Vec::new();
    for tool in tools {
        if !once.iter().any(|other| Arc::ptr_eq(&other.hooks().running, &tool.hooks().running)) {
            once.push(tool);
        }
    }
    let started = join_all(once.iter().map(|tool| start(tool, environment))).await;
    let mut up = Vec::new();
    let mut errors = Vec::new();
    for (tool, outcome) in once.into_iter().zip(started) {
        match outcome {
            Ok(()) => up.push(tool.clone()),
            Err(error) => errors.push(error),
        }
    }
    if errors.is_empty() {
        return Ok(());
    }
    stop_all(&up).await;
    Err(errors)
}

async fn start(tool: &TypedTool, environment: &Environment) -> Result<(), StartupError> {
    let running = &tool.hooks().running;
    let Some(hook) = tool.hooks().start.as_ref().filter(|_| !running.load(Ordering::Acquire)) else {
        running.store(true, Ordering::Release);
        return Ok(());
    };
    let run = async {
        let secrets = ToolSecrets::at_startup(tool.secret_references(), environment).await;
        // A hook may panic before it returns a future, so call it inside the future that catches panics.
        let startup = Startup { secrets: secrets.clone() };
        let ran = AssertUnwindSafe(async { hook(startup).await }).catch_unwind().await;
        match ran {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("failed: {}", secrets.scrub(&error.to_string()))),
            Err(_) => Err("panicked".to_owned()),
        }
    };
    let ended = tokio::time::timeout(START_TIMEOUT, run).await;
    let why = match ended.unwrap_or_else(|_| Err(format!("did not finish within {} s", START_TIMEOUT.as_secs()))) {
        Ok(()) => {
            running.store(true, Ordering::Release);
            return Ok(());
        }
        Err(why) => wording::cut(&why, limits::ERROR_BYTES_MAX),
    };
    Err(StartupError { tool: tool.spec().name.clone(), why })
}

/// Runs the stop hooks of all started tools, which take at most 5 s together. Failures are only logged.
pub async fn stop_all(tools: &[TypedTool]) {
    let stopping = tools.iter().filter_map(|tool| {
        let was_running = tool.hooks().running.swap(false, Ordering::AcqRel);
        let hook = tool.hooks().stop.clone().filter(|_| was_running)?;
        let name = tool.spec().name.clone();
        Some(async move {
            if AssertUnwindSafe(async { hook().await }).catch_unwind().await.is_err() {
                tracing::error!(tool = name, "stop hook panicked");
            }
        })
    });
    if tokio::time::timeout(STOP_TIMEOUT, join_all(stopping)).await.is_err() {
        tracing::warn!("stop hooks of tools timed out");
    }
}

impl fmt::Debug for Hooks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hooks").field("start", &self.start.is_some()).field("stop", &self.stop.is_some()).finish()
    }
}
