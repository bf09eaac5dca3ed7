//! Commands that must work. Otherwise, a sandbox that blocks every command would pass the suite.

use std::time::Duration;

use tickfleet_sandbox::{Grant, Level, RunError, Spec, StopCause};
use tokio_util::sync::CancellationToken;

use crate::support::*;

#[tokio::test]
async fn a_command_gets_its_arguments_input_and_a_writable_workspace() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = shell("cat > got; echo \"$1|$2\"; echo oops >&2; pwd; exit 7", folder.path());
        spec.argv.extend(["x".into(), "a b; touch c".into(), "$(id)".into()]);
        spec.stdin = b"hello".to_vec();
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!(outcome.exit_code, Some(7), "{level}: {}", err(&outcome));
        assert_eq!(out(&outcome), format!("a b; touch c|$(id)\n{}", seen(level, folder.path()).display()));
        assert_eq!(err(&outcome), "oops\n");
        assert_eq!(std::fs::read(folder.path().join("got")).unwrap(), b"hello");
        assert!(!folder.path().join("c").exists());
    }
}

#[tokio::test]
async fn python_can_start_children_and_create_temporary_files() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let script = "
import subprocess, tempfile, threading, json, multiprocessing
with tempfile.NamedTemporaryFile() as file:
    file.write(b'x')
print(subprocess.run(['/bin/echo', 'child'], capture_output=True, text=True).stdout.strip())
thread = threading.Thread(target=lambda: print('thread', flush=True)); thread.start(); thread.join()
child = subprocess.Popen(['/bin/sleep', '60']); child.kill(); print(child.wait())
";
        assert_eq!(attack(&sandbox, level, script, folder.path()).await, "child\nthread\n-9", "{level}");
    }
}

#[tokio::test]
async fn a_command_without_a_cpu_limit_can_compute_for_seconds() {
    // The level `docker` is left out, because its CPU limit has other bounds.
    for (level, sandbox) in each_level().await.into_iter().filter(|(level, _)| *level != Level::Docker) {
        let folder = workspace();
        let mut spec = python("while time.process_time() < 2: pass\nprint('done')", folder.path());
        spec.limits.cpu_ms = u64::MAX;
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!(out(&outcome), "done", "{level}: {outcome:?}");
    }
}

#[tokio::test]
async fn a_missing_program_is_reported_as_not_started() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let ran = try_run(&sandbox, level, Spec::new(["no-such-program"], folder.path())).await;
        assert!(matches!(&ran, Err(RunError::NotStarted(why)) if why.contains("no-such-program")), "{level}: {ran:?}");
    }
}

#[tokio::test]
async fn a_granted_path_is_readable_or_writable_as_granted() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let read = workspace();
        let write = workspace();
        std::fs::write(read.path().join("data"), "42").unwrap();
        for open in [&read, &write] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
            std::fs::set_permissions(open.path(), mode).unwrap();
        }
        let script = format!(
            "cat {0}/data; echo x > {0}/new || echo refused; echo y > {1}/new && echo written",
            read.path().display(),
            write.path().display()
        );
        let grants =
            vec![Grant { path: read.path().into(), write: false }, Grant { path: write.path().into(), write: true }];
        let outcome = run(&sandbox, level, Spec { grants, ..shell(&script, folder.path()) }).await;
        assert_eq!(out(&outcome), "42refused\nwritten", "{level}: {}", err(&outcome));
        assert!(!read.path().join("new").exists() && write.path().join("new").exists());
    }
}

#[tokio::test]
async fn output_beyond_the_limit_is_dropped_and_the_command_continues() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = shell("head -c 3000000 /dev/zero; echo end >&2; exit 3", folder.path());
        spec.limits.output_bytes = 1_000;
        let outcome = run(&sandbox, level, spec).await;
        assert_eq!((outcome.stdout.len(), outcome.exit_code, outcome.truncated), (1_000, Some(3), true), "{level}");
        assert_eq!(err(&outcome), "end\n");
    }
}

#[tokio::test]
async fn a_wall_time_limit_or_cancellation_ends_a_run() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let mut spec = shell("echo begun; sleep 600", folder.path());
        // Leaves enough time for the command to start before the limit stops it.
        spec.limits.wall_ms = 1_000;
        let outcome = run(&sandbox, level, spec).await;
        assert!(outcome.timed_out() && out(&outcome) == "begun", "{level}: {outcome:?}");

        let cancel = CancellationToken::new();
        let later = cancel.clone();
        tokio::spawn(async move {
            // The command needs a moment to start.
            tokio::time::sleep(Duration::from_millis(200)).await;
            later.cancel();
        });
        let outcome = sandbox.run(level, shell("sleep 600", folder.path()), &cancel).await.unwrap();
        assert_eq!(outcome.stopped, Some(StopCause::Cancelled), "{level}");
    }
}

#[tokio::test]
async fn the_workspace_is_at_app_workspace_only_at_strict() {
    for (level, sandbox) in each_level().await {
        let folder = workspace();
        let outcome = run(&sandbox, level, shell("cd /app/workspace && echo there", folder.path())).await;
        // Without a mount namespace, the command sees the folder only at the worker's path.
        assert_eq!(out(&outcome) == "there", level == Level::Strict);
    }
}
