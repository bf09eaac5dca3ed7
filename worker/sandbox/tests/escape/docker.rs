//! The level `docker`. A script that records its arguments replaces the engine's client.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use tickfleet_sandbox::{Engine, Grant, Level, RunError, Sandbox, Spec, StopCause};
use tokio_util::sync::CancellationToken;

use crate::support::*;

/// The client records its arguments in the file `log`, and then runs the shell code `rest`.
fn recorder(folder: &Path, rest: &str) -> Engine {
    let program = folder.join("engine");
    let log = folder.join("log");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = version ]; then echo 1; exit 0; fi\n\
         for a in \"$@\"; do printf '%s\\n' \"$a\"; done >> {0}\necho == >> {0}\n\
         if [ \"$1\" = rm ]; then exit 0; fi\n{rest}\n",
        log.display()
    );
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    Engine { program, image: "python:3-slim".into() }
}

async fn sandbox_with(engine: Engine, folder: &Path) -> Sandbox {
    Sandbox::probe(launcher(), Some(engine), folder).await
}

#[tokio::test]
async fn a_container_gets_no_network_no_privilege_and_one_mount() {
    let folder = workspace();
    let tools = tempfile::tempdir().unwrap();
    let engine = recorder(tools.path(), "cat; echo problem >&2; exit 4");
    let sandbox = sandbox_with(engine, folder.path()).await;
    assert_eq!(sandbox.support().docker, None);
    let mut spec = Spec::new(["sort", "-r", "a b; c"], folder.path());
    spec.stdin = b"input".to_vec();
    let outcome = run(&sandbox, Level::Docker, spec).await;
    assert_eq!((out(&outcome).as_str(), outcome.exit_code), ("input", Some(4)));
    let log = std::fs::read_to_string(tools.path().join("log")).unwrap();
    let lines: Vec<&str> = log.lines().collect();
    for option in [
        "--rm",
        "--read-only",
        "--cap-drop=ALL",
        "--security-opt=no-new-privileges",
        "--pids-limit=64",
        "--memory=536870912",
        "--workdir=/app/workspace",
    ] {
        assert!(lines.contains(&option), "{option} is missing: {log}");
    }
    let at = lines.iter().position(|line| *line == "--network").unwrap();
    assert_eq!(lines[at + 1], "none");
    let mounts: Vec<_> = lines.iter().filter(|line| line.contains("--mount") || line.contains("--volume")).collect();
    assert_eq!(mounts, [&format!("--mount=type=bind,source={},target=/app/workspace", folder.path().display())]);
    assert!(!lines.iter().any(|line| line.contains("--privileged") || line.contains("--user=0")));
    assert_eq!(lines[lines.len() - 6..], ["--entrypoint", "sort", "python:3-slim", "-r", "a b; c", "=="]);
}

#[tokio::test]
async fn a_timed_out_container_is_removed_by_name() {
    let folder = workspace();
    let tools = tempfile::tempdir().unwrap();
    let sandbox = sandbox_with(recorder(tools.path(), "exec sleep 600"), folder.path()).await;
    let mut spec = Spec::new(["sleep", "600"], folder.path());
    // Leaves enough time for the container to start before the limit stops it.
    spec.limits.wall_ms = 1_000;
    let outcome = sandbox.run(Level::Docker, spec, &CancellationToken::new()).await.unwrap();
    assert_eq!(outcome.stopped, Some(StopCause::Wall));
    for _ in 0..100 {
        let log = std::fs::read_to_string(tools.path().join("log")).unwrap();
        let name = log.lines().find_map(|line| line.strip_prefix("--name=")).unwrap().to_owned();
        if log.contains(&format!("rm\n--force\n{name}\n==")) {
            return;
        }
        // A separate process removes the container, so the test waits.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("it was not removed");
}

#[tokio::test]
async fn a_container_over_its_limit_is_stopped_and_its_client_gets_no_secrets() {
    let folder = workspace();
    let tools = tempfile::tempdir().unwrap();
    for rest in ["exec sleep 600", "exit 0"] {
        let fill = format!(
            "env > {0}/variables; head -c 100000 /dev/zero > {1}/f; {rest}",
            tools.path().display(),
            folder.path().display()
        );
        let sandbox = sandbox_with(recorder(tools.path(), &fill), folder.path()).await;
        let mut spec = Spec::new(["fill"], folder.path());
        (spec.limits.wall_ms, spec.limits.workspace_bytes) = (20_000, 50_000);
        let outcome = run(&sandbox, Level::Docker, spec).await;
        assert_eq!(outcome.stopped, Some(StopCause::WorkspaceBytes), "{rest}");
    }
    let variables = std::fs::read_to_string(tools.path().join("variables")).unwrap();
    // The client must get only the variables that are meant for it. The values are not compared.
    let name = |line: &str| line.split('=').next().map(String::from).unwrap_or_default();
    let mut names: Vec<String> = variables.lines().map(name).collect();
    names.retain(|name| !["PATH", "HOME", "PWD", "OLDPWD", "SHLVL", "_"].contains(&name.as_str()));
    names.retain(|name| !["DOCKER_", "CONTAINER", "XDG_"].iter().any(|prefix| name.starts_with(prefix)));
    assert_eq!(names, Vec::<String>::new());
}

#[tokio::test]
async fn docker_rejects_grants_and_reports_a_missing_engine() {
    let folder = workspace();
    let tools = tempfile::tempdir().unwrap();
    let sandbox = sandbox_with(recorder(tools.path(), "exit 0"), folder.path()).await;
    let mut spec = Spec::new(["true"], folder.path());
    spec.grants.push(Grant { path: "/srv".into(), write: false });
    assert!(matches!(try_run(&sandbox, Level::Docker, spec).await, Err(RunError::Machine(_))));
    let engine = Engine { program: "/no/such/engine".into(), image: "x".into() };
    let sandbox = sandbox_with(engine, folder.path()).await;
    assert!(sandbox.support().docker.as_ref().unwrap().contains("/no/such/engine"));
}
