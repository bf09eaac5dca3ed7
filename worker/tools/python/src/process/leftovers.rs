//! Finds processes that have left the process group of their interpreter, by a variable that they inherit. Only a
//! sandbox ends processes that clear their environment.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

pub(super) const MARK: &str = "TICKFLEET_INTERPRETER";
/// The maximum number of passes. A process may fork during one pass, and the next pass finds the child.
const LOOKS_MAX: usize = 10;

/// Kills all processes with the mark. Blocks. Without `/proc`, no process is found.
pub(super) fn end(mark: &str) {
    let variable = format!("{MARK}={mark}");
    for _ in 0..LOOKS_MAX {
        let found = marked(variable.as_bytes());
        if found.is_empty() {
            return;
        }
        for process in found {
            // The process may have exited meanwhile.
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

/// Finds only the children of the process's first thread.
fn children(process: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
