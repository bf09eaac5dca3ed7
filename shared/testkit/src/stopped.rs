//! A process that was told to stand still does so a little later: its other threads go on until the first has heard of it.

use std::path::Path;
use std::time::Duration;

/// How often a process is looked at: for ten seconds at least.
const LOOKS: usize = 10_000;
/// The time between two looks. Nobody tells when a process has come to stand.
const EVERY: Duration = Duration::from_millis(1);

/// Waits until every thread of a process that was sent SIGSTOP stands still. Where the system has no `/proc`, nothing is
/// waited for.
///
/// # Panics
/// It does not stand still within ten seconds.
#[allow(clippy::disallowed_methods, reason = "a test that stops a process is not on that process' runtime")]
pub fn until_stopped(pid: u32) {
    let tasks = format!("/proc/{pid}/task");
    for _ in 0..LOOKS {
        if !Path::new(&tasks).exists() || stands(&tasks) {
            return;
        }
        std::thread::sleep(EVERY);
    }
    panic!("the process {pid} goes on ten seconds after SIGSTOP");
}

/// Whether none of these threads runs: each is stopped (`T`), or has ended.
fn stands(tasks: &str) -> bool {
    let Ok(threads) = std::fs::read_dir(tasks) else { return true };
    let state = |stat: &str| stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    threads
        .flatten()
        .filter_map(|thread| std::fs::read_to_string(thread.path().join("stat")).ok())
        .all(|stat| matches!(state(&stat), Some('T' | 't' | 'Z' | 'X')))
}
