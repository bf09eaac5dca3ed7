//! Tests Python interpreters in a sandbox.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::binary::{CommandOutput, DevFleet, command};
use crate::support::documents::REPOSITORY;
use crate::support::files::{short_folder, write};
use crate::support::process::until;
use crate::support::python::interpreter;

const TOOLS: &str = r#"
import os, socket, subprocess
from tickfleet import ToolError, tool

@tool(effect="read")
def look(path: str) -> str:
    """Reads a file."""
    try:
        with open(path, errors="replace") as file:
            return file.read(100)
    except OSError as error:
        raise ToolError.permanent(type(error).__name__) from None

@tool(effect="read")
def connect(port: int) -> str:
    """Connects to this machine."""
    try:
        socket.create_connection(("127.0.0.1", port), 2).close()
    except OSError as error:
        raise ToolError.permanent(type(error).__name__) from None
    return "connected"

@tool(effect="once")
def note(text: str) -> list[str]:
    """Writes into its folder, and lists that."""
    with open("note.txt", "w") as file:
        file.write(text)
    return sorted(os.listdir("."))

@tool(effect="once")
def leave_behind(seconds: str) -> str:
    """Starts what knows neither its group nor its environment."""
    subprocess.Popen(["/bin/sleep", seconds], start_new_session=True, env={})
    return "left"

@tool(effect="once")
def grow() -> int:
    """Takes all memory."""
    return len(b"x" * (4 << 30))
"#;
const NAMES: [&str; 5] = ["look", "connect", "note", "leave_behind", "grow"];

/// If the tests run as root, the sandbox's unprivileged user must be able to run this Python.
fn python() -> PathBuf {
    let mut tell = Command::new(interpreter());
    let found = tell.args(["-c", "import os, sys; print(os.path.realpath(sys.executable))"]).output().unwrap();
    let found = PathBuf::from(String::from_utf8(found.stdout).unwrap().trim());
    let of_root = found.ancestors().skip(1).filter_map(|folder| folder.metadata().ok());
    let is_open = of_root.into_iter().all(|folder| folder.permissions().mode() & 0o005 == 0o005);
    if is_open { found } else { "/usr/bin/python3".into() }
}

fn packages(python: &Path) -> PathBuf {
    let packages = Path::new(env!("CARGO_TARGET_TMPDIR")).join("python-sandbox");
    fs::create_dir_all(&packages).unwrap();
    // The lock is released when the file is closed, even if this process dies.
    let lock = fs::File::create(packages.join("lock")).unwrap();
    lock.lock().unwrap();
    let wanted = ["pydantic==2.12.5", "docstring-parser==0.17.0"];
    if !packages.join("pydantic").exists() {
        let mut pip = Command::new(interpreter());
        pip.args(["-m", "pip", "--quiet", "--python"]).arg(python).args(["install", "--target"]).arg(&packages);
        let output = pip.args(wanted).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
    packages
}

#[allow(clippy::print_stderr, reason = "a test says what it skips")]
fn confined(level: &str, grants: &str) -> Option<tempfile::TempDir> {
    let folder = short_folder();
    let python = python();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    write(folder.path(), "tools/trial.py", TOOLS);
    let packages = packages(&python);
    let source = Path::new(REPOSITORY).join("python/src").canonicalize().unwrap();
    let python = python.display();
    let packages = packages.display();
    let source = source.display();
    let tools = format!(
        "python:\n  trial:\n    module: trial\n    path: [tools]\n    interpreter: {python}\n    processes: 1\n    \
         memory_max: 256MiB\n    env: {{PYTHONPATH: '{source}:{packages}'}}\n    \
         sandbox: {{level: {level}, paths: [{{path: '{source}'}}, {{path: '{packages}'}}]{grants}}}\n"
    );
    write(folder.path(), "conf/tools.yaml", &tools);
    let rows: String = NAMES.iter().map(|name| format!("  {name}: {{everyone: true}}\n")).collect();
    write(folder.path(), "conf/permissions.yaml", &format!("permissions:\n{rows}"));
    let check = CommandOutput::of(command(&["config", "check", "--config", "conf"]).current_dir(folder.path()), "");
    if ["this machine does not support", "this machine cannot restrict"].iter().any(|why| check.stderr.contains(why)) {
        eprintln!("skipped: {}", check.stderr);
        return None;
    }
    check.exits(0);
    Some(folder)
}

fn results(fleet: &DevFleet, calls: &[&str]) -> Vec<Value> {
    let mut submit = vec!["submit", "--tenant", "demo", "--agent", "kelly", "--wait", "--json"];
    submit.extend(calls.iter().flat_map(|call| ["--call", *call]));
    fleet.run(&submit).json()["results"].as_array().unwrap().clone()
}

fn running(ending: &str) -> usize {
    let listed = Command::new("ps").args(["-eo", "args"]).output().unwrap();
    String::from_utf8_lossy(&listed.stdout).lines().filter(|line| line.ends_with(ending)).count()
}

fn reaches_only_what_it_may(level: &str) {
    let Some(folder) = confined(level, "") else { return };
    let listens = TcpListener::bind("127.0.0.1:0").unwrap();
    let secret = folder.path().join("secret");
    fs::write(&secret, "of the host").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let seconds = format!("6{}.25", listens.local_addr().unwrap().port());
    let calls = [
        format!("look {{\"path\": \"{}\"}}", secret.display()),
        "look {\"path\": \"/proc/1/environ\"}".to_owned(),
        format!("connect {{\"port\": {}}}", listens.local_addr().unwrap().port()),
        "note {\"text\": \"mine\"}".to_owned(),
        format!("leave_behind {{\"seconds\": \"{seconds}\"}}"),
        "look {\"path\": \"note.txt\"}".to_owned(),
    ];
    let results = results(&fleet, &calls.each_ref().map(String::as_str));
    for refused in &results[..3] {
        assert_eq!(refused["outcome"], "permanent", "{level}: {refused}");
        let why = refused["error"]["message"].as_str().unwrap();
        assert!(["PermissionError", "FileNotFoundError", "OSError"].contains(&why), "{level}: {refused}");
    }
    assert!(results[3]["output"].as_array().unwrap().contains(&"note.txt".into()), "{level}: {}", results[3]);
    assert_eq!((&results[4]["output"], &results[5]["output"]), (&"left".into(), &"mine".into()), "{level}");
    assert_eq!(running(&format!("/bin/sleep {seconds}")), 1, "{level}");
    assert_eq!(fleet.stop(), Some(0));
    assert_eq!(running(&format!("/bin/sleep {seconds}")), 0, "{level}: a drain leaves nothing behind");
    assert_eq!(running("tickfleet.host --fd 1 --concurrency 8 trial"), 0);
}

#[test]
fn a_confined_function_reaches_its_own_folder_and_leaves_nothing_behind() {
    reaches_only_what_it_may("basic");
    reaches_only_what_it_may("strict");
}

#[test]
fn killing_a_worker_ends_its_confined_interpreters_and_children() {
    let Some(folder) = confined("basic", "") else { return };
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let seconds = format!("7{}.25", std::process::id());
    let left = results(&fleet, &[&format!("leave_behind {{\"seconds\": \"{seconds}\"}}")]);
    assert_eq!((&left[0]["output"], running(&format!("/bin/sleep {seconds}"))), (&"left".into(), 1), "{left:?}");
    drop(fleet);
    until("the program ends", || running(&format!("/bin/sleep {seconds}")), |count| *count == 0);
}

#[test]
fn a_call_that_exhausts_memory_fails_and_the_next_call_runs() {
    let Some(folder) = confined("basic", "") else { return };
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let results = results(&fleet, &["grow {}", "note {\"text\": \"after\"}"]);
    // Python raises an error because it gets no more memory, or the sandbox ends the process.
    assert!(["internal", "outcome_unknown"].contains(&results[0]["outcome"].as_str().unwrap()), "{results:?}");
    assert_eq!(results[1]["outcome"], "ok", "{results:?}");
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn a_confined_function_reaches_only_its_granted_port() {
    let listens = [TcpListener::bind("127.0.0.1:0").unwrap(), TcpListener::bind("127.0.0.1:0").unwrap()];
    let [granted, other] = listens.each_ref().map(|listens| listens.local_addr().unwrap().port());
    let Some(folder) = confined("basic", &format!(", tcp_ports: [{granted}]")) else { return };
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let calls = [granted, other].map(|port| format!("connect {{\"port\": {port}}}"));
    let results = results(&fleet, &calls.each_ref().map(String::as_str));
    assert_eq!(results[0]["output"], "connected", "{results:?}");
    assert_eq!(results[1]["error"]["message"], "PermissionError", "{results:?}");
    assert_eq!(fleet.stop(), Some(0));
}
