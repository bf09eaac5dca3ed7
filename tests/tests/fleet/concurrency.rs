//! Concurrency limits with real schedulers and workers.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::{Effect, Limit, Policy};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

#[derive(Default)]
struct ConcurrencyProbe {
    running: AtomicUsize,
    most: AtomicUsize,
    failing: Mutex<BTreeSet<u32>>,
}

#[derive(Deserialize, JsonSchema)]
struct Step {
    number: u32,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    is_done: bool,
}

fn slow(name: &str, effect: Effect, witness: &Arc<ConcurrencyProbe>) -> TypedTool {
    let witness = Arc::clone(witness);
    TypedTool::new(name, "Takes a while.", effect, move |_: CallContext, step: Step| {
        let witness = Arc::clone(&witness);
        async move {
            let running = witness.running.fetch_add(1, Ordering::SeqCst) + 1;
            witness.most.fetch_max(running, Ordering::SeqCst);
            // Calls overlap only if they take a while.
            tokio::time::sleep(Duration::from_millis(40)).await;
            witness.running.fetch_sub(1, Ordering::SeqCst);
            let fails = witness.failing.lock().unwrap().remove(&step.number);
            if fails { Err(ToolError::Transient("Not yet.".into())) } else { Ok(Done { is_done: true }) }
        }
    })
}

fn limited(policy: &mut Policy, name: &str, tools: &[&str], per: LimitKey, places: u64) {
    policy.defaults.calls_per_tick = 1_000;
    policy.limits = Arc::new(vec![Limit {
        name: name.into(),
        matches: LimitMatch { tools: tools.iter().map(ToString::to_string).collect(), ..LimitMatch::default() },
        per: [per].into(),
        bound: LimitBound::Concurrent(places),
        every: LimitWindow::Concurrency,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1,
    }]);
}

async fn start(witness: &Arc<ConcurrencyProbe>, policy: fn(&mut Policy)) -> Fleet {
    Fleet::start(Plan {
        schedulers: 2,
        workers: 3,
        tools: vec![slow("change", Effect::Idempotent, witness), slow("look", Effect::Read, witness)],
        policy,
        ..Plan::default()
    })
    .await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_concurrency_limit_bounds_the_calls_that_run_at_once() {
    let witness = Arc::new(ConcurrencyProbe::default());
    witness.failing.lock().unwrap().extend([3, 8]);
    let mut fleet = start(&witness, |policy| limited(policy, "changes", &["change"], LimitKey::Tool, 2)).await;
    for number in 0..6 {
        let call = |n: u32| ("change", json!({"number": 2 * number + n}));
        fleet.submit(&[call(0), call(1)]).await;
    }
    for _ in 0..6 {
        let reply = fleet.reply().await;
        assert!(reply["results"].as_array().unwrap().iter().all(|result| result["success"] == true), "{reply}");
    }
    assert_eq!(witness.most.load(Ordering::SeqCst), 2, "never more, and not fewer for no reason");
    assert_eq!(fleet.used("changes", "change").await, Some(0), "every place was given back");
    assert_eq!(fleet.ask::<u64>("EXISTS", "throttle:changes@change", &[]).await, 0);
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_parallel_read_takes_its_own_concurrency_slot() {
    let witness = Arc::new(ConcurrencyProbe::default());
    let mut fleet = start(&witness, |policy| limited(policy, "looks", &["look"], LimitKey::Tenant, 3)).await;
    let calls: Vec<_> =
        (0..8).map(|n| json!({"id": format!("c{n}"), "name": "look", "arguments": {"number": n}})).collect();
    fleet.submit_turn(json!({"calls": calls, "parallel_reads": true})).await;
    let reply = fleet.reply().await;
    assert!(reply["results"].as_array().unwrap().iter().all(|result| result["success"] == true), "{reply}");
    assert_eq!(witness.most.load(Ordering::SeqCst), 3);
    fleet.stop().await;
}
