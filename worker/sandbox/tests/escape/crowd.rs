//! Counts of the test process before and after many runs. No other test may run in this process at the same time.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;
use tickfleet_sandbox::{Level, Sandbox};
use tokio::time::Instant;

use crate::support::*;

const AT_ONCE: usize = 200;
/// Rounds at each level; `TICKFLEET_ROUNDS` sets another number.
const ROUNDS: usize = 10;

/// Other processes are not counted, so the machine can be busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// Processes with the commands' mark or users, and children of the test. A dead child also counts until it is
    /// reaped.
    processes: usize,
    /// The descriptors of the test's own process, which acts as the worker.
    descriptors: usize,
    mounts: usize,
    /// Leaves out the folder for temporary files of commands at the level `basic`.
    files: usize,
    bytes: u64,
}

impl Counts {
    fn now(mark: &str, folders: &[TempDir]) -> Self {
        let mut files = 0;
        let mut bytes = 0;
        folders.iter().for_each(|folder| count_files(folder.path(), &mut files, &mut bytes));
        Self {
            processes: processes(mark, folders),
            descriptors: fs::read_dir("/proc/self/fd").unwrap().count(),
            mounts: fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count(),
            files,
            bytes,
        }
    }
}

fn count_files(folder: &Path, files: &mut usize, bytes: &mut u64) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let found = entry.metadata().unwrap();
        if found.is_dir() {
            count_files(&entry.path(), files, bytes);
        }
        if !found.is_dir() || entry.file_name() != ".tmp" {
            *files += 1;
            *bytes += found.blocks() * 512;
        }
    }
}

fn processes(mark: &str, folders: &[TempDir]) -> usize {
    let mut found: HashSet<String> = processes_with(mark).into_iter().collect();
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        // A thread can end before its children are read.
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        found.extend(children.split_whitespace().map(str::to_owned));
    }
    if is_root() {
        let users: HashSet<u32> = folders.iter().map(|folder| fs::metadata(folder.path()).unwrap().uid()).collect();
        let all = fs::read_dir("/proc").unwrap().flatten();
        let theirs = all.filter(|entry| entry.metadata().is_ok_and(|found| users.contains(&found.uid())));
        found.extend(theirs.map(|entry| entry.file_name().to_string_lossy().into_owned()));
    }
    found.len()
}

#[allow(clippy::disallowed_methods, reason = "a knob of the test, documented beside it")]
fn rounds() -> usize {
    std::env::var("TICKFLEET_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("TICKFLEET_ROUNDS is a number"))
}

/// Each command leaves a process behind, and creates a file for a short time.
async fn round(sandbox: &Sandbox, level: Level, mark: &str, folders: &[TempDir]) {
    let runs = folders.iter().map(|folder| {
        let sandbox = sandbox.clone();
        let mut spec = shell(&format!("{} echo x > file; rm file", left_behind(mark)), folder.path());
        spec.limits.wall_ms = 60_000;
        tokio::spawn(async move { run(&sandbox, level, spec).await })
    });
    for run in runs.collect::<Vec<_>>() {
        let outcome = run.await.unwrap();
        assert_eq!(outcome.exit_code, Some(0), "{level}: {outcome:?}");
    }
}

/// Only `make escape` runs this test. `TICKFLEET_ROUNDS=180` makes 72,000 runs.
#[tokio::test]
#[ignore = "it takes a minute, and both processors"]
async fn thousands_of_concurrent_runs_leak_nothing() {
    let rounds = rounds();
    for (level, sandbox) in each_level().await {
        let mark = format!("crowd{}{level}", std::process::id());
        let folders: Vec<_> = (0..AT_ONCE).map(|_| workspace()).collect();
        let began = Instant::now();
        let before = Counts::now(&mark, &folders);
        for _ in 0..rounds {
            round(&sandbox, level, &mark, &folders).await;
        }
        let took = began.elapsed().as_secs_f64();
        let after = Counts::now(&mark, &folders);
        let runs = rounds * AT_ONCE;
        println!("{level}: {runs} runs, {rounds} times {AT_ONCE} at once, in {took:.0} s");
        println!("  before {before:?}\n  after  {after:?}");
        assert_eq!(after, before, "{level}");
    }
}

async fn counted(mark: &str, folders: &[TempDir], is_reached: impl Fn(Counts) -> bool) -> Counts {
    for _ in 0..200 {
        let now = Counts::now(mark, folders);
        if is_reached(now) {
            return now;
        }
        // Processes of other programs start and end without a notification, so the test polls.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Counts::now(mark, folders)
}

/// Shows that processes are counted. Otherwise, the test above could pass without counting anything.
#[tokio::test]
async fn leftovers_of_a_running_command_are_counted() {
    for (level, sandbox) in each_level().await {
        let mark = format!("counted{}{level}", std::process::id());
        let folders = [workspace()];
        let before = Counts::now(&mark, &folders);
        let mut spec = shell(&format!("{} echo xyz > file; sleep 600", left_behind(&mark)), folders[0].path());
        spec.limits.wall_ms = 60_000;
        let running = tokio::spawn(async move { run(&sandbox, level, spec).await });
        // As root, five processes are counted: the launcher, the command, the process left behind, and two `sleep`.
        // Without root, the two `sleep` are not counted.
        let more = if is_root() { 5 } else { 3 };
        let is_seen = |now: Counts| {
            now.processes >= before.processes + more
                && now.descriptors > before.descriptors
                && (now.files, now.bytes > 0) == (1, true)
        };
        let now = counted(&mark, &folders, is_seen).await;
        assert!(is_seen(now), "{level}: {before:?} {now:?}");
        running.abort();
        let is_gone = |now: Counts| (now.processes, now.descriptors) == (before.processes, before.descriptors);
        let now = counted(&mark, &folders, is_gone).await;
        assert!(is_gone(now), "{level}: {before:?} {now:?}");
    }
}
