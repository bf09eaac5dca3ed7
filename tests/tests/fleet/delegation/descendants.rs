//! When a task ends without success, its child tasks and turns end too.

use tickfleet_model::TaskId;
use tickfleet_store::{TurnName, TurnView};
use tickfleet_tests::runtime::LeasedTask;

use super::*;

fn hang() -> TypedTool {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let run = |_, _: Nothing| std::future::pending::<Result<Done, ToolError>>();
    TypedTool::new("hang", "Never answers.", Effect::Read, run)
}

async fn fleet() -> Fleet {
    let plan = plan(60_000);
    Fleet::start(Plan { tools: plan.tools.into_iter().chain([hang()]).collect(), slots: 8, ..plan }).await
}

/// `job` has the child task `child`. The child's task and turn never end.
async fn family(fleet: &Fleet, job: Value) -> LeasedTask {
    fleet.delegate("archy", job).await;
    let leased = fleet.lease_task("archy", "r1").await;
    fleet.delegate("link", json!({"task_id": "child", "parent_task_id": "job", "budget": 5})).await;
    fleet.lease_task("link", "r2").await;
    let never = json!({"task_id": "grandchild", "parent_task_id": "child", "task_description": "never", "budget": 1});
    fleet.delegate("emma", never).await;
    let turn = json!({"agent": "link", "turn_id": "work", "task_id": "child", "calls": [{"name": "hang"}]});
    fleet.submit_turn(turn).await;
    for id in ["grandchild", "work"] {
        fleet.until("both run", async |fleet| holder(fleet, id).await.is_some()).await;
    }
    leased
}

async fn holder(fleet: &Fleet, id: &str) -> Option<String> {
    let name = TurnName::parse(&format!("acme:{id}")).unwrap();
    // Redis may not respond in time. The caller then asks again.
    match fleet.store.turn_view(&name).await {
        Ok(TurnView::Live(live)) => live.holder,
        Ok(TurnView::Finished(_) | TurnView::Unknown) | Err(_) => None,
    }
}

#[tokio::test]
async fn a_cancel_message_also_cancels_the_tasks_descendants() {
    let mut fleet = fleet().await;
    family(&fleet, json!({"task_id": "job"})).await;
    fleet.say(json!({"op": "cancel", "task_id": "job", "reason": "wrong customer"})).await;
    both_are_canceled(&mut fleet, "wrong customer").await;
    let turn = json!({"agent": "link", "turn_id": "late", "task_id": "child", "calls": [{"name": "echo"}]});
    fleet.submit_turn(turn).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["error"]["code"], "unknown_task", "{reply:#}");
    for parent in ["job", "child"] {
        fleet
            .delegate("fran", json!({"task_id": format!("late-{parent}"), "parent_task_id": parent, "budget": 1}))
            .await;
        let reply = fleet.reply().await;
        assert_eq!(reply["error"]["code"], "unknown_parent", "{reply:#}");
        assert!(reply["error"]["message"].as_str().unwrap().contains("was canceled"), "{reply:#}");
    }
}

async fn both_are_canceled(fleet: &mut Fleet, why: &str) {
    let replies = fleet.replies(2).await;
    for id in ["grandchild", "work"] {
        let result = &replies[id]["results"][0];
        assert_eq!(result["outcome"], "cancelled", "{result:#}");
        assert!(result["error"]["message"].as_str().unwrap().contains(why), "{result:#}");
    }
}

#[tokio::test]
async fn a_failed_task_cancels_its_descendants() {
    let mut fleet = fleet().await;
    let leased = family(&fleet, json!({"task_id": "job"})).await;
    let error = json!({"code": "broken", "message": "It cannot be done."});
    fleet.say(leased.message("fail", json!({"error": error, "retryable": false}))).await;
    assert_eq!(fleet.reply().await["task_id"], "job");
    both_are_canceled(&mut fleet, "the task that began it has failed").await;
}

#[tokio::test]
async fn a_successful_task_does_not_cancel_its_descendants() {
    let mut fleet = fleet().await;
    let leased = family(&fleet, json!({"task_id": "job"})).await;
    fleet.say(leased.message("finish", json!({"output": 1}))).await;
    assert_eq!(fleet.reply().await["task_id"], "job");
    let turn = json!({"agent": "link", "turn_id": "later", "task_id": "child", "calls": [{"name": "echo"}]});
    fleet.submit_turn(turn).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    assert!(holder(&fleet, "grandchild").await.is_some() && holder(&fleet, "work").await.is_some());
}

#[tokio::test]
async fn descendants_of_a_task_expire_with_it() {
    let mut fleet = fleet().await;
    let deadline = tickfleet_engine::time::rfc3339(fleet.store.now_ms().await.unwrap() + 12_000);
    family(&fleet, json!({"task_id": "job", "deadline": deadline})).await;
    let replies = fleet.replies(2).await;
    // If the deadline interrupts a running attempt, the outcome is `transient`.
    for id in ["grandchild", "work"] {
        let outcome = &replies[id]["results"][0]["outcome"];
        assert!(["transient", "expired"].contains(&outcome.as_str().unwrap()), "{id}: {:#}", replies[id]);
    }
}

#[tokio::test]
async fn cancelling_a_turn_ends_the_task_that_its_call_awaits() {
    let mut fleet = fleet().await;
    let mut waits = delegate("emma", "never");
    waits["arguments"]["wait"] = json!(true);
    fleet.submit_turn(json!({"turn_id": "asks", "calls": [waits]})).await;
    let asks = TurnName::parse("acme:asks").unwrap();
    let awaits = async |fleet: &Fleet| match fleet.store.turn_view(&asks).await {
        Ok(TurnView::Live(live)) => live.turn.state.awaits().map(ToString::to_string),
        Ok(TurnView::Finished(_) | TurnView::Unknown) | Err(_) => None,
    };
    fleet.until("it waits", async |fleet| awaits(fleet).await.is_some()).await;
    let task = awaits(&fleet).await.unwrap();
    assert!(TaskId::new(&task).is_ok(), "{task}");
    fleet.cancel_turn("asks").await;
    let replies = fleet.replies(2).await;
    for id in ["asks", &task] {
        let outcome = &replies[id]["results"][0]["outcome"];
        assert!(["cancelled", "outcome_unknown"].contains(&outcome.as_str().unwrap()), "{id}: {:#}", replies[id]);
    }
    fleet.stop().await;
}
