//! All processes die at each step of a call that calls other tools. `once` calls must not run twice.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

use super::{lease_ms, places, steps};

fn post(count: &Arc<AtomicUsize>) -> TypedTool {
    let count = Arc::clone(count);
    TypedTool::new("post", "Posts.", Effect::Once, move |_, _: Value| {
        let number = count.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok::<_, ToolError>(json!({"number": number})) }
    })
}

fn announce() -> TypedTool {
    TypedTool::new("announce", "Announces.", Effect::Idempotent, |context: CallContext, _: Value| async move {
        let first = context.call("post", json!({})).await?;
        let greeted = context.call("greet", json!({})).await?;
        let second = context.call("post", json!({})).await?;
        Ok::<_, ToolError>(json!({"first": first.outcome, "greeted": greeted.outcome, "second": second.outcome}))
    })
}

fn greet() -> TypedTool {
    TypedTool::new("greet", "Greets.", Effect::Idempotent, |context: CallContext, _: Value| async move {
        context.call("echo", json!({"text": "hello"})).await?.output()?;
        Ok::<_, ToolError>(json!({"greeted": true}))
    })
}

#[derive(Debug)]
struct ComposedRun {
    commits: usize,
    reply: Value,
    posts: usize,
    audits: BTreeMap<String, usize>,
    killed: bool,
}

async fn play(kill_after: usize) -> ComposedRun {
    let posts = Arc::new(AtomicUsize::new(0));
    let plan = Plan {
        schedulers: 0,
        workers: 0,
        tools: vec![post(&posts), announce(), greet()],
        store: StoreOptions { lease_ms: lease_ms(kill_after), ..StoreOptions::default() },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await;
    let submit = async |fleet: &Fleet| {
        let call = json!({"name": "announce", "arguments": {}});
        let turn = json!({"turn_id": "t1", "tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": [call]});
        fleet.submit_turn(turn).await;
    };
    let super::DyingRun { commits, mut replies, killed } = super::play(&mut fleet, 1, kill_after, submit).await;
    let mut audits = BTreeMap::new();
    for audit in fleet.audits().await {
        *audits.entry(audit["meta"]["turn"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    ComposedRun { commits, reply: replies.remove(0), posts: posts.load(Ordering::SeqCst), audits, killed }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_composed_call_reaches_the_same_end_after_a_kill_at_any_step() {
    let whole = play(usize::MAX).await;
    assert_eq!((whole.posts, whole.audits.len(), whole.killed), (2, 5, false), "{whole:?}");
    let steps = steps(10);
    let mut unknown = 0;
    for kill_after in places(whole.commits, steps) {
        let played = play(kill_after).await;
        let result = &played.reply["results"][0];
        assert_eq!(result["outcome"], "ok", "killed after {kill_after}: {played:?}");
        assert_eq!(result["output"]["greeted"], "ok", "killed after {kill_after}: {played:?}");
        let reported = ["first", "second"].map(|post| result["output"][post].as_str().unwrap_or_default().to_owned());
        let ok = reported.iter().filter(|outcome| *outcome == "ok").count();
        let honest = reported.iter().all(|outcome| ["ok", "outcome_unknown"].contains(&outcome.as_str()));
        assert!(honest, "killed after {kill_after}: {played:?}");
        assert!(
            (ok..=2).contains(&played.posts),
            "killed after {kill_after}, told wrongly or posted twice: {played:?}"
        );
        assert_eq!(played.audits.len(), 5, "killed after {kill_after}: {played:?}");
        assert!(played.audits.values().all(|entries| *entries == 1), "killed after {kill_after}: {played:?}");
        unknown += 2 - ok;
    }
    // Only few steps lie between the begin of a call and the record of its end, so few outcomes may be unknown.
    assert!(unknown <= steps.div_ceil(3), "unknown {unknown} times in {steps} steps");
}
