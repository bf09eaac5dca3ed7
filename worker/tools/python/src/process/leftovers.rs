//! What a tool has started and left behind: processes that have left the group of their interpreter.
//!
//! A process that calls `setsid` is out of reach of a signal to the group, and one whose parent has ended has no parent
//! that leads back. But both have inherited their environment, and in it the mark of the interpreter. What clears its
//! environment as well is not found: that is what a sandbox is for.

use std::path::Path;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// The variable that marks an interpreter and all that it starts.
pub(super) const MARK: &str = "TICKFLEET_INTERPRETER";
/// Looks at the processes of the machine: one that forks while it is looked for is found in the next.
const LOOKS_MAX: usize = 10;

/// Ends every process with this mark. Blocks while it looks. Where there is no `/proc`, it finds nothing.
pub(super) fn end(mark: &str) {
    let variable = format!("{MARK}={mark}");
    for _ in 0..LOOKS_MAX {
        let found = marked(variable.as_bytes());
        if found.is_empty() {
            return;
        }
        for process in found {
            // It fails where the process has ended meanwhile, which is what is wanted.
            let _ = kill(process, Signal::SIGKILL);
        }
    }
}

fn marked(variable: &[u8]) -> Vec<Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let has_mark = |id: &i32| {
        // A process that has ended, or is somebody else's, has no environment to read.
        let environment = std::fs::read(Path::new("/proc").join(id.to_string()).join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|one| one == variable)
    };
    ids.filter(has_mark).map(Pid::from_raw).collect()
}

/// Resident bytes of a process; none where that is not known.
pub(super) fn resident_bytes(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1_024)
}

/// Resident bytes of all processes below one.
pub(super) fn resident_bytes_below(process: u32) -> u64 {
    let (mut waiting, mut bytes) = (children(process), 0);
    while let Some(one) = waiting.pop() {
        bytes += resident_bytes(one).unwrap_or(0);
        waiting.extend(children(one));
    }
    bytes
}

/// The children that a process' first thread has started; empty where it has gone.
fn children(process: u32) -> Vec<u32> {
    let text = std::fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
}
