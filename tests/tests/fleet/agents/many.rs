//! Many tasks at once, and one very long task: slots, limits and memory.

use std::sync::atomic::AtomicU64;

use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::{Limit, Policy};
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::PATIENCE;

use super::*;

const TASKS: usize = 1_000;
const PLACES: u64 = 5;
const ROUNDS: usize = 200;
const RESULT_BYTES: usize = 65_000;

fn limited(policy: &mut Policy) {
    policy.defaults.calls_per_tick = 1_000;
    policy.defaults.max_actions_per_day = 100_000;
    policy.limits = Arc::new(vec![Limit {
        name: "counts".into(),
        matches: LimitMatch { tools: ["count".to_owned()].into(), ..LimitMatch::default() },
        per: [LimitKey::Tenant].into(),
        bound: LimitBound::Concurrent(PLACES),
        every: LimitWindow::Concurrency,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1,
    }]);
}

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Serialize, JsonSchema)]
struct Long {
    text: String,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tasks_finish_with_few_slots_and_within_limits() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        0 => ModelReply::call("count", json!({})),
        _ => ModelReply::words("counted"),
    })
    .await;
    let running = Arc::new(AtomicU64::new(0));
    let most = Arc::new(AtomicU64::new(0));
    let witness = (Arc::clone(&running), Arc::clone(&most));
    let count = TypedTool::new("count", "Counts.", Effect::Read, move |_, _: Nothing| {
        let running = Arc::clone(&running);
        let most = Arc::clone(&most);
        async move {
            most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            // Calls overlap only if they take a while.
            tokio::time::sleep(Duration::from_millis(5)).await;
            running.fetch_sub(1, Ordering::SeqCst);
            Ok::<_, ToolError>(Posted { number: 1 })
        }
    });
    // With this lease, a stalled worker does not look dead.
    let store = StoreOptions { lease_ms: 10_000, ..StoreOptions::default() };
    let plan = Plan { workers: 2, slots: 8, policy: limited, store, ..plan(&model, vec![count]) };
    let mut fleet = Fleet::start(plan).await;
    for number in 0..TASKS {
        enqueue(&fleet, task(&format!("job-{number}"), ["atlas", "kelly"][number % 2], "Count.")).await;
    }
    let replies = fleet.replies(TASKS).await;
    let answered = replies.values().filter(|reply| result(reply)["output"]["answer"] == "counted").count();
    assert_eq!((replies.len(), answered), (TASKS, TASKS));
    assert_eq!(model.asked(), 2 * TASKS, "nobody is asked twice");
    let most = witness.1.load(Ordering::SeqCst);
    assert!((2..=PLACES).contains(&most), "{most} ran at the same time");
    fleet.stop().await;
}

#[tokio::test]
async fn a_task_of_two_hundred_rounds_keeps_its_history_and_requests_bounded() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        ROUNDS => ModelReply::words("enough"),
        n => ModelReply::call("long", json!({"n": n})),
    })
    .await;
    let long = TypedTool::new("long", "Says much.", Effect::Read, |_, _: Value| async {
        Ok::<_, ToolError>(Long { text: "x".repeat(RESULT_BYTES) })
    });
    let mut agent = llm("You are kelly.");
    if let TaskHandlerDef::Llm(def) = &mut agent {
        (def.max_iterations, def.repeats_max) = (500, 100);
    }
    let mut plan = Plan { policy: limited, ..plan(&model, vec![long]) };
    plan.handlers.insert(AgentId::new("kelly").unwrap(), agent);
    let mut fleet = Fleet::start(plan).await;
    let mut message = task("long", "kelly", "Go on.");
    message["budget"] = json!(ROUNDS);
    enqueue(&fleet, message).await;
    // Two hundred rounds take a minute or two on a busy machine.
    let reply = fleet.try_reply(2 * PATIENCE).await.expect("the task's reply");
    assert_eq!(result(&reply)["output"]["iterations"], ROUNDS + 1, "{reply}");
    // Each result is cut to 2,000 bytes. A request has at most 20,000 bytes of recent results.
    let bytes: usize = fleet
        .store
        .steps(&tickfleet_store::TurnName::parse("acme:long").unwrap(), 0)
        .await
        .unwrap()
        .iter()
        .map(String::len)
        .sum();
    assert!((ROUNDS * 2_000..ROUNDS * 2_600).contains(&bytes), "a history of {bytes} bytes");
    let seen = model.seen();
    let reported = |asked: &ModelRequest| -> usize {
        asked.messages.iter().filter_map(|message| message["content"].as_str()).map(str::len).sum()
    };
    let most = seen.iter().map(reported).max().unwrap();
    assert!(most < 20_000 + ROUNDS * 300, "a request of {most} bytes");
    fleet.stop().await;
}
