//! Tenants that share the slots, on real schedulers and workers: witnessed by the order in which their calls run.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_model::limit::{Every, LimitBound, LimitKey, LimitMatch, LimitMode, OnReach};
use tickfleet_model::{Effect, Limit, Policy, TenantId};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inbox::submit_all;
use tickfleet_tools::{CallContext, ToolError, TypedTool};

const SLOTS: usize = 8;
/// Turns of a flood: some seconds of work.
const FLOOD: usize = 900;

/// Whose calls have begun, in that order.
type Begun = Arc<Mutex<Vec<String>>>;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Serialize, JsonSchema)]
struct Done {
    is_done: bool,
}

/// A tool that takes a while, and notes for whom it runs.
fn slow(begun: &Begun) -> TypedTool {
    let begun = Arc::clone(begun);
    TypedTool::new("slow", "Takes a while.", Effect::Read, move |context: CallContext, _: Nothing| {
        let begun = Arc::clone(&begun);
        async move {
            begun.lock().unwrap().push(context.tenant.to_string());
            // Work: a slot is busy only while it takes a while.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, ToolError>(Done { is_done: true })
        }
    })
}

/// Two tenants share the slots; `acme` has three times the weight.
fn sharing(policy: &mut Policy) {
    policy.defaults.calls_per_tick = 100_000;
    policy.defaults.max_actions_per_day = 100_000;
    let limit = Limit {
        name: "slots".into(),
        matches: LimitMatch::default(),
        per: [LimitKey::Tenant].into(),
        bound: LimitBound::Share(1),
        every: Every::Held,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 9,
    };
    policy.limits = Arc::new(vec![limit]);
    let acme = policy.tenants.values_mut().next().unwrap();
    let globex = acme.clone();
    acme.limits.insert("slots".into(), "3".into());
    policy.tenants.insert(TenantId::new("globex").unwrap(), globex);
}

async fn start(begun: &Begun) -> Fleet {
    let tools = vec![slow(begun)];
    Fleet::start(Plan { schedulers: 2, slots: SLOTS, tools, policy: sharing, ..Plan::default() }).await
}

/// So many turns of one call each.
fn turns(tenant: &str, count: usize) -> Vec<Value> {
    let call = json!([{"id": "c", "name": "slow", "arguments": {}}]);
    (0..count).map(|_| json!({"tenant": tenant, "agent": "kelly", "calls": call})).collect()
}

async fn until_begun(begun: &Begun, count: usize) {
    while begun.lock().unwrap().len() < count {
        // There is nothing to wait for but what the tool notes.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until all these calls have begun and ended.
async fn until_over(fleet: &Fleet, begun: &Begun, calls: usize) {
    until_begun(begun, calls).await;
    for tenant in ["acme", "globex"] {
        while fleet.ask::<u64>("EXISTS", &format!("held:slots@{tenant}"), &[]).await > 0 {
            // There is nothing to wait for but the last places, which are given back with the last results.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

fn count(calls: &[String], tenant: &str) -> usize {
    calls.iter().filter(|of| *of == tenant).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_tenant_does_not_stand_before_another_s_call() {
    let begun = Begun::default();
    let fleet = start(&begun).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", FLOOD)).await;
    until_begun(&begun, FLOOD / 4).await;
    let before = begun.lock().unwrap().len();
    submit_all(&fleet.server, fleet.store.keys(), &turns("globex", 1)).await;
    let at = loop {
        if let Some(at) = begun.lock().unwrap().iter().position(|tenant| tenant == "globex") {
            break at;
        }
        // There is nothing to wait for but what the tool notes.
        tokio::time::sleep(Duration::from_millis(5)).await;
    };
    assert!(at < FLOOD, "it came before the flood was over");
    // What is out is bounded by the slots; the rest is what began while the turn was on its way.
    assert!(at - before < FLOOD / 6, "{} calls of the flood began before it", at - before);
    until_over(&fleet, &begun, FLOOD + 1).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tenants_that_wait_have_the_slots_by_weight() {
    let begun = Begun::default();
    let fleet = start(&begun).await;
    let both = turns("acme", FLOOD).into_iter().zip(turns("globex", FLOOD)).flat_map(|(a, g)| [a, g]);
    submit_all(&fleet.server, fleet.store.keys(), &both.collect::<Vec<_>>()).await;
    until_begun(&begun, FLOOD).await;
    let calls = begun.lock().unwrap()[FLOOD / 3..FLOOD].to_vec();
    let (acme, globex) = (count(&calls, "acme"), count(&calls, "globex"));
    // Three to one; ten per cent more or less.
    let part = acme * 1_000 / (acme + globex);
    eprintln!("of 1,000 calls, {part} were those of the tenant with three quarters of the weight");
    assert!((675..=825).contains(&part), "{acme} to {globex}");
    until_over(&fleet, &begun, 2 * FLOOD).await;
    fleet.stop().await;
}
