//! After SIGSTOP, some threads of a process run a little longer. This module waits for them.

use std::path::Path;
use std::time::Duration;

const CHECKS_MAX: usize = 10_000;
/// Checks at this interval, because the system sends no event when a process has stopped.
const EVERY: Duration = Duration::from_millis(1);

/// The process must have been sent SIGSTOP. Panics after ten seconds.
#[allow(clippy::disallowed_methods, reason = "a test that stops a process is not on that process' runtime")]
pub fn until_stopped(pid: u32) {
    let tasks = format!("/proc/{pid}/task");
    for _ in 0..CHECKS_MAX {
        if !Path::new(&tasks).exists() || all_stopped(&tasks) {
            return;
        }
        std::thread::sleep(EVERY);
    }
    panic!("the process {pid} still runs 10 s after SIGSTOP");
}

fn all_stopped(tasks: &str) -> bool {
    let Ok(threads) = std::fs::read_dir(tasks) else { return true };
    let state = |stat: &str| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok())
        .all(|stat| matches!(state(&stat), Some('T' | 't' | 'Z' | 'X')))
}
