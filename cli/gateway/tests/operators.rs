//! Operators name what the fleet has: anything else is refused, and nothing is written.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use support::{Front, key};
use tickfleet_tests::fleet::{Fleet, Plan};

#[tokio::test]
async fn a_name_that_the_fleet_does_not_have_is_refused_by_every_verb_and_changes_nothing() {
    let fleet = Fleet::start(Plan::default()).await;
    let (row, anna) = key("anna", "*", &["*"], &["view", "operate", "approve"]);
    let front = Front::of(&fleet, &[row]).await;
    let all = async || {
        let mut found: Vec<String> = redis::cmd("KEYS")
            .arg(fleet.store.keys().key("early:*").replace(['{', '}'], "?"))
            .query_async(&mut fleet.server.connection().await)
            .await
            .unwrap();
        found.extend(fleet.ask::<Vec<String>>("HKEYS", "pauses", &[]).await);
        found
    };
    for (verb, body) in [
        ("pause", json!({"tenant": "acme", "agent": "kely"})),
        ("pause", json!({"tenant": "acne"})),
        ("pause", json!({"tool": "ecoh"})),
        ("pause", json!({"tenant": "acne", "tool": "echo"})),
        ("resume", json!({"tenant": "acme", "agent": "kely"})),
        ("resume", json!({"tool": "ecoh"})),
        ("tools/disable", json!({"tool": "ecoh"})),
        ("workers/drain", json!({"worker": "w-none"})),
        ("workers/resume", json!({"worker": "w-none"})),
        ("approvals/acme:apr-none/approve", json!({})),
        ("approvals/acme:apr-none/deny", json!({})),
    ] {
        let mut body = body;
        body["reason"] = json!("a test");
        let answer = front.ask(&anna, "POST", &format!("/v1/operate/{verb}"), &body).await;
        assert_eq!(
            (answer.status, &answer.json()["error"]["code"]),
            (404, &json!("not_found")),
            "{verb} {body}: {answer:?}"
        );
    }
    let none = json!({"ids": ["acme:none"], "reason": "a test"});
    let answer = front.ask(&anna, "POST", "/v1/operate/cancel", &none).await;
    assert_eq!((answer.status, answer.json()), (200, json!([{"id": "acme:none", "answer": "unknown"}])));
    assert_eq!(all().await, Vec::<String>::new(), "nothing is paused, and no cancel waits");
    let paused = front.ask(&anna, "GET", "/v1/operate/pauses", &Value::Null).await.json();
    assert_eq!(paused["pauses"], json!([]));
    // What is there is taken.
    let kelly = json!({"tenant": "acme", "agent": "kelly", "reason": "a test"});
    for verb in ["pause", "resume"] {
        let answer = front.ask(&anna, "POST", &format!("/v1/operate/{verb}"), &kelly).await;
        assert_eq!(answer.json(), json!({"changed": true}), "{verb}: {answer:?}");
    }
    fleet.stop().await;
}
