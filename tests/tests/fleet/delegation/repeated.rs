//! A task that is sent again: whoever sends it cannot know whether it was heard the first time.

use super::*;

#[tokio::test]
async fn another_service_delegates_with_one_xadd_and_a_repeat_is_a_duplicate_or_a_conflict() {
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
    // A repeat that comes after the deadline is a duplicate, too: what ran is not told as refused.
    let soon = json!({"task_id": "job-2", "deadline": fleet.in_ms(400).await});
    fleet.delegate("fran", soon.clone()).await;
    assert_eq!(fleet.reply().await["task_id"], "job-2");
    // The deadline is a time.
    tokio::time::sleep(Duration::from_millis(500)).await;
    fleet.delegate("fran", soon).await;
    fleet.until("it is looked at", async |fleet| fleet.ask::<u64>("XLEN", "tasks", &[]).await == 0).await;
    fleet.no_more_replies().await;
    let refused = fleet.dead().await.into_iter().map(|letter| letter["reason"].clone());
    assert_eq!(refused.collect::<Vec<_>>(), ["conflict"]);
    fleet.stop().await;
}
