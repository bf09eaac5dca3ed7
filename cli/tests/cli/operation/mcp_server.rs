//! Tests an agent's tools over MCP, at the gateway and at `tickfleet mcp serve`.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{Store, StoreOptions, ToolList, ToolLists};
use tickfleet_testkit::RedisServer;

use super::gateway::{Gateway, HttpResponse, add_key};
use crate::support::binary::{DevFleet, command, tickfleet};
use crate::support::process::pause;

const PATH: &str = "/v1/agents/kelly/mcp";
/// 2,400 pauses of 50 ms take two minutes.
const LOOKS: usize = 2_400;
const HEAD: &str = "content-type: application/json\r\naccept: application/json, text/event-stream\r\n";

/// Uses the protocol revision 2025-11-25, which has a handshake.
fn ask(gateway: &Gateway, key: &str, method: &str, params: &Value) -> HttpResponse {
    ask_for("kelly", gateway, key, method, params)
}

fn ask_for(agent: &str, gateway: &Gateway, key: &str, method: &str, params: &Value) -> HttpResponse {
    let head = format!("{HEAD}mcp-protocol-version: 2025-11-25\r\n");
    gateway.ask_with(key, "POST", &format!("/v1/agents/{agent}/mcp"), &head, &request(method, params))
}

fn ask_stateless(gateway: &Gateway, key: &str, method: &str, params: Value) -> Value {
    let answer = ask_stateless_for("kelly", gateway, key, method, params);
    assert_eq!(answer.status, 200, "{method}: {answer:?}");
    answer.json()["result"].clone()
}

fn ask_stateless_for(agent: &str, gateway: &Gateway, key: &str, method: &str, mut params: Value) -> HttpResponse {
    let named = params["name"].as_str().or(params["taskId"].as_str()).map(|name| format!("mcp-name: {name}\r\n"));
    let head =
        format!("{HEAD}mcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\n{}", named.unwrap_or_default());
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "test", "version": "1"});
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] =
        json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    gateway.ask_with(key, "POST", &format!("/v1/agents/{agent}/mcp"), &head, &request(method, &params))
}

fn request(method: &str, params: &Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
}

fn call(name: &str, arguments: &Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// Repeats the request, because a worker writes the list only some time after its start.
fn listed(mut ask: impl FnMut() -> Value) -> Value {
    for _ in 0..LOOKS {
        let answer = ask();
        if answer["result"].is_object() {
            return answer["result"].clone();
        }
        pause();
    }
    panic!("no tool list within two minutes: {}", ask())
}

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_list_request_waits_until_a_worker_writes_the_list() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.yaml");
    let key = add_key(&keys, &["--id", "all", "--tenant", "demo"]);
    let gateway = Gateway::start(&redis.url(), &keys);
    let asked = std::thread::spawn(move || {
        let list = ask(&gateway, &key, "tools/list", &json!({})).json();
        (list, ask_for("nobody", &gateway, &key, "tools/list", &json!({})).json())
    });
    // The request must wait for longer than this time.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!asked.is_finished(), "it was not waited for");
    let json =
        r#"{"tools": [{"name": "echo", "display_name": "Echo", "description": "", "category": "test", "effect": "read",
        "version": "1.0.0", "input_schema": {"type": "object"}, "requires_approval": false}], "text": ""}"#
            .into();
    let tenant = TenantId::new("demo").unwrap();
    let agent = AgentId::new("kelly").unwrap();
    let digest = "of-a-test".to_owned();
    let agents = vec![(tenant, agent, digest.clone())];
    let lists = ToolLists { lists: vec![ToolList { digest, json }], agents, ..ToolLists::default() };
    let store = Store::open(&redis.url(), 0, Arc::new(StoreOptions::default())).unwrap();
    store.write_tool_lists("of-a-test", &lists, 60_000, 60_000).await.unwrap();
    let (list, nobodys) = asked.join().unwrap();
    assert_eq!(names(&list["result"]), ["echo"], "{list}");
    assert!(nobodys["error"]["message"].as_str().unwrap().contains("no tool list"), "{nobodys}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_served_over_http_and_calls_run_as_turns() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let _fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let keys = folder.path().join("keys.yaml");
    let key = add_key(&keys, &["--id", "all", "--tenant", "demo"]);
    let reader = add_key(&keys, &["--id", "reader", "--tenant", "demo", "--verb", "read"]);
    let fran = add_key(&keys, &["--id", "fran", "--tenant", "demo", "--agent", "fran"]);
    let gateway = Gateway::start(&redis.url(), &keys);

    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let welcome = ask(&gateway, &key, "initialize", &hello).json();
    assert_eq!(welcome["result"]["protocolVersion"], "2025-11-25", "{welcome}");
    assert_eq!(welcome["result"]["serverInfo"]["name"], "tickfleet");

    let list = listed(|| ask(&gateway, &key, "tools/list", &json!({})).json());
    assert!(names(&list).contains(&"echo") && names(&list).contains(&"post_to_x"), "{list}");
    let frans = listed(|| ask_for("fran", &gateway, &fran, "tools/list", &json!({})).json());
    assert!(names(&frans).contains(&"echo") && !names(&frans).contains(&"post_to_x"), "{frans}");
    let echoed = ask(&gateway, &key, "tools/call", &call("echo", &json!({"text": "hi"}))).json()["result"].clone();
    assert_eq!((&echoed["structuredContent"]["text"], &echoed["isError"]), (&json!("hi"), &json!(false)), "{echoed}");

    let invalid = ask(&gateway, &key, "tools/call", &call("sleep", &json!({"ms": "soon"}))).json();
    assert_eq!(invalid["result"]["isError"], true, "{invalid}");
    let post = call("post_to_x", &json!({"content": "not mine to post"}));
    let denied = ask_for("fran", &gateway, &fran, "tools/call", &post).json();
    assert_eq!(denied["result"]["isError"], true, "{denied}");
    let unknown = ask(&gateway, &key, "tools/call", &call("no_such_tool", &json!({}))).json();
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");

    let mut mine = call("echo", &json!({"text": "once"}));
    mine["_meta"] = json!({"tickfleet/turn_id": "order-17"});
    for _ in 0..2 {
        let answer = ask(&gateway, &key, "tools/call", &mine).json();
        assert_eq!(answer["result"]["_meta"]["tickfleet/call"], "order-17/0", "{answer}");
    }

    let submits = ask(&gateway, &reader, "tools/call", &call("echo", &json!({"text": "x"}))).json();
    assert!(submits["error"]["message"].as_str().unwrap().contains("may not submit"), "{submits}");
    assert_eq!(ask(&gateway, &fran, "tools/list", &json!({})).status, 403);
    assert_eq!(ask(&gateway, "tfk_wrong", "tools/list", &json!({})).status, 401);
    let browser = format!("{HEAD}origin: https://elsewhere.example\r\n");
    let page = gateway.ask_with(&key, "POST", PATH, &browser, &request("tools/list", &json!({})));
    assert_eq!(page.status, 403, "a page of another origin: {page:?}");
    let none = gateway.ask_with(&key, "POST", PATH, HEAD, &Value::Null);
    assert!((400..500).contains(&none.status), "no request at all: {none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_gateway_can_answer_for_the_task_of_a_long_call() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let keys = folder.path().join("keys.yaml");
    let key = add_key(&keys, &["--id", "all", "--tenant", "demo"]);
    let fran = add_key(&keys, &["--id", "fran", "--tenant", "demo", "--agent", "fran"]);
    let [one, two] = [0, 1].map(|_| Gateway::start(&redis.url(), &keys));

    let found = ask_stateless(&one, &key, "server/discover", json!({}));
    assert!(found["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(), "{found}");
    let short = ask_stateless(&one, &key, "tools/call", call("echo", &json!({"text": "hi"})));
    assert_eq!(
        (&short["resultType"], &short["structuredContent"]["text"]),
        (&json!("complete"), &json!("hi")),
        "{short}"
    );

    let begun = ask_stateless(&one, &key, "tools/call", call("sleep", &json!({"ms": 4_000})));
    assert_eq!((&begun["resultType"], &begun["status"]), (&json!("task"), &json!("working")), "{begun}");
    let task = json!({"taskId": begun["taskId"]});
    drop(one);
    let ended = until_ended(&two, &key, &task);
    assert_eq!((&ended["status"], &ended["result"]["isError"]), (&json!("completed"), &json!(false)), "{ended}");
    assert!(ended["ttlMs"].as_i64().unwrap() > 0, "{ended}");

    let begun = ask_stateless(&two, &key, "tools/call", call("sleep", &json!({"ms": 60_000})));
    let task = json!({"taskId": begun["taskId"]});
    for method in ["tasks/get", "tasks/cancel"] {
        let other = ask_stateless_for("fran", &two, &fran, method, task.clone()).json();
        let why = other["error"]["message"].as_str().unwrap_or_default();
        assert!(why.starts_with("unknown task"), "another agent's task is not there: {other}");
    }
    ask_stateless(&two, &key, "tasks/cancel", task.clone());
    assert_eq!(until_ended(&two, &key, &task)["status"], "cancelled");

    drop(fleet);
    let turn = json!({"agent": "kelly", "turn_id": "queued", "calls": [{"name": "echo", "arguments": {"text": "x"}}]});
    assert_eq!(two.ask(&key, "POST", "/v1/turns", &turn).status, 202);
    let task = json!({"taskId": "queued"});
    for method in ["tasks/get", "tasks/cancel"] {
        let other = ask_stateless_for("fran", &two, &fran, method, task.clone()).json();
        let why = other["error"]["message"].as_str().unwrap_or_default();
        assert!(why.starts_with("unknown task"), "{method}: {other}");
    }
    assert_eq!(ask_stateless(&two, &key, "tasks/get", task)["status"], "working");
}

fn until_ended(gateway: &Gateway, key: &str, task: &Value) -> Value {
    for _ in 0..2_400 {
        let reported = ask_stateless(gateway, key, "tasks/get", task.clone());
        if reported["status"] != "working" {
            return reported;
        }
        pause();
    }
    panic!("a task does not end: {task}");
}

struct McpServeProcess {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl McpServeProcess {
    fn start(url: &str, agent: &str) -> Self {
        let mut command = command(&["mcp", "serve", "--agent", agent]);
        command.env("REDIS_URL", url).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = command.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, input, output }
    }

    fn send(&mut self, message: &Value) {
        writeln!(self.input, "{message}").unwrap();
    }

    fn answer(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("no message ({error}): {line:?}"))
    }

    fn ask(&mut self, method: &str, params: &Value) -> Value {
        self.send(&request(method, params));
        self.answer()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stdio_client_calls_tools_and_its_cancel_ends_the_turn() {
    let redis = RedisServer::start().await;
    let _fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let mut serve = McpServeProcess::start(&redis.url(), "kelly");
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    let welcome = serve.ask("initialize", &hello);
    assert_eq!(welcome["result"]["serverInfo"]["name"], "tickfleet", "{welcome}");
    serve.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    let list = listed(|| serve.ask("tools/list", &json!({})));
    assert!(names(&list).contains(&"echo"), "{list}");
    let echoed = serve.ask("tools/call", &call("echo", &json!({"text": "hi"})));
    assert_eq!(echoed["result"]["structuredContent"]["text"], "hi", "{echoed}");

    let mut long = call("sleep", &json!({"ms": 60_000}));
    long["_meta"] = json!({"tickfleet/turn_id": "long"});
    serve.send(&request("tools/call", &long));
    let gave_up = json!({"requestId": 7, "reason": "the user pressed stop"});
    serve.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gave_up}));
    until_cancelled(&redis.url());

    let McpServeProcess { mut child, input, output } = serve;
    drop((input, output));
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

const ECHO: &str = r#"
import json
import sys

for line in sys.stdin:
    request = json.loads(line)
    params = request.get("params", {})
    if "id" not in request:
        continue
    result = {"tools": [{"name": "echo", "inputSchema": {"type": "object"}}]}
    if request["method"] == "initialize":
        server = {"name": "s", "version": "1.0.0"}
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {}, "serverInfo": server}
    if request["method"] == "tools/call":
        result = {"content": [], "structuredContent": {**params["arguments"], "more": 2**70}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"#;

#[tokio::test(flavor = "multi_thread")]
async fn large_numbers_keep_their_digits_between_client_and_server() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("conf");
    let script = folder.path().join("echo.py");
    std::fs::create_dir(&conf).unwrap();
    std::fs::write(&script, ECHO).unwrap();
    let servers = json!({"servers": {"s": {"command": "python3", "args": [script]}}});
    std::fs::write(conf.join("mcp.yaml"), servers.to_string()).unwrap();
    std::fs::write(conf.join("permissions.yaml"), "permissions: {s__echo: {everyone: true}}").unwrap();
    let conf = conf.to_str().unwrap();
    tickfleet(&["mcp", "pin", "--config", conf]).exits(0);
    let _fleet = DevFleet::start_in(folder.path(), &["--redis-url", &redis.url(), "--config", conf], &[]);
    let keys = folder.path().join("keys.yaml");
    let key = add_key(&keys, &["--id", "all", "--tenant", "demo"]);
    let gateway = Gateway::start(&redis.url(), &keys);
    listed(|| ask(&gateway, &key, "tools/list", &json!({})).json());

    let call = r#"{"name":"s__echo","arguments":{"n":123456789012345678901234567890}}"#;
    let call = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{call}}}"#);
    let back = r#""structuredContent":{"n":123456789012345678901234567890,"more":1180591620717411303424}"#;
    let head = format!("{HEAD}mcp-protocol-version: 2025-11-25\r\n");
    let answer = gateway.ask_raw(&key, "POST", PATH, &head, &call);
    assert!(answer.status == 200 && answer.body.contains(back), "{answer:?}");

    let mut serve = McpServeProcess::start(&redis.url(), "kelly");
    let hello =
        json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}});
    serve.ask("initialize", &hello);
    serve.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    writeln!(serve.input, "{call}").unwrap();
    let mut line = String::new();
    serve.output.read_line(&mut line).unwrap();
    assert!(line.contains(back), "{line}");
    drop(serve.input);
    assert_eq!(serve.child.wait().unwrap().code(), Some(0));
}

fn until_cancelled(url: &str) {
    let mut said = String::new();
    for _ in 0..600 {
        let reply = command(&["reply", "demo:long", "--json"]).env("REDIS_URL", url).output().unwrap();
        said = String::from_utf8_lossy(&reply.stdout).into_owned();
        if said.contains("\"cancelled\"") {
            return;
        }
        pause();
    }
    panic!("a call that its client gave up goes on: {said}");
}
