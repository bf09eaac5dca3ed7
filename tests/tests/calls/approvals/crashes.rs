//! Consents that meet another tool, another rule, a crash or a restart: none counts for anything but its own call.

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tickfleet_client::{Approval, ApprovalError};
use tickfleet_model::{AgentId, ConsumerId, Policy};
use tickfleet_store::{Begin, Begun, Consent, Scripts, UseApproval};
use tickfleet_testkit::{RedisOptions, RedisServer};
use tickfleet_tests::doomed::Doomed;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;

use super::{Bank, Word, approve, asked, asked_but, large_payments_ask, pay, state};

/// A worker on the fleet's Redis that goes by another plan and policy.
fn another_worker(fleet: &Fleet, plan: Plan, name: &str) -> Doomed {
    let active = plan.active();
    Doomed::worker_on(&fleet.url_of("worker"), Arc::new(plan), &active, &fleet.metrics, name)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_consent_to_another_tool_or_under_another_rule_does_not_count_and_is_asked_for_anew() {
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
        assert!(again.asked_by[0].place == "asked anew" && why.contains(&first.id), "{why}");
        approve(&fleet, "ann", &again.id).await;
        let reply = fleet.reply().await;
        assert_eq!((outcomes(&reply), bank.paid()), (vec!["ok"], at + 1), "{reply}");
        other.kill();
        fleet.add_worker();
    }
    fleet.stop().await;
}

/// A fleet without workers, whose one call was approved and is about to be leased. Answers turn and approval.
async fn approved_without_worker(fleet: &mut Fleet) -> (String, Approval) {
    let first = Doomed::start(fleet, "first");
    let turn = fleet.submit(&[pay(700)]).await;
    let asked = asked(fleet).await;
    first.kill();
    (turn, asked)
}

/// Streams by name, each with its entries: id and fields.
type Entries = Vec<(String, Vec<(String, Vec<String>)>)>;

/// Takes the one slice in the name of a worker that says nothing more. Answers its fence.
async fn leased_by_a_ghost(fleet: &Fleet) -> String {
    let ghost = ConsumerId::new("ghost").unwrap();
    loop {
        fleet.store.beat(&ghost).await.unwrap();
        let ready = fleet.store.keys().key("ready:normal");
        let mut read = redis::cmd("XREADGROUP");
        read.arg("GROUP").arg("workers").arg("ghost").arg("COUNT").arg(1).arg("STREAMS").arg(ready).arg(">");
        let found: Option<Entries> = read.query_async(&mut fleet.server.connection().await).await.unwrap();
        if let Some(found) = found {
            return found[0].1[0].0.clone();
        }
        // A scheduler promotes it; the test ends by itself after a minute.
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn binding(fleet: &Fleet, id: &str) -> String {
    fleet.ask("HGET", &format!("approval:acme:{id}"), &["b"]).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_consent_and_begin_neither_loses_the_consent_nor_uses_it_twice() {
    for begins in [false, true] {
        let bank = Bank::default();
        let mut plan = Plan { workers: 0, ..bank.ruled() };
        plan.store.lease_ms = 2_000;
        let mut fleet = Fleet::start(plan).await;
        let (turn, asked) = approved_without_worker(&mut fleet).await;
        approve(&fleet, "ann", &asked.id).await;
        let fence = leased_by_a_ghost(&fleet).await;
        let (name, binding) = (asked.turn().unwrap(), binding(&fleet, &asked.id).await);
        let question = UseApproval {
            name: name.clone(),
            fence: fence.clone(),
            position: 0,
            id: asked.id.clone(),
            binding,
            takes: true,
            agent: AgentId::new("kelly").unwrap(),
        };
        let given = Consent::Given { narrowed: None, by: vec!["ann".into()] };
        assert_eq!(
            fleet.store.use_approval(std::slice::from_ref(&question)).await.unwrap(),
            std::slice::from_ref(&given)
        );
        assert_eq!(
            fleet.store.use_approval(std::slice::from_ref(&question)).await.unwrap(),
            [given],
            "it may ask again"
        );
        // Nobody else may: neither another call, nor whoever does not hold this one, nor for something else.
        let others = [
            (UseApproval { position: 1, ..question.clone() }, Consent::Others),
            (UseApproval { fence: "1-1".into(), ..question.clone() }, Consent::Stale),
            (UseApproval { binding: "0".repeat(64), ..question }, Consent::Others),
        ];
        for (question, said) in others {
            assert_eq!(fleet.store.use_approval(&[question]).await.unwrap(), [said]);
        }
        if begins {
            let (nonce, digest) = (Some("ghost".to_owned()), String::new());
            let begin = Begin { name: name.clone(), fence, position: 0, nonce, digest, knows: None };
            assert_eq!(fleet.store.begin(&[begin]).await.unwrap(), [Begun::Ok]);
        }
        fleet.add_worker();
        let reply = fleet.reply().await;
        let expected = if begins { ("outcome_unknown", 0) } else { ("ok", 1) };
        assert_eq!((outcomes(&reply), bank.paid()), (vec![expected.0], expected.1), "{turn}: {reply}");
        fleet.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_was_begun_and_lost_names_its_consent_whoever_ends_it() {
    for has_worker in [false, true] {
        let bank = Bank::default();
        let mut plan = Plan { workers: 0, ..bank.ruled() };
        plan.store.lease_ms = 2_000;
        let mut fleet = Fleet::start(plan).await;
        let (turn, asked) = approved_without_worker(&mut fleet).await;
        Word { set: &[("/amount", "400")], ..Word::yes("ann") }.about(&fleet, &asked.id).await.unwrap();
        let fence = leased_by_a_ghost(&fleet).await;
        let (name, binding) = (asked.turn().unwrap(), binding(&fleet, &asked.id).await);
        let (id, agent) = (asked.id.clone(), AgentId::new("kelly").unwrap());
        let (of, held) = (name.clone(), fence.clone());
        let question = UseApproval { name: of, fence: held, position: 0, id, binding, takes: true, agent };
        assert!(matches!(fleet.store.use_approval(&[question]).await.unwrap()[..], [Consent::Given { .. }]));
        let (nonce, digest) = (Some("ghost".to_owned()), String::new());
        let begin = Begin { name, fence, position: 0, nonce, digest, knows: None };
        assert_eq!(fleet.store.begin(&[begin]).await.unwrap(), [Begun::Ok]);
        // With a worker, the slice comes back; without one, the turn is cancelled, and a scheduler ends it.
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

/// The one call ends as unknown, and its result and audit entry name the consent.
async fn check(fleet: &mut Fleet, asked: &Approval, turn: &str) {
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["outcome_unknown"], "{reply}");
    let named = json!({"id": asked.id, "by": ["ann"], "arguments": {"to": "kim", "amount": 400}});
    assert_eq!(reply["results"][0]["approval"], named, "{reply}");
    let audits = fleet.audits().await;
    let audited = audits.iter().find(|entry| entry["meta"]["call"] == format!("{turn}/0")).unwrap();
    assert_eq!(audited["meta"]["approval"]["id"], json!(asked.id), "{audited}");
}

/// Asks as somebody does to whom the consent was not given.
type AskOtherwise = fn(&mut UseApproval);

/// With one of these lines taken out, a consent would be given to whoever asks in this way.
const GUARDS: [(&str, AskOtherwise); 3] = [
    ("if bound ~= binding or about ~= turn .. '/' .. position then return 'OTHERS' end", |asks| {
        asks.binding = "0".repeat(64)
    }),
    ("if bound ~= binding or about ~= turn .. '/' .. position then return 'OTHERS' end", |asks| asks.position = 1),
    ("if in_force ~= fence or num(position) < num(done or 0) then return 'STALE' end", |asks| {
        asks.fence = "1-1".into()
    }),
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_guard_is_what_keeps_a_consent_with_its_call() {
    let bank = Bank::default();
    let mut plan = Plan { workers: 0, ..bank.ruled() };
    // Nobody takes the slice from the ghost meanwhile.
    plan.store.lease_ms = 60_000;
    let mut fleet = Fleet::start(plan).await;
    let (_, asked) = approved_without_worker(&mut fleet).await;
    approve(&fleet, "ann", &asked.id).await;
    let fence = leased_by_a_ghost(&fleet).await;
    let (name, binding) = (asked.turn().unwrap(), binding(&fleet, &asked.id).await);
    let (id, agent) = (asked.id.clone(), AgentId::new("kelly").unwrap());
    let question = UseApproval { name, fence, position: 0, id, binding, takes: true, agent };
    for (guard, others) in GUARDS {
        let mut asks = question.clone();
        others(&mut asks);
        let asks = [asks];
        let given = |said: &[Consent]| matches!(said, [Consent::Given { .. }]);
        assert!(!given(&fleet.store.use_approval(&asks).await.unwrap()), "{guard}");
        let without = fleet.store.clone().with_scripts(Scripts::embedded().sabotage(guard, "").unwrap());
        assert!(given(&without.use_approval(&asks).await.unwrap()), "{guard}: nothing notices that it is gone");
    }
    // Taken by its call, it cannot be denied any more; but for this line.
    let used = "if state ~= 'waiting' and state ~= 'approved' then return { 'ENDED', state } end";
    let no = Word { agrees: false, ..Word::yes("bob") };
    assert!(matches!(no.about(&fleet, &asked.id).await, Err(ApprovalError::Ended(state)) if state == "used"));
    fleet.store = fleet.store.clone().with_scripts(Scripts::embedded().sabotage(used, "").unwrap());
    assert_eq!(no.about(&fleet, &asked.id).await.unwrap().state, "denied");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_restart_of_redis_has_lost_is_asked_for_anew() {
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
