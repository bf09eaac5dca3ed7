//! The bytes of a tenant's waiting turns are bounded, and their count returns to zero.

use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_client::{Client, SubmitError, parse_turn};
use tickfleet_config::TaskHandlerDef;
use tickfleet_core::keys::limits::{BYTES, UNFINISHED};
use tickfleet_core::{CounterKey, Query, Value as Answer};
use tickfleet_model::policy::{DefaultCaps, TenantPolicy};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_protocol::{TaskMessage, parse_task_message};
use tickfleet_store::{StoreOptions, TurnName};
use tickfleet_tests::fleet::{Fleet, Plan};

const BYTES_MAX: u64 = 3_040_000;

fn large(of: &str, id: &str, bytes: usize) -> Value {
    let call = json!({"name": "echo", "arguments": {"text": "x".repeat(bytes / 4)}});
    json!({"tenant": of, "agent": "kelly", "turn_id": id, "reply_to": "box", "calls": [call, call, call, call]})
}

async fn submit(client: &Client, turn: &Value) -> Result<(), SubmitError> {
    client.submit(parse_turn(turn.to_string().as_bytes()).unwrap()).await.map(drop)
}

async fn count(fleet: &Fleet, of: &str, limit: &str) -> u64 {
    match fleet.store.query(Query::Counter(CounterKey::new(limit, of))).await.unwrap() {
        Answer::Counter(Some(state)) => state.used,
        _ => 0,
    }
}

#[tokio::test]
async fn a_tenant_at_its_byte_limit_does_not_block_another_tenant() {
    let store = StoreOptions { tenant_bytes_max: BYTES_MAX, lease_ms: 2_000, ..StoreOptions::default() };
    let policy = |policy: &mut tickfleet_model::policy::Policy| {
        policy.tenants.insert(TenantId::new("bolt").unwrap(), TenantPolicy::default());
    };
    let mut fleet = Fleet::start(Plan { workers: 0, store, policy, ..Plan::default() }).await;
    let client = Client::over(vec![fleet.store.clone()]);
    for n in 0..3 {
        submit(&client, &large("acme", &format!("t{n}"), 1_000_000)).await.unwrap();
    }
    fleet.until("all are admitted", async |fleet| count(fleet, "acme", UNFINISHED).await == 3).await;
    let bytes = count(&fleet, "acme", BYTES).await;
    assert!((3_000_000..3_010_000).contains(&bytes), "{bytes}");

    let one_more = large("acme", "one-more", 1_000_000);
    assert!(matches!(submit(&client, &one_more).await, Err(SubmitError::QueueFull)));
    let description = "x".repeat(60_000);
    let task = json!({"tenant": "acme", "target_agent": "kelly", "task_id": "k", "task_description": description});
    let TaskMessage::Delegate(task) = parse_task_message(task.to_string().as_bytes()).unwrap() else { panic!() };
    assert!(matches!(client.delegate(*task).await, Err(SubmitError::QueueFull)));
    fleet.submit_turn(one_more.clone()).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["turn_id"], &reply["error"]["code"]), (&json!("one-more"), &json!("tenant_queue_full")));
    assert_eq!(count(&fleet, "acme", BYTES).await, bytes, "what is refused counts for nothing");
    submit(&client, &large("acme", "small", 10)).await.unwrap();

    submit(&client, &large("bolt", "hers", 1_000_000)).await.unwrap();
    fleet.until("hers is admitted", async |fleet| count(fleet, "bolt", UNFINISHED).await == 1).await;

    fleet.add_worker();
    for _ in 0..4 {
        assert_eq!(fleet.reply().await["status"], "done");
    }
    submit(&client, &one_more).await.unwrap();
    assert_eq!(fleet.reply().await["status"], "done");
    for of in ["acme", "bolt"] {
        fleet.until("all have ended", async |fleet| count(fleet, of, UNFINISHED).await == 0).await;
        assert_eq!(count(&fleet, of, BYTES).await, 0, "{of}");
    }
    fleet.stop().await;
}

#[tokio::test]
async fn the_byte_count_returns_to_zero_after_mixed_traffic() {
    let external = TaskHandlerDef::External { lease: Duration::from_secs(600) };
    let mut fleet = Fleet::start(Plan {
        schedulers: 2,
        workers: 2,
        agents: ["kelly", "fran", "sam"].map(String::from).into(),
        handlers: [(AgentId::new("sam").unwrap(), external)].into(),
        caps: DefaultCaps { tick_ms: 300, calls_per_tick: 3, ..DefaultCaps::default() },
        ..Plan::default()
    })
    .await;
    let turn = |agent: &str, id: &str, calls: Value| json!({"agent": agent, "turn_id": id, "calls": calls});
    let echo = json!({"name": "echo", "arguments": {"text": "x".repeat(2_000)}});
    let fail = |outcomes: &[&str]| json!({"name": "fail", "arguments": {"outcomes": outcomes}});
    let mut turns = vec![
        turn("kelly", "long", json!(vec![&echo; 10])),
        turn("fran", "audited", json!(vec![&echo; 5])),
        turn("fran", "retried", json!([fail(&["transient", "transient", "ok"]), echo])),
        turn("fran", "failed", json!([fail(&["fatal"])])),
        turn("kelly", "cancelled", json!(vec![&echo; 9])),
        turn("kelly", "early", json!([echo])),
        turn("kelly", "expired", json!(vec![&echo; 9])),
        turn("kelly", "refused", json!([{"name": "nothing", "arguments": {}}])),
    ];
    turns[1]["tool_call_audits"] = json!(true);
    turns[1]["format"] = json!("openai_chat");
    turns[1]["calls"] = json!(
        (0..5)
            .map(|n| json!({"id": format!("c{n}"), "type": "function",
                "function": {"name": "echo", "arguments": "{\"text\":\"a\"}"}}))
            .collect::<Vec<_>>()
    );
    let now_ms = fleet.store.now_ms().await.unwrap();
    turns[6]["deadline"] = json!(chrono::DateTime::from_timestamp_millis(now_ms + 700).unwrap().to_rfc3339());
    let name = |id: &str| TurnName::parse(&format!("acme:{id}")).unwrap();
    fleet.store.cancel(&name("early"), "too soon").await.unwrap();
    for turn in &turns {
        fleet.submit_turn(turn.clone()).await;
    }
    let expected = turns.len() + 3;
    for n in 0..3 {
        fleet.submit_turn(turn("fran", &format!("small-{n}"), json!([echo]))).await;
    }
    let task = json!({"tenant": "acme", "target_agent": "sam", "task_id": "outside", "task_description": "work"});
    fleet.xadd("tasks", "task", task.to_string().as_bytes()).await;
    fleet
        .until("some have a part of their results", async |fleet| {
            let has_some = fleet.unfinished("long").await.is_some_and(|turn| turn.position > 0);
            has_some && count(fleet, "acme", BYTES).await > 2_000
        })
        .await;
    for id in ["cancelled", "outside"] {
        fleet.store.cancel(&name(id), "a test").await.unwrap();
    }
    for _ in 0..expected {
        fleet.reply().await;
    }
    fleet.until("all have ended", async |fleet| count(fleet, "acme", UNFINISHED).await == 0).await;
    assert_eq!(count(&fleet, "acme", BYTES).await, 0);
    fleet.stop().await;
}
