//! Resource limits of the kernel for each process. [`super::watch`] limits the whole process tree.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::Uid;

use super::{Refusal, step};
use crate::spec::Limits;

/// Threads that a user may add, if the worker and all its sandboxes share this user. Limits a fork bomb between checks.
const OTHERS: u64 = 768;
/// The launcher and the first process of the namespace, which count toward the namespace's limit.
const OURS: u64 = 2;

/// The kernel counts nanoseconds, which overflow above this limit and would end the command early.
const CPU_SECONDS_MAX: u64 = u32::MAX as u64;

#[derive(Debug, Clone, Copy)]
pub(super) enum ThreadAllowance {
    /// Only this command runs as the user, or under the user's ID in this namespace.
    Own,
    /// The current number of the user's threads. The worker and other commands also run as this user.
    Shared(u64),
}

pub(super) fn running(uid: Uid) -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let of_uid = processes.flatten().filter(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
        is_process && entry.metadata().is_ok_and(|found| found.uid() == uid.as_raw())
    });
    of_uid.map(|entry| fs::read_dir(entry.path().join("task")).map_or(1, |tasks| tasks.count() as u64)).sum()
}

pub(super) fn set(limits: &Limits, allowance: ThreadAllowance) -> Result<(), Refusal> {
    let threads = limits.processes
        + match allowance {
            ThreadAllowance::Own => OURS,
            ThreadAllowance::Shared(running) => running + OTHERS,
        };
    let seconds = limits.cpu_ms.div_ceil(1_000).clamp(1, CPU_SECONDS_MAX);
    let all = [
        (Resource::RLIMIT_CPU, seconds, seconds + 1),
        (Resource::RLIMIT_FSIZE, limits.file_bytes, limits.file_bytes),
        (Resource::RLIMIT_NOFILE, limits.open_files, limits.open_files),
        // Limits written memory, not reserved addresses: Node, Go and the JVM reserve gigabytes that they never touch.
        (Resource::RLIMIT_DATA, limits.memory_bytes, limits.memory_bytes),
        (Resource::RLIMIT_NPROC, threads, threads),
        (Resource::RLIMIT_CORE, 0, 0),
        (Resource::RLIMIT_MEMLOCK, 64 << 10, 64 << 10),
        (Resource::RLIMIT_MSGQUEUE, 0, 0),
        (Resource::RLIMIT_SIGPENDING, 1_024, 1_024),
        (Resource::RLIMIT_NICE, 0, 0),
        (Resource::RLIMIT_RTPRIO, 0, 0),
    ];
    for (resource, soft, hard) in all {
        setrlimit(resource, soft, hard).map_err(step("set a limit"))?;
    }
    Ok(())
}
