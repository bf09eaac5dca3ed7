//! A sender cannot know whether its message arrived, so it sends the same task again.

use serde_json::value::to_raw_value;
use tickfleet_model::{CallId, TenantId, TurnId};
use tickfleet_tools::{Environment, ToolFailure};

use super::*;

#[tokio::test]
async fn a_repeated_task_message_is_a_duplicate_and_a_changed_one_a_conflict() {
    let mut fleet = Fleet::start(plan(1_000)).await;
    let entry = fleet.delegate("fran", json!({"task_description": "Ohne Id"})).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["task_id"], outcomes(&reply)), (&json!(format!("k{entry}")), vec!["ok"]));
    for _ in 0..2 {
        fleet.delegate("fran", json!({"task_id": "job-1", "priority": "urgent"})).await;
    }
    assert_eq!(fleet.reply().await["task_id"], "job-1");
    fleet.delegate("fran", json!({"task_id": "job-1", "task_description": "Something else."})).await;
    let conflict = fleet.reply().await;
    assert_eq!((&conflict["status"], &conflict["error"]["code"]), (&json!("conflict"), &json!("conflict")));
    let soon = json!({"task_id": "job-2", "deadline": fleet.in_ms(3_000).await});
    let over_ms = fleet.store.now_ms().await.unwrap() + 3_000;
    fleet.delegate("fran", soon.clone()).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["task_id"], outcomes(&reply)), (&json!("job-2"), vec!["ok"]));
    fleet.until("its deadline is over", async |fleet| fleet.store.now_ms().await.unwrap() > over_ms).await;
    fleet.delegate("fran", soon).await;
    fleet.until("it is looked at", async |fleet| fleet.ask::<u64>("XLEN", "tasks", &[]).await == 0).await;
    fleet.no_more_replies().await;
    let refused = fleet.dead().await.into_iter().map(|letter| letter["reason"].clone());
    assert_eq!(refused.collect::<Vec<_>>(), ["conflict"]);
    fleet.stop().await;
}

#[tokio::test]
async fn a_delegation_with_a_possibly_expired_record_is_not_repeated() {
    let mut fleet = Fleet::start(plan(1_000)).await;
    // A task can begin only under an unfinished turn.
    fleet.submit_turn(json!({"turn_id": "t1", "calls": [{"name": "sleep", "arguments": {"ms": 20_000}}]})).await;
    fleet.until("its turn runs", async |fleet| fleet.held().await == 1).await;
    let tools = worker::standard_tools(&fleet.plan().store(&fleet.server.url()), &fleet.active);
    let tool = tools.into_iter().find(|tool| tool.spec().name == "delegate_task").unwrap();
    let handler = tool.into_parts(PATIENCE, &Environment::of([])).1;
    let arguments = to_raw_value(&delegate("fran", "Once.")["arguments"]).unwrap();
    let context = |may_be_forgotten: bool| {
        let call = CallId { turn: TurnId::new("t1").unwrap(), position: 0 };
        let context = CallContext::new(TenantId::new("acme").unwrap(), AgentId::new("kelly").unwrap(), call);
        CallContext { may_be_forgotten, ..context }
    };
    let refused = handler.call(&context(true), &arguments).await.unwrap_err();
    let unknown = |message: &str| message.contains("The task may already be delegated");
    assert!(matches!(&refused, ToolFailure::Ended { message, .. } if unknown(message)), "{refused:?}");
    let given = handler.call(&context(false), &arguments).await.unwrap();
    assert!(given.json.get().contains("queued"), "{}", given.json.get());
    fleet.cancel_turn("t1").await;
    assert_eq!(fleet.reply().await["turn_id"], "t1");
    fleet.until("the task has ended", async |fleet| fleet.ask::<u64>("EXISTS", "timers", &[]).await == 0).await;
    fleet.stop().await;
}
