//! Finds processes that a tool has started and that still run outside the process group of their interpreter.
//!
//! A signal to the group does not reach a process that called `setsid`. After the parent of such a process has exited,
//! no chain of parents connects the process with the interpreter. But the process has inherited the environment, which
//! includes a variable with the interpreter's unique mark. Processes that also clear their environment are not found.
//! Only a sandbox ends such processes.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Marks an interpreter and all processes that it starts.
pub(super) const MARK: &str = "TICKFLEET_INTERPRETER";
/// Maximum number of passes. If a process forks during one pass over the machine's processes, the next pass finds the
/// child.
const LOOKS_MAX: usize = 10;

/// Kills all processes with the mark. Blocks until done. Without `/proc`, no process is found.
pub(super) fn end(mark: &str) {
    let variable = format!("{MARK}={mark}");
    for _ in 0..LOOKS_MAX {
        let found = marked(variable.as_bytes());
        if found.is_empty() {
            return;
        }
        for process in found {
            // `kill` fails if the process has exited in the meantime.
            let _ = kill(process, Signal::SIGKILL);
        }
    }
}

fn marked(variable: &[u8]) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_mark = |id: &i32| {
        // The environment of an exited process, or of another user's process, cannot be read.
        let environment = std::fs::read(Path::new("/proc").join(id.to_string()).join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == variable)
    };
    ids.filter(has_mark).map(Pid::from_raw).collect()
}

pub(super) fn resident_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1_024)
}

pub(super) fn resident_bytes_below(process: u32) -> u64 {
    let mut waiting = children(process);
    let mut bytes = 0;
    while let Some(one) = waiting.pop() {
        bytes += resident_bytes(one).unwrap_or(0);
        waiting.extend(children(one));
    }
    bytes
}

/// Finds only the children of the process's first thread. Empty if the process no longer exists.
fn children(process: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
