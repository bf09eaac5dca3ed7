use std::collections::BTreeSet;

use proptest::prelude::*;
use tickfleet_model::policy::FactTransition;

use super::super::testing::{MiniStore, call, detects, name, tenant, turn, turn_id};
use super::check::RUNNING_MAX;
use super::*;
use crate::transaction::CounterKey;
use crate::turn::{State, WaitReason};

fn session_name() -> SessionName {
    SessionName { tenant: tenant(), session: "session:s".into() }
}

fn condition(fact: &str, required: bool) -> Condition {
    Condition { fact: fact.into(), required, shadow: false }
}

fn may(fact: &str, sets: bool) -> PossibleFactChange {
    PossibleFactChange { fact: fact.into(), sets, kept_ms: 1_000 }
}

fn asks(conditions: Vec<Condition>, changes: Vec<PossibleFactChange>) -> CheckFacts {
    CheckFacts { session: session_name(), conditions, changes }
}

fn enter(store: &mut MiniStore, id: &str, asks: &CheckFacts) -> Precondition {
    if !store.records.contains_key(&name(id).record()) {
        store.put(&name(id).record(), &turn());
    }
    let key = name(id).record();
    let caller = call(id, 0);
    let own = store.record::<Turn>(&key).unwrap();
    let precondition =
        store.section(|transaction, view, context| asks.add_to(transaction, view, context, &caller, &own)).unwrap();
    if matches!(precondition, Precondition::Met { .. }) && !asks.changes.is_empty() {
        store.put(&key, &Turn { session: Some(asks.session.session.clone()), ..own });
    }
    precondition
}

fn wait(store: &mut MiniStore, id: &str, asks: &CheckFacts) -> Option<TurnId> {
    let own = turn();
    let caller = call(id, 0);
    let section = WaitForFacts { asks, call: &caller, own: &own };
    store.section(|transaction, view, context| section.add_to(transaction, view, context)).unwrap();
    store.record::<Session>(&asks.session.key())?.waiting.get(&turn_id(id)).cloned()
}

fn changed(fact: &str, transition: FactTransition) -> AppliedFactChange {
    AppliedFactChange { fact: fact.into(), transition, kept_ms: 1_000 }
}

fn end(store: &mut MiniStore, id: &str, changes: Option<Vec<AppliedFactChange>>) {
    store.put(&name(id).record(), &Turn { position: 1, ..turn() });
    let calls = vec![EndedCall { call: call(id, 0), changes }];
    let section = EndCalls { session: session_name(), calls };
    store.section(|transaction, view, context| section.add_to(transaction, view, context)).unwrap();
}

fn waits(id: &str) -> Precondition {
    Precondition::Waits { turn: turn_id(id) }
}

fn met() -> Precondition {
    Precondition::Met { shadow: Vec::new() }
}

fn unmet(precondition: &Precondition) -> FactState {
    let Precondition::Unmet { known, .. } = precondition else { panic!("{precondition:?}") };
    known.state
}

#[test]
fn a_call_waits_for_calls_that_may_change_its_precondition() {
    let mut store = MiniStore::default();
    let reads = asks(vec![], vec![may("untrusted", true)]);
    let sends = asks(vec![condition("untrusted", false)], vec![]);
    assert_eq!(enter(&mut store, "a", &reads), met());
    assert_eq!(enter(&mut store, "b", &sends), waits("a"));
    assert_eq!(wait(&mut store, "b", &sends), Some(turn_id("a")));
    assert_eq!(enter(&mut store, "a", &reads), Precondition::Running);
    end(&mut store, "a", Some(vec![changed("untrusted", FactTransition::Set)]));
    assert_eq!(store.woken, ["turn:acme:b".to_owned()].into());
    assert_eq!(wait(&mut store, "b", &sends), None, "there is nothing to wait for any more");
    assert_eq!(store.due, ["turn:acme:b".to_owned()].into());
    assert_eq!(unmet(&enter(&mut store, "b", &sends)), FactState::Set);
    store.now_ms = 1_000;
    assert_eq!(enter(&mut store, "b", &sends), met(), "the fact has expired");
}

#[test]
fn an_unreported_call_makes_its_possible_changes_uncertain() {
    let mut store = MiniStore::default();
    let pays = asks(vec![], vec![may("paid", true), may("quoted", false)]);
    enter(&mut store, "q", &asks(vec![], vec![may("quoted", true)]));
    end(&mut store, "q", Some(vec![changed("quoted", FactTransition::Set)]));
    enter(&mut store, "a", &pays);
    end(&mut store, "a", None);
    let state =
        |store: &mut MiniStore, fact: &str, required| enter(store, "b", &asks(vec![condition(fact, required)], vec![]));
    assert_eq!(unmet(&state(&mut store, "paid", true)), FactState::Perhaps);
    assert_eq!(unmet(&state(&mut store, "paid", false)), FactState::Perhaps);
    assert_eq!(unmet(&state(&mut store, "quoted", true)), FactState::Perhaps);
    let unreported =
        EndCalls::unreported(&tenant(), &turn_id("a"), &Turn { session: Some("session:s".into()), ..turn() });
    assert_eq!(unreported.map(|unreported| unreported.calls.len()), Some(2));
    assert_eq!(EndCalls::unreported(&tenant(), &turn_id("a"), &turn()), None);
}

#[test]
fn a_call_does_not_wait_for_a_missing_turn() {
    let mut store = MiniStore::default();
    enter(&mut store, "a", &asks(vec![], vec![may("f", true)]));
    store.records.remove(&name("a").record());
    assert_eq!(unmet(&enter(&mut store, "b", &asks(vec![condition("f", true)], vec![]))), FactState::Perhaps);
}

#[test]
fn each_guard_of_facts_is_needed() {
    let sends = asks(vec![condition("f", false)], vec![]);
    let caller = call("b", 0);
    let own = turn();
    let check = |transaction: &mut Transaction, view: &View, context: &Context| {
        sends.add_to(transaction, view, context, &caller, &own)
    };
    let sets = asks(vec![], vec![may("f", true)]);
    detects("facts_guard_the_session", || {
        MiniStore::default().refuses_stale(check, |store| drop(enter(store, "a", &sets)))
    });
    // The other turn is admitted between read and commit.
    detects("facts_guard_other_turns", || {
        let mut store = MiniStore::default();
        enter(&mut store, "a", &sets);
        store.records.remove(&name("a").record());
        store.refuses_stale(check, |store| drop(store.put(&name("a").record(), &turn())))
    });
    detects("end_calls_guards_the_session", || {
        let mut store = MiniStore::default();
        enter(&mut store, "a", &sets);
        let calls = vec![EndedCall { call: call("a", 0), changes: None }];
        let ends = EndCalls { session: session_name(), calls };
        store.refuses_stale(
            |transaction, view, context| ends.add_to(transaction, view, context),
            |store| drop(enter(store, "c", &asks(vec![], vec![may("g", true)]))),
        )
    });
    detects("restate_guards_the_session", || {
        let mut store = MiniStore::default();
        let ends =
            vec![CallEndReport { call: call("z", 0), changes: vec![changed("f", FactTransition::Set)], ended_ms: 0 }];
        let report = ReportCallEnds { session: session_name(), ends };
        let view = store.view_for(|view, context| crate::Decision::decide(&report, view, context));
        enter(&mut store, "a", &sets);
        store.run_with(&mut view.clone(), &report);
        store.record::<Session>(&session_name().key()).unwrap().running.len() == 1
    });
}

#[test]
fn a_call_waits_for_a_fact_that_an_earlier_turn_may_set() {
    let mut store = MiniStore::default();
    let needs = asks(vec![condition("f", true)], vec![]);
    let expected =
        |id: &str| ExpectedCall { turn: turn_id(id), position: 0, deadline_ms: 9_000, sets: vec!["f".into()] };
    let expect =
        RecordExpectedCalls { session: session_name(), calls: vec![expected("a"), expected("b"), expected("c")] };
    assert!(store.run(&expect));
    assert!(!store.run(&expect), "they are known");
    assert_eq!(enter(&mut store, "b", &needs), waits("a"), "it is about to be admitted");
    assert_eq!(unmet(&enter(&mut store, "a", &needs)), FactState::Never, "later turns are not waited for");
    store.put(&name("a").record(), &turn());
    assert_eq!(enter(&mut store, "b", &needs), waits("a"));
    assert_eq!(enter(&mut store, "d", &needs), waits("a"), "it came last");
    end(&mut store, "a", Some(vec![]));
    assert_eq!(unmet(&enter(&mut store, "b", &needs)), FactState::Never);
    store.now_ms = 10_000;
    store.records.remove(&name("b").record());
    assert_eq!(unmet(&enter(&mut store, "c", &needs)), FactState::Never, "it was never admitted");
}

#[test]
fn a_call_waits_for_a_fact_until_earlier_turns_are_admitted() {
    let mut store = MiniStore::default();
    let needs = asks(vec![condition("f", true)], vec![]);
    let inbound = |id: &str| vec![vec![("id".into(), bytes::Bytes::from(id.to_owned()))]];
    store.logs.insert(crate::keys::turns(), inbound("1-0"));
    assert_eq!(enter(&mut store, "a", &needs), waits("a"));
    store.logs.insert(crate::keys::turns(), inbound("2-0"));
    assert_eq!(unmet(&enter(&mut store, "a", &needs)), FactState::Never);
    store.logs.clear();
    assert_eq!(unmet(&enter(&mut store, "a", &needs)), FactState::Never);
}

#[test]
fn a_call_waits_for_a_fact_until_a_redelivered_turn_is_admitted() {
    let mut store = MiniStore::default();
    let needs = asks(vec![condition("f", true)], vec![]);
    store.logs.insert(crate::keys::turns(), vec![vec![("id".into(), bytes::Bytes::from_static(b"7-0"))]]);
    assert_eq!(unmet(&enter(&mut store, "a", &needs)), FactState::Never);
    let set = crate::recovery::inbound::redelivered();
    store.sets.entry(set.clone()).or_default().insert("turns".into(), 6);
    assert_eq!(unmet(&enter(&mut store, "a", &needs)), FactState::Never);
    store.sets.entry(set).or_default().insert("turns".into(), 7);
    detects("early_knows_redelivery", || enter(&mut store.clone(), "a", &needs) == waits("a"));
}

#[test]
fn cleared_facts_do_not_make_a_session_grow() {
    let mut session = Session::default();
    let max = tickfleet_model::limits::FACTS_PER_SESSION_MAX;
    session.change(&changed("kept", FactTransition::Set), &call("z", 0), 0, 0);
    for at in 0..3 * max {
        let clears = [changed(&format!("f{at}"), FactTransition::Cleared)];
        session.end_call(&call("a", at), Some(&clears), 0);
        assert!(session.facts.len() <= max + 1);
    }
    assert!(session.facts.contains_key("kept"));
}

#[test]
fn running_calls_count_toward_the_session_fact_bound() {
    let mut store = MiniStore::default();
    let max = tickfleet_model::limits::FACTS_PER_SESSION_MAX;
    let half = |side: &str| asks(vec![], (0..=max / 2).map(|at| may(&format!("{side}{at}"), true)).collect());
    assert_eq!(enter(&mut store, "a", &half("a")), met());
    assert_eq!(enter(&mut store, "b", &half("b")), Precondition::Full);
    assert_eq!(enter(&mut store, "b", &half("a")), met(), "they set the same facts");
}

#[test]
fn a_full_session_drops_ended_calls_to_admit_a_new_one() {
    let mut store = MiniStore::default();
    for number in 0..RUNNING_MAX {
        assert_eq!(enter(&mut store, &format!("a{number}"), &asks(vec![], vec![may("f", true)])), met());
    }
    let one_more = asks(vec![], vec![may("f", true)]);
    assert_eq!(enter(&mut store, "b", &one_more), waits("b"));
    let reads = store.reads;
    assert_eq!(enter(&mut store, "c", &asks(vec![condition("g", false)], vec![may("f", true)])), waits("c"));
    assert!(store.reads - reads <= 4, "{} reads", store.reads - reads);
    for number in 0..RUNNING_MAX {
        store.put(&name(&format!("a{number}")).record(), &Turn { position: 9, ..turn() });
    }
    assert_eq!(enter(&mut store, "b", &one_more), met());
}

#[test]
fn a_dry_run_condition_is_reported_without_waiting() {
    let mut store = MiniStore::default();
    enter(&mut store, "a", &asks(vec![], vec![may("f", true)]));
    let mut needs = asks(vec![condition("g", false), condition("f", true)], vec![]);
    needs.conditions[1].shadow = true;
    assert_eq!(enter(&mut store, "b", &needs), Precondition::Met { shadow: vec![1] });
}

#[test]
fn a_call_never_waits_for_its_callers_or_in_a_cycle() {
    let mut store = MiniStore::default();
    let state = |reason| State::Waiting { upto: 2, reason, due_ms: 9 };
    enter(&mut store, "a", &asks(vec![], vec![may("f", true), may("g", false)]));
    enter(&mut store, "z", &asks(vec![], vec![may("g", true)]));
    end(&mut store, "z", Some(vec![changed("g", FactTransition::Set)]));
    let child = WaitReason::Child { turn: turn_id("a.0.call-1") };
    store.put(&name("a").record(), &Turn { state: state(child), ..turn() });
    let needs_g = asks(vec![condition("g", true)], vec![]);
    assert_eq!(enter(&mut store, "a.0.call-1", &needs_g), met(), "its caller ends after it");
    assert_eq!(enter(&mut store, "b", &needs_g), waits("a"));
    // The inner call of `a` waits for an equal call of `b`. So `a` waits for `b`.
    let equal = WaitReason::EqualCall { turn: turn_id("b") };
    store.put(&name("a.0.call-1").record(), &Turn { state: state(equal), ..turn() });
    assert_eq!(unmet(&enter(&mut store, "b", &needs_g)), FactState::Undecided);
    let needs_f = asks(vec![condition("f", true)], vec![]);
    assert_eq!(unmet(&enter(&mut store, "b", &needs_f)), FactState::Never, "it is decided by what is known");
    assert_eq!(enter(&mut store, "c", &needs_g), waits("a"), "others wait");
}

#[test]
fn a_turn_waiting_for_a_callers_permit_closes_a_wait_cycle() {
    let mut store = MiniStore::default();
    let counter = CounterKey::new("slots", "kelly");
    enter(&mut store, "a", &asks(vec![], vec![may("f", false)]));
    let throttled = State::Throttled { counter: counter.clone(), since_ms: 0 };
    store.put(&name("a").record(), &Turn { state: throttled, ..turn() });
    enter(&mut store, "z", &asks(vec![], vec![may("f", true)]));
    end(&mut store, "z", Some(vec![changed("f", FactTransition::Set)]));
    let needs = asks(vec![condition("f", true)], vec![]);
    store.put(&name("b").record(), &Turn { permits: vec![(counter, 1)], ..turn() });
    assert_eq!(enter(&mut store, "b", &needs), waits("a"), "its own permits are returned while it waits");
    assert_eq!(unmet(&enter(&mut store, "b.0.call-1", &needs)), FactState::Undecided);
}

#[test]
fn two_concurrent_turns_never_wait_for_each_other() {
    let mut store = MiniStore::default();
    let f = condition("f", false);
    let g = condition("g", false);
    enter(&mut store, "a", &asks(vec![], vec![may("f", true)]));
    let other = SessionName { session: "agent:kelly".into(), ..session_name() };
    let in_other = |asks: CheckFacts| CheckFacts { session: other.clone(), ..asks };
    enter(&mut store, "b", &in_other(asks(vec![], vec![may("g", true)])));
    let a_waits = in_other(asks(vec![g], vec![]));
    let b_waits = asks(vec![f], vec![]);
    let own = turn();
    let caller = call("b", 1);
    let section = WaitForFacts { asks: &b_waits, call: &caller, own: &own };
    let view =
        store.view_for(|view, context| section.add_to(&mut Transaction::new(context.version.clone()), view, context));
    assert_eq!(wait(&mut store, "a", &a_waits), Some(turn_id("b")));
    let reason = WaitReason::Fact { turn: turn_id("b") };
    store.put(&name("a").record(), &Turn { state: State::Waiting { upto: 2, reason, due_ms: 9 }, ..turn() });
    // `b` decides from a view in which `a` does not wait yet.
    let context = store.context();
    let mut transaction = Transaction::new(context.version.clone());
    section.add_to(&mut transaction, &view, &context).unwrap();
    assert!(store.commit(&transaction).is_err());
    assert_eq!(wait(&mut store, "b", &b_waits), None, "it is decided now, and would close the circle");
    assert_eq!(store.due, ["turn:acme:b".to_owned()].into());
}

#[test]
fn a_full_session_accepts_a_fact_after_another_is_cleared() {
    let mut store = MiniStore::default();
    let max = tickfleet_model::limits::FACTS_PER_SESSION_MAX;
    let mut session = Session::default();
    for at in 0..max {
        session.change(&changed(&format!("f{at}"), FactTransition::Set), &call("z", 0), 0, 0);
    }
    store.put(&session_name().key(), &session);
    let sets = asks(vec![], vec![may("one_more", true)]);
    assert_eq!(enter(&mut store, "a", &sets), Precondition::Full);
    session.change(&changed("f0", FactTransition::Cleared), &call("z", 0), 0, 0);
    store.put(&session_name().key(), &session);
    assert_eq!(enter(&mut store, "a", &sets), met());
}

#[test]
fn a_session_with_a_running_call_does_not_expire() {
    let mut store = MiniStore::default();
    enter(&mut store, "a", &asks(vec![], vec![may("f", true)]));
    assert_eq!(store.lifetimes[&session_name().key()], None);
    end(&mut store, "a", Some(vec![changed("f", FactTransition::Set)]));
    assert_eq!(store.lifetimes[&session_name().key()], Some(1_000 + OVER_MS));
}

#[test]
fn a_fact_change_lost_by_the_store_is_reported_again() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    let report = |transition, ended_ms| ReportCallEnds {
        session: session_name(),
        ends: vec![CallEndReport { call: call("a", 0), changes: vec![changed("f", transition)], ended_ms }],
    };
    assert!(store.run(&report(FactTransition::Set, 50)));
    assert!(!store.run(&report(FactTransition::Set, 50)), "it is known now");
    let state =
        |store: &MiniStore| store.record::<Session>(&session_name().key()).unwrap().facts["f"].known(store.now_ms);
    assert_eq!((state(&store).state, state(&store).since_ms), (FactState::Set, Some(50)));
    let mut session = Session::default();
    session.change(&changed("f", FactTransition::Set), &call("b", 0), 40, 100);
    session.change(
        &AppliedFactChange { kept_ms: 2_000, ..changed("f", FactTransition::MaybeSet) },
        &call("c", 0),
        60,
        100,
    );
    store.put(&session_name().key(), &session);
    assert!(store.run(&report(FactTransition::Cleared, 50)));
    assert_eq!(state(&store).state, FactState::Perhaps, "a later call may have set it again");
    let mut session = Session::default();
    session.change(&changed("f", FactTransition::Set), &call("b", 0), 60, 100);
    store.put(&session_name().key(), &session);
    assert!(!store.run(&report(FactTransition::Cleared, 50)), "a later call set it");
}

fn begins_by(session: &Session, who: &str, asks: &CheckFacts, now_ms: i64) -> bool {
    asks.conditions.iter().all(|condition| {
        let changers = session.running.iter().filter(|(call, entry)| {
            call.turn.as_str() != who
                && entry.changes.iter().any(|it| it.fact == condition.fact && it.sets != condition.required)
        });
        let known = session.facts.get(&condition.fact).map(|fact| fact.known(now_ms).state).unwrap_or(FactState::Never);
        let holds = match condition.required {
            true => known == FactState::Set,
            false => !matches!(known, FactState::Set | FactState::Perhaps),
        };
        changers.count() == 0 && holds
    })
}

const IDS: [&str; 4] = ["a", "b", "c", "d"];

fn call_kinds() -> impl Strategy<Value = CheckFacts> {
    let fact = prop::sample::select(vec!["f", "g"]);
    let conditions = prop::collection::vec((fact.clone(), any::<bool>()), 0..2);
    let changes = prop::collection::vec((fact, any::<bool>()), 0..2);
    (conditions, changes).prop_map(|(conditions, changes)| {
        let conditions = conditions.into_iter().map(|(fact, required)| condition(fact, required)).collect();
        asks(conditions, changes.into_iter().map(|(fact, sets)| may(fact, sets)).collect())
    })
}

proptest! {
    #[test]
    fn no_call_begins_while_another_may_change_its_precondition(
        kinds in prop::collection::vec(call_kinds(), 4),
        steps in prop::collection::vec((0..4_usize, 0..4_u8, any::<bool>()), 1..60),
    ) {
        let mut store = MiniStore::default();
        let mut views: Vec<Option<View>> = vec![None; 4];
        let mut running = BTreeSet::new();
        for (who, action, is_reported) in steps {
            let id = IDS[who];
            let asks = &kinds[who];
            let caller = call(id, 0);
            match action {
                0 | 1 if !running.contains(&who) => {
                    store.put(&name(id).record(), &turn());
                    views[who] = Some(store.view_for(|view, context| {
                        asks.add_to(&mut Transaction::new(context.version.clone()), view, context, &caller, &turn())
                    }));
                }
                2 => {
                    let Some(view) = views[who].take() else { continue };
                    let before = store.record::<Session>(&session_name().key()).unwrap_or_default();
                    let context = store.context();
                    let mut transaction = Transaction::new(context.version.clone());
                    let result = asks.add_to(&mut transaction, &view, &context, &caller, &turn());
                    let Ok(Precondition::Met { .. }) = result else { continue };
                    if store.commit(&transaction).is_ok() {
                        prop_assert!(begins_by(&before, id, asks, store.now_ms), "{:?} {:?}", before, asks);
                        running.insert(who);
                    }
                }
                3 if running.remove(&who) => {
                    let of = |it: &PossibleFactChange| changed(&it.fact, if it.sets { FactTransition::Set } else { FactTransition::Cleared });
                    let changes = is_reported.then(|| asks.changes.iter().map(of).collect());
                    end(&mut store, id, changes);
                }
                _ => {}
            }
        }
    }

    #[test]
    fn a_fact_ends_early_only_when_certainly_cleared(steps in prop::collection::vec((0..4_u8, 1..500_i64, 0..200_i64), 1..30)) {
        let mut fact = Fact::default();
        let mut now_ms = 0;
        for (at, (transition, kept_ms, passes_ms)) in steps.into_iter().enumerate() {
            now_ms += passes_ms;
            let transition =
                [FactTransition::Set, FactTransition::MaybeSet, FactTransition::Cleared, FactTransition::MaybeCleared][usize::from(transition)];
            let before = fact.known(now_ms);
            let live = |known: &KnownFact| matches!(known.state, FactState::Set | FactState::Perhaps);
            fact.change(transition, kept_ms, &call("a", at), now_ms, now_ms);
            let after = fact.known(now_ms);
            prop_assert_eq!(fact.cleared.is_some(), fact.certain.is_none() && fact.perhaps.is_none() && fact != Fact::default());
            match transition {
                FactTransition::Set => prop_assert_eq!(after.state, FactState::Set),
                FactTransition::MaybeSet => prop_assert!(live(&after)),
                FactTransition::Cleared => prop_assert_eq!(after.state, FactState::Cleared),
                FactTransition::MaybeCleared => prop_assert!(after.state != FactState::Set),
            }
            if live(&before) && transition != FactTransition::Cleared {
                prop_assert!(live(&after));
                prop_assert!(after.until_ms >= before.until_ms);
            }
        }
    }

    #[test]
    fn a_session_round_trips_through_its_encoding(steps in prop::collection::vec((0..4_usize, any::<bool>()), 0..20)) {
        let mut session = Session::default();
        for (who, sets) in steps {
            check::add_running_call(&mut session, &call(IDS[who], 0), &[may("f", sets)]);
            session.waiting.insert(turn_id("w"), turn_id(IDS[who]));
            session.change(&changed("g", FactTransition::Set), &call(IDS[who], 0), 0, 0);
        }
        prop_assert_eq!(Session::decode(&session.encode()), Ok(session));
    }
}
