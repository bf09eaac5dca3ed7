//! Operators see the fleet, and approvers see what they decide about.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use support::{TestGateway, key};
use tickfleet_core::audit::history::{self, Sampled};
use tickfleet_core::{Stored, Transaction};
use tickfleet_model::policy::Rule;
use tickfleet_model::{ApprovalDemand, Policy};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tokio::time::Instant;

/// A long text needs approval by any approver, and a short text by one with the role finance.
fn people_are_asked(policy: &mut Policy) {
    policy.permissions.approvers = [("anna".to_owned(), BTreeSet::new())].into();
    let rule = |when: &str, roles: &[&str]| Rule {
        when: Some(when.into()),
        require: "1 > 2".into(),
        otherwise_ask: Some(ApprovalDemand {
            by: roles.iter().map(ToString::to_string).collect(),
            ..ApprovalDemand::default()
        }),
        ..Rule::default()
    };
    let row = policy.permissions.matrix.get_mut("echo").unwrap();
    row.rules = vec![rule("size(args.text) > 9", &[]), rule("size(args.text) <= 9", &["finance"])];
}

#[tokio::test]
async fn only_an_eligible_approver_sees_the_full_arguments() {
    let mut fleet = Fleet::start(Plan { policy: people_are_asked, ..Plan::default() }).await;
    let (anna_row, anna) = key("anna", "*", &["*"], &["view", "approve"]);
    let (viewer_row, viewer) = key("viewer", "*", &["*"], &["view"]);
    let front = TestGateway::of(&fleet, &[anna_row, viewer_row]).await;
    let get = async |key: &str, path: &str| {
        let answer = front.ask(key, "GET", &format!("/v1/operate/approvals{path}"), &Value::Null).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    };
    let asked = async |turn: &str| {
        let began = Instant::now();
        loop {
            let page = get(&viewer, "").await;
            let found = page["items"].as_array().unwrap().iter().find(|one| one["call"] == format!("{turn}/0"));
            if let Some(found) = found {
                return found.clone();
            }
            assert!(began.elapsed() < PATIENCE, "nobody is asked");
            // The list does not signal changes, so poll. The assertion above bounds the time.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let password = "correct-horse-battery";
    let arguments = json!({"text": format!("{}to eve", "x".repeat(10_000)), "value": {"password": password, "n": 1}});
    let long = fleet.submit(&[("echo", arguments.clone())]).await;
    let listed = asked(&long).await;
    let path = format!("/acme:{}", listed["id"].as_str().unwrap());
    let bytes = arguments.to_string().len();
    for (who, shown) in [("a list", &listed), ("a viewer", &get(&viewer, &path).await)] {
        assert_eq!((&shown["arguments_exact"], &shown["arguments_bytes"]), (&json!(false), &json!(bytes)), "{who}");
        let text = shown.to_string();
        assert!(text.len() < 8_000 && !text.contains(password), "{who}: {text}");
    }
    let decides = get(&anna, &path).await;
    assert_eq!((&decides["arguments"], &decides["arguments_exact"]), (&arguments, &json!(true)));

    let secret = json!({"text": "small", "value": {"password": password}});
    let turn = fleet.submit(&[("echo", secret)]).await;
    let small = asked(&turn).await;
    let shown = get(&anna, &format!("/acme:{}", small["id"].as_str().unwrap())).await;
    assert_eq!(
        (&shown["arguments"]["value"]["password"], &shown["arguments_exact"]),
        (&json!("[REDACTED]"), &json!(false))
    );

    let approved =
        front.ask(&anna, "POST", &format!("/v1/operate/approvals{path}/approve"), &json!({"reason": "yes"})).await;
    assert_eq!(approved.status, 200, "{approved:?}");
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["output"], arguments, "what ran is what was shown");
    let ended = get(&anna, &path).await;
    assert_eq!((&ended["state"], &ended["arguments_exact"]), (&json!("used"), &json!(false)), "{ended}");
    assert!(!ended.to_string().contains(password), "{ended}");
    fleet.cancel_turn(&turn).await;
    assert_eq!(fleet.reply().await["turn_id"], turn);
    fleet.stop().await;
}

/// Moves the last sample back by a minute, so that the last full minute is sampled again.
async fn age_last_sample(fleet: &Fleet) {
    fleet.store.sample_history(&[]).await.unwrap();
    let last: Stored<Sampled> = fleet.store.record_of(&history::key()).await.unwrap().unwrap();
    let mut transaction = Transaction::new(fleet.store.versions().draw());
    transaction.put_for(&history::key(), &Sampled { minute: last.value.minute - 1, ..last.value }, 3_600_000);
    fleet.store.seam().commit(&[transaction]).await.unwrap().results.remove(0).unwrap();
}

#[tokio::test]
async fn the_history_counts_recent_calls_and_requires_an_all_tenant_key() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let (anna_row, anna) = key("anna", "*", &["*"], &["view"]);
    let (acme_row, acme) = key("acme", "acme", &["*"], &["view"]);
    let front = TestGateway::of(&fleet, &[anna_row, acme_row]).await;
    let get = async |path: &str| front.ask(&anna, "GET", &format!("/v1/operate/history{path}"), &Value::Null).await;
    // The scheduler's first sample must not come between the start and the end of the calls, so wait for it first.
    let is_sampled = async |fleet: &Fleet| {
        let sampled = fleet.store.record_of::<Sampled>(&history::key()).await.unwrap();
        sampled.is_some()
    };
    fleet.until("the scheduler has sampled", is_sampled).await;
    age_last_sample(&fleet).await;
    fleet.submit(&[("echo", json!({"text": "hi"})), ("none", json!({}))]).await;
    fleet.reply().await;
    fleet.store.sample_history(&[]).await.unwrap();
    let seen = get("").await.json();
    let points = seen["points"].as_array().unwrap();
    let sum = |name: &str| points.iter().filter_map(|point| point[name].as_u64()).sum::<u64>();
    assert_eq!((sum("ok"), sum("refused"), sum("failed"), sum("unknown")), (1, 1, 0, 0), "{seen}");
    assert_eq!(seen["step_ms"], 60_000, "{seen}");
    let last = points.last().unwrap();
    assert_eq!((&last["waiting"], &last["running"]), (&json!(0), &json!(0)), "{seen}");
    let from_ms = seen["from_ms"].as_i64().unwrap();
    assert_eq!(seen["gaps"][0]["from_ms"], json!(from_ms), "no sample is an hour old: {seen}");
    assert!(seen["changes"].as_array().unwrap().iter().all(|change| change["generation"].is_u64()), "{seen}");
    let hours = get("?step=hour").await.json();
    assert_eq!((&hours["step_ms"], &hours["points"]), (&json!(3_600_000), &json!([])), "no hour has passed: {hours}");
    for wrong in ["?step=day", "?from_ms=5&until_ms=5", "?from_ms=now", "?tenant=acme"] {
        assert_eq!(get(wrong).await.status, 400, "{wrong}");
    }
    let refused = front.ask(&acme, "GET", "/v1/operate/history", &Value::Null).await;
    assert_eq!(refused.status, 403, "{refused:?}");
    fleet.stop().await;
}

#[tokio::test]
async fn an_audit_search_filters_by_arguments_and_explains_syntax_errors() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let (row, anna) = key("anna", "*", &["*"], &["view"]);
    let front = TestGateway::of(&fleet, &[row]).await;
    let value = |amount: f64| json!({"text": "pay", "value": {"amount": amount, "password": "correct-horse"}});
    fleet.submit(&[("echo", value(99.5)), ("echo", value(100.5)), ("echo", json!({"text": "other"}))]).await;
    fleet.reply().await;
    let search = async |conditions: &str| {
        let encoded: String = conditions.bytes().map(|byte| format!("%{byte:02x}")).collect();
        front.ask(&anna, "GET", &format!("/v1/operate/audit?where={encoded}"), &Value::Null).await
    };
    for (conditions, found) in [
        ("value.amount > 100", 1),
        ("value.amount >= 99.50 and text = \"pay\"", 2),
        ("text != \"pay\"", 1),
        ("value.password != \"x\"", 0),
    ] {
        let seen = search(conditions).await.json();
        assert_eq!(seen["entries"].as_array().unwrap().len(), found, "{conditions}: {seen}");
    }
    let wrong = search("amount ~ 1").await;
    assert_eq!(wrong.status, 400);
    let message = "where: expected =, !=, <, <=, > or >= after amount, found \"~ 1\"";
    assert_eq!(wrong.json()["error"]["message"], message);
    let now_ms = fleet.store.now_ms().await.unwrap();
    for (range, found) in [(format!("from_ms={}", now_ms + 60_000), 0), (format!("until_ms={}", now_ms + 60_000), 3)] {
        let seen = front.ask(&anna, "GET", &format!("/v1/operate/audit?{range}"), &Value::Null).await.json();
        assert_eq!(seen["entries"].as_array().unwrap().len(), found, "{range}: {seen}");
    }
    fleet.stop().await;
}

#[tokio::test]
async fn turns_are_listed_by_the_cap_that_they_wait_for() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let (row, anna) = key("anna", "*", &["*"], &["view"]);
    let front = TestGateway::of(&fleet, &[row]).await;
    let get = async |limit: &str| {
        front.ask(&anna, "GET", &format!("/v1/operate/turns?waits_for={limit}"), &Value::Null).await
    };
    // More calls than the caps of two ticks, so that the turn waits even if a tick ends.
    let turn = fleet.submit(&vec![("echo", json!({"text": "hello"})); 21]).await;
    let began = Instant::now();
    let waiting = loop {
        let found = get("max_calls_per_tick").await.json()["items"].clone();
        if found != json!([]) {
            break found;
        }
        assert!(began.elapsed() < PATIENCE, "the turn does not wait");
        // The list of turns does not signal changes, so poll. The assertion above bounds the time.
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!((&waiting[0]["id"], &waiting[0]["state"]), (&json!(turn), &json!("throttled")));
    assert_eq!(get("max_actions_per_day").await.json()["items"], json!([]));
    let unknown = get("max_calls_per_tik").await;
    assert_eq!(unknown.status, 404);
    let message = unknown.json()["error"]["message"].as_str().unwrap().to_owned();
    assert!(message.contains("max_calls_per_tick"), "{message}");
    fleet.cancel_turn(&turn).await;
    assert_eq!(fleet.reply().await["turn_id"], turn);
    fleet.stop().await;
}

#[tokio::test]
async fn a_worker_shows_its_running_calls_and_their_start_times() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let (row, anna) = key("anna", "*", &["*"], &["view"]);
    let front = TestGateway::of(&fleet, &[row]).await;
    let get = async |path: &str| front.ask(&anna, "GET", &format!("/v1/operate/{path}"), &Value::Null).await;
    let before_ms = fleet.store.now_ms().await.unwrap();
    let turn = fleet.submit(&[("sleep", json!({"ms": 600_000}))]).await;
    fleet.leased().await;
    let worker = get("workers").await.json()["workers"][0].clone();
    assert_eq!(worker["running"], Value::Null, "a list is short");
    let path = format!("workers?worker={}", worker["name"].as_str().unwrap());
    let began = Instant::now();
    let call = loop {
        let seen = get(&path).await.json();
        let running = seen["workers"][0]["running"].as_array().unwrap().clone();
        if let [call] = &running[..]
            && call["tool"] == "sleep"
        {
            break call.clone();
        }
        assert!(began.elapsed() < PATIENCE, "the call does not run: {seen}");
        // The list does not signal changes, so poll. The assertion above bounds the time.
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert_eq!(call["turn"], json!(format!("acme:{turn}")));
    let now_ms = fleet.store.now_ms().await.unwrap();
    assert!((before_ms..=now_ms).contains(&call["since_ms"].as_i64().unwrap()), "{call} at {now_ms}");
    for (range, found) in [(format!("from_ms={before_ms}"), 1), (format!("until_ms={before_ms}"), 0)] {
        let seen = get(&format!("turns?{range}")).await.json();
        assert_eq!(seen["items"].as_array().unwrap().len(), found, "{range}: {seen}");
    }
    let scans = async || {
        let mut connection = fleet.server.connection().await;
        let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connection).await.unwrap();
        stats.lines().filter(|line| line.starts_with("cmdstat_scan:")).collect::<String>()
    };
    let before = scans().await;
    for (filter, found, is_scanned) in [("limit=9", 1, false), ("limit=9&tool=echo", 0, false), ("limit=1", 1, true)] {
        let seen = get(&format!("turns?in_workers=true&{filter}")).await.json();
        let turns = seen["items"].as_array().unwrap();
        assert_eq!(turns.len(), found, "{filter}: {seen}");
        assert!(turns.iter().all(|one| one["id"] == turn && one["state"] == "running"), "{filter}: {seen}");
        assert_eq!(scans().await != before, is_scanned, "{filter}");
    }
    assert_eq!(get("workers?worker=w-none").await.status, 404);
    assert_eq!(get("tasks/acme:d-none").await.status, 404);
    assert_eq!(get("tasks/d-none").await.status, 400, "a key of all tenants names the tenant");
    fleet.cancel_turn(&turn).await;
    assert_eq!(fleet.reply().await["turn_id"], turn);
    fleet.stop().await;
}
