//! Limits of the workers' slots, on real schedulers and workers: tenants that share them, and a tool that has a part of
//! them. Witnessed by the order in which calls run.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_model::limit::{Every, LimitBound, LimitKey, LimitMatch, LimitMode, OnReach};
use tickfleet_model::{Effect, Limit, Policy, TenantId};
use tickfleet_store::StoreOptions;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inbox::submit_all;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::Instant;

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

fn limit(key: LimitKey, bound: LimitBound) -> Limit {
    Limit {
        name: "slots".into(),
        matches: LimitMatch::default(),
        per: [key].into(),
        bound,
        every: Every::Held,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 9,
    }
}

/// Two tenants share the slots; `acme` has three times the weight.
fn sharing(policy: &mut Policy) {
    policy.defaults.calls_per_tick = 100_000;
    policy.defaults.max_actions_per_day = 100_000;
    policy.limits = Arc::new(vec![limit(LimitKey::Tenant, LimitBound::Share(1))]);
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tool_that_hangs_leaves_slots_for_others() {
    let begun = Begun::default();
    let gate = Arc::new(Semaphore::new(0));
    let (hung, hanging) = (Arc::clone(&gate), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&hanging);
    let hangs = TypedTool::new("hangs", "Does not answer.", Effect::Read, move |_: CallContext, _: Nothing| {
        let hung = Arc::clone(&hung);
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            let _opened = hung.acquire().await;
            Ok::<_, ToolError>(Done { is_done: true })
        }
    });
    let policy = |policy: &mut Policy| {
        policy.defaults.calls_per_tick = 1_000;
        policy.limits = Arc::new(vec![limit(LimitKey::Tool, LimitBound::Part(50))]);
    };
    let tools = vec![slow(&begun), hangs];
    let fleet = Fleet::start(Plan { schedulers: 2, slots: SLOTS, tools, policy, ..Plan::default() }).await;
    let calls: Vec<Value> = (0..4 * SLOTS)
        .map(|_| json!({"tenant": "acme", "agent": "kelly", "calls": [{"id": "c", "name": "hangs", "arguments": {}}]}))
        .collect();
    submit_all(&fleet.server, fleet.store.keys(), &calls).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", 20)).await;
    until_begun(&begun, 20).await;
    assert!(hanging.load(Ordering::SeqCst) <= SLOTS / 2, "{hanging:?}");
    gate.add_permits(calls.len());
    until_over(&fleet, &begun, 20).await;
    while hanging.load(Ordering::SeqCst) < calls.len() || fleet.ask::<u64>("EXISTS", "held:slots@hangs", &[]).await > 0
    {
        // There is nothing to wait for but the last calls and their places.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fleet.stop().await;
}

#[derive(Deserialize, JsonSchema)]
struct Probe {
    number: u32,
}

/// A tool that says when it begins.
fn probe(begins: UnboundedSender<u32>) -> TypedTool {
    TypedTool::new("probe", "Begins.", Effect::Read, move |_: CallContext, probe: Probe| {
        let begins = begins.clone();
        async move {
            begins.send(probe.number).map_err(|_| ToolError::Permanent("Nobody listens.".into()))?;
            Ok::<_, ToolError>(Done { is_done: true })
        }
    })
}

/// The times from a turn's sending to its call's beginning, sorted, ms: of `globex`, while `acme` floods the fleet or not.
async fn waits(policy: fn(&mut Policy), flood: usize) -> Vec<f64> {
    const PROBES: u32 = 200;
    let begun = Begun::default();
    let (begins, mut said) = unbounded_channel();
    let store = StoreOptions { tenant_turns_max: 100_000, tenant_ready_max: 100_000, ..StoreOptions::default() };
    let tools = vec![slow(&begun), probe(begins)];
    let fleet = Fleet::start(Plan { schedulers: 2, slots: SLOTS, tools, policy, store, ..Plan::default() }).await;
    for part in turns("acme", flood).chunks(1_000) {
        submit_all(&fleet.server, fleet.store.keys(), part).await;
    }
    if flood > 0 {
        // The fleet has come to its pace: slots are counted, and every one is busy.
        until_begun(&begun, 1_000).await;
    }
    let mut waits = Vec::new();
    for number in 0..PROBES {
        let call = json!([{"id": "c", "name": "probe", "arguments": {"number": number}}]);
        let sent = Instant::now();
        let turn = json!({"tenant": "globex", "agent": "kelly", "calls": call});
        submit_all(&fleet.server, fleet.store.keys(), &[turn]).await;
        assert_eq!(said.recv().await, Some(number));
        waits.push(sent.elapsed().as_secs_f64() * 1_000.0);
        // A hundredth of what the other sends.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    waits.sort_by(f64::total_cmp);
    until_over(&fleet, &begun, flood).await;
    fleet.stop().await;
    waits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement, of two minutes: cargo nextest run -p tickfleet-tests -E 'test(adds_to_another)' --run-ignored all --no-capture"]
async fn what_a_flood_adds_to_another_tenants_wait() {
    fn alone(policy: &mut Policy) {
        sharing(policy);
        policy.limits = Arc::default();
        policy.tenants.values_mut().for_each(|tenant| tenant.limits.clear());
    }
    for (what, policy, flood) in [
        ("no flood, no limit", alone as fn(&mut Policy), 0),
        ("no flood, shares", sharing, 0),
        ("a flood, shares", sharing, 10_000),
        ("a flood, no limit", alone, 10_000),
    ] {
        let waits = waits(policy, flood).await;
        let at = |part: usize| waits[waits.len() * part / 100];
        eprintln!("{what}: p50 {:.1} ms, p99 {:.1} ms", at(50), at(99));
    }
}
