//! A call that waits for another call returns its permits. It acquires them again before it continues.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::FactRow;
use tickfleet_model::{Effect, Limit, Policy};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{ToolError, TypedTool};
use tokio::sync::{Barrier, Semaphore};

use crate::calls::facts::{change, condition, row, waits};

/// `ship` needs the fact that `pack` sets. At most `places` calls of the tenant run at the same time.
fn with_permits(policy: &mut Policy, places: u64) {
    let rows = [
        ("look", FactRow::default()),
        ("pack", FactRow { sets: vec![change("packed")], ..FactRow::default() }),
        ("ship", FactRow { require: vec![condition("packed")], ..FactRow::default() }),
    ];
    for (tool, facts) in rows {
        policy.permissions.matrix.insert(tool.into(), row(facts));
    }
    policy.limits = Arc::new(vec![Limit {
        name: "all".into(),
        matches: LimitMatch::default(),
        per: [LimitKey::Tenant].into(),
        bound: LimitBound::Concurrent(places),
        every: LimitWindow::Concurrency,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1,
    }]);
}

fn tool(name: &'static str, effect: Effect) -> TypedTool {
    TypedTool::new(name, "A tool.", effect, move |_, _: Value| async move { Ok::<_, ToolError>(json!({"done": name})) })
}

fn turn(id: &str, session: &str, agent: &str, tools: &[&str]) -> Value {
    let calls: Vec<Value> = tools.iter().map(|name| json!({"name": name, "arguments": {}})).collect();
    json!({"turn_id": id, "agent": agent, "session_id": session, "calls": calls})
}

async fn all_ok(fleet: &mut Fleet, turns: usize) {
    for _ in 0..turns {
        let reply = fleet.reply().await;
        let results = reply["results"].as_array().unwrap();
        assert!(results.iter().all(|result| result["outcome"] == "ok"), "{reply:#}");
    }
}

#[tokio::test]
async fn a_call_waiting_for_another_turn_returns_its_concurrency_slot() {
    let mut fleet = Fleet::start(Plan {
        tools: vec![tool("look", Effect::Read), tool("pack", Effect::Read), tool("ship", Effect::Once)],
        agents: vec!["kelly".into(), "fran".into()],
        policy: |policy| {
            with_permits(policy, 1);
            (policy.defaults.calls_per_tick, policy.defaults.tick_ms) = (1, 500);
        },
        ..Plan::default()
    })
    .await;
    for number in 0..3 {
        fleet.submit_turn(turn(&format!("p{number}"), &number.to_string(), "kelly", &["look", "pack"])).await;
        fleet.submit_turn(turn(&format!("s{number}"), &number.to_string(), "fran", &["ship"])).await;
    }
    all_ok(&mut fleet, 6).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn woken_calls_do_not_exceed_the_concurrency_limit() {
    let (running, most, open) =
        (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let pairs = Arc::new(Barrier::new(2));
    let counted = running;
    let seen = most.clone();
    let ship = TypedTool::new("ship", "A tool.", Effect::Once, move |_, _: Value| {
        let counted = counted.clone();
        let seen = seen.clone();
        let pairs = pairs.clone();
        async move {
            seen.fetch_max(counted.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            pairs.wait().await;
            counted.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>(json!({"done": true}))
        }
    });
    let gate = open.clone();
    let pack = TypedTool::new("pack", "A tool.", Effect::Read, move |_, _: Value| {
        let gate = gate.clone();
        async move {
            gate.acquire().await.map_err(ToolError::internal)?.forget();
            Ok::<_, ToolError>(json!({"done": true}))
        }
    });
    let mut fleet = Fleet::start(Plan {
        schedulers: 2,
        workers: 2,
        slots: 4,
        tools: vec![pack, ship, tool("look", Effect::Read)],
        agents: vec!["kelly".into(), "fran".into()],
        policy: |policy| with_permits(policy, 2),
        ..Plan::default()
    })
    .await;
    fleet.submit_turn(turn("p", "s", "kelly", &["pack"])).await;
    for number in 0..6 {
        fleet.submit_turn(turn(&format!("s{number}"), "s", "fran", &["ship"])).await;
    }
    for number in 0..6 {
        assert_eq!(waits(&fleet, &format!("s{number}")).await, "p");
    }
    open.add_permits(1);
    all_ok(&mut fleet, 7).await;
    assert_eq!(most.load(Ordering::SeqCst), 2, "never more, and not fewer for no reason");
    assert_eq!(fleet.used("all", "acme").await, Some(0), "every place was given back");
    assert_eq!(fleet.ask::<u64>("EXISTS", "throttle:all@acme", &[]).await, 0);
    fleet.stop().await;
}
