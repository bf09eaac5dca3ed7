//! Tests tools in TypeScript.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::binary::{CommandOutput, DevFleet, command};
use crate::support::documents::REPOSITORY;
use crate::support::files::{short_folder, write};
use crate::support::node::Node;
use crate::support::process::until;

#[test]
fn changed_code_runs_without_a_restart_unless_it_cannot_be_imported() {
    let Some(node) = Node::that_strips_types() else { return };
    let folder = short_folder();
    let source = Path::new(REPOSITORY).join("docs/snippets/shop-typescript");
    let shop = folder.path().join("shop-typescript");
    fs::create_dir(&shop).unwrap();
    for part in ["tools", "package.json", "tools.yaml", "agents.yaml", "permissions.yaml", "tenants.yaml"] {
        assert!(Command::new("cp").arg("-R").arg(source.join(part)).arg(&shop).status().unwrap().success());
    }
    node.link(&shop);
    let entry = fs::read_to_string(shop.join("tools.yaml")).unwrap();
    write(&shop, "tools.yaml", &format!("{entry}    interpreter: '{}'\n", node.program()));
    let fleet = DevFleet::start_in(folder.path(), &["--config", "shop-typescript"], &[]);
    let call = "check_stock {\"sku\": \"MUG-1\"}";
    let conf = ["--config", "shop-typescript"];
    let turn =
        [&["submit"], &conf[..], &["--tenant", "acme", "--agent", "support", "--call", call, "--wait", "--json"]];
    let submit = || CommandOutput::of(fleet.command(&turn.concat()).current_dir(folder.path()), "");
    let pieces = || submit().json()["results"][0]["output"]["pieces"].clone();
    assert_eq!(pieces(), 12);
    let module = "shop-typescript/tools/shop_tools.ts";
    let tools = fs::read_to_string(folder.path().join(module)).unwrap();
    write(folder.path(), module, &tools.replace("\"MUG-1\": 12", "\"MUG-1\": 77"));
    until("the new code runs", pieces, |pieces| *pieces == 77);
    let tried = folder.path().join("tried");
    let fails =
        format!("import {{ writeFileSync }} from 'node:fs';\nwriteFileSync({tried:?}, '');\nthrow new Error();\n");
    write(folder.path(), module, &fails);
    while !tried.exists() {
        assert_eq!(pieces(), 77);
    }
    assert_eq!(pieces(), 77);
    let mut check = command(&["config", "check", "--config", "shop-typescript"]);
    let said = CommandOutput::of(check.current_dir(folder.path()), "").exits(1);
    said.prints_error("node.shop: a module cannot be imported:").prints_error("shop_tools.ts");
    assert!(!said.stderr.contains("node:internal"), "only lines of the tools: {}", said.stderr);
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn the_package_passes_its_tests_on_both_node_versions() {
    for node in [Node::unless_skipped(), Node::that_strips_types()].into_iter().flatten() {
        let mut run = node.command();
        run.args(["--test", "test/host.test.mjs", "test/program.test.mjs", "test/tools.test.mjs"])
            .arg("test/dialects.test.mjs")
            .env("DEFINITIONS", Path::new(REPOSITORY).join("tests/conformance/definitions.json"))
            .current_dir(&node.package);
        let output = run.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
    }
}

#[test]
fn the_guides_tools_pass_the_type_checker() {
    let Some(node) = Node::unless_skipped() else { return };
    let folder = short_folder();
    let source = Path::new(REPOSITORY).join("docs/snippets/shop-typescript/tools");
    assert!(Command::new("cp").arg("-R").arg(source).arg(folder.path()).status().unwrap().success());
    write(folder.path(), "package.json", "{\"type\": \"module\"}");
    node.link(folder.path());
    let mut compiler = node.command();
    compiler.arg(node.package.join("node_modules/typescript/bin/tsc"));
    compiler.args(["--noEmit", "--strict", "--noUncheckedIndexedAccess", "--skipLibCheck", "--target", "es2022"]);
    compiler.args(["--module", "nodenext", "--allowImportingTsExtensions", "--types", "node", "--typeRoots"]);
    compiler.arg(node.package.join("node_modules/@types"));
    compiler.args(["tools/shop_tools.ts", "tools/shop_tools.test.ts"]).current_dir(folder.path());
    let output = compiler.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

const TROUBLE: &str = r#"
import { readFileSync, writeFileSync } from "node:fs";
import { connect } from "node:net";
import { ToolError, tool } from "tickfleet/tools";

const input = { type: "object" };
const once = (name, run) => tool({ name, description: "Trouble.", input }, run);
const read = (name, run) => tool({ name, description: "Trouble.", input, effect: "read" }, run);

once("crash_once", () => process.kill(process.pid, "SIGKILL"));
read("crash_first", (_args, { attempt }) => (attempt === 1 ? process.kill(process.pid, "SIGKILL") : { attempt }));
tool({ name: "hang", description: "Blocks.", input, timeoutMs: 400 }, () => { for (;;); });
read("bug", () => { throw new TypeError("s3cret-value"); });
read("whose", (_args, { tenant, agent, idempotencyKey }) => ({ tenant, agent, key: idempotencyKey.length > 8 }));
read("compose", async (_args, context) => (await context.call("whose")).unwrap().agent);
read("secretly", () => "called");
read("look", ({ path }) => {
  try {
    return readFileSync(path, "utf8");
  } catch (error) {
    throw new ToolError("permanent", error.code);
  }
});
read("dial", ({ port }) => new Promise((resolve, reject) => {
  const socket = connect(port, "127.0.0.1", () => (socket.destroy(), resolve("connected")));
  socket.on("error", (error) => reject(new ToolError("permanent", error.code)));
}));
once("note", ({ text }) => {
  writeFileSync("note.txt", text);
  return readFileSync("note.txt", "utf8");
});
"#;

/// `entry` has the lines of the section `node`.
fn trouble(folder: &Path, node: &Node, entry: &str) {
    fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    node.link(folder);
    write(folder, "tools/trouble.mjs", TROUBLE);
    let interpreter = node.program();
    let tools = format!(
        "node:\n  trial:\n    module: trouble.mjs\n    path: [tools]\n    interpreter: '{interpreter}'\n{entry}"
    );
    write(folder, "conf/tools.yaml", &tools);
    let names = ["crash_once", "crash_first", "hang", "bug", "whose", "compose", "look", "dial", "note"];
    let rows: String = names.iter().map(|name| format!("  {name}: {{everyone: true}}\n")).collect();
    write(folder, "conf/permissions.yaml", &format!("permissions:\n{rows}"));
}

fn results(fleet: &DevFleet, folder: &Path, calls: &[&str]) -> Vec<Value> {
    let mut submit = vec!["submit", "--config", "conf", "--tenant", "demo", "--agent", "kelly", "--wait", "--json"];
    submit.extend(calls.iter().flat_map(|call| ["--call", *call]));
    let reply = CommandOutput::of(fleet.command(&submit).current_dir(folder), "").json();
    reply["results"].as_array().unwrap().clone()
}

/// The number of host processes that were started in the folder.
fn processes(folder: &Path) -> usize {
    let is_host = |process: &Path| {
        let command = fs::read_to_string(process.join("cmdline")).unwrap_or_default();
        command.contains("dist/host/main.js") && fs::read_link(process.join("cwd")).is_ok_and(|cwd| cwd == folder)
    };
    fs::read_dir("/proc").unwrap().flatten().filter(|process| is_host(&process.path())).count()
}

#[test]
fn a_failed_node_call_is_reported_according_to_its_effect() {
    let Some(node) = Node::unless_skipped() else { return };
    let folder = short_folder();
    trouble(folder.path(), &node, "    concurrency: 1\n    cancel_grace: 300ms\n");
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let calls = ["crash_once", "crash_first", "hang", "bug", "whose", "compose", "secretly"];
    let results = results(&fleet, folder.path(), &calls);
    let ends: Vec<&Value> = results.iter().map(|result| &result["outcome"]).collect();
    let expected = ["outcome_unknown", "ok", "outcome_unknown", "internal", "ok", "ok", "denied"];
    assert_eq!(ends, expected.map(Value::from).iter().collect::<Vec<_>>(), "{results:#?}");
    assert_eq!(results[1]["output"], json!({"attempt": 2}));
    assert_eq!(results[4]["output"], json!({"tenant": "demo", "agent": "kelly", "key": true}));
    assert_eq!(results[5]["output"], "kelly");
    let reported = results[3]["error"]["message"].as_str().unwrap();
    assert!(!reported.contains("TypeError") && !reported.contains("s3cret"), "a model sees no stack: {reported}");
    assert!(processes(folder.path()) > 0);
    assert_eq!(fleet.stop(), Some(0));
    assert_eq!(processes(folder.path()), 0, "a drain leaves no process behind");
}

#[allow(clippy::print_stderr, reason = "a test says what it skips")]
fn reaches_only_what_it_may(level: &str) {
    let Some(node) = Node::unless_skipped() else { return };
    let folder = short_folder();
    let entry = format!("    processes: 1\n    sandbox: {{level: {level}}}\n");
    trouble(folder.path(), &node, &entry);
    let secret = folder.path().join("secret.txt");
    write(folder.path(), "secret.txt", "secret");
    let check = CommandOutput::of(command(&["config", "check", "--config", "conf"]).current_dir(folder.path()), "");
    if ["this machine does not support", "this machine cannot restrict"].iter().any(|why| check.stderr.contains(why)) {
        eprintln!("skipped: {}", check.stderr);
        return;
    }
    check.exits(0);
    let listening = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let dial = format!("dial {{\"port\": {}}}", listening.local_addr().unwrap().port());
    let look = format!("look {{\"path\": \"{}\"}}", secret.display());
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let results = results(&fleet, folder.path(), &["note {\"text\": \"mine\"}", &look, &dial]);
    assert_eq!(results[0]["output"], "mine", "{results:#?}");
    assert_eq!((&results[1]["outcome"], &results[2]["outcome"]), (&json!("permanent"), &json!("permanent")));
    assert!(!results[1]["error"].to_string().contains("secret.txt"), "{results:#?}");
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn the_basic_sandbox_blocks_host_files_and_ports() {
    reaches_only_what_it_may("basic");
}

#[test]
fn the_strict_sandbox_blocks_host_files_and_ports() {
    reaches_only_what_it_may("strict");
}

#[test]
fn the_tools_run_in_a_tool_host_and_config_check_needs_no_host() {
    let Some(node) = Node::unless_skipped() else { return };
    let folder = short_folder();
    trouble(folder.path(), &node, "");
    let socket = folder.path().join("host.sock").display().to_string();
    write(folder.path(), "conf/tools.yaml", &format!("node:\n  trial: {{host: '{socket}'}}\n"));
    let check =
        || CommandOutput::of(command(&["config", "check", "--config", "conf"]).current_dir(folder.path()), "").exits(0);
    check().says("tools.yaml: node.trial.host: no tool host listens there, so its tools");
    let mut host = node.command();
    host.args(["node_modules/tickfleet/dist/host/main.js", "--listen", &socket, "--path", "tools", "trouble.mjs"]);
    let mut host = host.current_dir(folder.path()).stdin(Stdio::null()).spawn().unwrap();
    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let results = results(&fleet, folder.path(), &["whose", "crash_first", "whose"]);
    assert!(results.iter().all(|result| result["outcome"] == "ok"), "{results:#?}");
    assert!(!check().stdout.contains("no tool host listens"));
    assert_eq!(fleet.stop(), Some(0));
    let id = nix::unistd::Pid::from_raw(host.id().try_into().unwrap());
    nix::sys::signal::kill(id, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(host.wait().unwrap().success());
}

#[test]
fn config_check_reports_a_missing_package_or_interpreter() {
    let Some(node) = Node::unless_skipped() else { return };
    let folder = short_folder();
    trouble(folder.path(), &node, "");
    let check =
        || CommandOutput::of(command(&["config", "check", "--config", "conf"]).current_dir(folder.path()), "").exits(1);
    fs::remove_dir_all(folder.path().join("node_modules")).unwrap();
    check().prints_error("node.trial: the package tickfleet is not installed");
    node.link(folder.path());
    write(
        folder.path(),
        "conf/tools.yaml",
        "node:\n  trial: {module: a.js, path: [tools], interpreter: no-such-node}\n",
    );
    check().prints_error("node.trial: 'no-such-node' not found in PATH");
    let entry = format!("node:\n  trial: {{module: a.js, path: [tools], interpreter: '{}'}}\n", node.program());
    write(folder.path(), "conf/tools.yaml", &entry);
    check().prints_error("there is no file a.js in ");
}
