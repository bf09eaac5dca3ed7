//! Tools that call other tools. Each inner call has its own result and audit entry.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};
use tickfleet_client::inner::inner_calls;
use tickfleet_model::policy::ToolGrant;
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{AgentId, Effect, Outcome, Policy};
use tickfleet_store::{StoreOptions, TurnName};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::tools::{Post, Posted};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

fn post(posts: &Arc<AtomicUsize>) -> TypedTool {
    let posts = Arc::clone(posts);
    TypedTool::new("post", "Posts.", Effect::Once, move |_, _: Post| {
        let posts = Arc::clone(&posts);
        async move { Ok::<_, ToolError>(Posted { number: posts.fetch_add(1, Ordering::SeqCst) + 1 }) }
    })
}

fn announce(runs: &Arc<AtomicUsize>) -> TypedTool {
    let runs = Arc::clone(runs);
    TypedTool::new("announce", "Announces.", Effect::Idempotent, move |context: CallContext, args: Post| {
        runs.fetch_add(1, Ordering::SeqCst);
        async move {
            let greeting = context.call("echo", json!({"text": args.content})).await?.output()?;
            let posted = context.call("post", json!({"content": args.content})).await?;
            Ok::<_, ToolError>(json!({
                "greeting": serde_json::from_str::<Value>(greeting.get()).map_err(ToolError::internal)?,
                "posted": posted.outcome, "why": posted.error,
            }))
        }
    })
}

fn counted() -> (Arc<AtomicUsize>, Arc<AtomicUsize>) {
    (Arc::default(), Arc::default())
}

/// There is only one slot, so a call that kept its slot during an inner call would wait forever.
fn plan(posts: &Arc<AtomicUsize>, runs: &Arc<AtomicUsize>) -> Plan {
    Plan { slots: 1, tools: vec![post(posts), announce(runs)], ..Plan::default() }
}

fn turn() -> Value {
    let call = json!({"name": "announce", "arguments": {"content": "News"}});
    json!({"turn_id": "t1", "tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": [call]})
}

#[tokio::test]
async fn inner_calls_run_as_the_same_agent_with_the_outer_slot_free() {
    let (posts, runs) = counted();
    let mut fleet = Fleet::start(plan(&posts, &runs)).await;
    fleet.submit_turn(turn()).await;
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!((&result["outcome"], &result["attempts"]), (&json!("ok"), &json!(1)), "{reply}");
    assert_eq!((&result["output"]["posted"], posts.load(Ordering::SeqCst)), (&json!("ok"), 1), "{reply}");
    assert_eq!(runs.load(Ordering::SeqCst), 3, "once to each of its calls, and once to its end");
    let mut turns: Vec<String> =
        fleet.audits().await.iter().map(|audit| audit["meta"]["turn"].as_str().unwrap().to_owned()).collect();
    turns.sort();
    assert_eq!(turns, ["t1", "t1.0.call-1", "t1.0.call-2"]);

    let name = TurnName::parse("acme:t1").unwrap();
    let inner = inner_calls(&fleet.store, &name, "kelly", 0..1).await.unwrap();
    let shown: Vec<_> = inner.iter().map(|call| (call.id.as_str(), call.tool.as_deref(), call.outcome)).collect();
    let ok = Some(Outcome::Ok);
    assert_eq!(shown, [("t1.0.call-1", Some("echo"), ok), ("t1.0.call-2", Some("post"), ok)]);
    assert!(inner.iter().all(|call| call.attempts == 1 && call.duration_ms.is_some() && call.inner.is_empty()));
    assert!(inner_calls(&fleet.store, &name, "ada", 0..1).await.unwrap().is_empty());
    fleet.no_more_replies().await;
    fleet.stop().await;
}

/// The text differs in each run, as if the tool created an ID or used the time.
fn announce_again(runs: &Arc<AtomicUsize>) -> TypedTool {
    let runs = Arc::clone(runs);
    TypedTool::new("announce", "Announces.", Effect::Idempotent, move |context: CallContext, args: Post| {
        let run = runs.fetch_add(1, Ordering::SeqCst);
        async move {
            let posted = context.call("post", json!({"content": format!("{} {run}", args.content)})).await?;
            Ok::<_, ToolError>(json!({"posted": posted.outcome, "why": posted.error}))
        }
    })
}

#[tokio::test]
async fn a_rerun_with_other_arguments_reuses_the_first_inner_call() {
    let (posts, runs) = counted();
    let tools = vec![post(&posts), announce_again(&runs)];
    let mut fleet = Fleet::start(Plan { tools, agents: vec!["ada".into(), "kelly".into()], ..Plan::default() }).await;
    fleet.submit_turn(turn()).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["output"]["posted"], "ok", "{reply}");
    assert_eq!((posts.load(Ordering::SeqCst), runs.load(Ordering::SeqCst)), (1, 2), "{reply}");

    let calls = json!([{"name": "echo", "arguments": {"text": "posted"}}]);
    let forged = json!({"turn_id": "t2.0.call-1", "tenant": "acme", "agent": "ada", "reply_to": "box", "calls": calls});
    fleet.submit_turn(forged).await;
    fleet.reply().await;
    let mut second = turn();
    second["turn_id"] = json!("t2");
    fleet.submit_turn(second).await;
    let reply = fleet.reply().await;
    let why = reply["results"][0]["error"]["message"].as_str().unwrap_or_default();
    assert!(why.contains("post was not called: its id is used by another turn."), "{reply}");
    assert_eq!(posts.load(Ordering::SeqCst), 1);
    fleet.stop().await;
}

#[tokio::test]
async fn inner_calls_obey_permissions_and_count_toward_caps() {
    fn narrow(policy: &mut Policy) {
        let row = ToolGrant { agents: [AgentId::new("ada").unwrap()].into(), ..ToolGrant::default() };
        policy.permissions.matrix.insert("post".into(), row);
        policy.defaults.max_actions_per_day = 2;
    }
    let (posts, runs) = counted();
    let mut fleet = Fleet::start(Plan { policy: narrow, ..plan(&posts, &runs) }).await;
    fleet.submit_turn(turn()).await;
    let reply = fleet.reply().await;
    // The call and its first inner call use up the cap of two.
    assert_eq!(reply["results"][0]["output"]["posted"], "daily_cap_reached", "{reply}");
    fleet.stop().await;

    fn denied(policy: &mut Policy) {
        narrow(policy);
        policy.defaults.max_actions_per_day = 100;
    }
    let mut fleet = Fleet::start(Plan { policy: denied, ..plan(&posts, &runs) }).await;
    fleet.submit_turn(turn()).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["output"]["posted"], "denied", "{reply}");
    assert!(reply["results"][0]["output"]["why"].as_str().unwrap().contains("post"), "{reply}");
    assert_eq!(posts.load(Ordering::SeqCst), 0);
    fleet.stop().await;
}

#[tokio::test]
async fn a_recursive_tool_stops_at_the_depth_limit() {
    let again =
        TypedTool::new("again", "Calls itself.", Effect::Idempotent, |context: CallContext, args: Value| async move {
            let inner = context.call("again", &args).await?;
            Ok::<_, ToolError>(json!({"outcome": inner.outcome, "why": inner.error}))
        });
    let mut fleet = Fleet::start(Plan { slots: 1, tools: vec![again], ..Plan::default() }).await;
    let calls = json!([{"name": "again", "arguments": {}}]);
    fleet.submit_turn(json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["output"]["outcome"], "ok", "{reply}");
    let audits = fleet.audits().await;
    let deepest = audits.iter().filter(|audit| audit.to_string().contains("levels deep")).count();
    assert_eq!((audits.len(), deepest > 0), (4, true), "{audits:?}");
    fleet.stop().await;
}

fn forgetful(plan: Plan) -> Plan {
    let store = StoreOptions { retain_ms: 300, dedupe_ms: 300, ..plan.store.clone() };
    Plan { store, ..plan }
}

#[tokio::test]
async fn an_inner_call_with_an_expired_result_is_not_repeated() {
    let (posts, runs) = counted();
    // Runs for longer than the store keeps the result of the first inner call.
    let slow =
        TypedTool::new("slow", "Posts, and sleeps.", Effect::Idempotent, |context: CallContext, _: Value| async move {
            context.call("post", json!({"content": "News"})).await?.output()?;
            context.call("sleep", json!({"ms": 1_000})).await?.output()?;
            Ok::<_, ToolError>(json!({"done": true}))
        });
    let plan = plan(&posts, &runs);
    let tools = [plan.tools.clone(), vec![slow]].concat();
    let mut fleet = Fleet::start(forgetful(Plan { tools, ..plan })).await;
    let calls = json!([{"name": "slow", "arguments": {}}]);
    fleet.submit_turn(json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": calls})).await;
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!(result["outcome"], "permanent", "{reply}");
    assert!(result["error"]["message"].as_str().unwrap().contains("post may have run"), "{reply}");
    assert_eq!(posts.load(Ordering::SeqCst), 1, "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn an_expired_inner_call_of_a_lost_attempt_is_not_repeated() {
    let (posts, runs) = counted();
    let tries = Arc::clone(&runs);
    let lost = TypedTool::new("lost", "Posts.", Effect::Idempotent, move |context: CallContext, _: Value| {
        let first = tries.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            let posted = context.call("post", json!({"content": "News"})).await;
            if first {
                std::future::pending::<()>().await;
            }
            posted?.output()?;
            Ok::<_, ToolError>(json!({"done": true}))
        }
    });
    let lost = lost.timeout(Duration::from_secs(3));
    let plan = plan(&posts, &runs);
    let tools = [plan.tools.clone(), vec![lost]].concat();
    // The wait before the retry is longer than the store keeps an inner call.
    let plan = Plan { tools, slots: 2, retry_delays: RetryDelays::new(vec![Duration::from_secs(2)]), ..plan };
    let mut fleet = Fleet::start(forgetful(plan)).await;
    let calls = json!([{"name": "lost", "arguments": {}}]);
    fleet.submit_turn(json!({"tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": calls})).await;
    let reply = fleet.reply().await;
    let result = &reply["results"][0];
    assert_eq!(result["outcome"], "permanent", "{reply}");
    assert!(result["error"]["message"].as_str().unwrap().contains("post may have run"), "{reply}");
    assert_eq!((posts.load(Ordering::SeqCst), runs.load(Ordering::SeqCst)), (1, 2), "{reply}");
    fleet.stop().await;
}

#[tokio::test]
async fn inner_calls_inherit_the_priority_of_their_outer_call() {
    let (posts, runs) = counted();
    let mut fleet = Fleet::start(plan(&posts, &runs)).await;
    let mut monitor = redis::Client::open(fleet.server.url()).unwrap().get_async_monitor().await.unwrap();
    let mut commands = monitor.on_message::<String>();
    let mut turn = turn();
    turn["priority"] = json!("low");
    fleet.submit_turn(turn).await;
    assert_eq!(fleet.reply().await["results"][0]["outcome"], "ok");
    let mut submitted = 0;
    while submitted < 2 {
        let command = tokio::time::timeout(PATIENCE, commands.next()).await.unwrap().unwrap();
        if command.contains("FCALL") && command.contains(".0.call-") && command.contains(r#"calls\":["#) {
            assert!(command.contains(r#"priority\":\"low"#), "{command}");
            submitted += 1;
        }
    }
    drop(commands);
    fleet.stop().await;
}
