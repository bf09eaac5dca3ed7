//! The launcher while the command runs: it waits for the end, looks now and then at what the tree of processes uses, and
//! kills it when a bound is crossed or the worker lets go. At the end nothing of the tree is alive.

use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use rustix::process::{PidfdFlags, pidfd_open};

use super::confine::Started;
use super::namespaces::Ended;
use super::tree::{self, Usage};
use super::{Refusal, step};
use crate::outcome::Stop;
use crate::spec::Limits;
use crate::usage::{Held, held};
use crate::wire::{Report, Request};

/// The first look comes after this time, each further one after twice as long, so that a short command costs none.
const FIRST_LOOK: Duration = Duration::from_millis(5);
/// The longest time between two looks at the processes.
const LOOK_EVERY: Duration = Duration::from_millis(25);
/// A look at the workspace costs time of its own: at most this part of all time is spent on it.
const WORKSPACE_SHARE: u32 = 10;

/// Waits for the end of the command, by itself or not, and kills what is left.
pub(super) fn until_the_end(started: Started, control: &UnixStream, request: &Request) -> Result<Report, Refusal> {
    let Started { child, mut failure, ended } = started;
    let mut watch = Watch::new(request)?;
    let waited = watch.wait(child, control);
    let own = sweep(child);
    let stopped = waited?;
    let mut why = String::new();
    // It ends: every process that could write has ended.
    failure.read_to_string(&mut why).map_err(step("hear of the start"))?;
    match why.split_at_checked(1) {
        Some(("P", why)) => return Err(Refusal::Program(why.to_owned())),
        Some((_, why)) => return Err(Refusal::Step(why.to_owned())),
        None => {}
    }
    let inner = ended.map(Ended::read);
    let (exit_code, signal, proc) = match inner {
        Some(Some(Ended { exit_code, signal, proc })) => (exit_code, signal, proc),
        // It was killed before it could say anything.
        Some(None) => (None, Some(Signal::SIGKILL as i32), false),
        None => (own.0, own.1, false),
    };
    let stopped = stopped.or_else(|| watch.at_the_end(signal));
    Ok(Report::Ended { exit_code, signal, stopped, proc })
}

struct Watch<'a> {
    limits: &'a Limits,
    workspace: &'a std::path::Path,
    began: Instant,
    workspace_at: Instant,
    tick_ms: u64,
    page: u64,
}

impl<'a> Watch<'a> {
    fn new(request: &'a Request) -> Result<Self, Refusal> {
        let of = |what| sysconf(what).ok().flatten().and_then(|value| u64::try_from(value).ok());
        let began = now();
        Ok(Self {
            limits: &request.spec.limits,
            workspace: &request.spec.workspace,
            began,
            workspace_at: began,
            tick_ms: 1_000 / of(SysconfVar::CLK_TCK).filter(|ticks| *ticks > 0).unwrap_or(100),
            page: of(SysconfVar::PAGE_SIZE).unwrap_or(4_096),
        })
    }

    /// Until the child has ended; answers the bound that was crossed first, if one was.
    fn wait(&mut self, child: Pid, control: &UnixStream) -> Result<Option<Stop>, Refusal> {
        let pid = rustix::process::Pid::from_raw(child.as_raw()).ok_or(Errno::ESRCH).map_err(step("watch"))?;
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(step("watch the command"))?;
        let mut pause = FIRST_LOOK;
        loop {
            let mut waited =
                [PollFd::new(ended.as_fd(), PollFlags::POLLIN), PollFd::new(control.as_fd(), PollFlags::POLLIN)];
            let timeout = PollTimeout::try_from(pause).unwrap_or(PollTimeout::from(25_u8));
            match poll(&mut waited, timeout) {
                Ok(_) | Err(Errno::EINTR) => {}
                Err(error) => return Err(step("watch the command")(error)),
            }
            if waited[0].any().unwrap_or(true) {
                return Ok(None);
            }
            // The worker has nothing to say: that there is something means that it has let go.
            if waited[1].any().unwrap_or(true) {
                return Ok(Some(Stop::Cancelled));
            }
            reap_orphans(child);
            if let Some(stop) = self.look() {
                return Ok(Some(stop));
            }
            pause = (pause * 2).min(LOOK_EVERY);
        }
    }

    fn look(&mut self) -> Option<Stop> {
        let now = now();
        if now.duration_since(self.began) >= Duration::from_millis(self.limits.wall_ms) {
            return Some(Stop::Wall);
        }
        let Usage { threads, cpu_ticks, pages } = tree::usage(Pid::this(), self.limits.processes);
        if threads > self.limits.processes {
            return Some(Stop::Processes);
        }
        if pages * self.page > self.limits.memory_bytes {
            return Some(Stop::Memory);
        }
        if cpu_ticks * self.tick_ms > self.limits.cpu_ms {
            return Some(Stop::Cpu);
        }
        (now >= self.workspace_at).then(|| self.look_at_workspace()).flatten()
    }

    fn look_at_workspace(&mut self) -> Option<Stop> {
        let began = now();
        let Held { bytes, files } = held(self.workspace, self.limits.workspace_files);
        let took = began.elapsed();
        self.workspace_at = began + (took * WORKSPACE_SHARE).max(LOOK_EVERY * 2);
        if bytes > self.limits.workspace_bytes {
            return Some(Stop::WorkspaceBytes);
        }
        (files > self.limits.workspace_files).then_some(Stop::WorkspaceFiles)
    }

    /// A bound of the kernel that ended the command, or one that was crossed since the last look.
    fn at_the_end(&mut self, signal: Option<i32>) -> Option<Stop> {
        if signal == Some(Signal::SIGXCPU as i32) {
            return Some(Stop::Cpu);
        }
        self.look_at_workspace()
    }
}

/// The clock of this process alone: nothing that the fleet decides depends on it.
#[allow(clippy::disallowed_methods, reason = "the launcher has no runtime whose clock it could ask")]
fn now() -> Instant {
    Instant::now()
}

/// Reaps what was orphaned and has ended: the dead hold places of the kernel's limit. The command itself stays for the end.
fn reap_orphans(child: Pid) {
    for orphan in tree::children(Pid::this()).into_iter().filter(|pid| *pid != child) {
        let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
    }
}

/// Kills and reaps until no descendant is left; answers how `child` ended. Whatever is orphaned becomes a child of this
/// process, which is a subreaper, so none gets away; what the walks missed the next round finds.
fn sweep(child: Pid) -> (Option<i32>, Option<i32>) {
    let mut ended = (None, Some(Signal::SIGKILL as i32));
    loop {
        // What has ended in the meantime needs no signal.
        tree::each(Pid::this(), |one| {
            let _ = kill(one, Signal::SIGKILL);
            true
        });
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == child => ended = (Some(code), None),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => ended = (None, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                // No child is left.
                Err(_) => return ended,
            }
        }
        // What was killed needs the processor to die.
        nix::sched::sched_yield().ok();
    }
}
