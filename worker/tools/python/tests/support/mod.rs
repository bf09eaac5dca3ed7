//! Pools with the trial tools, and the Python packages that their interpreter needs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde_json::Value;
use serde_json::value::to_raw_value;
use tickfleet_config::{ModulesDef, ToolRuntime};
use tickfleet_model::{AgentId, CallId, TenantId, ToolSpec, TurnId};
use tickfleet_tools::inner::Inner;
use tickfleet_tools::{CallContext, Environment, Handler, ToolFailure, TypedTool};
use tickfleet_tools_python::Pools;

pub const PATIENCE: Duration = Duration::from_secs(60);

const PYPI: [&str; 2] = ["pydantic==2.12.5", "docstring-parser==0.17.0"];

/// The Python packages, which are installed once, into cargo's target folder.
pub fn python_path() -> &'static str {
    static PATH: OnceLock<String> = OnceLock::new();
    PATH.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("python-packages");
        fs::create_dir_all(&target).unwrap();
        // The lock is released when the file is closed, even if this process is killed.
        let lock = File::create(target.join("lock")).unwrap();
        lock.lock().unwrap();
        let wanted = PYPI.join(" ");
        let installed = target.join("installed");
        if !fs::read_to_string(&installed).is_ok_and(|have| have == wanted) {
            let mut pip = Command::new("python3");
            pip.args(["-m", "pip", "install", "--quiet", "--upgrade", "--target"]).arg(target.join("pip")).args(PYPI);
            let output = pip.output().expect("python3, which has pip");
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            fs::write(installed, wanted).unwrap();
        }
        format!("{}:{}", repository().join("python/src").display(), target.join("pip").display())
    })
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

pub fn def() -> ModulesDef {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    ModulesDef {
        runtime: ToolRuntime::Python,
        host: None,
        modules: vec!["trial_tools".into()],
        path: vec![data.display().to_string()],
        interpreter: "python3".into(),
        cwd: None,
        processes: 2,
        concurrency: 8,
        recycle_after_calls: 10_000,
        memory_max: 512 << 20,
        start_timeout: Duration::from_secs(60),
        cancel_grace: Duration::from_secs(5),
        env: BTreeMap::from([
            ("PYTHONPATH".to_owned(), python_path().to_owned()),
            ("PYTHONDONTWRITEBYTECODE".to_owned(), "1".to_owned()),
        ]),
        secrets: BTreeMap::new(),
        sandbox: None,
    }
}

pub fn environment() -> Environment {
    #[allow(clippy::disallowed_methods, reason = "the interpreter of the tests is found as everything else is")]
    let path = std::env::var("PATH").unwrap();
    Environment::of([("PATH", path.as_str()), ("SHOP_KEY", "s3cret-value"), ("HOME", "/nowhere")])
}

pub struct Tools {
    pub pools: Pools,
    tools: BTreeMap<String, (ToolSpec, Arc<dyn Handler>)>,
}

impl Tools {
    pub fn of(def: ModulesDef) -> Self {
        Self::with_timeout(def, Duration::from_secs(30))
    }

    pub fn with_timeout(def: ModulesDef, limit: Duration) -> Self {
        let pools = Pools::new(environment());
        let tools = pools.tools(&BTreeMap::from([("python.trial".to_owned(), def)]), limit).unwrap();
        let parts = |tool: TypedTool| {
            let (spec, handler) = tool.into_parts(limit, &environment());
            (spec.name.clone(), (spec, handler))
        };
        let tools = tools.into_iter().map(parts).collect();
        Self { pools, tools }
    }

    pub fn spec(&self, tool: &str) -> &ToolSpec {
        &self.tools[tool].0
    }

    pub async fn call(&self, tool: &str, arguments: Value) -> Result<Value, ToolFailure> {
        self.call_with(Inner::default(), tool, arguments).await
    }

    pub async fn call_with(&self, inner: Inner, tool: &str, arguments: Value) -> Result<Value, ToolFailure> {
        let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
        let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
        let context = CallContext { inner, ..context };
        let output = self.tools[tool].1.call(&context, &to_raw_value(&arguments).unwrap()).await?;
        Ok(serde_json::from_str(output.json.get()).unwrap())
    }

    pub async fn stop(&self) {
        self.pools.stop().await;
    }
}

/// Drops a call that ignores cancellation, after its function has begun. The call continues while the folder exists.
pub async fn drop_running_call(tools: &Tools) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let has_begun = async || fs::read_dir(folder.path()).unwrap().count() == 1;
    tokio::select! {
        ended = tools.call("meet", serde_json::json!({"folder": folder.path(), "count": 2})) => panic!("{ended:?}"),
        () = until(PATIENCE, has_begun) => {}
    }
    folder
}

/// A process that has exited but was not reaped does not count.
pub fn is_running(process: i64) -> bool {
    let state = fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    !state.is_empty() && !state.contains(") Z ")
}

pub async fn until(patience: Duration, is_so: impl AsyncFn() -> bool) {
    let began = tokio::time::Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < patience, "it never was so");
        // A test cannot wait for the exit of a process that is not its child, so it polls.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
