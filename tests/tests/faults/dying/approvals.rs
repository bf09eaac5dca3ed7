//! All processes die at each step of a payment that needs approval. The consent must be neither lost nor used twice.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_client::{ApprovalVerdict, Client};
use tickfleet_model::{Effect, Redactor, TenantId};
use tickfleet_store::{Store, StoreOptions};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{ToolError, TypedTool};

use super::{lease_ms, places, steps};

#[derive(Debug)]
struct ApprovalRun {
    commits: usize,
    result: Value,
    paid: usize,
    given: usize,
    killed: bool,
}

fn pay(paid: &Arc<AtomicUsize>) -> TypedTool {
    let paid = Arc::clone(paid);
    let pay = TypedTool::new("pay", "Pays.", Effect::Once, move |_, _: Value| {
        let number = paid.fetch_add(1, Ordering::SeqCst) + 1;
        async move { Ok::<_, ToolError>(json!({"number": number})) }
    });
    pay.requires_approval()
}

async fn agrees(store: Store, given: Arc<AtomicUsize>) {
    let client = Client::over(vec![store]);
    let acme = TenantId::new("acme").unwrap();
    let roles = BTreeSet::new();
    let redactor = Redactor::default();
    loop {
        for waiting in client.approvals(&acme, 10).await.unwrap() {
            let narrow = std::collections::BTreeMap::new();
            let verdict = ApprovalVerdict {
                by: "ann",
                roles: &roles,
                agrees: true,
                reason: "",
                narrow,
                seen: None,
                redactor: &redactor,
            };
            let said = client.decide_approval(&acme, &waiting.id, &verdict).await;
            given.fetch_add(usize::from(said.is_ok()), Ordering::SeqCst);
        }
        // Redis does not announce approvals, so this polls. The caller aborts the task.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The approver ann does not die.
async fn play(kill_after: usize) -> ApprovalRun {
    let paid = Arc::new(AtomicUsize::new(0));
    let given = Arc::new(AtomicUsize::new(0));
    let plan = Plan {
        schedulers: 0,
        workers: 0,
        tools: vec![pay(&paid)],
        policy: |policy| drop(policy.permissions.approvers.insert("ann".into(), BTreeSet::new())),
        store: StoreOptions { lease_ms: lease_ms(kill_after), ..StoreOptions::default() },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await;
    let ann = tokio::spawn(agrees(fleet.store.clone(), given.clone()));
    let submit = async |fleet: &Fleet| drop(fleet.submit(&[("pay", json!({}))]).await);
    let super::DyingRun { commits, mut replies, killed } = super::play(&mut fleet, 1, kill_after, submit).await;
    ann.abort();
    let paid = paid.load(Ordering::SeqCst);
    let given = given.load(Ordering::SeqCst);
    ApprovalRun { commits, result: replies.remove(0)["results"][0].take(), paid, given, killed }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approved_payment_is_made_at_most_once_after_a_kill_at_any_step() {
    let whole = play(usize::MAX).await;
    assert_eq!((whole.paid, whole.given, whole.killed), (1, 1, false), "{whole:?}");
    for kill_after in places(whole.commits, steps(4)) {
        let played = play(kill_after).await;
        let outcome = played.result["outcome"].as_str().unwrap_or_default();
        assert!(played.paid <= 1, "killed after {kill_after}: paid twice: {played:?}");
        assert_eq!(played.given, 1, "killed after {kill_after}: {played:?}");
        assert!(["ok", "outcome_unknown"].contains(&outcome), "killed after {kill_after}: {played:?}");
        assert!(outcome != "ok" || played.paid == 1, "killed after {kill_after}: told wrongly: {played:?}");
        assert!(
            outcome != "ok" || played.result["approval"]["by"][0] == "ann",
            "killed after {kill_after}: {played:?}"
        );
    }
}
