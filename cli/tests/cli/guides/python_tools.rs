//! Tests tools in Python: changed code, and interpreters that crash or hang.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::SystemTime;

use serde_json::{Value, json};

use crate::support::binary::{CommandOutput, DevFleet, command, submit, until_printed};
use crate::support::documents::REPOSITORY;
use crate::support::files::{short_folder, write};
use crate::support::process::until;
use crate::support::python::interpreter;

#[test]
fn changed_code_runs_without_a_restart_unless_it_cannot_be_imported() {
    let folder = short_folder();
    let source = Path::new(REPOSITORY).join("docs/snippets/shop-python");
    assert!(Command::new("cp").arg("-R").arg(source).arg(folder.path()).status().unwrap().success());
    // Python treats bytecode as current if size and modification time (in seconds) of the source are unchanged.
    let tools_file = fs::File::options().append(true).open(folder.path().join("shop-python/tools/shop_tools.py"));
    tools_file.unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    let environment = interpreter().ancestors().nth(2).unwrap().to_owned();
    std::os::unix::fs::symlink(environment, folder.path().join(".venv")).unwrap();
    let fleet = DevFleet::start_in(folder.path(), &["--config", "shop-python"], &[]);
    let call = "check_stock {\"sku\": \"MUG-1\"}";
    let turn = ["submit", "--tenant", "acme", "--agent", "support", "--call", call, "--wait", "--json"];
    let pieces = || fleet.run(&turn).json()["results"][0]["output"]["pieces"].clone();
    assert_eq!(pieces(), 12);
    let module = "shop-python/tools/shop_tools.py";
    let tools = fs::read_to_string(folder.path().join(module)).unwrap();
    write(folder.path(), module, &tools.replace("\"MUG-1\": 12", "\"MUG-1\": 77"));
    until("the new code runs", pieces, |pieces| *pieces == 77);
    let tried = folder.path().join("tried");
    write(folder.path(), module, &format!("open({tried:?}, \"w\")\nimport nowhere\n"));
    while !tried.exists() {
        assert_eq!(pieces(), 77);
    }
    assert_eq!(pieces(), 77);
    let mut check = command(&["config", "check", "--config", "shop-python"]);
    let said = CommandOutput::of(check.current_dir(folder.path()), "").exits(1);
    said.prints_error("python.shop: a module cannot be imported:").prints_error("No module named 'nowhere'");
    assert!(!said.stderr.contains("importlib"), "only lines of the tools: {}", said.stderr);
    assert_eq!(fleet.stop(), Some(0));
}

const CHART: &str = r#"
from tickfleet import Image, tool

PNG = bytes.fromhex("89504e470d0a1a0a")

@tool(effect="read")
def sales_chart(month: str, size: int = 0) -> list[str | Image]:
    """Draws the sales of a month."""
    return [f"Sales in {month}", Image(PNG + b"x" * size)]
"#;

#[test]
fn an_image_of_a_python_tool_reaches_the_model_and_the_audit_log_describes_it() {
    let folder = short_folder();
    write(folder.path(), "chart.py", CHART);
    let tools = format!(
        "python:\n  charts:\n    module: chart\n    path: ['.']\n    interpreter: {}\n",
        interpreter().display()
    );
    write(folder.path(), "conf/tools.yaml", &tools);
    write(folder.path(), "conf/permissions.yaml", "permissions:\n  sales_chart: {everyone: true}\n");
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let reply_with = |size: usize| {
        let input = json!({"month": "May", "size": size});
        let content = json!([{"type": "tool_use", "id": "c1", "name": "sales_chart", "input": input}]);
        let submit = submit(&["-", "--format", "anthropic", "--wait", "--json"]);
        fleet.run_with(&submit, &content.to_string()).json()
    };
    let reply = reply_with(0);
    let image = json!({"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="});
    let expected = json!([{"type": "text", "text": "Sales in May"}, {"type": "image", "source": image}]);
    assert_eq!(reply["messages"][0]["content"][0]["content"], expected, "{reply}");
    assert_eq!(reply["results"][0]["content_type"], "application/vnd.tickfleet.content+json");
    assert_eq!(reply["results"][0]["output"][1]["mimeType"], "image/png");
    let reply = reply_with(100_000);
    let note = "[an image (image/png), about 100008 bytes, too large for a result, not shown]";
    let expected = json!([{"type": "text", "text": "Sales in May"}, {"type": "text", "text": note}]);
    assert_eq!(reply["messages"][0]["content"][0]["content"], expected, "{reply}");
    let search = || fleet.run(&["audit", "search", "--tool", "sales_chart", "--json"]);
    until_printed("[an image (image/png), about 9 bytes, not shown]", search);
    assert!(!search().stdout.contains("iVBORw0KGgo="));
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn the_python_package_passes_its_tests_and_type_checks() {
    for tool in [["pytest", "-q"], ["mypy", "--no-error-summary"]] {
        let mut run = Command::new(interpreter());
        run.args(["-B", "-m"]).args(tool).current_dir(Path::new(REPOSITORY).join("python"));
        let output = run.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{tool:?}:\n{}", String::from_utf8_lossy(&said));
    }
}

const TROUBLE: &str = r#"
import ctypes, time
from typing import Literal
from tickfleet import Context, tool

@tool(effect="once")
def crash_once() -> None:
    """Takes its interpreter down."""
    ctypes.string_at(0)

@tool(effect="read")
def crash_first(context: Context) -> dict[str, int]:
    """Takes its interpreter down at the first try."""
    if context.attempt == 1:
        ctypes.string_at(0)
    return {"attempt": context.attempt}

@tool(effect="once", timeout=0.4)
def hang() -> None:
    """Sleeps, whoever waits."""
    time.sleep(600)

@tool(effect="read")
def bug() -> None:
    """Has a bug that knows a secret."""
    raise KeyError("s3cret-value")

@tool(effect="read")
def pick(colour: Literal["red", "blue"]) -> str:
    """Picks."""
    return colour

@tool(effect="read")
def secretly() -> str:
    """Nobody may call it."""
    return "called"
"#;

fn processes(folder: &Path, url: &str) -> [Child; 2] {
    let start = |role: &str, interpreter: &str| {
        let mut process = command(&[role, "--config", "conf"]);
        process.current_dir(folder).env("REDIS_URL", url).env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0");
        process.env("PYTHON", interpreter).stdout(Stdio::null()).stderr(Stdio::null());
        process.spawn().unwrap()
    };
    [start("scheduler", "no-such-python"), start("worker", &interpreter().display().to_string())]
}

#[test]
fn a_failed_python_call_is_reported_according_to_its_effect() {
    let folder = short_folder();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let server = runtime.block_on(tickfleet_testkit::RedisServer::start());
    write(folder.path(), "trouble.py", TROUBLE);
    let tools = "python:\n  trial:\n    module: trouble\n    path: ['.']\n    interpreter: ${PYTHON:-python3}\n    \
                 concurrency: 1\n    cancel_grace: 300ms\n";
    write(folder.path(), "conf/tools.yaml", tools);
    let names = ["crash_once", "crash_first", "hang", "bug", "pick"];
    let rows: String = names.iter().map(|name| format!("  {name}: {{everyone: true}}\n")).collect();
    write(folder.path(), "conf/permissions.yaml", &format!("permissions:\n{rows}"));
    let mut running = processes(folder.path(), &server.url());
    let mut submit = vec!["submit", "--config", "conf", "--tenant", "demo", "--agent", "kelly", "--wait", "--json"];
    let calls = [
        "crash_once",
        "crash_first",
        "hang",
        "bug",
        "pick {\"colour\": \"green\"}",
        "pick {\"colour\": \"red\"}",
        "secretly",
    ];
    submit.extend(calls.iter().flat_map(|call| ["--call", *call]));
    let mut client = command(&submit);
    let reply = CommandOutput::of(client.current_dir(folder.path()).env("REDIS_URL", server.url()), "").json();
    let interpreters = || {
        let listed = Command::new("ps").args(["-eo", "args"]).output().unwrap();
        let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
        listed.lines().filter(|line| line.contains("tickfleet.host") && line.ends_with("trouble")).count()
    };
    assert!(interpreters() > 0);
    for process in &mut running {
        let id = nix::unistd::Pid::from_raw(process.id().try_into().unwrap());
        nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(process.wait().unwrap().success());
    }
    assert_eq!(interpreters(), 0, "a drain leaves no process behind");

    let ends: Vec<&Value> = (0..calls.len()).map(|n| &reply["results"][n]["outcome"]).collect();
    let expected = ["outcome_unknown", "ok", "outcome_unknown", "internal", "invalid_arguments", "ok", "denied"];
    assert_eq!(ends, expected.map(Value::from).iter().collect::<Vec<_>>(), "{reply:#}");
    assert_eq!(reply["results"][1]["output"], json!({"attempt": 2}));
    let reported = reply["results"][3]["error"]["message"].as_str().unwrap();
    assert!(!reported.contains("KeyError") && !reported.contains("s3cret"), "a model sees no stack: {reported}");
}

const GUARDED: &str = r#"
import datetime, enum
from decimal import Decimal
from typing import Annotated
from pydantic import Field
from tickfleet import Approval, Cache, Context, Reconcile, tool

class Kind(enum.Enum):
    INVOICE = "invoice"

@tool(effect_key=["/to", "/amount"], effect_window=3600, category="payments", durable="none")
def pay(to: str, amount: Decimal, kind: Kind = Kind.INVOICE, due: datetime.date | None = None) -> dict[str, str]:
    """Pays.

    Args:
        to: Account.
        amount: Amount.
        kind: Kind.
        due: Due date.
    """
    pay.count += 1
    return {"to": to, "amount": str(amount), "count": str(pay.count)}

pay.count = 0

@tool(effect="read", cache=Cache(ttl=600))
def look(code: Annotated[str, Field(pattern=r"^(?!0)\d+$", description="Code.")]) -> dict[str, int]:
    """Looks."""
    look.count += 1
    return {"count": look.count}

look.count = 0

@tool(approval=Approval(by=["finance"]))
def ask() -> None:
    """Asks."""

@tool(effect="read")
def find_payment(key: str) -> dict[str, bool]:
    """Finds a payment.

    Args:
        key: Key.
    """
    return {"found": True}

@tool(reconcile=Reconcile(tool="find_payment", arguments={"key": "$idempotency_key"}, happened="/found", grace=1))
def lose(context: Context) -> None:
    """Takes effect, and fails."""
    raise RuntimeError("lost")

@tool(effect="read")
def ratio() -> dict[str, float]:
    """Returns no number."""
    return {"ratio": float("nan")}
"#;

#[test]
fn function_guards_apply_and_a_declaration_overrides_single_fields() {
    let folder = short_folder();
    write(folder.path(), "guarded.py", GUARDED);
    let python = format!(
        "python:\n  trial: {{module: guarded, path: ['{}'], interpreter: '{}', processes: 1}}\n",
        folder.path().display(),
        interpreter().display()
    );
    let tools = |declared: &str| write(folder.path(), "conf/tools.yaml", &format!("{python}tools:\n{declared}"));
    tools("  look: {description: Looks a code up., display_name: Lookup}\n  ask: {timeout_ms: 9000}\n");
    let names = ["pay", "look", "ask", "lose", "ratio"];
    let rows: String = names.iter().map(|name| format!("  {name}: {{everyone: true}}\n")).collect();
    let permissions = |approvers: &str| {
        write(folder.path(), "conf/permissions.yaml", &format!("permissions:\n{rows}{approvers}"));
    };
    let check = || CommandOutput::of(command(&["config", "check", "--config", "conf"]).current_dir(folder.path()), "");
    permissions("");
    check().exits(1).prints_error("tool 'ask': approval.by has the unknown role \"finance\"");
    permissions("approvers: {ann: {roles: [finance]}}\n");
    check().exits(0);

    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let submit = |calls: &[&str]| {
        let mut submit = vec!["submit", "--tenant", "demo", "--agent", "kelly", "--wait", "--json"];
        submit.extend(calls.iter().flat_map(|call| ["--call", *call]));
        fleet.run(&submit).json()
    };
    let pay = r#"pay {"to": "kim", "amount": 10.10, "due": "2026-12-01"}"#;
    let look = r#"look {"code": "7"}"#;
    assert_eq!(submit(&[look])["results"][0]["output"], json!({"count": 1}));
    let calls = [pay, pay, look, r#"look {"code": "07"}"#, "lose", "ratio"];
    let reply = submit(&calls);
    let outcome = |at: usize| reply["results"][at]["outcome"].clone();
    assert_eq!(reply["results"][0]["output"], json!({"to": "kim", "amount": "10.10", "count": "1"}), "{reply:#}");
    assert_eq!(reply["results"][1]["output"], reply["results"][0]["output"], "an equal effect happens once: {reply:#}");
    assert_eq!(reply["results"][2]["output"], json!({"count": 1}), "it comes from the cache: {reply:#}");
    assert_eq!(outcome(3), "invalid_arguments", "the look-ahead holds: {reply:#}");
    assert_eq!(outcome(4), "ok", "the lookup says that it took effect: {reply:#}");
    assert_eq!(outcome(5), "permanent", "NaN is no result: {reply:#}");
    let listed = fleet.run(&["tools", "--tenant", "demo", "--agent", "kelly", "--format", "raw"]).json();
    let tools_listed = listed.as_array().unwrap();
    let of = |name: &str| tools_listed.iter().find(|tool| tool["name"] == name).unwrap_or_else(|| panic!("{listed:#}"));
    assert_eq!((&of("look")["description"], &of("look")["effect"]), (&json!("Looks a code up."), &json!("read")));
    assert_eq!(of("look")["input_schema"]["required"], json!(["code"]), "the function's own schema");
    assert_eq!(of("pay")["category"], "payments");
    let waits = fleet.run(&["submit", "--tenant", "demo", "--agent", "kelly", "--call", "ask"]).exits(0);
    assert!(!waits.stdout.is_empty());
    until_printed("ask", || fleet.run(&["approvals", "list"]));
    assert_eq!(fleet.stop(), Some(0));

    for (declared, reported) in [
        ("  pay: {effect_key: [/due]}\n", "tool 'pay': effect_key has /due, which is not a required argument"),
        ("  look: {effect: once}\n", "tool 'look': a cache requires the effect read"),
    ] {
        tools(declared);
        check().exits(1).prints_error(reported);
    }
    tools("  pya: {timeout_ms: 9}\n");
    check().exits(1).says("tools.pya.description: found nothing");
}

const EXAMPLES: [&str; 3] = ["currency_tools", "sales_tools", "workspace_tools"];

fn examples_conf(folder: &Path, entry: &str) {
    write(folder, "conf/tools.yaml", &format!("python:\n  examples: {{{entry}}}\n"));
    let rows = "permissions:\n  convert: {everyone: true}\n  sales_report_tool: {everyone: true}\n  \
                write_file: {agents: [kelly]}\n";
    write(folder, "conf/permissions.yaml", rows);
    let sales = r#"[{"date": "2026-11-02", "region": "north", "cents": 1299}]"#;
    write(folder, "data/demo/sales.json", sales);
}

fn examples_work(folder: &Path) {
    let fleet = DevFleet::start_in(folder, &["--config", "conf"], &[]);
    let calls = [
        r#"convert {"amount": 10, "source": "USD", "target": "EUR"}"#,
        r#"sales_report_tool {"month": "2026-11"}"#,
        r#"write_file {"path": "notes/today.md", "content": "Hello"}"#,
        r#"write_file {"path": "../today.md", "content": "Hello"}"#,
    ];
    let mut submit = vec!["submit", "--tenant", "demo", "--agent", "kelly", "--wait", "--json"];
    submit.extend(calls.iter().flat_map(|call| ["--call", *call]));
    let reply = fleet.run(&submit).json();
    assert_eq!(reply["results"][0]["output"], json!({"amount": 8.5, "currency": "EUR"}), "{reply:#}");
    assert_eq!(reply["results"][1]["output"]["total_cents"], 1299, "{reply:#}");
    assert_eq!(reply["results"][2]["output"], json!({"path": "notes/today.md", "bytes": 5}), "{reply:#}");
    assert_eq!(reply["results"][3]["outcome"], "invalid_arguments", "{reply:#}");
    let written = fs::read_to_string(folder.join("data/demo/workspace/notes/today.md")).unwrap();
    assert_eq!(written, "Hello");
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn the_examples_run_on_a_fleet() {
    let folder = short_folder();
    let entry = format!(
        "module: [{}], path: ['{REPOSITORY}/python/examples'], interpreter: '{}'",
        EXAMPLES.join(", "),
        interpreter().display()
    );
    examples_conf(folder.path(), &entry);
    examples_work(folder.path());
}

#[test]
fn the_examples_run_in_a_tool_host_and_config_check_needs_no_host() {
    let folder = short_folder();
    let socket = folder.path().join("host.sock").display().to_string();
    examples_conf(folder.path(), &format!("host: '{socket}'"));
    let check =
        || CommandOutput::of(command(&["config", "check", "--config", "conf"]).current_dir(folder.path()), "").exits(0);
    check().says("tools.yaml: python.examples.host: no tool host listens there, so its tools");
    let mut host = Command::new(interpreter());
    host.args(["-m", "tickfleet.host", "--listen", &socket, "--path"]).arg([REPOSITORY, "/python/examples"].concat());
    let mut host = host.args(EXAMPLES).current_dir(folder.path()).spawn().unwrap();
    examples_work(folder.path());
    assert!(!check().stdout.contains("no tool host listens"));
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(host.id().try_into().unwrap()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert!(host.wait().unwrap().success());
}
