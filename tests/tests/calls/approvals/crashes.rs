//! Tests consents after a tool or a rule has changed, and after a crash or a restart.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tickfleet_client::Approval;
use tickfleet_core::call::approval;
use tickfleet_core::call::begin::{Begin, BeginResult, ConsentCheck};
use tickfleet_core::keys;
use tickfleet_core::turn::Slice;
use tickfleet_core::workers::{Heartbeat, Role, Slots};
use tickfleet_model::{ConsumerId, Policy, Priority};
use tickfleet_store::seam::TakeRequest;
use tickfleet_testkit::{RedisOptions, RedisServer};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tests::killable::KillableProcess;

use super::{Bank, VerdictInput, approve, asked, asked_but, large_payments_ask, pay, state};

fn another_worker(fleet: &Fleet, plan: Plan, name: &str) -> KillableProcess {
    let active = plan.active();
    KillableProcess::worker_on(&fleet.url_of("worker"), Arc::new(plan), &active, &fleet.metrics, name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_tool_or_rule_voids_the_approval_and_requests_a_new_one() {
    let bank = Bank::default();
    let mut fleet = Fleet::start(bank.ruled()).await;
    let stricter: fn(&mut Policy) = |policy| {
        large_payments_ask(policy);
        policy.permissions.matrix.get_mut("pay").unwrap().rules[0].require = "args.amount <= 5".into();
    };
    let plans = [
        Plan { policy: stricter, ..bank.ruled() },
        Plan { tools: vec![bank.pay().timeout(Duration::from_secs(9))], ..bank.ruled() },
    ];
    for (at, plan) in plans.into_iter().enumerate() {
        fleet.submit(&[pay(700)]).await;
        let first = asked(&fleet).await;
        fleet.drain_worker().await;
        let other = another_worker(&fleet, plan, &format!("other{at}"));
        approve(&fleet, "ann", &first.id).await;
        let again = asked_but(&fleet, &first.id).await;
        assert_eq!((bank.paid(), state(&fleet, &first.id).await), (at, "void".into()));
        let why = &again.asked_by[0].why;
        assert!(again.asked_by[0].place == "asked again" && why.contains(&first.id), "{why}");
        approve(&fleet, "ann", &again.id).await;
        let reply = fleet.reply().await;
        assert_eq!((outcomes(&reply), bank.paid()), (vec!["ok"], at + 1), "{reply}");
        other.kill();
        fleet.add_worker();
    }
    fleet.stop().await;
}

/// Kills the only worker before the approval, so that the call is not leased. Returns turn and approval.
async fn approved_without_worker(fleet: &mut Fleet) -> (String, Approval) {
    let first = KillableProcess::start(fleet, "first");
    let turn = fleet.submit(&[pay(700)]).await;
    let asked = asked(fleet).await;
    first.kill();
    (turn, asked)
}

async fn leased_by_a_ghost(fleet: &Fleet) -> Slice {
    let role = Role::Worker { worker: "ghost".into(), slots: Slots { busy: 0, all: 1 } };
    let lease_ms = fleet.plan().store.lease_ms;
    let beat = Heartbeat { consumer: ConsumerId::new("ghost").unwrap(), role, lease_ms, policy: String::new() };
    fleet.store.decide(beat).await.unwrap();
    let queue = keys::ready(Priority::Normal);
    // A scheduler must dispatch the slice first, so this waits.
    let take = TakeRequest {
        consumer: "ghost".into(),
        queues: vec![queue.clone()],
        count: 1,
        wait_ms: PATIENCE.as_millis().try_into().unwrap(),
    };
    let taken = fleet.store.seam().take(&take).await.unwrap().remove(0);
    Slice::read(queue, taken.entry, &taken.fields).unwrap()
}

async fn begins(fleet: &Fleet, slice: &Slice, id: &str) {
    let key = approval::key(&slice.name.tenant, id);
    let asked = fleet.store.record_of::<approval::Approval>(&key).await.unwrap().unwrap().value;
    let uses = approval::UseConsent { id: id.to_owned(), binding: asked.binding };
    let begin = Begin {
        slice,
        position: 0,
        by: "ghost",
        once: true,
        is_durable: false,
        epoch: fleet.store.state().epoch,
        lease_ms: fleet.plan().store.lease_ms,
        streak: None,
        facts: None,
        consent: Some(ConsentCheck { uses, narrowed: asked.narrowed }),
        claim: None,
        cache: None,
    };
    let begun = fleet.store.decide(begin).await.unwrap().result;
    let BeginResult::Started(started) = begun else { panic!("{begun:?}") };
    assert_eq!(started.agreed, ["ann"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_before_the_begin_does_not_lose_the_approval() {
    let bank = Bank::default();
    let mut plan = Plan { workers: 0, ..bank.ruled() };
    plan.store.lease_ms = 2_000;
    let mut fleet = Fleet::start(plan).await;
    let (_, asked) = approved_without_worker(&mut fleet).await;
    approve(&fleet, "ann", &asked.id).await;
    leased_by_a_ghost(&fleet).await;
    fleet.add_worker();
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), bank.paid()), (vec!["ok"], 1), "{reply}");
    assert_eq!(state(&fleet, &asked.id).await, "used");
    fleet.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_result_of_a_lost_call_names_its_approval() {
    for has_worker in [false, true] {
        let bank = Bank::default();
        let mut plan = Plan { workers: 0, ..bank.ruled() };
        plan.store.lease_ms = 2_000;
        let mut fleet = Fleet::start(plan).await;
        let (turn, asked) = approved_without_worker(&mut fleet).await;
        VerdictInput { set: &[("/amount", "400")], ..VerdictInput::yes("ann") }.about(&fleet, &asked.id).await.unwrap();
        let slice = leased_by_a_ghost(&fleet).await;
        begins(&fleet, &slice, &asked.id).await;
        if has_worker {
            let stricter: fn(&mut Policy) = |policy| policy.permissions.matrix.clear();
            let other = another_worker(&fleet, Plan { policy: stricter, ..bank.ruled() }, "other");
            check(&mut fleet, &asked, &turn).await;
            other.kill();
        } else {
            fleet.cancel_turn(&turn).await;
            check(&mut fleet, &asked, &turn).await;
        }
        assert_eq!(bank.paid(), 0);
        fleet.stop().await;
    }
}

async fn check(fleet: &mut Fleet, asked: &Approval, turn: &str) {
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["outcome_unknown"], "{reply}");
    let named = json!({"id": asked.id, "by": ["ann"], "arguments": {"to": "kim", "amount": 400}});
    assert_eq!(reply["results"][0]["approval"], named, "{reply}");
    let audits = fleet.audits().await;
    let audited = audits.iter().find(|entry| entry["meta"]["call"] == format!("{turn}/0")).unwrap();
    assert_eq!(audited["meta"]["approval"]["id"], json!(asked.id), "{audited}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approval_lost_by_a_redis_restart_is_requested_again() {
    let bank = Bank::default();
    let options = RedisOptions { appendonly: true, ..RedisOptions::default() };
    let mut plan = Plan { workers: 0, ..bank.ruled() };
    plan.store.lease_ms = 1_000;
    let mut fleet = Fleet::start_on(RedisServer::start_with(options).await, plan).await;
    let (_, first) = approved_without_worker(&mut fleet).await;
    approve(&fleet, "ann", &first.id).await;
    let gone: u32 = fleet.ask("DEL", &format!("approval:acme:{}", first.id), &[]).await;
    assert_eq!(gone, 1);
    fleet.server.restart().await;
    fleet.until_redis_answers().await;
    fleet.add_worker();
    let again = asked(&fleet).await;
    assert_eq!(
        (again.id.as_str(), again.agreed.len(), bank.paid()),
        (first.id.as_str(), 0, 0),
        "it is the same question"
    );
    approve(&fleet, "ann", &again.id).await;
    assert_eq!((outcomes(&fleet.reply().await), bank.paid()), (vec!["ok"], 1));
    fleet.stop().await;
}
