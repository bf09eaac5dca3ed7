//! Tests an agent's tools over MCP, at the gateway and at `tickfleet mcp serve`.

use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{Store, StoreOptions, ToolList, ToolLists};
use tickfleet_testkit::RedisServer;

use super::gateway::Gateway;
use super::gateway::fixture::GatewayFixture;
use super::gateway::mcp::{HEAD, hello, request};
use super::mcp_wrap::McpClient;
use crate::support::binary::{DevFleet, command, tickfleet};
use crate::support::process::until;

const PATH: &str = "/v1/agents/kelly/mcp";

fn call(name: &str, arguments: &Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

/// Repeats the request, because a worker writes the list only some time after its start.
fn listed(mut ask: impl FnMut() -> Value) -> Value {
    until("a tool list", &mut ask, |answer| answer["result"].is_object())["result"].clone()
}

fn names(list: &Value) -> Vec<&str> {
    list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_list_request_waits_until_a_worker_writes_the_list() {
    let place = GatewayFixture::new(&[]).await;
    let key = place.key("all", &[]);
    let gateway = place.gateway();
    let asked = std::thread::spawn(move || {
        let list = gateway.mcp(&key, "kelly", "tools/list", &json!({})).json();
        (list, gateway.mcp(&key, "nobody", "tools/list", &json!({})).json())
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
    let store = Store::open(&place.redis.url(), 0, Arc::new(StoreOptions::default())).unwrap();
    store.write_tool_lists("of-a-test", &lists, 60_000, 60_000).await.unwrap();
    let (list, nobodys) = asked.join().unwrap();
    assert_eq!(names(&list["result"]), ["echo"], "{list}");
    assert!(nobodys["error"]["message"].as_str().unwrap().contains("no tool list"), "{nobodys}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tools_are_served_over_http_and_calls_run_as_turns() {
    let place = GatewayFixture::new(&[]).await;
    let _fleet = place.fleet();
    let key = place.key("all", &[]);
    let reader = place.key("reader", &["--verb", "read"]);
    let fran = place.key("fran", &["--agent", "fran"]);
    let gateway = place.gateway();

    let welcome = gateway.mcp(&key, "kelly", "initialize", &hello()).json();
    assert_eq!(welcome["result"]["protocolVersion"], "2025-11-25", "{welcome}");
    assert_eq!(welcome["result"]["serverInfo"]["name"], "tickfleet");

    let list = listed(|| gateway.mcp(&key, "kelly", "tools/list", &json!({})).json());
    assert!(names(&list).contains(&"echo") && names(&list).contains(&"post_to_x"), "{list}");
    let frans = listed(|| gateway.mcp(&fran, "fran", "tools/list", &json!({})).json());
    assert!(names(&frans).contains(&"echo") && !names(&frans).contains(&"post_to_x"), "{frans}");
    let echoed =
        gateway.mcp(&key, "kelly", "tools/call", &call("echo", &json!({"text": "hi"}))).json()["result"].clone();
    assert_eq!((&echoed["structuredContent"]["text"], &echoed["isError"]), (&json!("hi"), &json!(false)), "{echoed}");

    let invalid = gateway.mcp(&key, "kelly", "tools/call", &call("sleep", &json!({"ms": "soon"}))).json();
    assert_eq!(invalid["result"]["isError"], true, "{invalid}");
    let post = call("post_to_x", &json!({"content": "not mine to post"}));
    let denied = gateway.mcp(&fran, "fran", "tools/call", &post).json();
    assert_eq!(denied["result"]["isError"], true, "{denied}");
    let unknown = gateway.mcp(&key, "kelly", "tools/call", &call("no_such_tool", &json!({}))).json();
    assert_eq!(unknown["error"]["code"], -32602, "{unknown}");

    let mut mine = call("echo", &json!({"text": "once"}));
    mine["_meta"] = json!({"tickfleet/turn_id": "order-17"});
    for _ in 0..2 {
        let answer = gateway.mcp(&key, "kelly", "tools/call", &mine).json();
        assert_eq!(answer["result"]["_meta"]["tickfleet/call"], "order-17/0", "{answer}");
    }

    let submits = gateway.mcp(&reader, "kelly", "tools/call", &call("echo", &json!({"text": "x"}))).json();
    assert!(submits["error"]["message"].as_str().unwrap().contains("may not submit"), "{submits}");
    assert_eq!(gateway.mcp(&fran, "kelly", "tools/list", &json!({})).status, 403);
    assert_eq!(gateway.mcp("tfk_wrong", "kelly", "tools/list", &json!({})).status, 401);
    let browser = format!("{HEAD}origin: https://elsewhere.example\r\n");
    let page = gateway.ask_with(&key, "POST", PATH, &browser, &request("tools/list", &json!({})));
    assert_eq!(page.status, 403, "a page of another origin: {page:?}");
    let none = gateway.ask_with(&key, "POST", PATH, HEAD, &Value::Null);
    assert!((400..500).contains(&none.status), "no request at all: {none:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn any_gateway_can_answer_for_the_task_of_a_long_call() {
    let place = GatewayFixture::new(&[]).await;
    let fleet = place.fleet();
    let key = place.key("all", &[]);
    let fran = place.key("fran", &["--agent", "fran"]);
    let [one, two] = [0, 1].map(|_| place.gateway());

    let found = one.mcp_result(&key, "server/discover", json!({}));
    assert!(found["capabilities"]["extensions"]["io.modelcontextprotocol/tasks"].is_object(), "{found}");
    let short = one.mcp_result(&key, "tools/call", call("echo", &json!({"text": "hi"})));
    assert_eq!(
        (&short["resultType"], &short["structuredContent"]["text"]),
        (&json!("complete"), &json!("hi")),
        "{short}"
    );

    let begun = one.mcp_result(&key, "tools/call", call("sleep", &json!({"ms": 4_000})));
    assert_eq!((&begun["resultType"], &begun["status"]), (&json!("task"), &json!("working")), "{begun}");
    let task = json!({"taskId": begun["taskId"]});
    drop(one);
    let ended = until_ended(&two, &key, &task);
    assert_eq!((&ended["status"], &ended["result"]["isError"]), (&json!("completed"), &json!(false)), "{ended}");
    assert!(ended["ttlMs"].as_i64().unwrap() > 0, "{ended}");

    let begun = two.mcp_result(&key, "tools/call", call("sleep", &json!({"ms": 60_000})));
    let task = json!({"taskId": begun["taskId"]});
    for method in ["tasks/get", "tasks/cancel"] {
        let other = two.mcp_stateless(&fran, "fran", method, task.clone()).json();
        let why = other["error"]["message"].as_str().unwrap_or_default();
        assert!(why.starts_with("unknown task"), "another agent's task is not there: {other}");
    }
    two.mcp_result(&key, "tasks/cancel", task.clone());
    assert_eq!(until_ended(&two, &key, &task)["status"], "cancelled");

    drop(fleet);
    let turn = json!({"agent": "kelly", "turn_id": "queued", "calls": [{"name": "echo", "arguments": {"text": "x"}}]});
    assert_eq!(two.ask(&key, "POST", "/v1/turns", &turn).status, 202);
    let task = json!({"taskId": "queued"});
    for method in ["tasks/get", "tasks/cancel"] {
        let other = two.mcp_stateless(&fran, "fran", method, task.clone()).json();
        let why = other["error"]["message"].as_str().unwrap_or_default();
        assert!(why.starts_with("unknown task"), "{method}: {other}");
    }
    assert_eq!(two.mcp_result(&key, "tasks/get", task)["status"], "working");
}

fn until_ended(gateway: &Gateway, key: &str, task: &Value) -> Value {
    until("the task ends", || gateway.mcp_result(key, "tasks/get", task.clone()), |task| task["status"] != "working")
}

fn serve(url: &str) -> McpClient {
    let args = ["mcp", "serve", "--agent", "kelly"].map(str::to_owned);
    McpClient::start(Path::new("."), &args, &[("REDIS_URL", url)], None)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stdio_client_calls_tools_and_its_cancel_ends_the_turn() {
    let redis = RedisServer::start().await;
    let _fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let mut serve = serve(&redis.url());
    let list = listed(|| serve.ask("tools/list", &json!({})));
    assert!(names(&list).contains(&"echo"), "{list}");
    let echoed = serve.ask("tools/call", &call("echo", &json!({"text": "hi"})));
    assert_eq!(echoed["result"]["structuredContent"]["text"], "hi", "{echoed}");

    let mut long = call("sleep", &json!({"ms": 60_000}));
    long["_meta"] = json!({"tickfleet/turn_id": "long"});
    serve.send(&request("tools/call", &long));
    let gave_up = json!({"requestId": 7, "reason": "the user pressed stop"});
    serve.send(&json!({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": gave_up}));
    until_canceled(&redis.url());
    assert_eq!(serve.close().0, Some(0));
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
    let place = GatewayFixture::new(&[("permissions.yaml", "permissions: {s__echo: {everyone: true}}")]).await;
    let script = place.folder.path().join("echo.py");
    std::fs::write(&script, ECHO).unwrap();
    let servers = json!({"servers": {"s": {"command": "python3", "args": [script]}}});
    std::fs::write(place.conf.join("mcp.yaml"), servers.to_string()).unwrap();
    tickfleet(&["mcp", "pin", "--config", place.conf.to_str().unwrap()]).exits(0);
    let _fleet = place.fleet();
    let key = place.key("all", &[]);
    let gateway = place.gateway();
    listed(|| gateway.mcp(&key, "kelly", "tools/list", &json!({})).json());

    let call = r#"{"name":"s__echo","arguments":{"n":123456789012345678901234567890}}"#;
    let call = format!(r#"{{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{call}}}"#);
    let back = r#""structuredContent":{"n":123456789012345678901234567890,"more":1180591620717411303424}"#;
    let head = format!("{HEAD}mcp-protocol-version: 2025-11-25\r\n");
    let answer = gateway.ask_raw(&key, "POST", PATH, &head, &call);
    assert!(answer.status == 200 && answer.body.contains(back), "{answer:?}");

    let mut serve = serve(&place.redis.url());
    writeln!(serve.input, "{call}").unwrap();
    let mut line = String::new();
    serve.output.read_line(&mut line).unwrap();
    assert!(line.contains(back), "{line}");
    assert_eq!(serve.close().0, Some(0));
}

fn until_canceled(url: &str) {
    let reply = || command(&["reply", "demo:long", "--json"]).env("REDIS_URL", url).output().unwrap().stdout;
    let said = || String::from_utf8(reply()).unwrap();
    until("a call that its client gave up is canceled", said, |said| said.contains("\"cancelled\""));
}
