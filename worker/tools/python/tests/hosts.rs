//! Tests tool hosts: a separate process listens on a socket and runs interpreters, like a container next to the worker.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[allow(dead_code, reason = "shared with the tests of pools")]
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;
use tempfile::TempDir;
use tickfleet_config::ModulesDef;
use tickfleet_tools::ToolFailure;
use tickfleet_tools_python::Pools;
use tokio::time::timeout;

use support::{PATIENCE, Tools, def, drop_running_call, environment, is_running, python_path, until};

struct ToolHost {
    folder: TempDir,
    process: Child,
}

impl ToolHost {
    /// The host begins to listen a moment later.
    fn start(processes_max: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
        let process = listen(&folder.path().join("trial.sock"), &data, "trial_tools", processes_max);
        Self { folder, process }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("trial.sock")
    }

    fn def(&self) -> ModulesDef {
        entry(&self.socket())
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().try_into().unwrap()), signal).unwrap();
    }

    async fn ended(&mut self) -> bool {
        timeout(PATIENCE, async {
            while self.process.try_wait().unwrap().is_none() {
                // The standard library started the process, so the runtime is not notified of its exit.
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        })
        .await
        .is_ok()
    }
}

impl Drop for ToolHost {
    fn drop(&mut self) {
        // SIGINT lets the host end its interpreters. After SIGKILL, they would run until they detect the host's end.
        let _ = kill(Pid::from_raw(self.process.id().try_into().unwrap()), Signal::SIGINT);
        let _ = self.process.wait();
    }
}

fn entry(socket: &Path) -> ModulesDef {
    ModulesDef {
        host: Some(socket.display().to_string()),
        modules: Vec::new(),
        path: Vec::new(),
        env: BTreeMap::new(),
        ..def()
    }
}

fn listen(socket: &Path, folder: &Path, module: &str, processes_max: usize) -> Child {
    let mut host = Command::new("python3");
    host.args(["-m", "tickfleet.host", "--concurrency", "4", "--processes-max", &processes_max.to_string()]);
    host.arg("--listen").arg(socket).arg("--path").arg(folder).arg(module);
    host.env("PYTHONPATH", python_path()).env("PYTHONDONTWRITEBYTECODE", "1").env("OF_THE_HOST", "yes");
    host.stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

fn described(pools: &Pools, def: &ModulesDef) -> Result<BTreeSet<String>, String> {
    let defs = BTreeMap::from([("python.trial".to_owned(), def.clone())]);
    pools.describe(&defs).map_err(|errors| errors.iter().map(ToString::to_string).collect())
}

#[tokio::test]
async fn a_host_runs_tools_like_a_local_process() {
    let host = ToolHost::start(4);
    let tools = Tools::of(host.def());
    assert_eq!(tools.call("add", json!({"a": 40})).await.unwrap(), json!({"sum": 42}));
    assert_eq!(tools.call("who", json!({})).await.unwrap()["agent"], "kelly");
    let environment = tools.call("environment", json!({})).await.unwrap();
    assert_eq!((&environment["OF_THE_HOST"], environment.get("SHOP_KEY")), (&json!("yes"), None));
    let refused = tools.call("fail", json!({"how": "permanent"})).await;
    assert!(matches!(refused, Err(ToolFailure::Ended { message, .. }) if message == "no"));
    tools.stop().await;
}

#[tokio::test]
async fn a_crash_ends_its_calls_and_children_and_the_next_call_runs() {
    let host = ToolHost::start(4);
    let mut def = host.def();
    def.processes = 1;
    let tools = Tools::of(def);
    let left = tools.call("leave_behind", json!({})).await.unwrap();
    let left: Vec<i64> = left.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
    assert!(left.iter().all(|process| is_running(*process)));
    let crashed = tools.call("crash", json!({})).await;
    assert!(matches!(crashed, Err(ToolFailure::Transient { not_executed: false, .. })), "{crashed:?}");
    let after = timeout(PATIENCE, tools.call("add", json!({"a": 1}))).await.unwrap();
    assert_eq!(after.unwrap(), json!({"sum": 3}));
    until(PATIENCE, async || !left.iter().any(|process| is_running(*process))).await;
    tools.stop().await;
}

#[tokio::test]
async fn a_call_that_ignores_cancellation_ends_its_interpreter() {
    let host = ToolHost::start(4);
    let mut def = host.def();
    (def.processes, def.concurrency, def.cancel_grace) = (1, 1, Duration::from_millis(300));
    let tools = Tools::of(def);
    let process = tools.call("wait", json!({"seconds": 0})).await.unwrap();
    let _running = drop_running_call(&tools).await;
    let next = timeout(PATIENCE, tools.call("wait", json!({"seconds": 0}))).await.unwrap().unwrap();
    assert_ne!(next, process);
    until(PATIENCE, async || !is_running(process.as_i64().unwrap())).await;
    tools.stop().await;
}

#[tokio::test]
async fn a_terminated_host_ends_after_its_worker_disconnects() {
    let mut host = ToolHost::start(4);
    let tools = Tools::of(host.def());
    let process = tools.call("wait", json!({"seconds": 0})).await.unwrap().as_i64().unwrap();
    let left = tools.call("leave_behind", json!({})).await.unwrap();
    let left: Vec<i64> = left.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
    host.signal(Signal::SIGTERM);
    // A draining worker is served until it disconnects.
    assert_eq!(tools.call("add", json!({"a": 1})).await.unwrap(), json!({"sum": 3}));
    drop(tools);
    assert!(host.ended().await && !host.socket().exists());
    until(PATIENCE, async || !left.iter().chain([&process]).any(|process| is_running(*process))).await;
}

#[tokio::test]
async fn a_restarted_host_serves_calls_again() {
    let mut host = ToolHost::start(4);
    let tools = Tools::of(host.def());
    assert!(tools.call("add", json!({"a": 1})).await.is_ok());
    host.signal(Signal::SIGKILL);
    assert!(host.ended().await);
    // The host's socket file still exists, but nothing listens on it.
    assert!(host.socket().exists());
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    host.process = listen(&host.socket(), &data, "trial_tools", 4);
    // In a container, the interpreters die with their host. Here the running interpreter continues to serve.
    assert!(tools.call("crash", json!({})).await.is_err());
    let again = async || tools.call("add", json!({"a": 1})).await.is_ok();
    until(PATIENCE, again).await;
    tools.stop().await;
}

#[tokio::test]
async fn a_host_with_changed_tools_rejects_calls() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("shop.sock");
    let shop = |name: &str| {
        let text =
            format!("from tickfleet import tool\n\n@tool\ndef {name}(sku: str) -> int:\n    'Counts.'\n    return 7\n");
        fs::write(folder.path().join("shop.py"), text).unwrap();
        ToolHost { folder: tempfile::tempdir().unwrap(), process: listen(&socket, folder.path(), "shop", 4) }
    };
    let host = shop("stock");
    let def = entry(&socket);
    let pools = Pools::new(environment());
    assert_eq!(described(&pools, &def).unwrap(), BTreeSet::from(["stock".to_owned()]));
    let tools = Tools::with_timeout(def.clone(), Duration::from_secs(4));
    drop(host);
    let _host = shop("count");
    let call = tools.call("stock", json!({"sku": "a"})).await;
    assert!(matches!(call, Err(ToolFailure::Transient { not_executed: true, .. })), "{call:?}");
    assert_eq!(described(&pools, &def).unwrap(), BTreeSet::from(["count".to_owned()]));
    tools.stop().await;
}

#[test]
fn a_host_error_is_reported_with_its_cause() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("shop.sock");
    let def = ModulesDef { start_timeout: Duration::from_millis(300), ..entry(&socket) };
    let error = described(&Pools::new(environment()), &def).unwrap_err();
    assert!(error.contains("python.trial: no tool host listens at /") && error.contains("within 0.3 s"), "{error}");
    // A process that only inspects the configuration does not need the host.
    let looks = Pools::new(environment()).allow_missing_hosts();
    assert_eq!(described(&looks, &def).unwrap(), BTreeSet::new());
    assert_eq!(looks.left_out(), BTreeSet::from(["python.trial".to_owned()]));

    fs::write(folder.path().join("broken.py"), "import json\njson.loads('{')\n").unwrap();
    let _host = ToolHost { folder: tempfile::tempdir().unwrap(), process: listen(&socket, folder.path(), "broken", 4) };
    let error = described(&Pools::new(environment()), &entry(&socket)).unwrap_err();
    assert!(error.contains("a module cannot be imported") && error.contains("broken.py\", line 2"), "{error}");
}

#[tokio::test]
async fn a_full_host_reports_its_limit() {
    let host = ToolHost::start(1);
    let mut def = host.def();
    def.processes = 1;
    let tools = Tools::of(def.clone());
    assert!(tools.call("add", json!({"a": 1})).await.is_ok());
    let error = tokio::task::spawn_blocking(move || described(&Pools::new(environment()), &def)).await.unwrap();
    let error = error.unwrap_err();
    assert!(error.contains("the tool host rejected the request: it already runs 1 interpreters"), "{error}");
    tools.stop().await;
}
