//! A run, from the worker's side. When the worker's socket closes, the launcher kills all processes of the run and
//! ends.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio_util::sync::CancellationToken;

use crate::cgroup::{Cgroup, Cgroups};
use crate::docker::Engine;
use crate::launcher;
use crate::outcome::{RunError, RunOutcome, StopCause};
use crate::output::drain;
use crate::spec::{Level, Limits, Spec};
use crate::support::SandboxSupport;
use crate::wire::{FRAME_BYTES_MAX, Report, Request, frame};

/// After a run's wall time or a cancellation, a launcher must end within this time.
const GRACE: Duration = Duration::from_secs(10);
/// With this argument, a program runs as the launcher.
pub const LAUNCH: &str = "sandbox-exec";

/// The program's `main` must call [`launcher::main`].
#[derive(Debug, Clone)]
pub struct Launcher {
    program: PathBuf,
    arguments: Vec<OsString>,
}

impl Launcher {
    /// Works even if the program's file was replaced.
    #[must_use]
    pub fn this_program() -> Self {
        Self { program: "/proc/self/exe".into(), arguments: vec![LAUNCH.into()] }
    }

    #[must_use]
    pub fn program(path: impl Into<PathBuf>) -> Self {
        Self { program: path.into(), arguments: Vec::new() }
    }
}

#[derive(Debug, Clone)]
pub struct Sandbox {
    launcher: Launcher,
    engine: Option<Engine>,
    cgroups: Option<Cgroups>,
    support: SandboxSupport,
}

impl Sandbox {
    /// Tries each level, and may move this process into a child cgroup. `scratch` is an existing folder, which must
    /// belong to another user if this process is root.
    pub async fn probe(launcher: Launcher, engine: Option<Engine>, scratch: &Path) -> Self {
        let mut sandbox = Self { launcher, engine, cgroups: None, support: SandboxSupport::default() };
        let mut found = SandboxSupport { landlock: launcher::landlock_abi(), ..SandboxSupport::default() };
        for level in [Level::Basic, Level::Strict] {
            let ran = sandbox.try_level(level, scratch).await;
            let missing = ran.as_ref().err().map(ToString::to_string);
            match level {
                Level::Basic => found.basic = missing,
                _ => (found.strict, found.proc) = (missing, ran.is_ok_and(|proc| proc)),
            }
        }
        found.cgroup = sandbox.use_cgroups(&found, scratch).await.err();
        found.docker = match &sandbox.engine {
            None => Some("no container engine is configured".into()),
            Some(engine) => engine.missing().await,
        };
        sandbox.support = found;
        sandbox
    }

    /// Confines a process that executes no command. Returns true if this process had a `/proc`.
    async fn try_level(&self, level: Level, scratch: &Path) -> Result<bool, RunError> {
        let (request, cgroup) = self.request(level, Spec::new(["probe"], scratch), true)?;
        Ok(self.launch(request, cgroup, &CancellationToken::new()).await?.1)
    }

    async fn use_cgroups(&mut self, found: &SandboxSupport, scratch: &Path) -> Result<(), String> {
        let levels = [(Level::Basic, &found.basic), (Level::Strict, &found.strict)];
        let held = levels.into_iter().filter(|(_, missing)| missing.is_none()).map(|(level, _)| level);
        let held: Vec<_> = held.collect();
        if held.is_empty() {
            return Err("this machine supports no level that needs one".into());
        }
        self.cgroups = Some(Cgroups::find()?);
        for level in held {
            if let Err(error) = self.try_level(level, scratch).await {
                self.cgroups = None;
                return Err(format!("{level}: {error}"));
            }
        }
        Ok(())
    }

    /// The caller must drop the returned cgroup only after the launcher has ended.
    pub(crate) fn request(&self, level: Level, spec: Spec, probe: bool) -> Result<(Request, Option<Cgroup>), RunError> {
        let make = |cgroups: &Cgroups, limits: &Limits| {
            let refused = |error| RunError::Machine(format!("make a cgroup for the command: {error}"));
            cgroups.make(limits).map_err(refused)
        };
        let cgroup = self.cgroups.as_ref().map(|cgroups| make(cgroups, &spec.limits)).transpose()?;
        let path = cgroup.as_ref().map(|cgroup| cgroup.path().to_owned());
        Ok((Request { level, spec, probe, cgroup: path }, cgroup))
    }

    #[must_use]
    pub fn with_image(&self, image: &str) -> Self {
        let engine = self.engine.clone().map(|engine| Engine { image: image.to_owned(), ..engine });
        Self { engine, ..self.clone() }
    }

    #[must_use]
    pub const fn support(&self) -> &SandboxSupport {
        &self.support
    }

    /// Returns when all processes of the command are dead. A dropped future kills the processes a moment later.
    pub async fn run(&self, level: Level, spec: Spec, cancel: &CancellationToken) -> Result<RunOutcome, RunError> {
        spec.check().map_err(RunError::Spec)?;
        self.support.check(level, &spec.network).map_err(RunError::Machine)?;
        match (level, &self.engine) {
            (Level::Docker, Some(engine)) => engine.run(&spec, cancel).await,
            (Level::Docker, None) => Err(RunError::Machine("no container engine is configured".into())),
            _ => {
                let (request, cgroup) = self.request(level, spec, false)?;
                Ok(self.launch(request, cgroup, cancel).await?.0)
            }
        }
    }

    /// The drop of `_cgroup` kills all processes that are left in it.
    async fn launch(
        &self,
        request: Request,
        _cgroup: Option<Cgroup>,
        cancel: &CancellationToken,
    ) -> Result<(RunOutcome, bool), RunError> {
        let messages =
            frames(&request).map_err(|error| RunError::Spec(format!("the run cannot be reported: {error}")))?;
        let (mut child, mut control) = self.launcher_with(Stdio::piped()).map_err(|error| self.no_launcher(&error))?;
        let keep = request.spec.limits.output_bytes;
        let stdout = child.stdout.take();
        let stderr = child.stderr.take();
        let limit = Duration::from_millis(request.spec.limits.wall_ms).saturating_add(GRACE);
        // If the launcher was killed, other processes could keep the pipes open forever, so the wait for the output is
        // bounded.
        let read =
            |pipe| async move { tokio::time::timeout(limit + GRACE, drain(pipe, keep)).await.unwrap_or_default() };
        let read_errors =
            |pipe| async move { tokio::time::timeout(limit + GRACE, drain(pipe, keep)).await.unwrap_or_default() };
        let write_input = async {
            let _ = control.write_all(&messages).await;
            let mut report = Vec::new();
            let mut bounded = (&mut control).take(FRAME_BYTES_MAX as u64);
            let cancelled = tokio::select! {
                _ = tokio::time::timeout(limit, bounded.read_to_end(&mut report)) => false,
                () = cancel.cancelled() => true,
            };
            // The closed socket makes the launcher kill all processes of the run.
            drop(control);
            (report, cancelled)
        };
        let (((report, cancelled), (stdout, cut)), (stderr, cut_too)) =
            tokio::join!(async { tokio::join!(write_input, read(stdout)) }, read_errors(stderr));
        if tokio::time::timeout(GRACE, child.wait()).await.is_err() {
            tracing::error!(pid = child.id(), "sandbox launcher did not exit; killed");
            let _ = child.kill().await;
        }
        let ended =
            RunOutcome { stdout, stderr, exit_code: None, signal: None, truncated: cut || cut_too, stopped: None };
        if cancelled {
            return Ok((RunOutcome { stopped: Some(StopCause::Cancelled), ..ended }, false));
        }
        let mut frames = report.as_slice();
        match crate::wire::read(&mut frames) {
            Ok(Report::Refused(why)) => Err(RunError::Machine(why)),
            Ok(Report::NotStarted(why)) => Err(RunError::NotStarted(why)),
            Ok(Report::Ended { exit_code, signal, stopped, proc }) => {
                Ok((RunOutcome { exit_code, signal, stopped, ..ended }, proc))
            }
            Err(_) => Err(RunError::Lost("the sandbox's launcher ended without a report".into())),
        }
    }

    pub(crate) fn no_launcher(&self, error: &std::io::Error) -> RunError {
        RunError::Machine(format!("the launcher {} cannot be started: {error}", self.launcher.program.display()))
    }

    pub(crate) fn launcher_with(&self, stdout: Stdio) -> std::io::Result<(Child, tokio::net::UnixStream)> {
        let (ours, theirs) = UnixStream::pair()?;
        ours.set_nonblocking(true)?;
        let child = Command::new(&self.launcher.program)
            .args(&self.launcher.arguments)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(stdout)
            .stderr(Stdio::piped())
            // In a separate process group, the launcher gets no interrupt from a terminal, so the worker can drain.
            .process_group(0)
            .spawn()?;
        Ok((child, tokio::net::UnixStream::from_std(ours)?))
    }
}

pub(crate) fn frames(request: &Request) -> std::io::Result<Vec<u8>> {
    Ok([frame(&serde_json::to_vec(request)?)?, frame(&request.spec.stdin)?].concat())
}
