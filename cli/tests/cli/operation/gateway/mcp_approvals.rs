//! A call over MCP that waits for an approval. Responses of the client must not decide the approval.

use serde_json::{Value, json};

use super::fixture::GatewayFixture;
use super::mcp::CAPABILITIES;
use super::{Gateway, until};

const PERMISSIONS: &str = "permissions:
  echo: {everyone: true, rules: [{name: ask, require: 'false', otherwise: ask, approval: {by: [finance]}}]}
approvers: {ann: {roles: [finance]}}
";

fn ask(gateway: &Gateway, key: &str, can: &Value, method: &str, mut params: Value) -> Value {
    params["_meta"][CAPABILITIES] = can.clone();
    gateway.mcp_result(key, method, params)
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
    let files = [("permissions.yaml", PERMISSIONS), ("agents.yaml", "agents: {kelly: {}}\n")];
    let place = GatewayFixture::new(&files).await;
    let _fleet = place.fleet();
    // The key may approve, but the client's responses must not decide the approval.
    let verbs = ["--verb", "submit", "--verb", "read", "--verb", "view", "--verb", "approve", "--approver", "ann"];
    let key = place.key("ann-phone", &verbs);
    let gateway = place.gateway_with(&["--public-url", "https://fleet.example.com"]);

    let call = json!({"name": "echo", "arguments": {"text": "pay"}, "_meta": {"tickfleet/turn_id": "pays"}});
    let shows = json!({"elicitation": {"form": {}, "url": {}}});
    let plain = json!({"elicitation": {"form": {}}});
    let begun = ask(&gateway, &key, &plain, "tools/call", call);
    assert_eq!((&begun["resultType"], &begun["taskId"]), (&json!("task"), &json!("pays")), "{begun}");
    let task = json!({"taskId": "pays"});
    let waits =
        |reported: &Value| reported["statusMessage"].as_str().unwrap_or_default().starts_with("waits for an approval");
    let get = |can: &Value| ask(&gateway, &key, can, "tasks/get", task.clone());
    let reported = until("it waits", || get(&plain), waits);
    let words = reported["statusMessage"].as_str().unwrap();
    assert_eq!((&reported["status"], reported.get("inputRequests")), (&json!("working"), None), "{reported}");
    for said in
        ["echo (pays/0): 1 of finance until 2", "https://fleet.example.com/console/#/approvals", "cannot approve it"]
    {
        assert!(words.contains(said), "{said}: {words}");
    }
    let reported = until("it asks", || get(&shows), |reported| reported["status"] == "input_required");
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
    let asked = &approvals["items"][0];
    assert_eq!((&asked["state"], &asked["agreed"]), (&json!("waiting"), &json!([])), "{asked}");

    let approve = format!("/v1/operate/approvals/demo:{}/approve", asked["id"].as_str().unwrap());
    assert_eq!(gateway.ask(&key, "POST", &approve, &json!({"reason": "it is due"})).status, 200);
    let ended = until("it ends", || get(&shows), |reported| reported["status"] == "completed");
    assert_eq!(
        (&ended["result"]["isError"], &ended["result"]["structuredContent"]["text"]),
        (&json!(false), &json!("pay"))
    );
}
