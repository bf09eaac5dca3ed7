//! After a run, all processes of the command are dead, however they hide and however the run ends.

use std::time::Duration;

use tickfleet_sandbox::{Level, StopCause};
use tokio_util::sync::CancellationToken;

use crate::support::*;

async fn gone(mark: &str) {
    for _ in 0..100 {
        if processes_with(mark).is_empty() {
            return;
        }
        // A killed process stays visible until it is reaped.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("alive: {:?}", processes_with(mark));
}

#[tokio::test]
async fn children_that_daemonise_or_ignore_signals_die_with_the_command() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mark = format!("daemon{}{level}", std::process::id());
        let script = format!(
            "
# {mark}
import signal
def hide():
    for number in (1, 2, 3, 13, 15): signal.signal(number, signal.SIG_IGN)
    while True: time.sleep(1)
for way in range(4):
    if os.fork() == 0:
        if way >= 1: os.setsid()
        if way >= 2 and os.fork(): os._exit(0)
        if way >= 3:
            os.setsid() if os.getpid() != os.getsid(0) else None
            if os.fork(): os._exit(0)
        hide()
time.sleep(0.3)
print('done')"
        );
        assert_eq!(attack(&sandbox, level, &script, folder.path()).await, "done");
        assert_eq!(processes_with(&mark), Vec::<String>::new(), "{level}: the run had ended");
    }
}

#[tokio::test]
async fn a_chain_of_forking_processes_is_killed_with_the_command() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mark = format!("chain{}{level}", std::process::id());
        let script = format!(
            "
# {mark}
if os.fork() == 0:
    while True:
        if os.fork(): os._exit(0)
        os.setsid()
time.sleep(0.5)"
        );
        let outcome = run(&sandbox, level, python(&script, folder.path())).await;
        assert!(outcome.exit_code == Some(0) || outcome.stopped == Some(StopCause::Cpu), "{level}: {outcome:?}");
        assert_eq!(processes_with(&mark), Vec::<String>::new(), "{level}");
    }
}

#[tokio::test]
async fn dropping_the_future_kills_everything() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mark = format!("dropped{}{level}", std::process::id());
        let spec = shell(&format!("{} sleep 600; : {mark}", left_behind(&mark)), folder.path());
        let cancel = CancellationToken::new();
        let running = tokio::time::timeout(Duration::from_millis(400), sandbox.run(level, spec, &cancel)).await;
        assert!(running.is_err(), "it still ran");
        gone(&mark).await;
    }
}

#[tokio::test]
async fn no_process_survives_a_killed_worker() {
    for (level, _) in each_level().await {
        let folder = workspace();
        let mark = format!("orphan{}{level}", std::process::id());
        let request = serde_json::json!({
            "level": level, "probe": false,
            "spec": {
                "argv": ["/bin/sh", "-c", format!("{} sleep 600; : {mark}", left_behind(&mark))],
                "workspace": folder.path(), "environment": {}, "grants": [], "network": "none",
                "limits": {"cpu_ms": 9000, "memory_bytes": 1 << 28, "processes": 64, "open_files": 64,
                    "file_bytes": 1 << 20, "workspace_bytes": 1 << 30, "workspace_files": 1000,
                    "output_bytes": 1000, "wall_ms": 600_000},
            },
        });
        let script = format!(
            "
import os, socket, subprocess, sys, time
ours, theirs = socket.socketpair()
subprocess.Popen([sys.argv[1]], stdin=theirs, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
theirs.close()
request = sys.argv[2].encode()
ours.sendall(len(request).to_bytes(4, 'little') + request + bytes(4))
time.sleep(0.5)
print('running', flush=True)
os.kill(os.getpid(), 9)  # {mark}"
        );
        let program = env!("CARGO_BIN_EXE_tickfleet-sandbox-exec");
        let output =
            std::process::Command::new(PYTHON).args(["-c", &script, program, &request.to_string()]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "running\n", "{level}: {output:?}");
        gone(&mark).await;
    }
}

#[tokio::test]
async fn a_command_cannot_kill_its_launcher() {
    let Some(sandbox) = sandbox(Level::Basic).await else { return };
    let folder = workspace();
    let outcome = run(&sandbox, Level::Basic, shell("kill -9 $PPID; echo refused", folder.path())).await;
    assert_eq!((out(&outcome).as_str(), outcome.exit_code), ("refused", Some(0)));
}

#[tokio::test]
async fn concurrent_runs_leak_no_process_descriptor_or_mount() {
    for (level, sandbox) in each_level().await {
        let count = |path: &str| std::fs::read_dir(path).unwrap().count();
        let mounts = || std::fs::read_to_string("/proc/self/mountinfo").unwrap().lines().count();
        let mark = format!("many{}{level}", std::process::id());
        let before = (count("/proc/self/fd"), mounts());
        for _ in 0..3 {
            let runs = (0..20).map(|number| {
                let sandbox = sandbox.clone();
                let mark = mark.clone();
                tokio::spawn(async move {
                    let folder = workspace();
                    let spec = shell(&format!("{} echo {number}", left_behind(&mark)), folder.path());
                    out(&run(&sandbox, level, spec).await)
                })
            });
            for (number, run) in runs.collect::<Vec<_>>().into_iter().enumerate() {
                assert_eq!(run.await.unwrap(), number.to_string(), "{level}");
            }
        }
        assert_eq!(processes_with(&mark), Vec::<String>::new());
        assert_eq!((count("/proc/self/fd"), mounts()), before, "{level}");
    }
}
