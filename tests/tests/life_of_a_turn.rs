//! The tutorial test: what happens to a turn, told by a fleet that runs. Read it from top to bottom.

use serde_json::json;
use tickfleet_tests::fleet::{Fleet, Plan};

#[tokio::test]
async fn a_turn_goes_in_as_one_xadd_and_comes_back_with_one_result_per_call() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let turn = fleet
        .submit(&[("echo", json!({"text": "hello"})), ("no_such_tool", json!({})), ("echo", json!({"text": 7}))])
        .await;
    let reply = fleet.reply().await;
    assert_eq!(reply["turn_id"], turn);
    let outcomes: Vec<_> =
        reply["results"].as_array().unwrap().iter().map(|r| r["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["ok", "unknown_tool", "invalid_arguments"]);
    assert_eq!(reply["results"][0]["output"], json!({"text": "hello"}));
    fleet.stop().await;
}

#[tokio::test]
async fn a_transient_failure_is_tried_again_and_the_calls_after_it_wait() {
    let mut fleet = Fleet::start(Plan::default()).await;
    fleet
        .submit(&[("fail", json!({"outcomes": ["transient", "transient", "ok"]})), ("echo", json!({"text": "after"}))])
        .await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["results"][0]["outcome"], &reply["results"][0]["attempts"]), (&json!("ok"), &json!(3)));
    assert_eq!(reply["results"][1]["outcome"], "ok");
    fleet.stop().await;
}
