//! Two hundred commands at once, round after round: what is there before the first and after the last is counted.
//!
//! What is counted is the process' own: one test at a time, as `make escape` and nextest have it.

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
/// Rounds at each level, unless `TICKFLEET_ROUNDS` says otherwise.
const ROUNDS: usize = 10;

/// What commands could leave on a machine. Other processes of the machine are not in it, so that it can be busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counts {
    /// Processes with the mark of the commands in their command line, of a user of theirs, or a child of the test's own:
    /// one that is dead and not reaped has no command line any more.
    processes: usize,
    /// Open in the test's own process, which plays the worker.
    descriptors: usize,
    mounts: usize,
    /// In the workspaces, but for the folder for temporary files that commands of `basic` have there.
    files: usize,
    /// What these take on disk.
    bytes: u64,
}

impl Counts {
    fn now(mark: &str, folders: &[TempDir]) -> Self {
        let (mut files, mut bytes) = (0, 0);
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
        // A thread may end while its children are asked for.
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

/// How many rounds are played at each level: `TICKFLEET_ROUNDS`.
#[allow(clippy::disallowed_methods, reason = "a knob of the test, documented beside it")]
fn rounds() -> usize {
    std::env::var("TICKFLEET_ROUNDS").map_or(ROUNDS, |text| text.parse().expect("TICKFLEET_ROUNDS is a number"))
}

/// Runs one command in each folder, all at once. Each leaves a process behind, and has a file for a while.
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

/// Thousands of runs, two hundred at a time: `make escape` plays it, everybody's tests do not. `TICKFLEET_ROUNDS=180`
/// makes 72,000 runs of it at two levels.
#[tokio::test]
#[ignore = "it takes a minute, and both processors"]
async fn two_hundred_at_once_over_thousands_of_runs_leave_nothing() {
    let rounds = rounds();
    for (level, sandbox) in each_level().await {
        let mark = format!("crowd{}{level}", std::process::id());
        let folders: Vec<_> = (0..AT_ONCE).map(|_| workspace()).collect();
        let (began, before) = (Instant::now(), Counts::now(&mark, &folders));
        for _ in 0..rounds {
            round(&sandbox, level, &mark, &folders).await;
        }
        let (took, after) = (began.elapsed().as_secs_f64(), Counts::now(&mark, &folders));
        let runs = rounds * AT_ONCE;
        println!("{level}: {runs} runs, {rounds} times {AT_ONCE} at once, in {took:.0} s");
        println!("  before {before:?}\n  after  {after:?}");
        assert_eq!(after, before, "{level}");
    }
}

/// Counts until `is_reached`, for ten seconds at most; answers what was counted last.
async fn counted(mark: &str, folders: &[TempDir], is_reached: impl Fn(Counts) -> bool) -> Counts {
    for _ in 0..200 {
        let now = Counts::now(mark, folders);
        if is_reached(now) {
            return now;
        }
        // Processes of other programs come up and end: nothing tells when.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    Counts::now(mark, folders)
}

/// A count that sees nothing would prove nothing.
#[tokio::test]
async fn what_a_command_could_leave_is_counted() {
    for (level, sandbox) in each_level().await {
        let mark = format!("counted{}{level}", std::process::id());
        let folders = [workspace()];
        let before = Counts::now(&mark, &folders);
        let mut spec = shell(&format!("{} echo xyz > file; sleep 600", left_behind(&mark)), folders[0].path());
        spec.limits.wall_ms = 60_000;
        let running = tokio::spawn(async move { run(&sandbox, level, spec).await });
        // The launcher, the command, what it leaves behind, and a `sleep` of each; without root, those with the mark.
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
