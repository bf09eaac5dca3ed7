//! Tests typed tools in a user's own program.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::support::binary::{CommandOutput, DevFleet, command};
use crate::support::documents::{REPOSITORY, agrees, blocks, shown, with_binary};
use crate::support::files::{short_folder, write};
use crate::support::process::until;

const PAGE: &str = "docs/build/tools-rust.md";

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(REPOSITORY).join(path)).unwrap()
}

/// The program is a member of the workspace, so it is built together with the binary.
fn own_fleet() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_tickfleet")).with_file_name("own-fleet");
    assert!(program.exists(), "{} is not built: cargo build --workspace", program.display());
    program
}

fn configured() -> tempfile::TempDir {
    let folder = short_folder();
    let conf = Path::new(REPOSITORY).join("docs/own-fleet/conf");
    assert!(Command::new("cp").arg("-R").arg(conf).arg(folder.path()).status().unwrap().success());
    folder
}

#[test]
fn the_page_shows_the_built_manifest() {
    let text = read(PAGE);
    let manifest = blocks(&text, "toml").remove(0).1.join("\n");
    // The manifests may differ only in the path of the checkout.
    assert_eq!(manifest.replace("../tickfleet/cli", "../../cli") + "\n", read("docs/own-fleet/Cargo.toml"));
}

#[test]
fn every_step_of_the_page_prints_the_documented_output() {
    let text = read(PAGE);
    let folder = configured();
    let program = own_fleet();
    let variables = [("CARRIER_KEY", "k-1"), ("TICKFLEET_CONFIG", "conf")];
    let fleet = DevFleet::start_program(&program, folder.path(), &["--config", "conf"], &variables[..1]);
    trucks(&fleet, "ok");
    let mut steps = 0;
    for step in shown(&text) {
        steps += 1;
        let mut shell = fleet.shell(&step.command);
        shell.envs(variables);
        let said = CommandOutput::of(with_binary(&mut shell).current_dir(folder.path()), "");
        let place = format!("{PAGE}:{}: `{}`", step.line, step.command);
        assert!(agrees(&step.output, &said.stdout), "{place} printed something else:\n{}{}", said.stdout, said.stderr);
        let ended = said.stdout.contains(" ended ");
        assert_eq!(said.code, i32::from(ended), "{place}");
    }
    assert_eq!(steps, 5);
    assert_eq!(fleet.stop(), Some(0));
}

const COUNT: [&str; 9] =
    ["submit", "--tenant", "acme", "--agent", "support", "--call", "count_trucks {\"count\": 70}", "--wait", "--json"];

/// Repeats the call, because the change takes a moment.
fn trucks(fleet: &DevFleet, wanted: &str) {
    let outcome = || fleet.run(&COUNT).json()["results"][0]["outcome"].clone();
    until("count_trucks", outcome, |outcome| {
        assert!(outcome == wanted || outcome == "unknown_tool", "{outcome}");
        outcome == wanted
    });
}

#[test]
fn a_registered_tool_survives_a_reload_and_requires_permission() {
    let folder = configured();
    let program = own_fleet();
    let key = [("CARRIER_KEY", "k-1")];
    let start = || DevFleet::start_program(&program, folder.path(), &["--config", "conf"], &key);
    let fleet = start();
    trucks(&fleet, "ok");
    let quote = [
        "submit",
        "--tenant",
        "acme",
        "--agent",
        "support",
        "--call",
        "quote_parcel {\"country\":\"AT\",\"weight_g\":1}",
    ];
    let quote = [&quote[..], &["--wait", "--json"]].concat();
    assert_eq!(fleet.run(&quote).exits(0).json()["results"][0]["output"]["price_cents"], 690);
    write(folder.path(), "conf/permissions.yaml", "permissions: {count_trucks: {roles: [support]}}\n");
    let outcome = || fleet.run(&quote).json()["results"][0]["outcome"].clone();
    until("the new permissions", outcome, |outcome| outcome == "denied");
    trucks(&fleet, "ok");
    assert_eq!(fleet.stop(), Some(0));

    // Without dynamic registration, the permission row names an unknown tool. Without the row, the tool is missing.
    fs::remove_file(folder.path().join("conf/tickfleet.yaml")).unwrap();
    let check = ["config", "check", "--config", "conf"];
    let check = || {
        let mut check = command(&check);
        CommandOutput::of(check.current_dir(folder.path()), "")
    };
    check().exits(1).says("the unknown tool `count_trucks`");
    write(folder.path(), "conf/permissions.yaml", "permissions: {}\n");
    let fleet = start();
    assert_eq!(fleet.run(&COUNT).json()["results"][0]["outcome"], "unknown_tool");
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn a_custom_fleet_accepts_a_plain_producer_but_no_plain_scheduler() {
    let folder = short_folder();
    let redis = tokio::runtime::Runtime::new().unwrap();
    let server = redis.block_on(tickfleet_testkit::RedisServer::start());
    write(folder.path(), "conf/permissions.yaml", "permissions: {quote_parcel: {everyone: true}}\n");
    let run = |program: &Path, args: &[&str]| {
        let mut run = Command::new(program);
        run.args(args).args(["--config", "conf"]).current_dir(folder.path()).env("REDIS_URL", server.url());
        run.env("CARRIER_KEY", "k-1").env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0").env_remove("TICKFLEET_CONFIG");
        run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        run
    };
    let plain = Path::new(env!("CARGO_BIN_EXE_tickfleet"));
    CommandOutput::of(&mut run(plain, &["config", "check"]), "").exits(1).says("the unknown tool `quote_parcel`");
    CommandOutput::of(&mut run(plain, &["scheduler"]), "").exits(1).prints_error("the unknown tool `quote_parcel`");
    let mut running = ["scheduler", "worker"].map(|role| run(&own_fleet(), &[role]).spawn().unwrap());
    let call = ["submit", "--tenant", "demo", "--agent", "fran", "--wait", "--json"];
    let call = [&call[..], &["--call", "quote_parcel {\"country\":\"AT\",\"weight_g\":1}"]].concat();
    let reply = CommandOutput::of(&mut run(plain, &call), "").exits(0).json();
    for process in &mut running {
        process.kill().unwrap();
        process.wait().unwrap();
    }
    assert_eq!(reply["results"][0]["output"]["price_cents"], 690, "{reply}");
}

#[test]
fn a_failed_start_hook_ends_the_program_with_its_cause() {
    let folder = short_folder();
    let mut dev = Command::new(own_fleet());
    dev.args(["dev"]).current_dir(folder.path()).env_remove("TICKFLEET_CONFIG").env_remove("REDIS_URL");
    dev.env_remove("CARRIER_KEY").env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0");
    dev.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    CommandOutput::of(&mut dev, "")
        .exits(1)
        .prints_error("tool 'quote_parcel': its start hook failed: the secret CARRIER_KEY is missing");
}

const SERVER: &str = r#"
import json, sys
TOOL = {"name": "area", "description": "Measures.", "inputSchema": {"type": "object"},
        "outputSchema": {"type": "object", "properties": {"area": {"type": "number"}}, "required": ["area"]}}
for line in sys.stdin:
    request = json.loads(line)
    if "id" not in request:
        continue
    method = request["method"]
    result = {}
    if method == "initialize":
        result = {"protocolVersion": request["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "areas", "version": "1.0.0"}}
    if method == "tools/list":
        result = {"tools": [TOOL]}
    if method == "tools/call":
        result = {"content": [], "structuredContent": {"area": "large"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;

const SERVICE: &str = r#"
import http.server
class Service(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"zone": 7}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
print(server.server_port, flush=True)
server.serve_forever()
"#;

#[test]
fn a_result_that_violates_its_output_schema_is_withheld() {
    let folder = short_folder();
    write(folder.path(), "areas.py", SERVER);
    write(folder.path(), "zones.py", SERVICE);
    let service = super::http_tools::Service::start(folder.path(), "zones.py");
    let tools = format!(
        "tools:\n  echo:\n    description: Echoes.\n    effect: once\n    input_schema: {{type: object}}\n    \
         output_schema: {{type: object, required: [echoed]}}\n  zone:\n    description: Asks.\n    effect: read\n    \
         input_schema: {{type: object, properties: {{near: {{type: string}}}}}}\n    \
         output_schema: {{type: object, properties: {{zone: {{type: string}}}}}}\n    \
         http: {{method: GET, base_url: 'http://127.0.0.1:{}', path: /, allow_private: [127.0.0.1]}}\n",
        service.port
    );
    write(folder.path(), "conf/tools.yaml", &tools);
    write(folder.path(), "conf/mcp.yaml", "servers: {areas: {command: python3, args: [areas.py]}}\n");
    let rows = "permissions: {echo: {everyone: true}, zone: {everyone: true}, areas__area: {everyone: true}}\n";
    write(folder.path(), "conf/permissions.yaml", rows);
    let run = |args: &[&str]| CommandOutput::of(command(args).current_dir(folder.path()), "");
    run(&["mcp", "pin", "--config", "conf"]).exits(0);
    run(&["config", "check", "--config", "conf"])
        .exits(0)
        .says("tools.zone.input_schema.properties.near: it has no description: models see only its name and type");

    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let mut turn = vec!["submit", "--tenant", "demo", "--agent", "kelly", "--wait", "--json"];
    turn.extend(["--call", "echo {\"text\": \"hi\"}", "--call", "zone", "--call", "areas__area"]);
    let reply = fleet.run(&turn).exits(1).json();
    let reported = |n: usize| reply["results"][n]["error"]["message"].as_str().unwrap_or_default().to_owned();
    for n in 0..3 {
        let result = &reply["results"][n];
        assert_eq!((&result["outcome"], &result["error"]["code"]), (&json!("internal"), &json!("invalid_output")));
        assert_eq!((&result["output"], &result["attempts"]), (&Value::Null, &json!(1)), "{result}");
    }
    assert!(reported(0).contains("It lacks the member 'echoed'"), "{}", reported(0));
    assert!(reported(0).contains("It has taken effect: do not call it again."), "{}", reported(0));
    assert!(reported(1).contains("Its member 'zone' must be of type string"), "{}", reported(1));
    assert!(reported(2).contains("Its member 'area' must be of type number"), "{}", reported(2));
    assert_eq!(fleet.stop(), Some(0));

    let tried = ["tools", "try", "zone", "--agent", "kelly", "--config", "conf"];
    run(&tried).exits(1).says("output               ended   \"zone\" ran, but its output does not match");
    let tried = ["tools", "try", "areas__area", "--yes", "--agent", "kelly", "--config", "conf", "--json"];
    let tried = run(&tried).exits(1).json();
    let steps = tried["steps"].as_array().unwrap().iter().map(|step| step["passed"] == true).collect::<Vec<_>>();
    assert_eq!(steps, [true, true, true, true, true, true, false], "{tried}");
    run(&["tools", "try", "echo", "--agent", "kelly", "--config", "conf"])
        .exits(2)
        .prints_error("pass --yes to run it");
    run(&["tools", "try", "echo", "--agent", "kelly", "--config", "conf", "--dry-run"]).exits(0).says("not run");
}
