//! A gateway that starts while Redis is away, and what its log says of each request.

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use super::{Gateway, LOOKS, add_key, pause};
use crate::support::binary::DevFleet;

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";

fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines().find_map(|line| line.split_once(": ").filter(|(found, _)| *found == name)).map(|(_, value)| value)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_starts_and_stays_while_redis_is_away_and_takes_requests_once_it_is_there() {
    let (mut redis, folder) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let keys = folder.path().join("keys.yaml");
    let key = add_key(&keys, &["--id", "all", "--tenant", "demo"]);
    redis.kill9();
    let gateway = Gateway::start(&redis.url(), &keys);
    let turn = json!({"agent": "kelly", "calls": [{"name": "list_tools", "arguments": {}}]});
    let away = gateway.ask(&key, "POST", "/v1/turns", &turn);
    assert_eq!((away.status, away.code()), (503, "unavailable".to_owned()), "{away:?}");
    assert!(header(&away.head, "retry-after").is_some(), "{away:?}");
    assert_eq!(gateway.get("", "/v1/openapi.json").status, 200, "probes are answered");

    redis.restart().await;
    let taken = (0..LOOKS).find_map(|_| {
        let answer = gateway.ask(&key, "POST", "/v1/turns", &turn);
        if answer.status == 503 {
            pause();
        }
        (answer.status != 503).then_some(answer.status)
    });
    assert_eq!(taken, Some(202));
    assert_eq!(gateway.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_named_in_its_answer_in_the_log_and_in_the_trace_of_its_turn() {
    let (redis, folder) = (RedisServer::start().await, tempfile::tempdir().unwrap());
    let _fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let keys = folder.path().join("keys.yaml");
    let key = add_key(&keys, &["--id", "all", "--tenant", "demo"]);
    let gateway = Gateway::start(&redis.url(), &keys);
    let turn = json!({"agent": "kelly", "calls": [{"name": "list_tools", "arguments": {}}]});
    let head = format!("x-request-id: shop-17\r\ntraceparent: 00-{TRACE}-00f067aa0ba902b7-01\r\n");
    let answer = gateway.ask_with(&key, "POST", "/v1/turns?wait=30", &head, &turn);
    assert_eq!((answer.status, header(&answer.head, "x-request-id")), (200, Some("shop-17")), "{answer:?}");
    assert!(answer.json()["traceparent"].as_str().unwrap().contains(TRACE), "{answer:?}");

    let unnamed = gateway.get("", "/v1/turns/nothing");
    let made = header(&unnamed.head, "x-request-id").unwrap().to_owned();
    let line = |id: &str| -> Value {
        (0..LOOKS)
            .find_map(|_| {
                let found = gateway.log.lock().unwrap().iter().find(|line| line["request_id"] == id).cloned();
                if found.is_none() {
                    pause();
                }
                found
            })
            .unwrap_or_else(|| panic!("no line of {id}"))
    };
    let asked = line("shop-17");
    assert_eq!((&asked["method"], &asked["route"]), (&json!("POST"), &json!("/v1/turns")));
    assert_eq!((&asked["status"], &asked["trace_id"]), (&json!(200), &json!(TRACE)));
    assert!(asked["duration_ms"].is_u64(), "{asked}");
    assert_eq!((&line(&made)["status"], &line(&made)["route"]), (&json!(401), &json!("/v1/turns/{turn_id}")));
}
