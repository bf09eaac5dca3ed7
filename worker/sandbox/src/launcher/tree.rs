//! The launcher's descendants, as `/proc` shows them.

use std::fs;

use nix::unistd::Pid;

/// Most processes that one look walks through: more than any limit allows.
const LOOKED_AT_MAX: usize = 20_000;

/// What a tree of processes uses at one moment.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Usage {
    /// Threads.
    pub(super) threads: u64,
    /// Time on processors, of children that were reaped too, in ticks of the kernel's clock.
    pub(super) cpu_ticks: u64,
    /// Pages in memory, counted for each process that has them.
    pub(super) pages: u64,
}

/// The children of a process; empty where it has gone.
pub(super) fn children(pid: Pid) -> Vec<Pid> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid::from_raw).collect()
}

/// Adds up what all descendants of `root` use; stops where there are more threads than `threads_max`, for every further
/// look at a bomb is time in which it grows.
pub(super) fn usage(root: Pid, threads_max: u64) -> Usage {
    let mut total = Usage::default();
    each(root, |pid| {
        if let Some(one) = of(pid) {
            total.threads += one.threads;
            total.cpu_ticks += one.cpu_ticks;
            total.pages += one.pages;
        }
        total.threads <= threads_max
    });
    total
}

/// Hands every descendant of `root` to `see`, parents before their children, as long as it answers true.
pub(super) fn each(root: Pid, mut see: impl FnMut(Pid) -> bool) {
    let (mut waiting, mut looked_at) = (children(root), 0);
    while let Some(pid) = waiting.pop() {
        looked_at += 1;
        if looked_at > LOOKED_AT_MAX || !see(pid) {
            break;
        }
        // A thread has children of its own.
        let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else { continue };
        for thread in threads.flatten() {
            let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
            waiting.extend(text.split_whitespace().filter_map(|word| word.parse().ok()).map(Pid::from_raw));
        }
    }
}

/// One process, from its `stat`.
fn of(pid: Pid) -> Option<Usage> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(&text)
}

/// The name, in brackets, may hold anything: what follows the last one is counted from 3 on.
fn parse(text: &str) -> Option<Usage> {
    let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    let cpu_ticks = (14..=17).map(field).sum::<Option<u64>>()?;
    // What has ended and waits for its parent runs no more.
    let threads = if fields.first() == Some(&"Z") { 0 } else { field(20)? };
    Some(Usage { threads, cpu_ticks, pages: field(24)? })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_name_with_brackets_and_blanks_moves_no_field() {
        let text = "7 (a) b (c) S 1 7 7 0 -1 0 0 0 0 0 1 2 3 4 20 0 5 0 99 1000 6 18446744073709551615";
        let usage = parse(text).unwrap();
        assert_eq!((usage.threads, usage.cpu_ticks, usage.pages), (5, 10, 6));
        assert!(parse("7 (a").is_none());
    }

    #[test]
    fn this_process_is_seen() {
        let usage = of(Pid::this()).unwrap();
        assert!(usage.threads >= 1 && usage.pages > 0);
    }
}
