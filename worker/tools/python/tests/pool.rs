//! Tests with real interpreters.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_tools::ToolFailure;
use tokio::time::timeout;

use support::{PATIENCE, Tools, def, drop_running_call, is_running, until};

fn lost(ran: Result<Value, ToolFailure>) -> bool {
    matches!(ran, Err(ToolFailure::Transient { not_executed: false, message, .. }) if message.contains("process ended"))
}

#[tokio::test]
async fn a_tool_carries_its_definition_and_a_call_carries_its_context() {
    let tools = Tools::of(def());
    let add = tools.spec("add");
    assert_eq!((add.description.as_str(), add.effect), ("Adds.", Effect::Read));
    assert_eq!(
        add.input_schema["properties"]["b"],
        json!({"type": "integer", "default": 2, "description": "The other."})
    );
    assert_eq!(tools.call("add", json!({"a": 40})).await.unwrap(), json!({"sum": 42}));
    let who = tools.call("who", json!({})).await.unwrap();
    assert_eq!(who["agent"], "kelly");
    assert!((1.0..=30.0).contains(&who["left"].as_f64().unwrap()), "{who}");
    tools.stop().await;
}

#[tokio::test]
async fn each_python_error_maps_to_its_failure_and_hides_secrets() {
    let mut def = def();
    def.secrets.insert("K".into(), tickfleet_config::tools::SecretRef::Env("SHOP_KEY".into()));
    def.env.insert("KEY".into(), "${K}".into());
    let tools = Tools::of(def);
    let fail = async |how: &str| tools.call("fail", json!({"how": how})).await.unwrap_err();
    match fail("transient").await {
        ToolFailure::Transient { message, retry_after, not_executed: true } => {
            assert_eq!((message.as_str(), retry_after), ("busy", Some(Duration::from_secs(2))));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(fail("permanent").await, ToolFailure::Ended { details: Some(why), .. } if why["why"] == 7));
    assert!(matches!(fail("invalid").await, ToolFailure::InvalidArguments { message } if message == "not so"));
    match fail("a bug ").await {
        ToolFailure::Internal { message } => {
            assert!(
                message.contains("trial_tools.py") && message.contains("KeyError: 'a bug [REDACTED]'"),
                "{message}"
            );
        }
        other => panic!("{other:?}"),
    }
    let wrong = tools.call("add", json!({"a": "many"})).await;
    assert!(matches!(wrong, Err(ToolFailure::InvalidArguments { message }) if message.starts_with("a: ")));
    let environment = tools.call("environment", json!({})).await.unwrap();
    assert_eq!(environment["KEY"], "[REDACTED]");
    let names: BTreeSet<&str> = environment.as_object().unwrap().keys().map(String::as_str).collect();
    assert!(!names.contains("SHOP_KEY") && !names.contains("HOME"), "{names:?}");
    tools.stop().await;
}

#[tokio::test]
async fn a_crash_loses_only_the_calls_of_its_process() {
    let mut def = def();
    (def.processes, def.concurrency) = (2, 2);
    let tools = Tools::of(def);
    tools.pools.start();
    // Two concurrent calls run in different processes as soon as both processes are running.
    until(PATIENCE, async || {
        let (one, other) =
            tokio::join!(tools.call("wait", json!({"seconds": 0.2})), tools.call("wait", json!({"seconds": 0.2})));
        one.unwrap() != other.unwrap()
    })
    .await;
    let (survivor, crashed) = tokio::join!(tools.call("nap", json!({"seconds": 1.5})), tools.call("crash", json!({})));
    assert!(lost(crashed), "whether it had an effect, nobody knows");
    assert!(survivor.is_ok(), "{survivor:?}");
    let after = timeout(PATIENCE, tools.call("add", json!({"a": 1}))).await.unwrap();
    assert_eq!(after.unwrap(), json!({"sum": 3}));
    tools.stop().await;
}

#[tokio::test]
async fn a_dropped_call_is_canceled_and_its_process_continues() {
    let mut def = def();
    (def.processes, def.concurrency) = (1, 1);
    let tools = Tools::of(def);
    let process = tools.call("wait", json!({"seconds": 0})).await.unwrap();
    assert!(timeout(Duration::from_millis(300), tools.call("wait", json!({"seconds": 600}))).await.is_err());
    // There is capacity for only one call. The capacity becomes free when the dropped call has ended.
    assert_eq!(tools.call("wait", json!({"seconds": 0})).await.unwrap(), process);
    tools.stop().await;
}

#[tokio::test]
async fn a_call_that_ignores_cancellation_ends_its_process_after_a_grace() {
    let mut def = def();
    (def.processes, def.concurrency, def.cancel_grace) = (1, 2, Duration::from_secs(5));
    let tools = Tools::of(def);
    let process = tools.call("wait", json!({"seconds": 0})).await.unwrap();
    let _running = drop_running_call(&tools).await;
    // A call that ends within the grace period is not affected.
    let (short, long) =
        tokio::join!(tools.call("wait", json!({"seconds": 0.3})), tools.call("nap", json!({"seconds": 0.2})));
    assert_eq!((short.unwrap(), long.is_ok()), (process.clone(), true));
    let is_replaced = async || tools.call("wait", json!({"seconds": 0})).await.is_ok_and(|next| next != process);
    until(PATIENCE, is_replaced).await;
    until(PATIENCE, async || !is_running(process.as_i64().unwrap())).await;
    tools.stop().await;
}

#[tokio::test]
async fn large_results_and_rogue_bytes_do_not_break_later_calls() {
    let mut def = def();
    (def.processes, def.concurrency) = (1, 4);
    let tools = Tools::of(def);
    let large = tools.call("large", json!({"count": 5_000_000})).await;
    assert!(matches!(large, Err(ToolFailure::Ended { message, .. }) if message.contains("Ask for less at a time")));
    assert_eq!(tools.call("large", json!({"count": 3_000_000})).await.unwrap().as_str().unwrap().len(), 3_000_000);
    // Bytes that are not a frame end the process and its calls.
    assert!(lost(tools.call("rogue", json!({})).await));
    let after = timeout(PATIENCE, tools.call("add", json!({"a": 1}))).await.unwrap();
    assert_eq!(after.unwrap(), json!({"sum": 3}));
    tools.stop().await;
}

#[tokio::test]
async fn a_process_is_recycled_at_its_call_or_memory_limit() {
    let mut by_calls = def();
    (by_calls.processes, by_calls.recycle_after_calls) = (1, 5);
    let tools = Tools::of(by_calls);
    let mut seen = BTreeSet::new();
    for _ in 0..20 {
        seen.insert(tools.call("wait", json!({"seconds": 0})).await.unwrap().as_i64().unwrap());
    }
    assert_eq!(seen.len(), 4);
    tools.stop().await;
    assert!(!seen.iter().any(|process| is_running(*process)));

    let mut by_memory = def();
    (by_memory.processes, by_memory.memory_max) = (1, 128 << 20);
    let tools = Tools::of(by_memory);
    let before = tools.call("grow", json!({"mebibytes": 150})).await.unwrap();
    until(PATIENCE, async || tools.call("wait", json!({"seconds": 0})).await.unwrap() != before).await;
    tools.stop().await;
}

#[tokio::test]
async fn processes_started_by_tools_end_with_the_interpreter() {
    let tools = Tools::of(def());
    let left = tools.call("leave_behind", json!({})).await.unwrap();
    let left: Vec<i64> = left.as_array().unwrap().iter().map(|id| id.as_i64().unwrap()).collect();
    assert!(left.iter().all(|process| is_running(*process)));
    let process = tools.call("wait", json!({"seconds": 0})).await.unwrap().as_i64().unwrap();
    tools.stop().await;
    until(PATIENCE, async || !left.iter().chain([&process]).any(|process| is_running(*process))).await;
}

#[tokio::test]
async fn two_hundred_concurrent_calls_run_in_at_most_four_processes() {
    let mut def = def();
    (def.processes, def.concurrency) = (4, 50);
    let tools = Tools::with_timeout(def, PATIENCE * 2);
    tools.pools.start();
    let folder = tempfile::tempdir().unwrap();
    // A call is not sent while the processes start.
    let call = async || loop {
        let answer = tools.call("meet", json!({"folder": folder.path(), "count": 200})).await;
        if !matches!(answer, Err(ToolFailure::Transient { not_executed: true, .. })) {
            break answer;
        }
    };
    let calls = (0..200).map(|_| call());
    let answers = futures::future::join_all(calls).await;
    let processes: BTreeSet<i64> = answers.iter().map(|answer| answer.as_ref().unwrap().as_i64().unwrap()).collect();
    assert_eq!(processes.len(), 4, "{processes:?}");
    tools.stop().await;
    assert!(!processes.iter().any(|process| is_running(*process)));
}

#[tokio::test]
async fn an_unused_pool_ends_its_processes() {
    let tools = Tools::of(def());
    let process = tools.call("wait", json!({"seconds": 0})).await.unwrap().as_i64().unwrap();
    drop(tools);
    until(PATIENCE, async || !is_running(process)).await;
}

#[tokio::test]
async fn a_full_pool_reports_not_executed() {
    let mut def = def();
    (def.processes, def.concurrency) = (1, 1);
    let tools = Tools::with_timeout(def, Duration::from_secs(3));
    until(PATIENCE, async || tools.call("wait", json!({"seconds": 0})).await.is_ok()).await;
    let short = tokio::select! {
        biased;
        long = tools.call("wait", json!({"seconds": 600})) => panic!("{long:?}"),
        short = tools.call("wait", json!({"seconds": 0})) => short,
    };
    assert!(
        matches!(short, Err(ToolFailure::Transient { not_executed: true, message, .. }) if message.contains("busy"))
    );
    tools.stop().await;
}
