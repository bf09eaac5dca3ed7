//! The launcher while the command runs: checks the usage of the process tree. At the end, the whole tree is dead.

use std::io::{PipeReader, Read};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, SysconfVar, sysconf};
use rustix::process::{PidfdFlags, pidfd_open};

use super::confine::StartedChild;
use super::cpu::{CpuMeter, CpuSample};
use super::memory::{Charged, Charges, Scan};
use super::namespaces::CommandEnd;
use super::tree;
use super::{Refusal, step};
use crate::cgroup::CgroupHandle;
use crate::outcome::StopCause;
use crate::spec::{Level, Limits};
use crate::usage::{exceeded_limit, folder_size};
use crate::wire::{Report, Request};

/// Each later wait is twice as long, up to [`CHECK_EVERY`].
const FIRST_CHECK: Duration = Duration::from_millis(5);
const CHECK_EVERY: Duration = Duration::from_millis(25);
/// A scan takes longer than the other checks, so only one in this many checks includes a scan.
const SCAN_EVERY: u32 = 4;
/// Checks of the workspace take at most `1 / WORKSPACE_SHARE` of all time.
const WORKSPACE_SHARE: u32 = 10;

/// Returns only when all processes are dead.
pub(super) fn watch_until_end(
    started: StartedChild,
    control: &UnixStream,
    request: &Request,
    cgroup_handle: Option<&CgroupHandle>,
) -> Result<Report, Refusal> {
    let StartedChild { child, mut failure, ended } = started;
    let mut watch = CommandWatch::new(request, child);
    let waited = watch.wait(&failure, control);
    let own = sweep(child);
    let stopped = waited?;
    let mut why = String::new();
    // Does not block, because every process that could write to the pipe has ended.
    failure.read_to_string(&mut why).map_err(step("read the launcher's report"))?;
    match why.split_at_checked(1) {
        Some(("P", why)) => return Err(Refusal::Program(why.to_owned())),
        Some((_, why)) => return Err(Refusal::Step(why.to_owned())),
        None => {}
    }
    let inner = ended.map(CommandEnd::read);
    let (exit_code, signal, proc) = match inner {
        Some(Some(CommandEnd { exit_code, signal, proc })) => (exit_code, signal, proc),
        Some(None) => (None, Some(Signal::SIGKILL as i32), false),
        None => (own.0, own.1, false),
    };
    let has_run_out = || cgroup_handle.is_some_and(CgroupHandle::has_run_out).then_some(StopCause::Memory);
    let stopped = stopped.or_else(has_run_out).or_else(|| watch.at_the_end(signal));
    Ok(Report::Ended { exit_code, signal, stopped, proc })
}

struct CommandWatch<'a> {
    limits: &'a Limits,
    workspace: &'a std::path::Path,
    child: Pid,
    /// At the level `strict`, `child` is the first process of a namespace and runs the launcher's program. So its
    /// descriptors are not charged.
    level: Level,
    /// Until the command is executed, `child` runs the launcher's program, so no descriptors are charged.
    is_executed: bool,
    charges: Charges,
    cpu: CpuMeter,
    began: Instant,
    workspace_at: Instant,
    workspace_bytes: u64,
    /// At least the workspace's initial size, so that the command can still delete files.
    workspace_limits: Limits,
    scan: Scan,
    checks: u32,
    tick_ms: u64,
}

impl<'a> CommandWatch<'a> {
    fn new(request: &'a Request, child: Pid) -> Self {
        let ticks = sysconf(SysconfVar::CLK_TCK).ok().flatten().and_then(|value| u64::try_from(value).ok());
        let began = now();
        Self {
            limits: &request.spec.limits,
            workspace: &request.spec.workspace,
            child,
            level: request.level,
            is_executed: false,
            charges: Charges::new(&request.spec),
            cpu: CpuMeter::default(),
            began,
            workspace_at: began,
            workspace_bytes: 0,
            workspace_limits: workspace_limits(request),
            scan: Scan::default(),
            checks: 0,
            tick_ms: 1_000 / ticks.filter(|ticks| *ticks > 0).unwrap_or(100),
        }
    }

    /// `None` if the child has ended. `failure` is closed when the command is executed.
    fn wait(&mut self, failure: &PipeReader, control: &UnixStream) -> Result<Option<StopCause>, Refusal> {
        let pid = rustix::process::Pid::from_raw(self.child.as_raw()).ok_or(Errno::ESRCH).map_err(step("watch"))?;
        let ended = pidfd_open(pid, PidfdFlags::empty()).map_err(step("watch the command"))?;
        let mut pause = FIRST_CHECK;
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
            // The worker sends no more data, so a readable socket is a closed socket.
            if waited[1].any().unwrap_or(true) {
                return Ok(Some(StopCause::Cancelled));
            }
            self.is_executed = self.is_executed || is_readable(failure);
            reap_orphans(self.child);
            if let Some(stop) = self.check() {
                return Ok(Some(stop));
            }
            pause = (pause * 2).min(CHECK_EVERY);
        }
    }

    fn check(&mut self) -> Option<StopCause> {
        let now = now();
        if now.duration_since(self.began) >= Duration::from_millis(self.limits.wall_ms) {
            return Some(StopCause::Wall);
        }
        if let Some(stop) = self.check_processes() {
            return Some(stop);
        }
        (now >= self.workspace_at).then(|| self.check_workspace()).flatten()
    }

    fn check_processes(&mut self) -> Option<StopCause> {
        let mut threads = 0;
        let mut charged = Charged::default();
        let mut sample = CpuSample::default();
        let is_scan = self.is_executed && self.checks.is_multiple_of(SCAN_EVERY);
        self.checks = self.checks.wrapping_add(1);
        let mut scan = Scan::default();
        let all_seen = tree::each(Pid::this(), |pid| {
            let Some(stat) = tree::stat(pid) else { return true };
            threads += stat.threads;
            let folder = tree::folder(pid, &stat);
            sample.processes.insert((pid.as_raw(), stat.started), stat);
            Charges::pages(&folder, &mut charged);
            if self.is_executed && !(self.level == Level::Strict && pid == self.child) {
                self.charges.descriptors(&folder, &mut charged);
                if is_scan {
                    scan.process(&folder, self.level, self.limits.memory_bytes);
                }
            }
            // A fork bomb grows during the check, so the check stops at the limit.
            threads <= self.limits.processes
        });
        if !all_seen {
            return Some(StopCause::Processes);
        }
        self.charges.connections(&mut charged);
        if is_scan {
            scan.end(&self.charges, &charged, &self.scan);
            self.scan = scan;
        }
        if charged.bytes.saturating_add(self.scan.bytes) > self.limits.memory_bytes {
            return Some(StopCause::Memory);
        }
        sample.reaped = reaped_ms() / self.tick_ms;
        if self.cpu.add(sample).saturating_mul(self.tick_ms) > self.limits.cpu_ms {
            return Some(StopCause::Cpu);
        }
        let nameless = charged.nameless.saturating_add(self.scan.mapped_only.saturating_mul(self.limits.file_bytes));
        let folder_size = self.workspace_bytes.saturating_add(nameless);
        (nameless > 0 && folder_size > self.workspace_limits.workspace_bytes).then_some(StopCause::WorkspaceBytes)
    }

    fn check_workspace(&mut self) -> Option<StopCause> {
        let began = now();
        let counted = folder_size(self.workspace, self.workspace_limits.workspace_files);
        let took = began.elapsed();
        self.workspace_at = began + (took * WORKSPACE_SHARE).max(CHECK_EVERY * 2);
        self.workspace_bytes = counted.map_or(0, |folder_size| folder_size.bytes);
        exceeded_limit(counted, &self.workspace_limits)
    }

    /// Returns a limit that ended the command: the kernel's processor limit, or a limit of the workspace.
    fn at_the_end(&mut self, signal: Option<i32>) -> Option<StopCause> {
        if signal == Some(Signal::SIGXCPU as i32) {
            return Some(StopCause::Cpu);
        }
        self.check_workspace()
    }
}

/// A workspace that already exceeds its limits must not grow.
fn workspace_limits(request: &Request) -> Limits {
    let mut limits = request.spec.limits.clone();
    // Stops counting above twice the limit, because a far larger workspace would take long.
    if let Ok(before) = folder_size(&request.spec.workspace, limits.workspace_files.saturating_mul(2)) {
        limits.workspace_bytes = limits.workspace_bytes.max(before.bytes);
        limits.workspace_files = limits.workspace_files.max(before.files);
    }
    limits
}

/// All reaped children are orphans of the command.
fn reaped_ms() -> u64 {
    let Ok(usage) = getrusage(UsageWho::RUSAGE_CHILDREN) else { return 0 };
    let ms = |time: nix::sys::time::TimeVal| {
        u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000 + u64::try_from(time.tv_usec()).unwrap_or(0) / 1_000
    };
    ms(usage.user_time()) + ms(usage.system_time())
}

fn is_readable(pipe: &PipeReader) -> bool {
    let mut waited = [PollFd::new(pipe.as_fd(), PollFlags::POLLIN)];
    poll(&mut waited, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// No decision of the fleet depends on this clock.
#[allow(clippy::disallowed_methods, reason = "the launcher has no runtime whose clock it could ask")]
fn now() -> Instant {
    Instant::now()
}

/// Dead processes count toward the kernel's limit until they are reaped. `child` is reaped only at the end.
fn reap_orphans(child: Pid) {
    for orphan in tree::children(Pid::this()).into_iter().filter(|pid| *pid != child) {
        let _ = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
    }
}

/// No orphan escapes, because this process is a subreaper. If a walk misses a process, the next round finds it.
fn sweep(child: Pid) -> (Option<i32>, Option<i32>) {
    let mut ended = (None, Some(Signal::SIGKILL as i32));
    loop {
        // The process may have ended in the meantime.
        let _ = tree::each(Pid::this(), |one| {
            let _ = kill(one, Signal::SIGKILL);
            true
        });
        loop {
            match waitpid(None, Some(WaitPidFlag::WNOHANG | WaitPidFlag::__WALL)) {
                Ok(WaitStatus::Exited(pid, code)) if pid == child => ended = (Some(code), None),
                Ok(WaitStatus::Signaled(pid, signal, _)) if pid == child => ended = (None, Some(signal as i32)),
                Ok(WaitStatus::StillAlive) => break,
                Ok(_) | Err(Errno::EINTR) => {}
                Err(_) => return ended,
            }
        }
        // Killed processes need processor time to die.
        nix::sched::sched_yield().ok();
    }
}
