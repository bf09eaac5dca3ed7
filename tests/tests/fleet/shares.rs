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
    load(&Sources { environment, others_carry_out: true, ..Sources::default() }).unwrap().policy.limits
}

fn by_default(policy: &mut Policy) {
    two_tenants(policy);
    policy.limits = limits_with(&[]);
    assert_eq!(policy.limits.iter().map(|limit| limit.name.as_str()).collect::<Vec<_>>(), ["fair_share"]);
}

async fn start(begun: &BegunTenants, policy: fn(&mut Policy)) -> Fleet {
    let tools = vec![slow(begun)];
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

fn count(calls: &[String], tenant: &str) -> usize {
    calls.iter().filter(|of| *of == tenant).count()
}

async fn calls_before_one_of_globex(fleet: &Fleet, begun: &BegunTenants) -> usize {
    let before = begun.lock().unwrap().len();
    submit_all(&fleet.server, fleet.store.keys(), &turns("globex", 1)).await;
    loop {
        let at = begun.lock().unwrap().iter().skip(before).position(|tenant| tenant == "globex");
        if let Some(calls) = at {
            return calls;
        }
        // Only the tool's record shows the begun call, so this polls.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Some calls of the flood may begin before the other tenant's call: they occupy the slots, or begin while the other
/// tenant's turn is admitted.
const BEFORE_MAX: usize = FLOOD / 6;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_of_one_tenant_does_not_delay_another_tenants_call() {
    let begun = BegunTenants::default();
    let fleet = start(&begun, sharing).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", FLOOD)).await;
    until_begun(&begun, FLOOD / 4).await;
    let before = calls_before_one_of_globex(&fleet, &begun).await;
    assert!(before < BEFORE_MAX, "{before} calls of the flood began before it");
    until_over(&fleet, &begun, FLOOD + 1).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_default_a_flood_stands_before_no_other_tenant_s_calls() {
    const CALLS: usize = 9;
    const FLOOD: usize = super::shares::FLOOD / 2 * 3;
    let begun = BegunTenants::default();
    let fleet = start(&begun, by_default).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", FLOOD)).await;
    until_begun(&begun, SLOTS).await;
    // Entries that no scheduler has read yet would be admitted before the other tenant's turns, so this waits.
    fleet.until("the flood is taken in", async |fleet| fleet.ask::<u64>("XLEN", "turns", &[]).await == 0).await;
    let mut before = Vec::new();
    for _ in 0..CALLS {
        before.push(calls_before_one_of_globex(&fleet, &begun).await);
    }
    eprintln!("calls of the flood that began before each of the other tenant's: {before:?}");
    assert!(count(&begun.lock().unwrap(), "acme") < FLOOD, "the flood is not over");
    assert!(before.iter().all(|calls| *calls < BEFORE_MAX), "{before:?}");
    until_over(&fleet, &begun, FLOOD + CALLS).await;
    fleet.stop().await;
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
    let begun = BegunTenants::default();
    let off = |policy: &mut Policy| {
        two_tenants(policy);
        policy.limits = limits_with(&[("TICKFLEET_FAIRNESS_TENANTS", "false")]);
        assert!(policy.limits.is_empty(), "one setting turns it off");
    };
    let fleet = start(&begun, off).await;
    submit_all(&fleet.server, fleet.store.keys(), &turns("acme", FLOOD)).await;
    until_begun(&begun, SLOTS).await;
    let before = calls_before_one_of_globex(&fleet, &begun).await;
    assert!(before > FLOOD / 2, "{before} calls of the flood began before it");
    until_over(&fleet, &begun, FLOOD + 1).await;
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_are_not_counted_while_slots_are_free() {
    let begun = BegunTenants::default();
    let fleet = start(&begun, by_default).await;
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
    let fleet = start(&begun, sharing).await;
    let both = turns("acme", FLOOD).into_iter().zip(turns("globex", FLOOD)).flat_map(|(a, g)| [a, g]);
    submit_all(&fleet.server, fleet.store.keys(), &both.collect::<Vec<_>>()).await;
    until_begun(&begun, FLOOD).await;
    let calls = begun.lock().unwrap()[FLOOD / 3..FLOOD].to_vec();
    let acme = count(&calls, "acme");
    let globex = count(&calls, "globex");
    let part = acme * 1_000 / (acme + globex);
    eprintln!("of 1,000 calls, {part} were those of the tenant with three quarters of the weight");
    assert!((675..=825).contains(&part), "{acme} to {globex}");
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
