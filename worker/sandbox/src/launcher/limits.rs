//! Resource limits of the kernel. They apply to each process separately. [`super::watch`] limits the usage of the whole
//! process tree.

use std::fs;
use std::os::unix::fs::MetadataExt;

use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::Uid;

use super::{Refusal, step};
use crate::spec::Limits;

/// Additional threads of the user while the command runs, if the worker and all its sandboxes share that user. A fork
/// bomb can start this many additional threads before the next check of the tree.
const OTHERS: u64 = 768;
/// Processes that count toward a namespace's limit but do not belong to the command: its first process, and the
/// launcher.
const OURS: u64 = 2;

/// The maximum number of threads that the user of a command may have while the command runs.
#[derive(Debug, Clone, Copy)]
pub(super) enum ThreadAllowance {
    /// The user, or its user ID in this namespace, is used only by this command.
    Own,
    /// The worker and other commands have the same user, which currently has this many threads.
    Shared(u64),
}

/// The number of threads of `uid`. The kernel compares this number with its limit.
pub(super) fn running(uid: Uid) -> u64 {
    let Ok(processes) = fs::read_dir("/proc") else { return 0 };
    let of_uid = processes.flatten().filter(|entry| {
        let is_process = entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit());
        is_process && entry.metadata().is_ok_and(|found| found.uid() == uid.as_raw())
    });
    of_uid.map(|entry| fs::read_dir(entry.path().join("task")).map_or(1, |tasks| tasks.count() as u64)).sum()
}

/// Sets all resource limits for this process and the processes that it starts.
pub(super) fn set(limits: &Limits, allowance: ThreadAllowance) -> Result<(), Refusal> {
    let threads = limits.processes
        + match allowance {
            ThreadAllowance::Own => OURS,
            ThreadAllowance::Shared(running) => running + OTHERS,
        };
    let seconds = limits.cpu_ms.div_ceil(1_000).max(1);
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
