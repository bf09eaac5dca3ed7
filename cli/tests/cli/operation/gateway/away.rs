//! Tests a gateway that starts while Redis is unavailable, and the gateway's request log.

use serde_json::{Value, json};

use super::fixture::GatewayFixture;
use super::{add_key, until};

const LETTER: &str = "letter-0-1764130000000-0";
const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.split_once(": ").filter(|(found, _)| *found == name)).map(|(_, value)| value)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_starts_without_redis_and_accepts_requests_once_it_is_up() {
    let mut place = GatewayFixture::new(&[]).await;
    let key = place.key("all", &[]);
    place.redis.kill9();
    let gateway = place.gateway();
    let turn = json!({"agent": "kelly", "calls": [{"name": "list_tools", "arguments": {}}]});
    let away = gateway.ask(&key, "POST", "/v1/turns", &turn);
    assert_eq!((away.status, away.code()), (503, "unavailable".to_owned()), "{away:?}");
    assert!(header(&away.head, "retry-after").is_some(), "{away:?}");
    assert_eq!(gateway.get("", "/v1/openapi.json").status, 200, "probes are answered");

    place.redis.restart().await;
    let taken = until("accepted", || gateway.ask(&key, "POST", "/v1/turns", &turn).status, |status| *status != 503);
    assert_eq!(taken, 202);
    assert_eq!(gateway.stop(), Some(0));
}

/// Takes the examples of the required fields from the document.
fn example(document: &Value, operation: &Value) -> Value {
    let schema = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"].as_str().unwrap_or_default();
    let schema = &document["components"]["schemas"][schema.rsplit('/').next().unwrap()];
    let required = schema["required"].as_array().map(Vec::as_slice).unwrap_or_default();
    let fields = schema["properties"].as_object().unwrap().iter();
    let sent = fields.filter(|(name, _)| *name == "tenant" || required.iter().any(|known| *known == name.as_str()));
    sent.map(|(name, field)| (name.clone(), field["example"].clone())).collect()
}

fn request(path: &str) -> (String, Value) {
    let body = match path.rsplit('/').next().unwrap() {
        "ag-ui" => json!({"threadId": "t", "runId": "r", "messages": [{"id": "m", "role": "user", "content": "hi"}]}),
        "chat" => json!({"message": "hi"}),
        "tasks" => json!({"target_agent": "kelly", "task_description": "Say hi."}),
        "claim" => json!({"claimant": "p-1"}),
        "conclude" => json!({"op": "heartbeat", "lease": "1-0"}),
        "turns" => json!({"agent": "kelly", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]}),
        _ => json!({"reason": "the test asks"}),
    };
    let named = [
        ("{agent}", "kelly"),
        ("{session_id}", "s-1"),
        ("{approval}", "demo:x:0"),
        ("{id}", LETTER),
        ("{task}", "demo:x"),
        ("{task_id}", "x"),
        ("{turn_id}", "x"),
    ];
    let path = named.iter().fold(path.to_owned(), |path, (name, value)| path.replace(name, value));
    (if path.ends_with("/explain") { path + "?id=demo:x" } else { path }, body)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_returns_retry_after_while_redis_is_down() {
    let permissions = "permissions: {echo: {everyone: true}}\napprovers: {anna: {roles: [finance]}}\n";
    let mut place = GatewayFixture::new(&[("permissions.yaml", permissions)]).await;
    let service = place.key("one", &[]);
    let verbs = ["--verb", "view", "--verb", "operate", "--verb", "approve", "--approver", "anna"];
    let operator = add_key(&place.keys, &[&["--id", "all", "--tenant", "*"], &verbs[..]].concat());
    let gateway = place.gateway();
    let document = gateway.get("", "/v1/openapi.json").json();
    place.redis.kill9();
    let mut wrong = Vec::new();
    // `me` needs no Redis. The stream of operator events stays open and reports that the fleet is unavailable.
    let asks_redis = |route: &str| !["/v1/operate/me", "/v1/operate/events"].contains(&route);
    for (route, methods) in document["paths"].as_object().unwrap().iter().filter(|(route, _)| asks_redis(route)) {
        for (method, operation) in methods.as_object().unwrap() {
            let (path, body) = request(route);
            let is_of_operators = route.starts_with("/v1/operate/");
            let body = match (method.as_str(), is_of_operators) {
                ("get", _) => Value::Null,
                (_, true) => example(&document, operation),
                (_, false) => body,
            };
            let key = if is_of_operators { &operator } else { &service };
            let answer = gateway.ask(key, &method.to_uppercase(), &path, &body);
            if answer.status != 503 || header(&answer.head, "retry-after").is_none() {
                wrong.push(format!("{method} {path}: {} {}", answer.status, answer.body));
            }
        }
    }
    assert!(wrong.is_empty(), "{} routes:\n{}", wrong.len(), wrong.join("\n"));
    assert_eq!(gateway.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_response_and_the_log_share_the_request_id_and_trace_id() {
    let place = GatewayFixture::new(&[]).await;
    let _fleet = place.fleet();
    let key = place.key("all", &[]);
    let gateway = place.gateway();
    let turn = json!({"agent": "kelly", "calls": [{"name": "list_tools", "arguments": {}}]});
    let head = format!("x-request-id: shop-17\r\ntraceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n");
    let answer = gateway.ask_with(&key, "POST", "/v1/turns?wait=30", &head, &turn);
    assert_eq!((answer.status, header(&answer.head, "x-request-id")), (200, Some("shop-17")), "{answer:?}");
    assert!(answer.json()["traceparent"].as_str().unwrap().contains(TRACE), "{answer:?}");

    let unnamed = gateway.get("", "/v1/turns/nothing");
    let made = header(&unnamed.head, "x-request-id").unwrap().to_owned();
    let line = |id: &str| -> Value {
        let of = |log: &Vec<Value>| log.iter().find(|line| line["request_id"] == id).cloned();
        of(&until(id, || gateway.log.lock().unwrap().clone(), |log| of(log).is_some())).unwrap()
    };
    let asked = line("shop-17");
    assert_eq!((&asked["method"], &asked["route"]), (&json!("POST"), &json!("/v1/turns")));
    assert_eq!((&asked["status"], &asked["trace_id"]), (&json!(200), &json!(TRACE)));
    assert!(asked["duration_ms"].is_u64(), "{asked}");
    assert_eq!((&line(&made)["status"], &line(&made)["route"]), (&json!(401), &json!("/v1/turns/{turn_id}")));
}
