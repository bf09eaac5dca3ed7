//! The state that all shell and file tools of a process share: the sandbox and the workspaces.

use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tickfleet_sandbox::{
    Engine, Launcher, Level, Limits, RunError, RunOutcome, Sandbox, SandboxSupport, Spec, StopCause,
};
use tickfleet_tools::{CallContext, ToolFailure};

use crate::workspace::{Workspace, Workspaces};

/// Shorter than the timeout of a call, so that a model receives the output of a command that exceeds this limit.
pub(crate) const WALL_MS: u64 = 25_000;

#[derive(Debug)]
pub struct Shell {
    launcher: Launcher,
    engine: PathBuf,
    workspaces: Workspaces,
    sandbox: OnceLock<Sandbox>,
}

impl Shell {
    /// `launcher` starts commands. The workspaces are below `root`, and are removed when they were not used for `keep`.
    #[must_use]
    pub fn new(launcher: Launcher, root: impl Into<PathBuf>, keep: Duration) -> Arc<Self> {
        let workspaces = Workspaces::new(root, keep);
        Arc::new(Self { launcher, engine: "docker".into(), workspaces, sandbox: OnceLock::new() })
    }

    /// The first call probes the levels, which takes some tens of milliseconds.
    #[must_use]
    pub fn support(&self) -> SandboxSupport {
        self.sandbox().map_or_else(|why| SandboxSupport::none(&why), |sandbox| sandbox.support().clone())
    }

    /// Returns the strictest supported level. Considers only the levels without a container.
    #[must_use]
    pub fn strictest(&self) -> Option<Level> {
        let support = self.support();
        [Level::Strict, Level::Basic].into_iter().find(|level| support.check(*level, &Default::default()).is_ok())
    }

    pub fn workspace(&self, context: &CallContext) -> Result<Workspace, ToolFailure> {
        drop(self.workspaces.sweep_when_due());
        let made = self.workspaces.of(context);
        made.map_err(|error| ToolFailure::Internal { message: format!("cannot create the workspace: {error}") })
    }

    /// `image` applies only to the level `docker`.
    pub async fn run(
        &self,
        level: Level,
        spec: Spec,
        image: Option<&str>,
        context: &CallContext,
    ) -> Result<RunOutcome, ToolFailure> {
        let sandbox = self.sandbox().map_err(|why| ToolFailure::NotConfigured { message: why })?;
        let sandbox = match image {
            Some(image) => sandbox.with_image(image),
            None => sandbox.clone(),
        };
        match sandbox.run(level, spec, &context.cancel).await {
            Ok(RunOutcome { stopped: Some(StopCause::Cancelled), .. }) => Err(ToolFailure::Transient {
                message: "The command was canceled while it ran.".into(),
                retry_after: None,
                not_executed: false,
            }),
            Ok(outcome) => Ok(outcome),
            Err(RunError::Spec(why) | RunError::NotStarted(why)) => {
                Err(ToolFailure::permanent(format!("The command was not run: {why}."), None))
            }
            Err(RunError::Machine(why)) => Err(ToolFailure::NotConfigured { message: format!("{why}.") }),
            Err(RunError::Lost(message)) => {
                tracing::error!(error = message, "lost track of a sandboxed command; its outcome is unknown");
                let message = "It is not known whether the command ran to its end.".into();
                Err(ToolFailure::Transient { message, retry_after: None, not_executed: false })
            }
        }
    }

    fn sandbox(&self) -> Result<&Sandbox, String> {
        if let Some(sandbox) = self.sandbox.get() {
            return Ok(sandbox);
        }
        let scratch = self.workspaces.scratch();
        let scratch = scratch.map_err(|error| format!("the folder of workspaces cannot be used: {error}"))?;
        let engine = Engine { program: self.engine.clone(), image: String::new() };
        let found = apart(Sandbox::probe(self.launcher.clone(), Some(engine), &scratch.path))?;
        let found = self.sandbox.get_or_init(|| found);
        tracing::info!(support = %found.support(), "sandbox support of this machine");
        Ok(found)
    }
}

/// A thread inside a runtime must not block on a future, so the future runs on a separate thread.
fn apart<T: Send>(future: impl Future<Output = T> + Send) -> Result<T, String> {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map(|runtime| runtime.block_on(future)).map_err(|error| error.to_string())
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap_or_else(|_| Err("the sandbox check panicked".into())))
}

#[must_use]
pub fn limits() -> Limits {
    Limits { wall_ms: WALL_MS, ..Limits::default() }
}
