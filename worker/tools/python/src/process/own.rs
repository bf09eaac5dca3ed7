//! An interpreter as a child process, with a clean environment and its own process group.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::process::{ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tickfleet_config::{ModulesDef, ToolRuntime};
use tickfleet_tools::process_group::ProcessGroup;
use tickfleet_tools::standard_error::{self, StderrTail};
use tickfleet_tools::{Environment, Secrets};
use tokio::net::UnixStream;
use tokio::process::Command;

use super::leftovers;
use crate::runtime::{self, SocketAt};

const INHERITED: [&str; 6] = ["PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"];
pub(super) const ENDS_IN: Duration = Duration::from_secs(1);
pub(super) const KILL_TIMEOUT: Duration = Duration::from_secs(1);

/// [`OwnProcess::end`] also kills processes that have left the process group. Dropping this value does not.
pub(crate) struct OwnProcess {
    group: ProcessGroup,
    mark: String,
}

pub(super) fn start(
    name: &str,
    def: &ModulesDef,
    secrets: &Arc<Secrets>,
    environment: &Environment,
    tail: &Arc<StderrTail>,
) -> Result<(OwnProcess, UnixStream), String> {
    let no_socket = |error: std::io::Error| format!("cannot create a socket ({error})");
    let (ours, theirs) = StdUnixStream::pair().map_err(no_socket)?;
    ours.set_nonblocking(true).map_err(no_socket)?;
    let ours = UnixStream::from_std(ours).map_err(no_socket)?;
    let mark = mark();
    // The socket is the host's standard input, so that no other file descriptor has to be inherited.
    let argv = command(def, environment)?;
    let (program, arguments) = argv.split_first().ok_or("the command is empty")?;
    let mut starting = Command::new(program);
    starting.args(arguments);
    starting.env_clear().stdin(Stdio::from(OwnedFd::from(theirs))).stdout(Stdio::null());
    starting.envs(variables(def, secrets, environment)).env(leftovers::MARK, &mark);
    let log = |error| {
        let what = runtime::process(def.runtime);
        standard_error::log(what, name.to_owned(), error, Arc::clone(secrets), Arc::clone(tail))
    };
    let group = ProcessGroup::spawn(&mut starting, &def.interpreter, def.cwd.as_deref(), log)?;
    Ok((OwnProcess { group, mark }, ours))
}

fn command(def: &ModulesDef, environment: &Environment) -> Result<Vec<String>, String> {
    match def.runtime {
        ToolRuntime::Python => {
            runtime::command(def, def.interpreter.clone(), &runtime::folders(def), SocketAt::StandardInput)
        }
        ToolRuntime::Node => {
            let interpreter = runtime::interpreter(&def.interpreter, &environment.get("PATH").unwrap_or_default())?;
            // Paths are made absolute, because a host with another working directory must find the same folders.
            let absolute = |folder: &PathBuf| {
                std::path::absolute(folder)
                    .map_err(|error| format!("'{}' has no absolute path ({error})", folder.display()))
            };
            let folders = runtime::folders(def).iter().map(absolute).collect::<Result<Vec<_>, _>>()?;
            runtime::command(def, interpreter.display().to_string(), &folders, SocketAt::StandardInput)
        }
    }
}

/// Leaves out variables with a secret that is not in `secrets`.
pub(super) fn variables(def: &ModulesDef, secrets: &Secrets, environment: &Environment) -> BTreeMap<String, String> {
    let inherited = INHERITED.iter().filter_map(|name| Some(((*name).to_owned(), environment.get(name)?.to_owned())));
    let known = |template: &String| {
        let missing = def.secrets.keys().filter(|secret| secrets.get(secret).is_none());
        !missing.map(|secret| format!("${{{secret}}}")).any(|reference| template.contains(&reference))
    };
    let own = def.env.iter().filter(|(_, template)| known(template));
    let own = own.map(|(name, template)| (name.clone(), secrets.fill(template)));
    let of_runtime = runtime::variables(def).iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    inherited.chain(of_runtime).chain(own).collect()
}

fn mark() -> String {
    static STARTED: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), STARTED.fetch_add(1, Ordering::Relaxed))
}

impl OwnProcess {
    pub(super) fn id(&self) -> Option<u32> {
        self.group.id()
    }

    /// Call this after the host's socket was closed. Also kills the processes that the host has started.
    pub(super) async fn end(self) -> Option<ExitStatus> {
        let Self { mut group, mark } = self;
        let mut status = group.ended_within(ENDS_IN).await;
        group.kill();
        if status.is_none() {
            status = group.ended_within(KILL_TIMEOUT).await;
        }
        // An error means that the runtime is stopping, and then the worker's process exits too.
        let _ = tokio::task::spawn_blocking(move || leftovers::end(&mark)).await;
        group.log_ended_within(KILL_TIMEOUT).await;
        status
    }

    /// Kills the interpreter's process group. Call [`Self::end`] after this.
    pub(super) fn kill(&self) {
        self.group.kill();
    }
}
