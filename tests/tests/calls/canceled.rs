//! When a turn is canceled, the inner calls of its calls are canceled too, at any depth.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::{Effect, Policy, TenantId, TurnId};
use tickfleet_store::{CancelResult, TurnName};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tools::{CallContext, ToolError, TypedTool};

fn linger(running: &Arc<AtomicUsize>) -> TypedTool {
    let running = Arc::clone(running);
    TypedTool::new("linger", "Lingers.", Effect::Read, move |_, _: Value| {
        let running = Arc::clone(&running);
        async move {
            running.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<Result<Value, ToolError>>().await
        }
    })
}

fn relay(name: &'static str, to: &'static str) -> TypedTool {
    TypedTool::new(name, "Relays.", Effect::Idempotent, move |context: CallContext, _: Value| async move {
        context.call(to, json!({})).await?.output()?;
        Ok::<_, ToolError>(json!({"relayed": true}))
    })
}

fn plan(running: &Arc<AtomicUsize>) -> Plan {
    Plan { slots: 4, tools: vec![linger(running), relay("near", "linger"), relay("far", "near")], ..Plan::default() }
}

async fn submit(fleet: &Fleet, tool: &str) -> TurnName {
    let calls = json!([{"name": tool, "arguments": {}}]);
    let turn = json!({"turn_id": "t1", "tenant": "acme", "agent": "kelly", "reply_to": "box", "calls": calls});
    fleet.submit_turn(turn).await;
    TurnName { tenant: TenantId::new("acme").unwrap(), turn: TurnId::new("t1").unwrap() }
}

async fn until(is_so: impl AsyncFn() -> bool) {
    let waited = async {
        while !is_so().await {
            // The running call gives no signal, so this polls.
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.expect("it never was so");
}

async fn outcomes(fleet: &Fleet, count: usize) -> Vec<(String, String)> {
    until(async || fleet.audits().await.len() >= count).await;
    let audits = fleet.audits().await;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut reported: Vec<_> =
        audits.iter().map(|audit| (text(&audit["meta"]["turn"]), text(&audit["meta"]["outcome"]))).collect();
    reported.sort();
    reported
}

#[tokio::test]
async fn a_canceled_turn_cancels_inner_calls_at_any_depth() {
    let running = Arc::new(AtomicUsize::new(0));
    let mut fleet = Fleet::start(plan(&running)).await;
    let name = submit(&fleet, "far").await;
    until(async || running.load(Ordering::SeqCst) == 1).await;
    assert_eq!(fleet.store.cancel(&name, "not wanted any more").await.unwrap(), CancelResult::Ok);
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["outcome"], "cancelled", "{reply}");
    let reported = outcomes(&fleet, 3).await;
    let cancelled = ["t1", "t1.0.call-1", "t1.0.call-1.0.call-1"].map(|turn| (turn.to_owned(), "cancelled".to_owned()));
    assert_eq!(reported, cancelled);
    fleet.stop().await;
}

#[tokio::test]
async fn an_inner_call_waiting_for_a_cap_is_canceled_before_it_runs() {
    fn capped(policy: &mut Policy) {
        policy.defaults.calls_per_tick = 1;
        policy.defaults.tick_ms = 3_600_000;
    }
    let running = Arc::new(AtomicUsize::new(0));
    let mut fleet = Fleet::start(Plan { policy: capped, ..plan(&running) }).await;
    let name = submit(&fleet, "near").await;
    let inner = TurnName { turn: TurnId::new("t1.0.call-1").unwrap(), ..name.clone() };
    // The outer call uses up the calls per tick, so the inner call waits.
    until(async || matches!(fleet.store.turn_view(&inner).await.unwrap(), tickfleet_store::TurnView::Live(_))).await;
    fleet.store.cancel(&name, "not wanted any more").await.unwrap();
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["outcome"], "cancelled", "{reply}");
    let reported = outcomes(&fleet, 2).await;
    assert!(reported.iter().all(|(_, outcome)| outcome == "cancelled") && reported.len() == 2, "{reported:?}");
    assert_eq!(running.load(Ordering::SeqCst), 0);
    fleet.stop().await;
}

#[tokio::test]
async fn an_inner_call_that_its_caller_does_not_await_is_cancelled() {
    let running = Arc::new(AtomicUsize::new(0));
    let begun = Arc::clone(&running);
    let stays = TypedTool::new("stays", "Stays.", Effect::Idempotent, move |context: CallContext, _: Value| {
        let begun = Arc::clone(&begun);
        async move {
            let _ = context.call("linger", json!({})).await;
            begun.fetch_add(100, Ordering::SeqCst);
            std::future::pending::<Result<Value, ToolError>>().await
        }
    });
    let plan = plan(&running);
    let tools = [plan.tools.clone(), vec![stays]].concat();
    let mut fleet = Fleet::start(Plan { tools, ..plan }).await;
    let name = submit(&fleet, "stays").await;
    until(async || running.load(Ordering::SeqCst) >= 101).await;
    assert_eq!(fleet.store.cancel(&name, "not wanted any more").await.unwrap(), CancelResult::Flagged);
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["outcome"], "cancelled", "{reply}");
    let reported = outcomes(&fleet, 2).await;
    assert!(reported.iter().all(|(_, outcome)| outcome == "cancelled") && reported.len() == 2, "{reported:?}");
    fleet.stop().await;
}
