//! The launcher's descendants, read from `/proc`.

use std::fs;
use std::path::PathBuf;

use nix::unistd::Pid;

/// Every permitted number of processes is smaller.
const VISITED_MAX: usize = 20_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stat {
    /// 0 if the process has ended and its parent has not reaped it.
    pub(super) threads: u64,
    /// True if the first thread has ended. The process's own folder then shows neither memory nor descriptors.
    pub(super) is_headless: bool,
    /// A process ID and a start time identify a process permanently.
    pub(super) started: u64,
    /// In ticks, without children.
    pub(super) own: u64,
    /// In ticks, of reaped children.
    pub(super) reaped: u64,
}

/// Only children of the first thread. Empty if the process no longer exists.
pub(super) fn children(pid: Pid) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid::from_raw).collect()
}

/// Visits parents before children, until `see` returns false. Returns false if descendants may have been skipped.
pub(super) fn each(root: Pid, mut see: impl FnMut(Pid) -> bool) -> bool {
    let mut waiting = children(root);
    let mut visited = 0;
    while let Some(pid) = waiting.pop() {
        visited += 1;
        if visited > VISITED_MAX || !see(pid) {
            return false;
        }
        // Each thread has its own list of children.
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            waiting.extend(text.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid::from_raw));
        }
    }
    true
}

pub(super) fn stat(pid: Pid) -> Option<Stat> {
    parse(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// If the first thread has ended, returns the folder of a live thread.
pub(super) fn folder(pid: Pid, stat: &Stat) -> PathBuf {
    let own = PathBuf::from(format!("/proc/{pid}"));
    if !stat.is_headless {
        return own;
    }
    let mut threads = fs::read_dir(own.join("task")).into_iter().flatten().flatten().map(|thread| thread.path());
    let lives =
        |thread: &PathBuf| fs::read_to_string(thread.join("status")).is_ok_and(|text| text.contains("\nVmRSS:"));
    threads.find(lives).unwrap_or(own)
}

/// In `/proc/<pid>/stat`, the name is in brackets and may contain any characters. Later fields are numbered from 3.
fn parse(text: &str) -> Option<Stat> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let is_headless = fields.first() == Some(&"Z");
    let threads = field(20)?.saturating_sub(u64::from(is_headless));
    Some(Stat {
        threads,
        is_headless,
        started: field(22)?,
        own: field(14)? + field(15)?,
        reaped: field(16)? + field(17)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_process_name_with_brackets_and_spaces_is_parsed_correctly() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 5 0 99 1000 6 18446744073709551615";
        assert_eq!(parse(text).unwrap(), Stat { threads: 5, is_headless: false, started: 99, own: 3, reaped: 7 });
        assert_eq!(parse(&text.replace(") S", ") Z")).unwrap().threads, 4, "the first has ended, the others live");
        assert!(parse("7 (a").is_none());
    }

    #[test]
    fn stat_reads_the_current_process() {
        assert!(stat(Pid::this()).unwrap().threads >= 1);
    }
}
