//! Tests the first steps of a new user.

use std::path::Path;

use serde_json::json;
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet, command, command_of, submit, tickfleet};
use crate::support::files::short_folder;
use crate::support::prometheus::free_port;
use crate::support::python::interpreter;

const NOWHERE: &str = "redis://127.0.0.1:1/";

#[tokio::test]
async fn dev_prints_a_working_socket_or_the_requested_port() {
    let folder = short_folder();
    let fleet = DevFleet::start_in(folder.path(), &["--redis"], &[]);
    let (_, url) = fleet.welcome.iter().find_map(|line| line.split_once("export REDIS_URL=")).unwrap();
    let url = url.trim_matches('\'').to_owned();
    let path = url.strip_prefix("unix://").unwrap_or_else(|| panic!("{url}"));
    assert!(fleet.welcome.iter().any(|line| line.trim() == format!("redis-cli -s {path}")), "{:?}", fleet.welcome);
    for url in [url.clone(), format!("redis+unix://{path}")] {
        let asked = [&submit(&["--call", "echo", "--wait"])[..], &["--redis-url", &url]].concat();
        tickfleet(&asked).exits(0);
    }
    let port = free_port();
    let taken = std::net::TcpListener::bind(("127.0.0.1", port)).unwrap();
    let asked = port.to_string();
    let other = folder.path().join("other");
    let dir = other.to_str().unwrap();
    DevFleet::refused(&["--port", &asked, "--dir", dir])
        .exits(1)
        .prints_error(&format!("the port {port} of 127.0.0.1"));
    DevFleet::refused(&["--port", &asked, "--redis-url", &url])
        .exits(2)
        .prints_error("--port and --data choose a store");
    drop(taken);
    let by_port = DevFleet::start(&["--port", &asked, "--dir", dir]);
    let shown = format!("export REDIS_URL='redis://127.0.0.1:{port}/'");
    assert!(by_port.welcome.iter().any(|line| line.trim() == shown), "{:?}", by_port.welcome);
    by_port.run(&submit(&["--call", "echo", "--wait"])).exits(0);
    assert_eq!((fleet.stop(), by_port.stop()), (Some(0), Some(0)));
}

#[test]
fn dev_replaces_the_socket_of_a_killed_dev_but_not_of_a_running_one() {
    let folder = short_folder();
    let start = || DevFleet::start_in(folder.path(), &["--console", "0"], &[]);
    // Dropping the fleet kills the process, but leaves the socket file.
    drop(start());
    assert!(folder.path().join(".tickfleet/dev.sock").exists());
    let fleet = start();
    let dir = folder.path().join(".tickfleet");
    DevFleet::refused(&["--dir", dir.to_str().unwrap(), "--console", "0"])
        .exits(1)
        .prints_error("another tickfleet dev runs");
    fleet.run(&submit(&["--call", "echo", "--wait"])).exits(0);
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn dev_runs_without_redis_and_continues_with_its_data() {
    let folder = short_folder();
    let variables = [("PATH", folder.path().to_str().unwrap())];
    let data = folder.path().join("state");
    let args = ["--data", data.to_str().unwrap(), "--console", "0"];
    let curl = |fleet: &DevFleet, line: &str| CommandOutput::of(&mut fleet.shell(line), "").exits(0);
    let asks = |path: &str, body: &str| {
        format!("curl -s -H \"Authorization: Bearer $FLEET_KEY\" \"$FLEET_URL/v1/turns{path}\" {body}")
    };
    let turn = r#"-d '{"turn_id": "one", "agent": "kelly", "calls": [{"name": "echo", "arguments": {}}]}'"#;

    let fleet = DevFleet::start_in(folder.path(), &args, &variables);
    let printed: Vec<&str> =
        fleet.welcome.iter().map(String::as_str).skip_while(|line| !line.contains("curl")).collect();
    curl(&fleet, &printed[..2].join("\n")).says(r#""outcome":"ok","output":{"text":"hi"}"#);
    curl(&fleet, &asks("?wait=30", turn)).says(r#""turn_id":"one""#);
    DevFleet::refused(&args).exits(1).prints_error("is in use by another process");
    assert_eq!(fleet.stop(), Some(0));

    let fleet = DevFleet::start_in(folder.path(), &args, &variables);
    curl(&fleet, &asks("/one", "")).says(r#""turn_id":"one""#).says(r#""outcome":"ok""#);
    assert_eq!(fleet.stop(), Some(0));

    let fleet = DevFleet::start_in(folder.path(), &["--console", "0"], &variables);
    curl(&fleet, &asks("/one", "")).says("not_found");
    assert_eq!(fleet.stop(), Some(0));
}

fn plainly(program: &Path, args: &[&str], folder: &Path) -> CommandOutput {
    CommandOutput::of(command_of(program, args).current_dir(folder), "")
}

#[test]
fn init_writes_a_tool_and_an_agent_in_the_language_of_the_folder() {
    let folder = short_folder();
    let program = Path::new(env!("CARGO_BIN_EXE_tickfleet"));
    let init = |args: &[&str]| plainly(program, &[&["init"], args].concat(), folder.path()).exits(0);
    std::fs::create_dir(folder.path().join("project")).unwrap();
    std::fs::write(folder.path().join("project/package.json"), "{}").unwrap();
    init(&["project"]).says("npm install tickfleet").says("node agent.mjs");
    init(&["chosen", "--language", "node"]).says("node agent.mjs");
    assert!(!init(&["empty"]).says("python agent.py").stdout.contains("npm"));
    for (dir, agent, tool) in
        [("project", "agent.mjs", "shop.mjs"), ("chosen", "agent.mjs", "shop.mjs"), ("empty", "agent.py", "shop.py")]
    {
        let dir = folder.path().join(dir);
        assert!(dir.join(agent).exists() && dir.join("fleet/tools").join(tool).exists());
        assert_eq!(std::fs::read_dir(dir.join("fleet/tools")).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(dir.join("fleet")).unwrap().count(), 7);
    }
}

#[test]
fn commands_and_clients_in_the_folder_of_a_fleet_need_no_variables() {
    let folder = short_folder();
    let program = Path::new(env!("CARGO_BIN_EXE_tickfleet"));
    plainly(program, &["init"], folder.path()).exits(0).says("dev --config fleet");
    plainly(program, &["init"], folder.path()).exits(2).prints_error("already exists: ./fleet/tickfleet.yaml");
    let path = interpreter().parent().unwrap().display().to_string();
    let args = ["--config", "fleet", "--console", "0"];
    let fleet = DevFleet::start_in(folder.path(), &args, &[("PATH", &path)]);
    let file = folder.path().join(".tickfleet/dev.json");
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&file.metadata().unwrap().permissions()) & 0o777, 0o600);

    let submit = ["submit", "--tenant", "acme", "--agent", "support", "--wait"];
    let call = [&submit[..], &["--call", r#"look_up_order {"order":"A-1001"}"#]].concat();
    plainly(program, &call, folder.path()).exits(0).says(r#""amount":42.5"#);
    let paid = plainly(&interpreter(), &["agent.py", "Refund order A-1001."], folder.path()).exits(0);
    paid.says(r#"{"refund":"R-A-1001","order":"A-1001","amount":42.5}"#);
    // The command line sets another configuration and Redis, so the command must not use the fleet of the folder.
    let other = folder.path().join("other");
    std::fs::create_dir(&other).unwrap();
    let named = [&call[..], &["--config", "other", "--redis-url", NOWHERE]].concat();
    plainly(program, &named, folder.path()).exits(3);
    // The configuration in another user's file can run programs, so the file is not trusted. Only root can test this.
    if nix::unistd::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
        plainly(program, &call, folder.path()).exits(3);
        let client = plainly(&interpreter(), &["agent.py", "Refund order A-1001."], folder.path());
        assert_ne!(client.code, 0, "{}", client.stdout);
        std::os::unix::fs::chown(&file, Some(0), None).unwrap();
    }
    let elsewhere = plainly(program, &call, &other);
    assert_ne!(elsewhere.code, 0, "{}", elsewhere.stdout);
    assert_eq!(fleet.stop(), Some(0));
    assert!(!file.exists());
}

#[test]
fn commands_reach_an_in_memory_fleet_over_its_socket() {
    let folder = short_folder();
    let fleet = DevFleet::start_in(folder.path(), &[], &[]);
    let socket = folder.path().canonicalize().unwrap().join(".tickfleet/dev.sock");
    let shown = format!("export REDIS_URL='tickfleet+unix://{}'", socket.display());
    assert!(fleet.welcome.iter().any(|line| line.trim() == shown), "{:?}", fleet.welcome);
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&socket.metadata().unwrap().permissions()) & 0o777, 0o600);
    let mut other = command(&["dev"]);
    CommandOutput::of(other.current_dir(folder.path()), "").exits(1).prints_error("another tickfleet dev runs in");
    fleet.run(&["dev"]).exits(2).prints_error("names another tickfleet dev: unset it");

    let one = submit(&["--wait", "--json", "--turn-id", "one", "--call", "echo {\"text\":\"hi\"}"]);
    let replied = fleet.run(&one).exits(0).json();
    assert_eq!(replied["results"][0]["output"]["text"], "hi", "{replied}");
    assert_eq!(fleet.run(&["reply", "demo:one", "--json"]).exits(0).json(), replied);
    fleet.run(&["doctor"]).exits(0).says("in the memory of one process").says("schedulers   1 alive");
    fleet.run(&["explain", "demo:one"]).exits(0).says("echo");
    fleet.run(&["audit", "search", "--tenant", "demo"]).exits(0).says("kelly called echo: ok");
    fleet.run(&["workers", "list"]).exits(0).says("works");
    fleet.run(&["pause", "demo", "kelly", "--by", "anna", "--reason", "a look"]).exits(0);
    fleet.run(&submit(&["--turn-id", "two", "--call", "echo"])).exits(0);
    fleet.run(&["explain", "demo:two"]).exits(0).says("paused");
    fleet.run(&["cancel", "demo:two"]).exits(0);

    let mut late = fleet.command(&["workers", "list"]);
    assert_eq!(fleet.stop(), Some(0));
    assert!(!socket.exists());
    CommandOutput::of(&mut late, "").exits(3).prints_error("does not answer").prints_error("Is it running?");
}

#[tokio::test]
async fn submit_accepts_provider_api_responses() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let message = json!({"role": "assistant", "content": "I look it up.", "refusal": null, "annotations": [],
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "echo", "arguments": "{\"text\":\"a\"}"}}]});
    let response = json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "usage": {},
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]});
    let anthropic = json!({"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "stop_reason": "tool_use",
        "content": [{"type": "text", "text": "Let me see."},
                    {"type": "tool_use", "id": "toolu_1", "name": "echo", "input": {"text": "b"}}]});
    for (returned, dialect, id) in [
        (message, "openai_chat", "call_1"),
        (response.clone(), "openai_chat", "call_1"),
        (anthropic, "anthropic", "toolu_1"),
    ] {
        let asked = ["submit", "-", "--tenant", "demo", "--agent", "kelly", "--wait", "--json"];
        let reply = fleet.run_with(&asked, &returned.to_string()).exits(0).json();
        assert_eq!((&reply["dialect"], &reply["results"][0]["tool_call_id"]), (&dialect.into(), &id.into()), "{reply}");
    }
    let mut two = response;
    let choice = two["choices"][0].clone();
    two["choices"].as_array_mut().unwrap().push(choice);
    let asked = ["submit", "-", "--tenant", "demo", "--agent", "kelly"];
    fleet.run_with(&asked, &two.to_string()).exits(1).prints_error("has 2 choices");
}

#[tokio::test]
async fn a_reply_can_be_read_again_while_its_record_exists() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let heard = fleet.run(&submit(&["--call", "echo {\"text\":\"hi\"}", "--turn-id", "order-1", "--wait", "--json"]));
    let again = fleet.run(&["reply", "demo:order-1", "--json"]).exits(0);
    assert_eq!(heard.exits(0).json(), again.json());
    fleet.run(&["reply", "demo", "order-1"]).exits(0).says("order-1/0");
    let record: String = redis::cmd("GET")
        .arg("{tickfleet:0}:done:demo:order-1")
        .query_async(&mut redis.connection().await)
        .await
        .unwrap();
    let (_, json) = record.split_once('\n').unwrap();
    let raw: serde_json::Value = serde_json::from_str(json).unwrap();
    assert_eq!(raw["results"], again.json()["results"]);
    fleet.run(&submit(&["--call", "sleep {\"ms\":60000}", "--turn-id", "long"])).exits(0);
    while fleet.run(&["reply", "demo:long"]).exits(1).stderr.contains("has no record") {}
    fleet.run(&["reply", "demo:long"]).exits(1).prints_error("has not ended");
    fleet.run(&["reply", "demo:never"]).exits(1).prints_error("has no record");
}

#[tokio::test]
async fn a_missing_or_misspelled_name_is_reported_with_a_fix() {
    let (folder, conf) = (short_folder(), short_folder());
    std::fs::write(conf.path().join("tickfleet.yaml"), format!("redis: {{url: \"{NOWHERE}\"}}\n")).unwrap();
    let conf = conf.path().to_str().unwrap();
    let here = |args: &[&str]| {
        let mut command = command(&[args, &["--config", conf]].concat());
        CommandOutput::of(command.current_dir(folder.path()), "")
    };
    let away = here(&submit(&["--call", "echo"])).exits(3);
    away.prints_error("REDIS_URL is not set").prints_error("tickfleet dev starts one");
    let fleet = DevFleet::start_in(folder.path(), &[], &[]);
    let socket = folder.path().canonicalize().unwrap().join(".tickfleet/dev.sock");
    let away = here(&submit(&["--call", "echo"])).exits(3);
    away.prints_error("A tickfleet dev runs here:");
    away.prints_error(&format!("export REDIS_URL='tickfleet+unix://{}'", socket.display()));

    let empty = RedisServer::start().await;
    let unserved = tickfleet(&[&submit(&["--call", "echo"])[..], &["--redis-url", &empty.url()]].concat()).exits(0);
    unserved.prints_error("No scheduler has ever run on");

    tickfleet(&["tools"]).exits(0).prints_error("This is the built-in configuration");
    assert!(tickfleet(&["tools", "--json"]).exits(0).stderr.is_empty());
    let misspelt = tickfleet(&["tools", "--tenant", "demo", "--agent", "kely"]).exits(1);
    misspelt.prints_error("Did you mean \"kelly\"?").prints_error("agents.yaml");
    let rejected = fleet.run(&["submit", "--tenant", "demo", "--agent", "kely", "--call", "echo", "--wait"]).exits(1);
    rejected.says("(unknown_agent)").says("agents.yaml");
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn a_failing_mcp_server_is_reported_with_its_error_output() {
    let folder = short_folder();
    let servers = "servers:\n  broken: {command: sh, args: [-c, 'echo no database for sk-ant-api03-AAAAAAAAAAAAAAAAAAAAAAAAAAAA >&2; exit 3']}\n  silent: {command: sh, args: [-c, 'echo still loading >&2; sleep 600']}\n";
    let config = folder.path().to_str().unwrap();
    let write = |text: &str| std::fs::write(Path::new(config).join("mcp.yaml"), text).unwrap();
    write(servers);
    let said = tickfleet(&["mcp", "pin", "--timeout", "4", "--config", config]).exits(1);
    said.says("on standard error it said: no database for").says("[REDACTED]");
    said.says("it did not list its tools within 4 s; on standard error it said: still loading");
    said.prints_error("waiting for the server silent (sh -c echo still loading").prints_error("up to 4 s (--timeout)");
    assert!(!said.stdout.contains("sk-ant-api03-A"), "{}", said.stdout);
    write(&servers.replace("servers:", "mcpServers:"));
    let said = tickfleet(&["mcp", "pin", "--config", config]).exits(1);
    said.prints_error("the field `mcpServers`, as other programs call it").prints_error("expected `servers`");
}
