//! What a command may use, attacked by taking more.

use std::time::Duration;

use tickfleet_sandbox::{Level, Stop};
use tokio::time::Instant;

use crate::support::*;

#[tokio::test]
async fn a_fork_bomb_ends_and_nothing_of_it_is_left() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mark = format!("bomb{}{level}", std::process::id());
        let mut spec =
            python(&format!("# {mark}\nwhile True:\n    try: os.fork()\n    except OSError: pass"), folder.path());
        spec.limits.processes = 32;
        spec.limits.wall_ms = 20_000;
        let began = Instant::now();
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!(outcome.stopped, Some(Stop::Processes), "{level}");
        assert!(began.elapsed() < Duration::from_secs(20), "{level}: {:?}", began.elapsed());
        assert_eq!(processes_with(&mark), Vec::<String>::new(), "{level}");
    }
}

#[tokio::test]
async fn memory_is_bounded_in_one_process_and_over_all_of_them() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut one = python(
            "try:\n    x = bytearray(400 << 20); print('got it')\nexcept MemoryError: print('refused')",
            folder.path(),
        );
        one.limits.memory_bytes = 128 << 20;
        assert_eq!(out(&run(&sandbox, level, one).await), "refused", "{level}");

        let script = "
for _ in range(8):
    if os.fork() == 0:
        x = bytearray(os.urandom(1 << 20)) * 60; time.sleep(60)
time.sleep(60)";
        let mut many = python(script, folder.path());
        many.limits.memory_bytes = 200 << 20;
        let outcome = run(&sandbox, level, many).await;
        assert_eq!(outcome.stopped, Some(Stop::Memory), "{level}: {outcome:?}");

        let mut shared =
            python("import mmap\nx = mmap.mmap(-1, 1 << 30)\nwhile True: x.write(b'x' * (1 << 20))", folder.path());
        shared.limits.memory_bytes = 200 << 20;
        let outcome = run(&sandbox, level, shared).await;
        assert_eq!(outcome.stopped, Some(Stop::Memory), "{level}: {outcome:?}");
    }
}

#[tokio::test]
async fn time_on_processors_is_bounded_in_one_process_and_over_all_of_them() {
    for (level, sandbox) in each_level().await {
        for script in ["while True: pass", "os.fork(); os.fork()\nwhile True: pass"] {
            let folder = workspace();
            let mut spec = python(script, folder.path());
            spec.limits.cpu_ms = 400;
            let outcome = run(&sandbox, level, spec).await;
            assert_eq!(outcome.stopped, Some(Stop::Cpu), "{level}: {outcome:?}");
        }
    }
}

#[tokio::test]
async fn files_and_workspace_are_bounded() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut one =
            shell("head -c 3000000 /dev/zero > big; ls -l big | awk '{print $5}' >&2; stat -c %s big", folder.path());
        one.limits.file_bytes = 1 << 20;
        let outcome = run(&sandbox, level, one).await;
        assert_eq!(out(&outcome), (1 << 20).to_string(), "{level}");

        let mut many = shell("i=0; while true; do i=$((i+1)); head -c 1000000 /dev/zero > f$i; done", folder.path());
        many.limits.workspace_bytes = 10 << 20;
        assert_eq!(run(&sandbox, level, many).await.stopped, Some(Stop::WorkspaceBytes), "{level}");

        let folder = workspace();
        let mut inodes = python("i = 0\nwhile True: open('f%d' % i, 'w'); i += 1", folder.path());
        inodes.limits.workspace_files = 500;
        assert_eq!(run(&sandbox, level, inodes).await.stopped, Some(Stop::WorkspaceFiles), "{level}");
    }
}

#[tokio::test]
async fn a_workspace_that_is_too_big_at_the_end_is_told_even_if_no_look_saw_it() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = shell("head -c 100000 /dev/zero > f", folder.path());
        spec.limits.workspace_bytes = 50_000;
        assert_eq!(run(&sandbox, level, spec).await.stopped, Some(Stop::WorkspaceBytes), "{level}");
    }
}

#[tokio::test]
async fn an_output_bomb_fills_nothing() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = shell("yes & yes >&2", folder.path());
        spec.limits.output_bytes = 10_000;
        spec.limits.wall_ms = 1_000;
        let outcome = run(&sandbox, level, spec).await;
        assert!(outcome.truncated && outcome.timed_out(), "{level}");
        assert_eq!((outcome.stdout.len(), outcome.stderr.len()), (10_000, 10_000));
    }
}

#[tokio::test]
async fn scratch_space_in_memory_has_a_size() {
    let Some(sandbox) = sandbox(Level::Strict).await else { return };
    let folder = workspace();
    let mut spec = shell(
        "for to in /tmp /dev/shm; do for i in 1 2 3 4; do head -c 40000000 /dev/zero > $to/f$i 2>/dev/null; done; \
         du -sb $to | cut -f1; done",
        folder.path(),
    );
    spec.limits.memory_bytes = 512 << 20;
    let outcome = run(&sandbox, Level::Strict, spec).await;
    let sizes: Vec<u64> = out(&outcome).lines().map(|line| line.parse().unwrap()).collect();
    assert!(sizes.len() == 2 && sizes.iter().all(|size| *size <= (64 << 20) + 4_096), "{outcome:?}");
}

#[tokio::test]
async fn no_memory_is_left_behind_in_dev_shm() {
    let Some(sandbox) = sandbox(Level::Basic).await else { return };
    let folder = workspace();
    let answer = attack(&sandbox, Level::Basic, "print(attempt(lambda: open('/dev/shm/x', 'w')))", folder.path()).await;
    assert!(["EACCES", "ENOENT"].contains(&answer.as_str()), "{answer}");
}

#[tokio::test]
async fn that_disk_of_open_files_without_a_name_is_counted_is_not_promised() {
    let Some(sandbox) = sandbox(Level::Basic).await else { return };
    let folder = workspace();
    let script = "
file = open('f', 'wb'); os.unlink('f')
file.write(b'x' * 5_000_000); file.flush(); time.sleep(0.3); print('unseen')";
    let mut spec = python(script, folder.path());
    spec.limits.workspace_bytes = 1_000_000;
    let outcome = run(&sandbox, Level::Basic, spec).await;
    // It is bounded by the length and the number of files of each process, and gone at the end.
    assert_eq!((out(&outcome).as_str(), outcome.stopped), ("unseen", None));
}
