//! Tests cancellations that arrive before the turns that they cancel, with real processes.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tickfleet_client::Client;
use tickfleet_model::{InboxName, TenantId, Turn, TurnId};
use tickfleet_protocol::parse_turn;
use tickfleet_store::{CancelResult, StoreOptions, TurnName};
use tickfleet_testkit::RedisServer;

use crate::support::binary::tickfleet;
use crate::support::process::Process;

fn turn(id: Option<&str>) -> Turn {
    let mut turn = json!({
        "tenant": "demo", "agent": "kelly", "reply_to": "early",
        "calls": [{"id": "c", "name": "echo", "arguments": {"text": "hi"}}],
    });
    if let Some(id) = id {
        turn["turn_id"] = id.into();
    }
    parse_turn(turn.to_string().as_bytes()).unwrap()
}

fn name(id: &TurnId) -> TurnName {
    TurnName { tenant: TenantId::new("demo").unwrap(), turn: id.clone() }
}

async fn results(client: &Client, count: usize) -> Vec<Value> {
    let mut replies = client.replies(&TenantId::new("demo").unwrap(), &InboxName::new("early").unwrap());
    let mut found = Vec::new();
    while found.len() < count {
        let reply = replies.next(Duration::from_secs(60)).await.unwrap().expect("a reply within a minute");
        assert_eq!(reply.results.len(), 1, "{reply:?}");
        found.push(serde_json::to_value(&reply.results[0]).unwrap());
    }
    found
}

#[tokio::test]
async fn an_early_cancel_applies_to_its_turn_despite_a_scheduler_kill() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let dir = dir.path();
    std::fs::write(dir.join("permissions.yaml"), "permissions: {echo: {everyone: true}}").unwrap();
    let client = Client::connect(&url, StoreOptions::default()).await.unwrap();
    let mut fleet = vec![Process::start("worker", dir, &url), Process::start("scheduler", dir, &url)];

    for i in 0..10 {
        let id = TurnId::new(format!("fast-{i}")).unwrap();
        assert_eq!(client.cancel(&name(&id), "no longer wanted").await.unwrap(), CancelResult::Waiting);
        client.submit(turn(Some(id.as_str()))).await.unwrap();
    }
    fleet[1].signal(Signal::SIGSTOP);
    for i in 0..10 {
        let id = (i % 2 == 0).then(|| format!("slow-{i}"));
        let id = client.submit(turn(id.as_deref())).await.unwrap().turn_id;
        let cancelled = client.cancel(&name(&id), "no longer wanted").await.unwrap();
        // The stopped scheduler cannot decide about a turn, even after reading the turn.
        assert_eq!(cancelled, CancelResult::Waiting, "{id}");
    }
    // The next scheduler has only the data in Redis.
    fleet[1].signal(Signal::SIGKILL);
    fleet.push(Process::start("scheduler", dir, &url));

    for result in results(&client, 20).await {
        assert_eq!((&result["outcome"], &result["attempts"]), (&json!("cancelled"), &json!(0)), "{result}");
        let message = result["error"]["message"].as_str().unwrap();
        assert!(message.contains("(reason: no longer wanted)") && message.contains("not executed"), "{message}");
    }
    let story = tickfleet(&["explain", "demo:fast-3", "--redis-url", &url, "--json"]).json();
    assert_eq!((&story["calls_admitted"], &story["end_reason"]), (&json!(0), &json!("cancelled")), "{story}");
    assert_eq!(story["cancel_asked"], "no longer wanted");
    assert!(story["audit"].to_string().contains("no longer wanted"), "{story}");
    let mut connection = redis.connection().await;
    let left: Vec<String> = redis::cmd("KEYS").arg("*}:early:*").query_async(&mut connection).await.unwrap();
    assert_eq!(left, Vec::<String>::new());
    let info = redis::cmd("XINFO").arg("STREAM").arg("{tickfleet:0}:replies:demo:early").to_owned();
    let info: BTreeMap<String, redis::Value> = info.query_async(&mut connection).await.unwrap();
    assert_eq!(info["entries-added"], redis::Value::Int(20), "one reply each");
    tickfleet(&["cancel", "demo:never", "--redis-url", &url]).exits(1).prints_error("unknown turn or task demo:never");
    let said = tickfleet(&["cancel", "demo:never", "--early", "--redis-url", &url]);
    said.says("if it arrives within 24 h, it ends without running");
}
