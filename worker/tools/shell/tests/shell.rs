//! Tests shell and file tools, called as a worker calls them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]
#![allow(clippy::print_stderr, reason = "a test says what it skips")]

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json, value::to_raw_value};
use tempfile::TempDir;
use tickfleet_config::tools::ShellDef;
use tickfleet_model::{AgentId, CallId, Effect, TaskGrant, TaskId, TenantId, TurnId};
use tickfleet_sandbox::Launcher;
use tickfleet_tools::{CallContext, DeclarationError, Environment, Handler, ToolFailure, ToolKind};
use tickfleet_tools_shell::{Shell, ShellKind, builtin};

/// `None` if the program was not built before these tests.
fn launcher() -> Option<Launcher> {
    let beside = std::env::current_exe().unwrap().parent()?.parent()?.join("tickfleet-sandbox-exec");
    if !beside.exists() {
        eprintln!("skipped: {} is not built; run `cargo build -p tickfleet-sandbox`", beside.display());
    }
    beside.exists().then(|| Launcher::program(beside))
}

fn root() -> TempDir {
    let root = tempfile::tempdir().unwrap();
    // Other users reach their workspaces through this folder.
    std::fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o711)).unwrap();
    root
}

fn shell(root: &TempDir, launcher: Launcher) -> Arc<Shell> {
    Shell::new(launcher, root.path(), Duration::from_secs(60))
}

fn call_of(tenant: &str, task: Option<&str>) -> CallContext {
    let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
    let task = task.map(|task| (TaskId::new(task).unwrap(), TaskGrant::default()));
    CallContext { task, ..CallContext::new(TenantId::new(tenant).unwrap(), AgentId::new("kelly").unwrap(), call) }
}

async fn run(handler: &Arc<dyn Handler>, context: &CallContext, arguments: Value) -> Result<Value, ToolFailure> {
    let arguments = to_raw_value(&arguments).unwrap();
    handler.call(context, &arguments).await.map(|output| serde_json::from_str(output.json.get()).unwrap())
}

fn declared(shell: &Arc<Shell>, def: Value) -> Result<Arc<dyn Handler>, DeclarationError> {
    let def: ShellDef = serde_json::from_value(def).unwrap();
    let schema = json!({"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}});
    ShellKind::new(Arc::clone(shell)).make(&def, &schema, Effect::Read).map(|made| made.handler)
}

fn builtin_tool(shell: &Arc<Shell>, name: &str) -> Option<Arc<dyn Handler>> {
    let running = shell.strictest().map(|level| builtin::running(shell, level)).unwrap_or_default();
    let tool = builtin::files(shell).into_iter().chain(running).find(|tool| tool.spec().name == name)?;
    Some(tool.into_parts(Duration::from_secs(30), &Environment::of([])).1)
}

fn level(shell: &Arc<Shell>) -> Option<String> {
    let level = shell.strictest();
    if level.is_none() {
        eprintln!("skipped: {}", shell.support());
    }
    level.map(|level| level.to_string())
}

#[tokio::test]
async fn arguments_fill_single_elements_and_exit_codes_map_to_outcomes() {
    let Some(launcher) = launcher() else { return };
    let root = root();
    let shell = shell(&root, launcher);
    let Some(level) = level(&shell) else { return };
    let tool = declared(
        &shell,
        json!({
            "level": level,
            "command": ["/bin/sh", "-c", "cat; printf '[%s]' \"$@\"; exit ${#1}", "sh", "{{text}}", "--n={{n}}"],
            "stdin": "in: {{text}}", "transient_exits": [3], "permanent_exits": [4],
        }),
    )
    .unwrap();
    let context = call_of("acme", None);
    let result = run(&tool, &context, json!({"text": "$(x) ;"})).await;
    assert_eq!(result.unwrap()["stdout"], "in: $(x) ;[$(x) ;]", "6 means nothing, and the option is left out");
    let result = run(&tool, &context, json!({"text": "", "n": 5})).await.unwrap();
    assert_eq!((&result["stdout"], &result["exit_code"]), (&json!("in: [][--n=5]"), &json!(0)));
    assert_eq!((&result["truncated"], &result["timed_out"]), (&json!(false), &json!(false)));
    let failed = run(&tool, &context, json!({"text": "abc"})).await;
    assert!(matches!(failed, Err(ToolFailure::Transient { not_executed: false, .. })), "{failed:?}");
    let failed = run(&tool, &context, json!({"text": "abcd"})).await;
    assert!(matches!(failed, Err(ToolFailure::Ended { .. })), "{failed:?}");
}

#[tokio::test]
async fn a_script_runs_from_stdin_until_its_time_limit() {
    let Some(launcher) = launcher() else { return };
    let root = root();
    let shell = shell(&root, launcher);
    let Some(level) = level(&shell) else { return };
    let def = json!({"level": level, "command": ["/bin/sh"], "stdin": "{{text}}", "limits": {"wall_ms": 300}});
    let tool = declared(&shell, def).unwrap();
    let result = run(&tool, &call_of("acme", None), json!({"text": "echo begun; sleep 60"})).await.unwrap();
    assert_eq!(result["stdout"], "begun\n");
    assert_eq!((&result["timed_out"], &result["exit_code"]), (&json!(true), &Value::Null));
}

#[tokio::test]
async fn a_tool_without_a_working_sandbox_is_rejected_and_never_runs() {
    let root = root();
    // Imitates a machine with a policy that kills launchers.
    let shell = shell(&root, Launcher::program("/bin/true"));
    for level in ["basic", "strict"] {
        let refused = declared(&shell, json!({"level": level, "command": ["id"]}));
        assert!(matches!(refused.err(), Some(DeclarationError::Machine(why)) if why.contains(level)));
    }
    // A lenient worker registers the tool, but rejects its calls.
    let def: ShellDef = serde_json::from_value(json!({"level": "basic", "command": ["id"]})).unwrap();
    let made = ShellKind::lenient(Arc::clone(&shell)).make(&def, &json!({"type": "object"}), Effect::Read).unwrap();
    assert!(!made.configured);
    let refused = run(&made.handler, &call_of("acme", None), json!({})).await.unwrap_err();
    assert!(matches!(refused, ToolFailure::NotConfigured { message } if message.contains("basic")));
    let commands = builtin::refused(&shell);
    assert!(commands.len() == 2 && commands.iter().all(|tool| !tool.spec().configured));
    for (command, arguments) in commands.into_iter().zip([json!({"command": "id"}), json!({"code": "1"})]) {
        let name = command.spec().name.clone();
        let handler = command.into_parts(Duration::from_secs(30), &Environment::of([])).1;
        let refused = run(&handler, &call_of("acme", None), arguments).await.unwrap_err();
        assert!(matches!(&refused, ToolFailure::NotConfigured { .. }), "{name}: {refused:?}");
    }
    assert!(shell.strictest().is_none() && builtin_tool(&shell, "run_command").is_none());
    assert!(builtin_tool(&shell, "read_file").is_some(), "files need no sandbox");
}

#[tokio::test]
async fn an_invalid_declaration_names_its_field() {
    let root = root();
    let shell = shell(&root, Launcher::program("/bin/true"));
    for (def, expected) in [
        (json!({"level": "basic", "command": []}), "shell.command"),
        (json!({"level": "basic", "command": ["{{text}}"]}), "shell.command"),
        (json!({"level": "basic", "command": ["echo", "{{nothing}}"]}), "shell.command"),
        (json!({"level": "basic", "command": ["echo"], "paths": [{"path": "/"}]}), "shell.paths"),
    ] {
        match declared(&shell, def).err() {
            Some(DeclarationError::Field { field, .. }) => assert_eq!(field, expected),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn files_and_commands_share_only_the_workspace_of_their_task() {
    let Some(launcher) = launcher() else { return };
    let root = root();
    let first = shell(&root, launcher.clone());
    if level(&first).is_none() {
        return;
    }
    let context = call_of("acme", Some("report"));
    let tool = |shell: &Arc<Shell>, name: &str| builtin_tool(shell, name).unwrap();
    run(&tool(&first, "write_file"), &context, json!({"path": "src/a.py", "content": "print(6 * 7)\n"})).await.unwrap();
    let command = json!({"command": "cat src/a.py && echo made > made"});
    let ran = run(&tool(&first, "run_command"), &context, command).await.unwrap();
    assert_eq!(ran["exit_code"], 0, "{ran}");

    // Another worker with the same folder continues with the files of the first worker.
    let second = shell(&root, launcher);
    let ran = run(&tool(&second, "run_python"), &context, json!({"code": "exec(open('src/a.py').read())"})).await;
    assert_eq!(ran.unwrap()["stdout"], "42\n");
    let read = run(&tool(&second, "read_file"), &context, json!({"path": "/app/workspace/made"})).await.unwrap();
    assert_eq!(read["content"], "made\n");
    let edit = json!({"path": "src/a.py", "old": "6 * 7", "new": "1"});
    assert_eq!(run(&tool(&second, "edit_file"), &context, edit).await.unwrap()["replaced"], 1);
    let found = run(&tool(&second, "search_files"), &context, json!({"pattern": r"print\(1\)"})).await.unwrap();
    assert_eq!(found["matches"], json!([{"path": "src/a.py", "line": 1, "text": "print(1)"}]));

    for other in [call_of("acme", Some("other")), call_of("globex", Some("report")), call_of("acme", None)] {
        let listed = run(&tool(&second, "list_files"), &other, json!({})).await.unwrap();
        assert_eq!(listed["entries"], json!([]));
    }
}

#[tokio::test]
async fn file_tool_errors_explain_how_to_recover() {
    let root = root();
    let shell = shell(&root, Launcher::program("/bin/true"));
    let context = call_of("acme", None);
    let tool = |name: &str| builtin_tool(&shell, name).unwrap();
    run(&tool("write_file"), &context, json!({"path": "f", "content": "a b a"})).await.unwrap();
    for (name, arguments, expected) in [
        ("read_file", json!({"path": "missing"}), "list_files lists"),
        ("read_file", json!({"path": "../f"}), "leaves the workspace"),
        ("read_file", json!({"path": "/etc/passwd"}), "below /app/workspace"),
        ("edit_file", json!({"path": "f", "old": "a", "new": "c"}), "occurs 2 times"),
        ("edit_file", json!({"path": "f", "old": "x", "new": "c"}), "exactly as the file has it"),
        ("write_file", json!({"path": "f/g", "content": ""}), "not a folder"),
    ] {
        match run(&tool(name), &context, arguments).await {
            Err(ToolFailure::Ended { message, .. }) => assert!(message.contains(expected), "{name}: {message}"),
            other => panic!("{name}: {other:?}"),
        }
    }
}
