//! Tasks of external runtimes.

use super::*;

#[tokio::test]
async fn the_first_task_creates_the_consumer_group_of_an_external_runtime() {
    let fleet = Fleet::start(plan(60_000)).await;
    fleet.delegate("archy", json!({"task_id": "job"})).await;
    let has_stream = async |fleet: &Fleet| fleet.ask::<u64>("EXISTS", "external:acme:archy", &[]).await == 1;
    fleet.until("its stream is there", has_stream).await;
    // Redis returns an error if the group does not exist, so this also checks that the group exists.
    let pending: (u64, redis::Value, redis::Value, redis::Value) =
        fleet.ask("XPENDING", "external:acme:archy", &["workers"]).await;
    assert_eq!(pending.0, 0);
}

#[tokio::test]
async fn long_output_of_an_external_runtime_is_truncated() {
    let mut fleet = Fleet::start(plan(60_000)).await;
    fleet.delegate("archy", json!({"task_id": "job"})).await;
    let leased = fleet.lease_task("archy", "r1").await;
    fleet.say(leased.message("finish", json!({"output": "x".repeat(300_000)}))).await;
    let reply = fleet.reply().await;
    let output = result(&reply)["output"].as_str().unwrap();
    assert!(output.len() <= limits::OUTPUT_BYTES_MAX, "{} bytes", output.len());
    assert!(output.contains("of 300000 bytes cut"), "it says so");
    fleet.stop().await;
}

#[tokio::test]
async fn an_external_stream_drops_ended_tasks_and_is_deleted_with_its_agent() {
    let mut fleet = Fleet::start(plan(5_000)).await;
    let waiting = async |fleet: &Fleet| fleet.ask::<u64>("XLEN", "external:acme:archy", &[]).await;
    fleet.delegate("archy", json!({"task_id": "done"})).await;
    let leased = fleet.lease_task("archy", "r1").await;
    fleet.say(leased.message("finish", json!({"output": 1}))).await;
    fleet.reply().await;
    fleet.delegate("archy", json!({"task_id": "silent"})).await;
    fleet.lease_task("archy", "r1").await;
    fleet.say(json!({"op": "cancel", "task_id": "silent"})).await;
    fleet.reply().await;
    assert_eq!(waiting(&fleet).await, 0, "what has ended is not kept");
    fleet.delegate("archy", json!({"task_id": "last"})).await;
    fleet.until("it waits", async |fleet| waiting(fleet).await == 1).await;
    let mut active = (*fleet.active.load()).clone();
    active.task_handlers.remove(&AgentId::new("archy").unwrap());
    active.digest = "without archy".into();
    fleet.active.replace(active);
    let last = fleet.lease_task("archy", "r1").await;
    fleet.say(last.message("finish", json!({"output": 2}))).await;
    fleet.reply().await;
    fleet
        .until("the stream has gone", async |fleet| {
            fleet.ask::<u64>("EXISTS", "external:acme:archy", &[]).await == 0
                && fleet.ask::<Option<u64>>("ZSCORE", "externals", &["external:acme:archy"]).await.is_none()
        })
        .await;
    fleet.stop().await;
}

#[tokio::test]
async fn heartbeats_extend_the_lease_of_an_external_runtime() {
    let mut fleet = Fleet::start(plan(6_000)).await;
    fleet.delegate("archy", json!({"task_id": "job"})).await;
    let leased = fleet.lease_task("archy", "r1").await;
    for _ in 0..4 {
        fleet.say(leased.message("heartbeat", json!({}))).await;
        let at = fleet.store.now_ms().await.unwrap();
        fleet.until("a third of the lease", async |fleet| fleet.store.now_ms().await.unwrap() > at + 1_800).await;
    }
    fleet.say(leased.message("finish", json!({"output": "in time"}))).await;
    assert_eq!(result(&fleet.reply().await)["attempts"], 1);
    fleet.stop().await;
}

#[tokio::test]
async fn an_external_runtime_leases_a_task_submits_turns_and_finishes_it() {
    let mut fleet = Fleet::start(plan(60_000)).await;
    fleet.delegate("archy", json!({"task_id": "job", "budget": 3, "input": [1], "capabilities": ["read_files"]})).await;
    let leased = fleet.lease_task("archy", "r1").await;
    assert_eq!((leased.id(), &leased.task["input"], &leased.task["budget"]), ("job", &json!([1]), &json!(3)));
    let calls = json!([
        {"name": "read_files"}, {"name": "send_mail"}, {"name": "echo"}, {"name": "echo"}
    ]);
    fleet.submit_turn(json!({"agent": "archy", "turn_id": "work", "task_id": "job", "calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "denied", "ok", "rejected"], "{reply:#}");
    assert_eq!(reply["results"][1]["error"]["details"]["reason"], "missing_capability");
    assert_eq!(reply["results"][3]["error"]["code"], "task_budget_reached");
    fleet.submit_turn(json!({"agent": "fran", "task_id": "job", "calls": [{"name": "echo"}]})).await;
    assert_eq!(fleet.reply().await["error"]["code"], "unknown_task");
    fleet.say(leased.message("finish", json!({"output": {"n": 12345678901234567890u64}}))).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["output"], json!({"n": 12345678901234567890u64}));
    assert!(result(&reply)["duration_ms"].as_u64().unwrap() > 0, "since the task was offered: {reply:#}");
    fleet.say(leased.message("finish", json!({"output": 2}))).await;
    fleet.submit_turn(json!({"agent": "archy", "task_id": "job", "calls": [{"name": "echo"}]})).await;
    assert_eq!(fleet.reply().await["error"]["code"], "unknown_task");
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_retryable_failure_redelivers_the_task_and_a_final_one_ends_it() {
    let mut fleet = Fleet::start(plan(60_000)).await;
    fleet.delegate("archy", json!({"task_id": "job"})).await;
    let first = fleet.lease_task("archy", "r1").await;
    let error = json!({"code": "model_away", "message": "The model did not answer."});
    fleet.say(first.message("fail", json!({"error": error, "retryable": true}))).await;
    let second = fleet.lease_task("archy", "r2").await;
    assert_ne!(first.lease, second.lease);
    fleet.say(first.message("finish", json!({"output": "late"}))).await;
    fleet.say(second.message("fail", json!({"error": error}))).await;
    let reply = fleet.reply().await;
    let failed = result(&reply);
    assert_eq!((&failed["outcome"], &failed["attempts"]), (&json!("permanent"), &json!(2)), "{failed}");
    assert_eq!((&failed["error"]["code"], &failed["error"]["message"]), (&error["code"], &error["message"]));
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_silent_runtime_loses_its_lease_and_its_late_result_is_ignored() {
    // link's runtimes never report, so their lease is short.
    let mut plan = plan(5_000);
    plan.handlers.insert(AgentId::new("link").unwrap(), external(250));
    let mut fleet = Fleet::start(plan).await;
    fleet.delegate("archy", json!({"task_id": "job"})).await;
    let silent = fleet.lease_task("archy", "r1").await;
    let second = fleet.lease_task("archy", "r2").await;
    assert_eq!(second.id(), "job");
    fleet.say(silent.message("finish", json!({"output": "late"}))).await;
    fleet.say(second.message("finish", json!({"output": "in time"}))).await;
    assert_eq!(result(&fleet.reply().await)["output"], "in time");
    fleet.no_more_replies().await;
    fleet.delegate("archy", json!({"task_id": "again"})).await;
    let first = fleet.lease_task("archy", "r1").await;
    fleet.say(first.message("fail", json!({"error": {"message": "Not now."}, "retryable": true}))).await;
    fleet.lease_task("archy", "r2").await;
    let third = fleet.lease_task("archy", "r3").await;
    fleet.say(third.message("finish", json!({"output": 3}))).await;
    assert_eq!(result(&fleet.reply().await)["output"], 3);
    fleet.delegate("link", json!({"task_id": "cursed"})).await;
    for name in ["r1", "r2", "r3"] {
        assert_eq!(fleet.lease_task("link", name).await.id(), "cursed");
    }
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["outcome"], "outcome_unknown");
    fleet.stop().await;
}

#[tokio::test]
async fn a_leased_task_that_is_canceled_or_expires_ends_as_outcome_unknown() {
    // A canceled task ends only when the lease of its silent runtime ends. The lease must outlast the deadline.
    let mut fleet = Fleet::start(plan(5_000)).await;
    fleet.delegate("archy", json!({"task_id": "cancelled"})).await;
    let leased = fleet.lease_task("archy", "r1").await;
    fleet.say(json!({"op": "cancel", "task_id": "cancelled", "reason": "The customer called."})).await;
    let reply = fleet.reply().await;
    let reported = |reply: &Value| result(reply)["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(result(&reply)["outcome"], "outcome_unknown");
    assert!(reported(&reply).contains("canceled (reason: The customer called.) after a runtime took"), "{reply}");
    fleet.say(leased.message("finish", json!({"output": 1}))).await;
    let deadline = fleet.in_ms(4_000).await;
    fleet.delegate("archy", json!({"task_id": "expired", "deadline": deadline})).await;
    fleet.lease_task("archy", "r1").await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["task_id"], &result(&reply)["outcome"]), (&json!("expired"), &json!("outcome_unknown")));
    assert!(reported(&reply).contains("passed after a runtime took the task"), "{reply}");
    assert!(!fleet.audits().await.iter().any(|entry| entry.to_string().contains("not executed")));
    let metrics = fleet.metrics.render();
    assert!(metrics.contains(r#"calls_total{outcome="outcome_unknown",tool="delegate_task"} 2"#), "{metrics}");
    fleet.delegate("archy", json!({"task_id": "unread"})).await;
    fleet.until("it waits", async |fleet| fleet.ask::<u64>("EXISTS", "turn:acme:unread", &[]).await == 1).await;
    fleet.say(json!({"op": "cancel", "task_id": "unread"})).await;
    assert_eq!(result(&fleet.reply().await)["outcome"], "cancelled");
    fleet.no_more_replies().await;
    fleet.stop().await;
}
