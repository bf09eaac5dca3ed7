//! Local tools: the fleet governs the call, and a process of the caller runs the function.

use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_client::operate::{TurnFilter, TurnState, list_turns};
use tickfleet_client::{ApprovalVerdict, Client};
use tickfleet_config::ToolsFile;
use tickfleet_core::keys;
use tickfleet_model::{Redactor, TenantId, TurnId};
use tickfleet_store::{StoreOptions, TurnName, TurnView};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;

const LEASE_MS: u64 = 1_500;

fn declared(more: Value) -> ToolsFile {
    let schema = json!({
        "type": "object",
        "properties": {"order": {"type": "string"}, "amount": {"type": "number"}},
        "required": ["order"],
    });
    let local = json!({"lease_ms": LEASE_MS});
    let mut refund = json!({"description": "Pays.", "input_schema": schema, "effect": "once", "local": local});
    refund.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    let peek = json!({"description": "Reads.", "input_schema": schema, "effect": "read", "local": local});
    serde_json::from_value(json!({"tools": {"refund": refund, "peek": peek}})).unwrap()
}

fn plan(more: Value) -> Plan {
    let mut declared = declared(more);
    let key = tickfleet_model::EffectKey { arguments: vec!["/order".into()], window_ms: 3_600_000 };
    declared.tools.get_mut("refund").unwrap().effect_key = Some(key);
    Plan {
        declared,
        agents: vec!["kelly".into(), "fran".into()],
        store: StoreOptions { lease_ms: 1_500, ..StoreOptions::default() },
        ..Plan::default()
    }
}

async fn submit(fleet: &Fleet, turn: &str, tool: &str, more: Value) {
    let call = json!({"name": tool, "arguments": {"order": "A-1", "amount": 5}});
    let mut message = json!({"turn_id": turn, "local_calls": true, "calls": [call]});
    message.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
    fleet.submit_turn(message).await;
}

async fn state_of(fleet: &Fleet, turn: &str) -> &'static str {
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new(turn).unwrap() };
    match fleet.store.turn_view(&name).await.unwrap() {
        TurnView::Live(live) => live.turn.state.word(),
        TurnView::Finished(_) => "finished",
        TurnView::Unknown => "unknown",
    }
}

fn result(reply: &Value) -> &Value {
    &reply["results"][0]
}

#[tokio::test]
async fn a_claimed_local_call_runs_in_its_caller_with_one_audit_entry() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    submit(&fleet, "t1", "refund", json!({"tool_call_audits": true})).await;
    let claimed = fleet.claim("t1", "p1").await;
    let call = &claimed.call;
    assert_eq!((&call["call"], &call["tool"], &call["agent"]), (&json!("t1/0"), &json!("refund"), &json!("kelly")));
    assert_eq!((&call["arguments"], &call["lease_ms"]), (&json!({"order": "A-1", "amount": 5}), &json!(LEASE_MS)));
    assert!(fleet.try_claim("t1", "p2").await.is_none(), "the call has one claimant");
    fleet.say(claimed.message("finish", json!({"output": {"refund": 7}}))).await;
    let reply = fleet.reply().await;
    let ended = result(&reply);
    assert_eq!(
        (&ended["outcome"], &ended["output"], &ended["local"]),
        (&json!("ok"), &json!({"refund": 7}), &json!(true))
    );
    assert_eq!(ended["attempts"], 1, "{reply}");
    let audits = reply["tool_call_audits"].as_array().unwrap();
    let meta = &audits[0]["meta"];
    assert_eq!((audits.len(), &meta["local"], &meta["arguments"]["order"]), (1, &json!(true), &json!("A-1")), "{meta}");
    assert!(meta["effect"]["key"].is_string(), "{meta}");
    fleet.say(claimed.message("fail", json!({"error": {"message": "late"}}))).await;
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_claimed_local_call_holds_no_slot() {
    let mut fleet = Fleet::start(Plan { slots: 1, ..plan(json!({})) }).await;
    submit(&fleet, "t1", "refund", json!({})).await;
    let claimed = fleet.claim("t1", "p1").await;
    fleet.submit(&[("echo", json!({"text": "hi"}))]).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"], "the only slot is free");
    for (in_workers, found) in [(false, 1), (true, 0)] {
        let filter = TurnFilter { state: Some(TurnState::Running), in_workers, limit: 9, ..TurnFilter::default() };
        let page = list_turns(&Client::over(vec![fleet.store.clone()]), &filter, None).await.unwrap();
        assert_eq!(page.items.len(), found, "in_workers: {in_workers}");
    }
    fleet.say(claimed.message("finish", json!({"output": 1}))).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    fleet.stop().await;
}

#[tokio::test]
async fn a_rejected_local_call_is_never_offered() {
    let mut fleet = Fleet::start(Plan {
        policy: |policy| {
            let refund = policy.permissions.matrix.get_mut("refund").unwrap();
            refund.deny_agents.insert("fran".parse().unwrap());
        },
        ..plan(json!({}))
    })
    .await;
    submit(&fleet, "t1", "refund", json!({"agent": "fran"})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["denied"]);
    let wrong = json!([{"name": "refund", "arguments": {"order": 5}}]);
    fleet.submit_turn(json!({"turn_id": "t2", "local_calls": true, "calls": wrong})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["invalid_arguments"]);
    submit(&fleet, "t3", "refund", json!({"local_calls": false})).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["error"]["details"]["reason"], "not_local", "{reply}");
    for turn in ["t1", "t2", "t3"] {
        assert!(fleet.try_claim(turn, "p1").await.is_none());
    }
    fleet.stop().await;
}

#[tokio::test]
async fn after_a_process_dies_a_once_call_is_unknown_and_a_read_is_retried() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    submit(&fleet, "t1", "refund", json!({})).await;
    let dead = fleet.claim("t1", "p1").await;
    let reply = fleet.reply().await;
    let ended = result(&reply);
    assert_eq!(
        (&ended["outcome"], &ended["local"], &ended["attempts"]),
        (&json!("outcome_unknown"), &json!(true), &json!(1))
    );
    assert!(fleet.try_claim("t1", "p2").await.is_none());
    fleet.say(dead.message("finish", json!({"output": 1}))).await;
    submit(&fleet, "t2", "refund", json!({"agent": "fran"})).await;
    let reply = fleet.reply().await;
    assert_eq!((&result(&reply)["outcome"], &result(&reply)["repeats"]), (&json!("outcome_unknown"), &json!("t1/0")));

    submit(&fleet, "t3", "peek", json!({})).await;
    let first = fleet.claim("t3", "p1").await;
    let second = fleet.claim("t3", "p2").await;
    assert_ne!(first.lease, second.lease);
    assert_eq!(second.call["attempt"], 2);
    fleet.say(first.message("finish", json!({"output": "late"}))).await;
    fleet.say(second.message("finish", json!({"output": "in time"}))).await;
    let reply = fleet.reply().await;
    assert_eq!((&result(&reply)["output"], &result(&reply)["attempts"]), (&json!("in time"), &json!(2)), "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn heartbeats_extend_a_claim_beyond_its_lease() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    submit(&fleet, "t1", "refund", json!({})).await;
    let claimed = fleet.claim("t1", "p1").await;
    for _ in 0..8 {
        fleet.say(claimed.message("heartbeat", json!({}))).await;
        // These heartbeats, each a third of a lease apart, must keep the claim.
        tokio::time::sleep(Duration::from_millis(LEASE_MS / 3)).await;
    }
    fleet.say(claimed.message("finish", json!({"output": 1}))).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    fleet.stop().await;
}

#[tokio::test]
async fn an_unclaimed_call_expires_and_releases_its_effect_claim() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    let deadline = fleet.in_ms(3_000).await;
    submit(&fleet, "t1", "refund", json!({"deadline": deadline})).await;
    let reply = fleet.reply().await;
    assert_eq!((&result(&reply)["outcome"], &result(&reply)["attempts"]), (&json!("expired"), &json!(0)), "{reply}");
    submit(&fleet, "t2", "refund", json!({})).await;
    let claimed = fleet.claim("t2", "p1").await;
    fleet.say(claimed.message("finish", json!({"output": 1}))).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    fleet.stop().await;
}

#[tokio::test]
async fn an_equal_call_waits_for_the_claimed_one_and_gets_its_result() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    submit(&fleet, "t1", "refund", json!({})).await;
    let claimed = fleet.claim("t1", "p1").await;
    submit(&fleet, "t2", "refund", json!({"agent": "fran"})).await;
    let waits = async |fleet: &Fleet| state_of(fleet, "t2").await == "waiting";
    fleet.until("the equal call waits", waits).await;
    fleet.say(claimed.message("finish", json!({"output": 1}))).await;
    let replies = [fleet.reply().await, fleet.reply().await];
    let repeated = replies.iter().find(|reply| reply["turn_id"] == "t2").unwrap();
    let ended = result(repeated);
    assert_eq!((&ended["output"], &ended["repeats"], &ended["local"]), (&json!(1), &json!("t1/0"), &Value::Null));
    assert!(fleet.try_claim("t2", "p2").await.is_none());
    fleet.stop().await;
}

#[tokio::test]
async fn the_reported_failure_determines_the_outcome_and_the_retry() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    let error = json!({"code": "no_cover", "message": "There is no cover."});
    for (flags, outcome) in [(json!({}), "permanent"), (json!({"unknown": true}), "outcome_unknown")] {
        let turn = format!("t-{outcome}");
        submit(&fleet, &turn, "refund", json!({})).await;
        let claimed = fleet.claim(&turn, "p1").await;
        let mut failure = json!({"error": error});
        failure.as_object_mut().unwrap().extend(flags.as_object().unwrap().clone());
        fleet.say(claimed.message("fail", failure)).await;
        let reply = fleet.reply().await;
        assert_eq!(result(&reply)["outcome"], outcome, "{reply}");
        assert!(result(&reply)["error"]["message"].as_str().unwrap().contains("There is no cover"), "{reply}");
    }
    let call = json!({"name": "refund", "arguments": {"order": "A-2"}});
    fleet.submit_turn(json!({"turn_id": "t3", "local_calls": true, "calls": [call]})).await;
    let claimed = fleet.claim("t3", "p1").await;
    let failure = json!({"error": error, "retryable": true, "not_executed": true});
    fleet.say(claimed.message("fail", failure)).await;
    let claimed = fleet.claim("t3", "p1").await;
    fleet.say(claimed.message("finish", json!({"output": 1}))).await;
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), &result(&reply)["attempts"]), (vec!["ok"], &json!(2)), "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_cancel_prevents_only_unclaimed_calls() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    submit(&fleet, "t1", "refund", json!({})).await;
    let offered = async |fleet: &Fleet| fleet.ask::<u64>("XLEN", "local:acme:t1", &[]).await == 1;
    fleet.until("it is offered", offered).await;
    fleet.say(json!({"op": "cancel", "tenant": "acme", "turn_id": "t1"})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["cancelled"]);
    submit(&fleet, "t2", "refund", json!({})).await;
    let claimed = fleet.claim("t2", "p1").await;
    fleet.say(json!({"op": "cancel", "tenant": "acme", "turn_id": "t2"})).await;
    fleet.say(claimed.message("finish", json!({"output": 1}))).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"], "a call that ended keeps its result");
    fleet.stop().await;
}

#[tokio::test]
async fn calls_before_and_after_a_local_call_run_in_the_fleet() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    let calls = json!([
        {"name": "echo", "arguments": {"text": "a"}},
        {"name": "refund", "arguments": {"order": "A-1"}},
        {"name": "echo", "arguments": {"text": "b"}},
        {"name": "peek", "arguments": {"order": "A-1"}},
    ]);
    fleet.submit_turn(json!({"turn_id": "t1", "local_calls": true, "calls": calls})).await;
    for (call, output) in [("t1/1", 1), ("t1/3", 2)] {
        let claimed = fleet.claim("t1", "p1").await;
        assert_eq!(claimed.call["call"], call);
        fleet.say(claimed.message("finish", json!({"output": output}))).await;
    }
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok"; 4], "{reply}");
    assert_eq!((&reply["results"][1]["output"], &reply["results"][3]["output"]), (&json!(1), &json!(2)));
    fleet.stop().await;
}

#[tokio::test]
async fn another_process_claims_a_call_approved_with_changed_arguments() {
    let mut fleet = Fleet::start(Plan {
        policy: |policy| policy.permissions.approvers = [("ann".to_owned(), ["finance".to_owned()].into())].into(),
        ..plan(json!({"requires_approval": true, "approval": {"by": ["finance"], "narrow": ["/amount"]}}))
    })
    .await;
    submit(&fleet, "t1", "refund", json!({})).await;
    fleet.until("it waits for people", async |fleet: &Fleet| state_of(fleet, "t1").await == "waiting").await;
    assert!(fleet.try_claim("t1", "p1").await.is_none(), "it is offered only after the approval");
    let client = Client::over(vec![fleet.store.clone()]);
    let asked = client.approvals(&TenantId::new("acme").unwrap(), 10).await.unwrap().remove(0);
    let roles = ["finance".to_owned()].into();
    let verdict = ApprovalVerdict {
        by: "ann",
        roles: &roles,
        agrees: true,
        reason: "less",
        narrow: [("/amount".to_owned(), RawValue::from_string("3".into()).unwrap())].into(),
        seen: None,
        redactor: &Redactor::default(),
    };
    client.decide_approval(&TenantId::new("acme").unwrap(), &asked.id, &verdict).await.unwrap();
    let offered = async |fleet: &Fleet| fleet.ask::<u64>("EXISTS", "local:acme:t1", &[]).await == 1;
    fleet.until("it is offered", offered).await;
    submit(&fleet, "t1", "refund", json!({})).await;
    let claimed = fleet.claim("t1", "p2").await;
    assert_eq!(claimed.call["arguments"], json!({"order": "A-1", "amount": 3}));
    fleet.say(claimed.message("finish", json!({"output": 1}))).await;
    let reply = fleet.reply().await;
    let approval = &result(&reply)["approval"];
    assert_eq!((&result(&reply)["outcome"], &approval["by"]), (&json!("ok"), &json!(["ann"])), "{reply}");
    assert_eq!(approval["arguments"], json!({"order": "A-1", "amount": 3}), "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_repeated_claim_gets_the_same_call_and_another_process_gets_none() {
    let mut fleet = Fleet::start(plan(json!({}))).await;
    submit(&fleet, "t1", "refund", json!({})).await;
    let name = TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("t1").unwrap() };
    let claimed = async |fleet: &Fleet| fleet.store.claim_local(&name, "p1").await.unwrap();
    fleet.until("it is offered", async |fleet: &Fleet| claimed(fleet).await.is_some()).await;
    let first = claimed(&fleet).await.unwrap();
    assert_eq!(claimed(&fleet).await.unwrap(), first);
    assert!(fleet.store.claim_local(&name, "p2").await.unwrap().is_none());
    let output = tickfleet_model::Conclusion::Output { json: "1".into(), is_cut: false };
    fleet.store.conclude(&name, &first.lease, output).await.unwrap();
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    assert!(fleet.store.claim_local(&name, "p1").await.unwrap().is_none());
    let queue = keys::local(&name.tenant, &name.turn);
    assert_eq!(fleet.ask::<u64>("EXISTS", queue.as_str(), &[]).await, 0, "no queue is left behind");
    fleet.stop().await;
}
