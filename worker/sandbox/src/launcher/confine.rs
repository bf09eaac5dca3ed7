//! The steps by which a child confines itself before it executes the command. The order of the steps leaves no gap.

use std::ffi::{CString, NulError};
use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal};
use nix::unistd::{self, Gid, Pid, Uid};

use super::command_paths::CommandPaths;
use super::limits::{self, ThreadAllowance};
use super::{Refusal, raw, rules, seccomp, step};
use crate::cgroup::CgroupHandle;
use crate::spec::{Level, PATH};
use crate::wire::Request;

const NICE: i32 = 10;

#[derive(Debug)]
pub(super) struct StartedChild {
    pub(super) child: Pid,
    /// Closed without data when the command is executed. Otherwise, the pipe contains the failed step and the reason.
    pub(super) failure: PipeReader,
    /// At the level `strict`: how the command ended, and whether the command had a `/proc`.
    pub(super) ended: Option<PipeReader>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    pub(super) uid: Uid,
    pub(super) gid: Gid,
}

/// If the launcher is root, commands run as the owner of the workspace. Otherwise, returns `None`.
pub(super) fn owner(workspace: &Path) -> Result<Option<Owner>, Refusal> {
    if !unistd::geteuid().is_root() {
        return Ok(None);
    }
    let found = workspace.metadata().map_err(step("check the workspace"))?;
    if found.uid() == 0 || found.gid() == 0 {
        let why = "this worker is root: the workspace must belong to another user, because commands run as its owner";
        return Err(Refusal::Step(why.into()));
    }
    Ok(Some(Owner { uid: Uid::from_raw(found.uid()), gid: Gid::from_raw(found.gid()) }))
}

pub(super) fn start(
    request: &Request,
    stdin: &File,
    cgroup_handle: Option<&CgroupHandle>,
) -> Result<StartedChild, Refusal> {
    let workspace = &request.spec.workspace;
    let owner = owner(workspace)?;
    let (failure, failure_writer) = std::io::pipe().map_err(step("make a pipe"))?;
    let (gate, open) = std::io::pipe().map_err(step("make a pipe"))?;
    let allowance = match owner {
        Some(_) => ThreadAllowance::Own,
        None => ThreadAllowance::Shared(limits::running(unistd::geteuid())),
    };
    let child = match raw::fork().map_err(step("fork"))? {
        Some(child) => child,
        None => {
            drop((failure, open));
            let temporary = workspace.join(".tmp");
            let paths = CommandPaths { workspace, temporary: &temporary, level: Level::Basic };
            let failed = become_owner(owner)
                .and_then(|()| wait_for_gate(gate))
                .and_then(|()| run(request, stdin, &paths, allowance));
            report_failure(failure_writer, failed);
        }
    };
    let _ = (failure_writer, gate);
    admit(cgroup_handle, child)?;
    use_file_ids_of(owner)?;
    (&open).write_all(&[1]).map_err(step("release the child"))?;
    Ok(StartedChild { child, failure, ended: None })
}

pub(super) fn admit(cgroup_handle: Option<&CgroupHandle>, child: Pid) -> Result<(), Refusal> {
    cgroup_handle.map_or(Ok(()), |cgroup_handle| cgroup_handle.admit(child.as_raw())).map_err(step("enter the cgroup"))
}

/// If the launcher dies before the child asks for the death signal, the gate's byte never arrives and this fails.
pub(super) fn wait_for_gate(mut gate: PipeReader) -> Result<(), Refusal> {
    prctl::set_pdeathsig(Signal::SIGKILL).map_err(step("set the parent-death signal"))?;
    gate.read_exact(&mut [0]).map_err(step("wait for the launcher"))
}

pub(super) fn become_owner(owner: Option<Owner>) -> Result<(), Refusal> {
    let Some(Owner { uid, gid }) = owner else { return Ok(()) };
    unistd::setgroups(&[]).map_err(step("leave all groups"))?;
    unistd::setresgid(gid, gid, gid).map_err(step("change the group"))?;
    unistd::setresuid(uid, uid, uid).map_err(step("change the user"))
}

/// Reads files as the owner, because containers lack the capability that root needs to see descriptors of other users.
/// Signals are still sent as root.
fn use_file_ids_of(owner: Option<Owner>) -> Result<(), Refusal> {
    let Some(Owner { uid, gid }) = owner else { return Ok(()) };
    // Each call returns the previous ID and no error, so the second pair of calls reads the IDs.
    unistd::setfsgid(gid);
    unistd::setfsuid(uid);
    match (unistd::setfsgid(gid), unistd::setfsuid(uid)) {
        now if now == (gid, uid) => Ok(()),
        _ => Err(Refusal::Step("access files as the command's user: the kernel refuses it".into())),
    }
}

pub(super) fn report_failure(failure_writer: PipeWriter, failed: Result<(), Refusal>) -> ! {
    let (mark, why) = match failed {
        Ok(()) => ("S", "the confined process continued unexpectedly".to_owned()),
        Err(Refusal::Step(why)) => ("S", why),
        Err(Refusal::Program(why)) => ("P", why),
    };
    // If this write fails, the failure cannot be reported.
    let _ = (&failure_writer).write_all(format!("{mark}{why}").as_bytes());
    end(125)
}

#[allow(clippy::disallowed_methods, reason = "a forked child has no `main` to return to, and nothing to drain")]
pub(super) fn end(code: i32) -> ! {
    std::process::exit(code)
}

pub(super) fn run(
    request: &Request,
    stdin: &File,
    paths: &CommandPaths<'_>,
    allowance: ThreadAllowance,
) -> Result<(), Refusal> {
    let spec = &request.spec;
    unistd::setsid().map_err(step("begin a session"))?;
    unistd::dup2_stdin(stdin.as_fd()).map_err(step("give the standard input"))?;
    default_signals()?;
    std::env::set_current_dir(paths.workspace).map_err(step("enter the workspace"))?;
    if paths.level == Level::Basic && !request.probe {
        // If a command has put something else at this path, the failure affects only that command.
        let _ = std::fs::create_dir(paths.temporary);
    }
    let argv = strings(spec.argv.iter().map(String::as_str))?;
    let environment = environment(request, paths)?;
    // The worker and the launcher have priority over commands that keep the processors busy.
    rustix::process::nice(NICE).map_err(step("lower the priority"))?;
    limits::set(&spec.limits, allowance)?;
    prctl::set_no_new_privs().map_err(step("no new privileges"))?;
    rules::restrict(spec, paths)?;
    seccomp::restrict(paths.level, &spec.network, matches!(allowance, ThreadAllowance::Shared(_)))?;
    if request.probe {
        end(0);
    }
    Err(execute(&spec.argv[0], &argv, &environment))
}

/// Resets signals for the command: the launcher may start with blocked signals, and Rust programs ignore `SIGPIPE`.
fn default_signals() -> Result<(), Refusal> {
    let all = SigSet::all();
    nix::sys::signal::sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&all), None).map_err(step("unblock signals"))?;
    raw::default_action(Signal::SIGPIPE, SigHandler::SigDfl).map_err(step("reset signals"))
}

fn environment(request: &Request, paths: &CommandPaths<'_>) -> Result<Vec<CString>, Refusal> {
    let home = paths.workspace.display();
    let temporary = paths.temporary.display();
    let mut all =
        vec![format!("PATH={PATH}"), format!("HOME={home}"), format!("TMPDIR={temporary}"), "LANG=C.UTF-8".to_owned()];
    all.retain(|line| !request.spec.environment.keys().any(|key| line.split('=').next() == Some(key)));
    all.extend(request.spec.environment.iter().map(|(key, value)| format!("{key}={value}")));
    strings(all.iter().map(String::as_str))
}

fn strings<'a>(texts: impl Iterator<Item = &'a str>) -> Result<Vec<CString>, Refusal> {
    texts.map(CString::new).collect::<Result<_, NulError>>().map_err(step("write the command"))
}

/// Returns only if the program cannot be executed. A name without `/` is searched for in [`PATH`].
fn execute(program: &str, argv: &[CString], environment: &[CString]) -> Refusal {
    let folders = if program.contains('/') { vec![""] } else { PATH.split(':').collect() };
    let mut worst = Errno::ENOENT;
    for folder in folders {
        let path = if folder.is_empty() { program.to_owned() } else { format!("{folder}/{program}") };
        let Ok(path) = CString::new(path) else { continue };
        let Err(error) = unistd::execve(&path, argv, environment);
        if error != Errno::ENOENT && error != Errno::ENOTDIR {
            worst = error;
        }
    }
    Refusal::Program(match worst {
        Errno::ENOENT => format!("program '{program}' not found in this sandbox"),
        error => format!("the program '{program}' cannot be executed: {}", error.desc()),
    })
}
