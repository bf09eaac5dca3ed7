//! All processes die at each step of two turns with the same payment, which must be made at most once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{ToolError, TypedTool};

use super::{lease_ms, places, steps};

fn pay(paid: &Arc<AtomicUsize>) -> TypedTool {
    let paid = Arc::clone(paid);
    let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |_, _: Value| {
        let number = paid.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            // The other turn or a kill can arrive in this time.
            tokio::time::sleep(Duration::from_millis(30)).await;
            Ok::<_, ToolError>(json!({"number": number}))
        }
    });
    pay.effect_key(&["/to"], Duration::from_secs(3_600))
}

#[derive(Debug)]
struct EffectRun {
    commits: usize,
    results: Vec<Value>,
    paid: usize,
    killed: bool,
}

async fn play(kill_after: usize) -> EffectRun {
    let paid = Arc::new(AtomicUsize::new(0));
    let plan = Plan {
        schedulers: 0,
        workers: 0,
        tools: vec![pay(&paid)],
        agents: vec!["kelly".into(), "fran".into()],
        store: StoreOptions { lease_ms: lease_ms(kill_after), ..StoreOptions::default() },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await;
    let submit = async |fleet: &Fleet| {
        let call = json!({"name": "pay", "arguments": {"to": "kim"}});
        for (turn, agent) in [("t1", "kelly"), ("t2", "fran")] {
            let turn = json!({"turn_id": turn, "tenant": "acme", "agent": agent, "reply_to": "box", "calls": [call]});
            fleet.submit_turn(turn).await;
        }
    };
    let super::DyingRun { commits, replies, killed } = super::play(&mut fleet, 2, kill_after, submit).await;
    let results = replies.into_iter().map(|mut reply| reply["results"][0].take()).collect();
    EffectRun { commits, results, paid: paid.load(Ordering::SeqCst), killed }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn equal_payments_are_made_at_most_once_after_a_kill_at_any_step() {
    let whole = play(usize::MAX).await;
    assert_eq!((whole.paid, whole.killed), (1, false), "{whole:?}");
    for kill_after in places(whole.commits, steps(10)) {
        let played = play(kill_after).await;
        let outcomes: Vec<&str> = played.results.iter().filter_map(|result| result["outcome"].as_str()).collect();
        assert!(played.paid <= 1, "killed after {kill_after}: paid twice: {played:?}");
        assert_eq!(outcomes[0], outcomes[1], "killed after {kill_after}: {played:?}");
        assert!(["ok", "outcome_unknown"].contains(&outcomes[0]), "killed after {kill_after}: {played:?}");
        assert!(outcomes[0] != "ok" || played.paid == 1, "killed after {kill_after}: told wrongly: {played:?}");
        let repeated = played.results.iter().filter(|result| !result["repeats"].is_null()).count();
        assert_eq!(repeated, 1, "killed after {kill_after}: one of them is the other's: {played:?}");
    }
}
