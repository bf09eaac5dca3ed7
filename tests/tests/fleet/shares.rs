//! Limits on the workers' slots. The order in which calls run shows whether the limits work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_config::{Sources, load};
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::{Effect, Limit, Policy, TenantId};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inbox::submit_all;
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::sync::Semaphore;

const SLOTS: usize = 8;
const FLOOD: usize = 900;

type BegunTenants = Arc<Mutex<Vec<String>>>;

#[derive(Deserialize, JsonSchema)]
struct Nothing {}

#[derive(Serialize, JsonSchema)]
struct Done {
    is_done: bool,
}

fn slow(begun: &BegunTenants) -> TypedTool {
    let begun = Arc::clone(begun);
    TypedTool::new("slow", "Takes a while.", Effect::Read, move |context: CallContext, _: Nothing| {
        let begun = Arc::clone(&begun);
        async move {
            begun.lock().unwrap().push(context.tenant.to_string());
            // The slot must be busy for a while.
            tokio::time::sleep(Duration::from_millis(20)).await;
            Ok::<_, ToolError>(Done { is_done: true })
        }
    })
}

/// Each call waits for a permit of the gate, or until the gate is closed.
fn gated(begun: &BegunTenants, gate: &Arc<Semaphore>) -> TypedTool {
    let (begun, gate) = (Arc::clone(begun), Arc::clone(gate));
    TypedTool::new("slow", "Waits.", Effect::Read, move |context: CallContext, _: Nothing| {
        let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
        async move {
            begun.lock().unwrap().push(context.tenant.to_string());
            if let Ok(permit) = gate.acquire().await {
                permit.forget();
            }
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
        every: LimitWindow::Concurrency,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 9,
    }
}

fn two_tenants(policy: &mut Policy) {
    policy.defaults.calls_per_tick = 100_000;
    policy.defaults.max_actions_per_day = 100_000;
    let globex = policy.tenants.values().next().unwrap().clone();
    policy.tenants.insert(TenantId::new("globex").unwrap(), globex);
}

fn sharing(policy: &mut Policy) {
    two_tenants(policy);
    policy.limits = Arc::new(vec![limit(LimitKey::Tenant, LimitBound::Share(1))]);
    let acme = policy.tenants.values_mut().next().unwrap();
    acme.limits.insert("slots".into(), "3".into());
}

fn limits_with(variables: &[(&str, &str)]) -> Arc<Vec<Limit>> {
    let environment = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    load(&Sources { environment, allow_unknown_names: true, ..Sources::default() }).unwrap().policy.limits
}

fn by_default(policy: &mut Policy) {
    two_tenants(policy);
    policy.limits = limits_with(&[]);
    assert_eq!(policy.limits.iter().map(|limit| limit.name.as_str()).collect::<Vec<_>>(), ["fair_share"]);
}

async fn start(tool: TypedTool, policy: fn(&mut Policy)) -> Fleet {
    let tools = vec![tool];
    let fleet = Fleet::start(Plan { schedulers: 2, slots: SLOTS, tools, policy, ..Plan::default() }).await;
    until_slots_are_counted(&fleet).await;
    fleet
}

async fn until_slots_are_counted(fleet: &Fleet) {
    if fleet.active.load().policy.limits.is_empty() {
        return;
    }
    fleet
        .until("the worker is counted", async |fleet| fleet.store.fleet_load().await.unwrap().slots == SLOTS as u64)
        .await;
    // Schedulers count slots once a second, and the first count may have begun too early. So this waits for two counts.
    tokio::time::sleep(Duration::from_millis(2_500)).await;
}

fn turns(tenant: &str, count: usize) -> Vec<Value> {
    let call = json!([{"id": "c", "name": "slow", "arguments": {}}]);
    (0..count).map(|_| json!({"tenant": tenant, "agent": "kelly", "calls": call})).collect()
}

async fn until_begun(begun: &BegunTenants, count: usize) {
    while begun.lock().unwrap().len() < count {
        // Only the tool's record shows the begun calls, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn until_over(fleet: &Fleet, begun: &BegunTenants, calls: usize) {
    until_begun(begun, calls).await;
    for (limit, tenant) in ["slots", "fair_share"].into_iter().flat_map(|limit| [(limit, "acme"), (limit, "globex")]) {
        while fleet.used(limit, tenant).await.unwrap_or(0) > 0 {
            // The last permits are returned with the last results. No event reports this, so this polls.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn until_admitted(fleet: &Fleet) {
    fleet.until("all turns are taken in", async |fleet| fleet.ask::<u64>("XLEN", "turns", &[]).await == 0).await;
}

/// Returns how many calls of a flood began before the last of these calls, which were submitted while all slots were
/// busy.
async fn calls_of_the_flood_before(policy: fn(&mut Policy), calls: usize) -> usize {
    let begun = BegunTenants::default();
    let gate = Arc::new(Semaphore::new(0));
    let fleet = start(gated(&begun, &gate), policy).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", FLOOD)).await;
    until_begun(&begun, SLOTS).await;
    until_admitted(&fleet).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("globex", calls)).await;
    until_admitted(&fleet).await;
    gate.close();
    until_over(&fleet, &begun, FLOOD + calls).await;
    fleet.stop().await;
    let last = begun.lock().unwrap().iter().rposition(|tenant| tenant == "globex").unwrap();
    last + 1 - calls - SLOTS
}

/// Some calls of the flood are dispatched before the first call has to wait for a share.
const BEFORE_MAX: usize = FLOOD / 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_tenant_does_not_delay_another_tenants_call() {
    let before = calls_of_the_flood_before(sharing, 1).await;
    assert!(before < BEFORE_MAX, "{before} calls of the flood began before it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_a_flood_delays_no_other_tenants_calls() {
    let before = calls_of_the_flood_before(by_default, 9).await;
    assert!(before < BEFORE_MAX, "{before} calls of the flood began before the last one");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn turns_that_wait_for_a_fair_share_count_as_ready_backlog() {
    let begun = BegunTenants::default();
    let gate = Arc::new(Semaphore::new(0));
    let hanging = Arc::default();
    let tools = vec![slow(&begun), hangs(&gate, &hanging)];
    let fleet = Fleet::start(Plan { slots: SLOTS, tools, policy: by_default, ..Plan::default() }).await;
    until_slots_are_counted(&fleet).await;
    submit_all(&fleet.server, fleet.store.keys(), &hung_turns(10 * SLOTS)).await;
    let tenants = ["acme", "globex"].map(|tenant| TenantId::new(tenant).unwrap());
    let backlog = async || fleet.store.backlog(&tenants, &["fair_share"]).await.unwrap();
    while backlog().await.running < SLOTS as u64 || backlog().await.inbound > 0 {
        // Only Redis shows the backlog, so this polls.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert_ne!(fleet.ask::<u64>("ZCARD", "throttle:fair_share@acme", &[]).await, 0, "most wait on the lane");
    let seen = backlog().await;
    assert_eq!((seen.ready + seen.running, seen.parked), (10 * SLOTS as u64, 0));
    gate.add_permits(10 * SLOTS);
    until_none_hangs(&fleet, &hanging, 10 * SLOTS).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_fairness_the_flood_goes_first() {
    let off = |policy: &mut Policy| {
        two_tenants(policy);
        policy.limits = limits_with(&[("TICKFLEET_FAIRNESS_TENANTS", "false")]);
        assert!(policy.limits.is_empty(), "one setting turns it off");
    };
    let before = calls_of_the_flood_before(off, 1).await;
    assert!(before > FLOOD / 2, "{before} calls of the flood began before it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_are_not_counted_while_slots_are_free() {
    let begun = BegunTenants::default();
    let fleet = start(slow(&begun), by_default).await;
    for number in 1..=SLOTS {
        let tenant = if number % 2 == 0 { "acme" } else { "globex" };
        submit_all(&fleet.server, fleet.store.keys(), &turns(tenant, 1)).await;
        until_begun(&begun, number).await;
    }
    assert_eq!(fleet.ask::<u64>("EXISTS", "counters:fair_share", &[]).await, 0);
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", FLOOD / 4)).await;
    until_over(&fleet, &begun, SLOTS + FLOOD / 4).await;
    assert_eq!(fleet.ask::<u64>("EXISTS", "counters:fair_share", &[]).await, 1, "of a flood it is");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiting_tenants_share_slots_by_weight() {
    let begun = BegunTenants::default();
    let gate = Arc::new(Semaphore::new(0));
    let fleet = start(gated(&begun, &gate), sharing).await;
    let both = turns("acme", FLOOD).into_iter().zip(turns("globex", FLOOD)).flat_map(|(a, g)| [a, g]);
    submit_all(&fleet.server, fleet.store.keys(), &both.collect::<Vec<_>>()).await;
    until_begun(&begun, SLOTS).await;
    until_admitted(&fleet).await;
    // Of ten permits for eight slots, the tenant with three quarters of the weight has seven, and the other has two.
    let mut shared_by_weight = 0;
    for released in 1..FLOOD {
        gate.add_permits(1);
        until_begun(&begun, SLOTS + released).await;
        let permits = loop {
            let [acme, globex] = [fleet.used("slots", "acme").await, fleet.used("slots", "globex").await];
            let permits = (acme.unwrap_or(0), globex.unwrap_or(0));
            if permits.0 + permits.1 >= 9 {
                break permits;
            }
            // No event reports the permits, so this polls.
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        shared_by_weight += usize::from(permits == (7, 2));
        if shared_by_weight == 20 {
            break;
        }
    }
    assert_eq!(shared_by_weight, 20);
    gate.close();
    until_over(&fleet, &begun, 2 * FLOOD).await;
    fleet.stop().await;
}

fn hangs(gate: &Arc<Semaphore>, hanging: &Arc<AtomicUsize>) -> TypedTool {
    let gate = Arc::clone(gate);
    let hanging = Arc::clone(hanging);
    TypedTool::new("hangs", "Does not answer.", Effect::Read, move |_: CallContext, _: Nothing| {
        let gate = Arc::clone(&gate);
        hanging.fetch_add(1, Ordering::SeqCst);
        async move {
            let _opened = gate.acquire().await;
            Ok::<_, ToolError>(Done { is_done: true })
        }
    })
}

fn hung_turns(count: usize) -> Vec<Value> {
    let call = json!([{"id": "c", "name": "hangs", "arguments": {}}]);
    (0..count).map(|_| json!({"tenant": "acme", "agent": "kelly", "calls": call})).collect()
}

async fn until_none_hangs(fleet: &Fleet, hanging: &AtomicUsize, calls: usize) {
    while hanging.load(Ordering::SeqCst) < calls {
        // No event reports the last calls and their permits, so this polls.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (limit, counter) in [("tool_slots", "hangs"), ("fair_share", "acme")] {
        while fleet.used(limit, counter).await.unwrap_or(0) > 0 {
            // No event reports the permits, so this polls.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_tool_uses_only_its_share_of_the_slots() {
    let begun = BegunTenants::default();
    let gate = Arc::new(Semaphore::new(0));
    let hanging = Arc::default();
    let policy = |policy: &mut Policy| {
        two_tenants(policy);
        policy.limits = limits_with(&[("TICKFLEET_FAIRNESS_TOOL_SLOTS_PERCENT", "50")]);
    };
    let tools = vec![slow(&begun), hangs(&gate, &hanging)];
    let fleet = Fleet::start(Plan { schedulers: 2, slots: SLOTS, tools, policy, ..Plan::default() }).await;
    submit_all(&fleet.server, fleet.store.keys(), &hung_turns(4 * SLOTS)).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", 20)).await;
    until_begun(&begun, 20).await;
    assert!(hanging.load(Ordering::SeqCst) <= SLOTS / 2, "{hanging:?}");
    gate.add_permits(4 * SLOTS);
    until_over(&fleet, &begun, 20).await;
    until_none_hangs(&fleet, &hanging, 4 * SLOTS).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_one_tool_can_use_all_slots() {
    let begun = BegunTenants::default();
    let gate = Arc::new(Semaphore::new(0));
    let hanging = Arc::default();
    let tools = vec![slow(&begun), hangs(&gate, &hanging)];
    let fleet = Fleet::start(Plan { schedulers: 2, slots: SLOTS, tools, policy: by_default, ..Plan::default() }).await;
    until_slots_are_counted(&fleet).await;
    submit_all(&fleet.server, fleet.store.keys(), &hung_turns(4 * SLOTS)).await;
    while hanging.load(Ordering::SeqCst) < SLOTS {
        // Only the counter of calls shows the occupied slots, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    gate.add_permits(4 * SLOTS);
    until_none_hangs(&fleet, &hanging, 4 * SLOTS).await;
    fleet.stop().await;
}
