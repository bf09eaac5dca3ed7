//! The level `strict`. When the first process of the namespaces ends, the kernel kills all other processes in them.

use std::fs::{self, File};
use std::io::{PipeReader, Read, Write};
use std::path::Path;

use nix::errno::Errno;
use nix::sched::{CloneFlags, unshare};
use nix::sys::prctl;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{self, Pid};
use serde::{Deserialize, Serialize};

use super::command_paths::CommandPaths;
use super::confine::{self, StartedChild, admit, become_owner, end, owner, report_failure, wait_for_gate};
use super::limits::ThreadAllowance;
use super::{Refusal, mounts, raw, step};
use crate::cgroup::CgroupHandle;
use crate::spec::{Level, Network, WORKSPACE};
use crate::wire::Request;

/// User and group ID of commands inside their namespace.
const USER: u32 = 1_000;

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct CommandEnd {
    pub(super) exit_code: Option<i32>,
    pub(super) signal: Option<i32>,
    pub(super) proc: bool,
}

impl CommandEnd {
    pub(super) fn read(mut from: PipeReader) -> Option<Self> {
        let mut text = String::new();
        from.read_to_string(&mut text).ok()?;
        serde_json::from_str(&text).ok()
    }
}

pub(super) fn start(
    request: &Request,
    stdin: &File,
    cgroup_handle: Option<&CgroupHandle>,
) -> Result<StartedChild, Refusal> {
    let owner = owner(&request.spec.workspace)?;
    // From here on, a launcher that is root needs no more rights than any other launcher, so it gives them up.
    become_owner(owner)?;
    enter(&request.spec.network)?;
    let (failure, failure_writer) = std::io::pipe().map_err(step("make a pipe"))?;
    let (gate, open) = std::io::pipe().map_err(step("make a pipe"))?;
    let (ended, end_writer) = std::io::pipe().map_err(step("make a pipe"))?;
    let child = match raw::fork().map_err(step("fork"))? {
        Some(child) => child,
        None => {
            drop((failure, open, ended));
            let made = wait_for_gate(gate).and_then(|()| mounts::make_root(&request.spec));
            let proc = match made {
                Ok(proc) => proc,
                Err(failed) => report_failure(failure_writer, Err(failed)),
            };
            first_process(request, stdin, proc, failure_writer, end_writer)
        }
    };
    drop((failure_writer, gate, end_writer));
    admit(cgroup_handle, child)?;
    (&open).write_all(&[1]).map_err(step("release the child"))?;
    Ok(StartedChild { child, failure, ended: Some(ended) })
}

/// The next child becomes the first process of the new process namespace.
fn enter(network: &Network) -> Result<(), Refusal> {
    let uid = unistd::geteuid();
    let gid = unistd::getegid();
    // Only a dumpable process may write the maps of its own user and group IDs.
    prctl::set_dumpable(true).map_err(step("prepare the user namespace"))?;
    unshare(CloneFlags::CLONE_NEWUSER).map_err(step("make a user namespace"))?;
    let write = |name: &str, text: String| fs::write(format!("/proc/self/{name}"), text);
    write("setgroups", "deny".into()).map_err(step("map the user"))?;
    write("uid_map", format!("{USER} {uid} 1")).map_err(step("map the user"))?;
    write("gid_map", format!("{USER} {gid} 1")).map_err(step("map the group"))?;
    prctl::set_dumpable(false).map_err(step("hide the launcher"))?;
    let mut rest = CloneFlags::CLONE_NEWPID | CloneFlags::CLONE_NEWIPC | CloneFlags::CLONE_NEWUTS;
    if *network == Network::None {
        rest |= CloneFlags::CLONE_NEWNET;
    }
    unshare(rest).map_err(step("make namespaces"))?;
    unistd::sethostname("sandbox").map_err(step("name the host"))
}

/// When this process exits, the kernel kills all remaining processes of the namespace.
fn first_process(
    request: &Request,
    stdin: &File,
    proc: bool,
    failure_writer: std::io::PipeWriter,
    end_writer: std::io::PipeWriter,
) -> ! {
    let command = match raw::fork() {
        Ok(Some(command)) => command,
        Ok(None) => {
            drop(end_writer);
            let paths =
                CommandPaths { workspace: Path::new(WORKSPACE), temporary: Path::new("/tmp"), level: Level::Strict };
            let failed = confine::run(request, stdin, &paths, ThreadAllowance::Own);
            report_failure(failure_writer, failed)
        }
        Err(error) => report_failure(failure_writer, Err(step("fork")(error))),
    };
    drop(failure_writer);
    let ended = CommandEnd { proc, ..reap_until(command) };
    if let Ok(text) = serde_json::to_vec(&ended) {
        // Fails if the launcher has ended. The kernel then also kills this process.
        let _ = (&end_writer).write_all(&text);
    }
    end(0)
}

fn reap_until(command: Pid) -> CommandEnd {
    let ended = |exit_code, signal| CommandEnd { exit_code, signal, proc: false };
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => return ended(Some(code), None),
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => return ended(None, Some(signal as i32)),
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return ended(None, None),
        }
    }
}
