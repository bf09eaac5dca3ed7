//! A call over MCP that waits for an approval. Responses of the client must not decide the approval.

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use super::{Gateway, LOOKS, add_key};
use crate::support::binary::DevFleet;
use crate::support::process::pause;

const PERMISSIONS: &str = "permissions:
  echo: {everyone: true, rules: [{name: ask, require: 'false', otherwise: ask, approval: {by: [finance]}}]}
approvers: {ann: {roles: [finance]}}
";

fn ask(gateway: &Gateway, key: &str, can: &Value, method: &str, mut params: Value) -> Value {
    let named = params["name"].as_str().or(params["taskId"].as_str()).unwrap_or_default();
    let head = format!(
        "content-type: application/json\r\naccept: application/json, text/event-stream\r\nmcp-protocol-version: 2026-07-28\r\nmcp-method: {method}\r\nmcp-name: {named}\r\n"
    );
    let mut capabilities = json!({"extensions": {"io.modelcontextprotocol/tasks": {}}});
    capabilities.as_object_mut().unwrap().extend(can.as_object().unwrap().clone());
    params["_meta"]["io.modelcontextprotocol/protocolVersion"] = json!("2026-07-28");
    params["_meta"]["io.modelcontextprotocol/clientInfo"] = json!({"name": "test", "version": "1"});
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = capabilities;
    let request = json!({"jsonrpc": "2.0", "id": 7, "method": method, "params": params});
    let answer = gateway.ask_with(key, "POST", "/v1/agents/kelly/mcp", &head, &request).json();
    assert!(answer["result"].is_object(), "{method}: {answer}");
    answer["result"].clone()
}

fn until(gateway: &Gateway, key: &str, can: &Value, task: &Value, is: impl Fn(&Value) -> bool) -> Value {
    let mut reported = Value::Null;
    for _ in 0..LOOKS {
        reported = ask(gateway, key, can, "tasks/get", task.clone());
        if is(&reported) {
            return reported;
        }
        pause();
    }
    panic!("a task never came to be as it should: {reported}");
}

fn decides_nothing(gateway: &Gateway, key: &str, can: &Value, question: &str) {
    for answer in [
        json!({"action": "accept"}),
        json!({"action": "accept", "content": {"approve": true}}),
        json!({"action": "decline"}),
    ] {
        let answered = json!({"taskId": "pays", "inputResponses": {question: answer}});
        ask(gateway, key, can, "tasks/update", answered);
        let reported = ask(gateway, key, can, "tasks/get", json!({"taskId": "pays"}));
        assert_eq!(reported["status"], "input_required", "{reported}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn client_responses_do_not_approve_a_waiting_call() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let conf = folder.path().join("conf");
    std::fs::create_dir(&conf).unwrap();
    std::fs::write(conf.join("permissions.yaml"), PERMISSIONS).unwrap();
    std::fs::write(conf.join("agents.yaml"), "agents: {kelly: {}}\n").unwrap();
    let config = ["--config", conf.to_str().unwrap()];
    let _fleet = DevFleet::start(&["--redis-url", &redis.url(), config[0], config[1]]);
    let keys = folder.path().join("keys.yaml");
    // The key may approve, but the client's responses must not decide the approval.
    let verbs = ["--verb", "submit", "--verb", "read", "--verb", "view", "--verb", "approve", "--approver", "ann"];
    let key = add_key(&keys, &[&["--id", "ann-phone", "--tenant", "demo"][..], &verbs].concat());
    let public = [config[0], config[1], "--public-url", "https://fleet.example.com"];
    let gateway = Gateway::start_with(&redis.url(), &keys, &public);

    let call = json!({"name": "echo", "arguments": {"text": "pay"}, "_meta": {"tickfleet/turn_id": "pays"}});
    let shows = json!({"elicitation": {"form": {}, "url": {}}});
    let plain = json!({"elicitation": {"form": {}}});
    let begun = ask(&gateway, &key, &plain, "tools/call", call);
    assert_eq!((&begun["resultType"], &begun["taskId"]), (&json!("task"), &json!("pays")), "{begun}");
    let task = json!({"taskId": "pays"});
    let waits =
        |reported: &Value| reported["statusMessage"].as_str().unwrap_or_default().starts_with("waits for an approval");
    let reported = until(&gateway, &key, &plain, &task, waits);
    let words = reported["statusMessage"].as_str().unwrap();
    assert_eq!((&reported["status"], reported.get("inputRequests")), (&json!("working"), None), "{reported}");
    for said in
        ["echo (pays/0): 1 of finance until 2", "https://fleet.example.com/console/#/approvals", "cannot approve it"]
    {
        assert!(words.contains(said), "{said}: {words}");
    }
    let reported = until(&gateway, &key, &shows, &task, |reported| reported["status"] == "input_required");
    let (name, asked) = reported["inputRequests"].as_object().unwrap().iter().next().unwrap();
    assert_eq!(
        (&asked["method"], &asked["params"]["mode"]),
        (&json!("elicitation/create"), &json!("url")),
        "{reported}"
    );
    assert_eq!(asked["params"]["url"], "https://fleet.example.com/console/#/approvals");
    assert!(asked["params"]["message"].as_str().unwrap().contains("waits for an approval"), "{reported}");

    decides_nothing(&gateway, &key, &shows, name);
    let approvals = gateway.get(&key, "/v1/operate/approvals").json();
    let asked = &approvals["approvals"][0];
    assert_eq!((&asked["state"], &asked["agreed"]), (&json!("waiting"), &json!([])), "{asked}");

    let approve = format!("/v1/operate/approvals/demo:{}/approve", asked["id"].as_str().unwrap());
    assert_eq!(gateway.ask(&key, "POST", &approve, &json!({"reason": "it is due"})).status, 200);
    let ended = until(&gateway, &key, &shows, &task, |reported| reported["status"] == "completed");
    assert_eq!(
        (&ended["result"]["isError"], &ended["result"]["structuredContent"]["text"]),
        (&json!(false), &json!("pay"))
    );
}
