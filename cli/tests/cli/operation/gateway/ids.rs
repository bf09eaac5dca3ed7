//! Tests IDs that callers choose. For each ID, a caller must see only its own work, in its current state.

use serde_json::{Value, json};

use super::fixture::GatewayFixture;
use super::{NOTING_AGENTS, echo, received};

fn named(id: &str, turn: Value) -> Value {
    let mut turn = turn;
    turn["turn_id"] = json!(id);
    turn
}

#[tokio::test(flavor = "multi_thread")]
async fn a_corrected_turn_reports_its_new_state_not_the_old_rejection() {
    let place = GatewayFixture::new(&[]).await;
    let fleet = place.fleet();
    let key = place.key("shop", &[]);
    let gateway = place.gateway();
    let unknown = json!({"agent": "nobody", "turn_id": "order", "calls": [{"name": "echo"}]});
    let refused = gateway.ask(&key, "POST", "/v1/turns?wait=60", &unknown);
    assert_eq!((refused.status, refused.code().as_str()), (422, "unknown_agent"), "{refused:?}");

    // No scheduler is running. The new turn must not get the rejection of the earlier turn with this ID.
    drop(fleet);
    let repaired = gateway.ask(&key, "POST", "/v1/turns?wait=1", &named("order", echo("hi")));
    assert_eq!((repaired.status, repaired.json()["state"].clone()), (202, json!("accepted")), "{repaired:?}");
    let asked = gateway.get(&key, "/v1/turns/order");
    assert_eq!((asked.status, asked.json()["state"].clone()), (202, json!("under_way")), "{asked:?}");
    let _fleet = place.fleet();
    let ended = gateway.get(&key, "/v1/turns/order?wait=60");
    assert_eq!((ended.status, &ended.json()["results"][0]["output"]["text"]), (200, &json!("hi")), "{ended:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queued_turn_is_visible_only_to_keys_of_its_agent() {
    let place = GatewayFixture::new(&[]).await;
    let all = place.key("all", &[]);
    let [kelly, fran] = ["kelly", "fran"].map(|agent| place.key(agent, &["--agent", agent]));
    let gateway = place.gateway();
    assert_eq!(gateway.ask(&kelly, "POST", "/v1/turns", &named("hers", echo("hi"))).status, 202);
    for (key, status) in [(&all, 202), (&kelly, 202), (&fran, 404)] {
        let asked = gateway.get(key, "/v1/turns/hers");
        assert_eq!(asked.status, status, "{asked:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_reuses_the_id_of_another_is_rejected_as_a_conflict() {
    let place = GatewayFixture::new(&NOTING_AGENTS).await;
    let fleet = place.fleet();
    let [atlas, petra] = ["atlas", "petra"].map(|agent| place.key(agent, &["--agent", agent]));
    let gateway = place.gateway();
    let task = |agent: &str, what: &str| json!({"target_agent": agent, "task_id": "job", "task_description": what});
    assert_eq!(gateway.ask(&petra, "POST", "/v1/tasks?wait=60", &task("petra", "rest")).status, 200);
    for (key, agent, what) in [(&atlas, "atlas", "rest"), (&petra, "petra", "work")] {
        for wait in ["", "?wait=1"] {
            let answer = gateway.ask(key, "POST", &format!("/v1/tasks{wait}"), &task(agent, what));
            assert_eq!((answer.status, answer.code().as_str()), (409, "conflict"), "{answer:?}");
        }
    }
    let again = gateway.ask(&petra, "POST", "/v1/tasks?wait=60", &task("petra", "rest"));
    assert_eq!((again.status, again.json()["task_id"].clone()), (200, json!("job")), "{again:?}");

    // If the parent has ended, its child task is rejected. The second submit must not be reported as a conflict.
    let child =
        json!({"target_agent": "petra", "task_id": "child", "task_description": "rest", "parent_task_id": "job"});
    let [first, second] = [0, 1].map(|_| gateway.ask(&petra, "POST", "/v1/tasks?wait=60", &child));
    assert_eq!((first.status, second.status), (404, 404), "{first:?} {second:?}");
    // The fleet generates an ID for this task. The agent atlas must not use the ID.
    let unnamed = json!({"target_agent": "petra", "task_description": "rest"});
    let made = gateway.ask(&petra, "POST", "/v1/tasks?wait=60", &unnamed);
    let taken = json!({"target_agent": "atlas", "task_id": made.json()["task_id"], "task_description": "rest"});
    let answer = gateway.ask(&atlas, "POST", "/v1/tasks?wait=1", &taken);
    assert_eq!((answer.status, answer.code().as_str()), (400, "invalid_request"), "{answer:?}");

    // Both tasks arrive before a scheduler decides. One task gets a reply, and the other a conflict.
    drop(fleet);
    let both = json!({"target_agent": "petra", "task_id": "both", "task_description": "rest"});
    assert_eq!(gateway.ask(&petra, "POST", "/v1/tasks", &both).status, 202);
    let other = json!({"target_agent": "petra", "task_id": "both", "task_description": "work"}).to_string();
    let waits = gateway.send(&petra, "POST", "/v1/tasks?wait=60", "", &other);
    let _fleet = place.fleet();
    let first = gateway.get(&petra, "/v1/turns/both?wait=60");
    assert_eq!((first.status, first.json()["task_id"].clone()), (200, json!("both")), "{first:?}");
    let second = received(waits);
    assert_eq!((second.status, second.code().as_str()), (409, "conflict"), "{second:?}");
}
