//! Tests of retries and round trips of governed calls, loops and cached results.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tickfleet_core::audit::AuditAppend;
use tickfleet_core::call::approval::{self, DecideApproval, DecideResult, Verdict};
use tickfleet_core::{Query, Value};
use tickfleet_engine::active_policy::ActivePolicy;
use tickfleet_model::policy::{Fact, FactChange, FactCondition, FactRow, RuleMode, ToolGrant};
use tickfleet_model::tool::CachePer;
use tickfleet_model::{Effect, Outcome, TenantId};
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use worker::{LoopOptions, StreakBounds};

use crate::shard::{Shard, everyone};

#[derive(Deserialize, Serialize, JsonSchema)]
struct Payment {
    amount: u32,
}

/// A tool that counts its runs. The first `failures` runs fail without effect.
fn counted(tool: &str, effect: Effect, runs: &Arc<AtomicU32>, failures: u32) -> TypedTool {
    let runs = Arc::clone(runs);
    TypedTool::new(tool, "Pays.", effect, move |_: CallContext, args: Payment| {
        let runs = Arc::clone(&runs);
        async move {
            let run = runs.fetch_add(1, Ordering::SeqCst);
            if run < failures {
                let message = "busy".to_owned();
                return Err(ToolError::NotExecuted { message, retry_after: None });
            }
            Ok(json!({ "paid": args.amount, "run": run }))
        }
    })
}

fn tenant() -> TenantId {
    TenantId::new("acme").unwrap()
}

fn permit(active: &mut ActivePolicy, tool: &str, facts: FactRow) {
    active.policy.permissions.matrix.insert(tool.into(), ToolGrant { facts, ..everyone() });
}

async fn waiting_approval(shard: &Shard) -> String {
    shard
        .until(|| async {
            shard.fire_timers().await;
            let first = Query::First { set: approval::waiting_of(&tenant()), upto: None, count: 1 };
            match shard.store.query(first).await.unwrap() {
                Value::Members(members) => members.first().map(|(id, _)| id.to_string()),
                _ => None,
            }
        })
        .await
}

async fn approve(shard: &Shard, id: &str) {
    let tenant = tenant();
    let roles = BTreeSet::new();
    let audit = AuditAppend { text: r#"{"meta":{"reason":"as discussed"}}"#.into(), entries_max: 10 };
    let decision = DecideApproval {
        tenant: &tenant,
        id,
        by: "kim",
        roles: &roles,
        reason: "as discussed",
        verdict: Verdict::Approve { seen: None, narrowed: None, shown: "" },
        audit: &audit,
    };
    let result = shard.store.decide(decision).await.unwrap().result;
    assert!(matches!(result, DecideResult::Counts { state: "approved", .. }), "{result:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_retry_keeps_the_consent_and_the_claim_of_its_call() {
    let runs = Arc::new(AtomicU32::new(0));
    let shard = Shard::start_with(|active, setup| {
        permit(active, "pay", FactRow::default());
        active.policy.permissions.approvers.insert("kim".into(), BTreeSet::new());
        let pay = counted("pay", Effect::Once, &runs, 1).effect_key(&["/amount"], Duration::from_secs(60));
        setup.tools.push(pay.requires_approval());
    })
    .await;
    shard.dispatch("t1", &[("pay", r#"{"amount":7}"#)]).await;
    let id = waiting_approval(&shard).await;
    approve(&shard, &id).await;
    let result = shard.result("t1", 0).await;
    assert_eq!((&result["outcome"], &result["attempts"]), (&json!("ok"), &json!(2)), "{result}");
    assert_eq!((&result["approval"]["by"], &result["repeats"]), (&json!(["kim"]), &json!(null)), "{result}");
    shard.stop().await;
}

/// One read and two commits: begin and complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fully_governed_call_takes_three_round_trips() {
    let runs = Arc::new(AtomicU32::new(0));
    let paid = || Fact::parse("paid").unwrap();
    // With such a long lease, the worker sends no heartbeat during the test.
    let shard = Shard::start_for(60_000, |active, setup| {
        let forbid = vec![FactCondition { fact: paid(), mode: RuleMode::Enforce, message: None }];
        let sets = vec![FactChange { fact: paid(), on: [Outcome::Ok].into(), kept_ms: 60_000 }];
        permit(active, "pay", FactRow { forbid, sets, ..FactRow::default() });
        active.policy.permissions.approvers.insert("kim".into(), BTreeSet::new());
        let bounds = StreakBounds { deny_after: 3, deny_ms: 60_000, keep_ms: 60_000 };
        setup.loops = Some(LoopOptions { warn_after: 2, bounds, except: Arc::default() });
        let pay = counted("pay", Effect::Once, &runs, 0).effect_key(&["/amount"], Duration::from_secs(60));
        setup.tools.push(pay.requires_approval());
    })
    .await;
    shard.dispatch("t1", &[("pay", r#"{"amount":7}"#)]).await;
    let id = waiting_approval(&shard).await;
    approve(&shard, &id).await;
    shard.parked("t1").await;
    shard.tool_lists_written().await;
    let before = shard.memory.round_trips();
    shard.fire("t1").await;
    // Does not read the store, because the test's own reads would be counted too.
    shard.until(|| async { (runs.load(Ordering::SeqCst) == 1).then_some(()) }).await;
    shard.settled(before.1 + 3).await;
    let (reads, commits) = shard.memory.round_trips();
    // The timer reads the turn and its calls.
    let fire_reads = 2;
    let fire_commits = 1;
    assert_eq!((reads - before.0 - fire_reads, commits - before.1 - fire_commits), (1, 2));
    let result = shard.result("t1", 0).await;
    assert_eq!((&result["outcome"], &result["approval"]["by"]), (&json!("ok"), &json!(["kim"])), "{result}");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_call_is_first_noted_and_then_denied() {
    let shard = Shard::start_with(|_, setup| {
        let bounds = StreakBounds { deny_after: 3, deny_ms: 60_000, keep_ms: 60_000 };
        setup.loops = Some(LoopOptions { warn_after: 2, bounds, except: Arc::default() });
    })
    .await;
    let same = ("echo", r#"{"text":"hi"}"#);
    shard.dispatch("t1", &[same, same, same, same, ("echo", r#"{"text":"ho"}"#)]).await;
    let mut seen = Vec::new();
    for position in 0..5 {
        let result = shard.result("t1", position).await;
        seen.push((result["outcome"].as_str().unwrap().to_owned(), result["note"].is_string()));
    }
    let one = |outcome: &str, note| (outcome.to_owned(), note);
    assert_eq!(seen, [one("ok", false), one("ok", true), one("ok", true), one("denied", false), one("ok", false)]);
    shard.dispatch("t2", &[same]).await;
    assert_eq!(shard.result("t2", 0).await["error"]["details"]["reason"], "loop");
    shard.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_repeated_read_returns_the_cached_result() {
    let runs = Arc::new(AtomicU32::new(0));
    let shard = Shard::start_with(|active, setup| {
        permit(active, "price", FactRow::default());
        setup.tools.push(counted("price", Effect::Read, &runs, 0).cache(Duration::from_secs(60), CachePer::Tenant));
    })
    .await;
    for id in ["t1", "t2"] {
        shard.dispatch(id, &[("price", r#"{"amount":1}"#)]).await;
        let result = shard.result(id, 0).await;
        assert_eq!((&result["output"]["run"], result["cached"].is_object()), (&json!(0), id == "t2"), "{result}");
    }
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    shard.stop().await;
}
