use proptest::prelude::*;

use super::super::approval::{ApprovalPreview, ApprovalState, AskApproval, AskResult, Demand, RequestApproval};
use super::super::cache::{Fill, FillCache};
use super::super::claim::Claimant;
use super::super::claim::{Claim, ClaimState, EffectEnd, EffectName, EndClaim};
use super::super::facts::{
    AppliedFactChange, Condition, EndCalls, EndedCall, FactState, PossibleFactChange, Session, SessionName,
};
use super::super::streak::{CountCalls, Repeat, Streak, StreakBounds};
use super::super::testing::{MiniStore, agent, call, detects, name, tenant, turn};
use super::*;
use crate::recovery::epoch::{JournaledOutcome, ReportBegunCall};
use crate::section::{self, Section};
use crate::turn::end::RenderedCall;
use crate::turn::{Cancellation, Suspect};
use tickfleet_model::policy::FactTransition;
use tickfleet_model::{TaskGrant, TaskId};

const LEASE_MS: i64 = 10_000;

fn plain<'a>(slice: &'a Slice, by: &'a str) -> Begin<'a> {
    Begin {
        slice,
        position: slice.turn.position,
        by,
        once: false,
        is_durable: false,
        epoch: 0,
        lease_ms: LEASE_MS,
        streak: None,
        facts: None,
        consent: None,
        claim: None,
        cache: None,
    }
}

fn once<'a>(slice: &'a Slice, by: &'a str) -> Begin<'a> {
    Begin { once: true, ..plain(slice, by) }
}

fn session() -> SessionName {
    SessionName { tenant: tenant(), session: "session:s".into() }
}

fn facts() -> CheckFacts {
    let condition = Condition { fact: "untrusted".into(), required: false, shadow: false };
    let changes = vec![PossibleFactChange { fact: "paid".into(), sets: true, kept_ms: 1_000 }];
    CheckFacts { session: session(), conditions: vec![condition], changes }
}

fn effect() -> EffectName {
    EffectName { tenant: tenant(), tool: "pay".into(), hash: "0a".into() }
}

fn claim(turn: &str) -> ClaimEffect {
    let by = Claimant { call: call(turn, 0), digest: "d0".into(), admitted_ms: 1 };
    ClaimEffect { effect: effect(), by, window_ms: 1_000, nothing: None }
}

fn consent() -> ConsentCheck {
    ConsentCheck { uses: UseConsent { id: "apr-1".into(), binding: "bound".into() }, narrowed: None }
}

fn streak_name() -> StreakName {
    StreakName { tenant: tenant(), agent: agent(), task: None }
}

fn governed<'a>(slice: &'a Slice, by: &'a str) -> Begin<'a> {
    Begin {
        streak: Some(StreakCheck { name: streak_name(), hash: "h".into() }),
        facts: Some(facts()),
        consent: Some(consent()),
        claim: Some(claim(slice.name.turn.as_str())),
        ..once(slice, by)
    }
}

fn approval_in(state: ApprovalState, turn: &str) -> Approval {
    serde_json::from_value(serde_json::json!({
        "c": format!("{turn}/0"),
        "b": "bound",
        "ag": "kelly",
        "sh": {"to": "pay", "tv": "1", "ar": "{}", "by": 2, "why": "[]"},
        "de": [{"q": 1}],
        "t": 0,
        "v": {"kim": {"t": 1, "r": [], "w": ""}},
        "s": state,
    }))
    .unwrap()
}

fn approval_key() -> RecordKey {
    approval::key(&tenant(), "apr-1")
}

fn approved(store: &mut MiniStore) {
    store.put(&approval_key(), &approval_in(ApprovalState::Approved { until_ms: 5_000 }, "t"));
}

fn started(result: BeginResult) -> Started {
    let BeginResult::Started(started) = result else { panic!("{}", result.word()) };
    *started
}

#[test]
fn a_governed_call_takes_one_read_one_begin_and_one_settle() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    approved(&mut store);
    let mut slice = store.slice("t", &turn());
    let mut view = View::default();
    let started = started(store.run_with(&mut view, &governed(&slice, "n1")));
    assert_eq!((store.reads, store.commits), (1, 1));
    assert_eq!((started.agreed, started.checked_ms), (vec!["kim".to_owned()], Some(100)));
    assert_eq!(started.version, store.version(&slice.name.record()));
    let stored: Turn = store.record(&slice.name.record()).unwrap();
    assert_eq!(stored, started.turn);
    let consent = UsedConsent { approval: "apr-1".into(), by: vec!["kim".into()], narrowed: None };
    assert_eq!(stored.begun, Some(Begun { consent: Some(consent), ..Begun::new(0, "n1") }));
    assert_eq!((stored.state.word(), stored.session.as_deref()), ("running", Some("session:s")));
    assert_eq!(stored.entry, Some(slice.entry.clone()));
    let used: Approval = store.record(&approval_key()).unwrap();
    assert_eq!(used.state, ApprovalState::Used { at_ms: 100 });
    assert!(store.record::<Session>(&session().key()).unwrap().running.contains_key(&call("t", 0)));
    assert_eq!(store.record::<Claim>(&effect().key()).unwrap().by, claim("t").by);

    (slice.version, slice.turn) = (started.version, started.turn);
    let paid = AppliedFactChange { fact: "paid".into(), transition: FactTransition::Set, kept_ms: 1_000 };
    let ended =
        EndCalls { session: session(), calls: vec![EndedCall { call: call("t", 0), changes: Some(vec![paid]) }] };
    let ended_claim =
        EndClaim { effect: effect(), by: claim("t").by, end: EffectEnd::Ended("1".into()), window_ms: 1_000 };
    let counted = CountCalls {
        name: streak_name(),
        bounds: StreakBounds { deny_after: 3, deny_ms: 1, keep_ms: 1 },
        calls: vec![Repeat { hash: "h".into(), result: "r".into(), by: call("t", 0) }],
    };
    let sections: [&dyn Section; 3] = [&ended, &ended_claim, &counted];
    let context = store.context();
    let mut settle = Transaction::new(context.version.clone());
    section::add_all(&sections, &mut settle, &view, &context).unwrap();
    assert_eq!(store.commit(&settle), Ok(()), "it needed no read");
    assert_eq!(store.record::<Session>(&session().key()).unwrap().running.len(), 0);
    assert!(matches!(store.record::<Claim>(&effect().key()).unwrap().state, ClaimState::Ended { .. }));
    assert_eq!(store.record::<Streak>(&streak_name().key()).unwrap().last.unwrap().count, 1);
}

#[test]
fn an_ungoverned_call_begins_without_a_commit() {
    let mut store = MiniStore::default();
    let slice = store.slice("t", &turn());
    let begin = Begin { streak: Some(StreakCheck { name: streak_name(), hash: "h".into() }), ..plain(&slice, "n1") };
    let started = started(store.run(&begin));
    assert_eq!((store.reads, store.commits, started.version), (1, 0, slice.version.clone()));
    let cache = CacheName { tenant: tenant(), hash: "00aa".into() };
    let fill = Fill {
        name: cache.clone(),
        ttl_ms: 50,
        requested_ms: 0,
        by: call("s", 0),
        media: "text/plain".into(),
        output: serde_json::value::RawValue::from_string("7".into()).unwrap(),
    };
    let section = FillCache { results: vec![fill] };
    store.section(|transaction, view, context| section.add_to(transaction, view, context)).unwrap();
    let begin = Begin { cache: Some(cache), ..plain(&slice, "n1") };
    assert_eq!(super::tests::started(store.run(&begin)).cached.unwrap().output.get(), "7");
}

#[test]
fn a_redelivered_slice_is_marked_as_started() {
    let mut store = MiniStore::default();
    let suspect = Some(Suspect { group_max: 1, solo_crashes: 0 });
    let slice = store.slice("t", &Turn { crashes: 1, suspect, ..turn() });
    let started = started(store.run(&plain(&slice, "n1")));
    assert_eq!((started.turn.state.word(), store.commits), ("running", 1));
    assert_eq!(started.turn.begun, None);
}

#[test]
fn a_call_begun_by_another_attempt_is_unknown() {
    let mut store = MiniStore { now_ms: 2_000_000, ..MiniStore::default() };
    let begun = |position| Some(Begun::new(position, "other"));
    let canceled = Some("why".to_owned());
    let slice = store.slice("t", &Turn { begun: begun(0), canceled: canceled.clone(), ..turn() });
    assert_eq!(store.run(&governed(&slice, "n1")).word(), "unknown");
    assert_eq!(store.run(&plain(&slice, "n1")).word(), "unknown", "its tool may be another one by now");
    let further = store.slice("t", &Turn { begun: begun(1), ..turn() });
    assert_eq!(store.run(&once(&further, "n1")).word(), "unknown");
    let before = Turn { position: 1, begun: begun(0), ..turn() };
    let slice = store.slice("t", &before);
    assert_eq!(store.run(&once(&slice, "n1")).word(), "expired");
    let slice = store.slice("t", &Turn { canceled, ..before });
    assert_eq!(store.run(&once(&slice, "n1")).word(), "canceled");
}

#[test]
fn a_begin_with_a_lost_response_may_be_repeated() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    approved(&mut store);
    let slice = store.slice("t", &turn());
    let first = started(store.run(&governed(&slice, "n1")));
    let again = started(store.run(&governed(&slice, "n1")));
    assert_ne!(first.version, again.version);
    assert_eq!(again.version, store.version(&slice.name.record()));
    assert_eq!((again.agreed, again.checked_ms), (first.agreed, Some(0)), "it was let in before");
    assert_eq!(store.run(&governed(&slice, "n2")).word(), "stale");
}

#[test]
fn a_begin_without_an_intent_record_may_be_repeated() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    let suspect = Some(Suspect { group_max: 1, solo_crashes: 0 });
    for turn in [turn(), Turn { crashes: 1, suspect, ..turn() }] {
        store.records.remove(&session().key());
        let slice = store.slice("t", &turn);
        let begin = |by| Begin { facts: Some(facts()), ..plain(&slice, by) };
        started(store.run(&begin("n1")));
        let again = started(store.run(&begin("n1")));
        assert_eq!(again.version, store.version(&slice.name.record()));
        assert_eq!(again.checked_ms, Some(0), "it was let in before");
        store.put(&slice.name.record(), &Turn { entry: Some(crate::EntryId::new("2-0")), ..again.turn });
        assert_eq!(store.run(&begin("n1")).word(), "stale", "it was redelivered in another entry");
    }
}

#[test]
fn a_durable_read_writes_the_turn_and_may_begin_again() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    let slice = store.slice("t", &turn());
    let durable = |by| Begin { is_durable: true, ..plain(&slice, by) };
    assert_ne!(started(store.run(&durable("n1"))).version, slice.version);
    let stored: Turn = store.record(&slice.name.record()).unwrap();
    assert_eq!((stored.state.clone(), stored.begun.clone()), (State::Running { upto: 2 }, None));
    let slice = Slice { turn: stored, version: store.version(&slice.name.record()), ..slice };
    assert_eq!(store.run(&Begin { is_durable: true, ..plain(&slice, "n2") }).word(), "started", "a read may run again");
}

#[test]
fn a_new_turn_with_a_reused_id_gets_its_own_facts_check() {
    let is_refused = || {
        let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
        let slice = store.slice("t", &turn());
        started(store.run(&Begin { facts: Some(facts()), ..plain(&slice, "n1") }));
        let mut facts_of: Session = store.record(&session().key()).unwrap();
        let untrusted = AppliedFactChange { fact: "untrusted".into(), transition: FactTransition::Set, kept_ms: 1_000 };
        facts_of.change(&untrusted, &call("z", 0), 0, 0);
        store.put(&session().key(), &facts_of);
        let later = store.slice("t", &Turn { admitted_ms: 50, ..turn() });
        store.run(&Begin { facts: Some(facts()), ..plain(&later, "n2") }).word() == "refused"
    };
    detects("facts_let_in_this_turn", is_refused);
}

#[test]
fn a_rejected_begin_reports_its_reason() {
    let refused = |store: &mut MiniStore, begin: &Begin<'_>| match store.run(begin) {
        BeginResult::Refused(refusal) => refusal,
        other => panic!("{}", other.word()),
    };
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    let slice = store.slice("t", &turn());
    let mut facts_of = Session::default();
    let untrusted = AppliedFactChange { fact: "untrusted".into(), transition: FactTransition::Set, kept_ms: 1_000 };
    facts_of.change(&untrusted, &call("z", 0), 0, 0);
    store.put(&session().key(), &facts_of);
    approved(&mut store);
    let Refusal::Fact { condition: 0, known } = refused(&mut store, &governed(&slice, "n1")) else { panic!() };
    assert_eq!((known.state, known.by), (FactState::Set, Some(call("z", 0))));
    let unused: Approval = store.record(&approval_key()).unwrap();
    assert_eq!(unused.state.word(), "approved", "a call that facts deny leaves its consent");

    store.records.remove(&session().key());
    let denied = ApprovalState::Denied { at_ms: 1, by: "kim".into(), reason: "no".into() };
    store.put(&approval_key(), &approval_in(denied, "t"));
    let reason = Refusal::Denied { by: "kim".into(), reason: "no".into() };
    assert_eq!(refused(&mut store, &governed(&slice, "n1")), reason);
    store.put(&approval_key(), &approval_in(ApprovalState::Used { at_ms: 1 }, "other"));
    assert_eq!(refused(&mut store, &governed(&slice, "n1")), Refusal::NotAsked);
    store.put(&approval_key(), &approval_in(ApprovalState::Waiting { until_ms: 50 }, "t"));
    assert_eq!(refused(&mut store, &governed(&slice, "n1")), Refusal::ConsentExpired { since_ms: 50 });
    let expired: Approval = store.record(&approval_key()).unwrap();
    assert_eq!(expired.state, ApprovalState::Expired { since_ms: 50 });
    assert!(store.record::<Session>(&session().key()).is_none(), "it is not under way");

    let refused_calls = [("h".to_owned(), 500)].into();
    store.put(&streak_name().key(), &Streak { last: None, refused: refused_calls });
    assert_eq!(refused(&mut store, &governed(&slice, "n1")), Refusal::Streak { until_ms: 500 });
    assert_eq!(store.version(&slice.name.record()), slice.version);
}

#[test]
fn a_call_waits_for_approvals_facts_and_equal_calls() {
    let waits = |store: &mut MiniStore, begin: &Begin<'_>| match store.run(begin) {
        BeginResult::Waits(reason) => reason,
        other => panic!("{}", other.word()),
    };
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    let slice = store.slice("t", &turn());
    let asks = store.run(&governed(&slice, "n1"));
    assert!(matches!(asks, BeginResult::Asks { before: None }));
    let ask = AskApproval {
        id: "apr-1".into(),
        call: call("t", 0),
        binding: "bound".into(),
        shown: ApprovalPreview {
            tool: "pay".into(),
            version: "1".into(),
            arguments: "{}".into(),
            abridged: false,
            bytes: 2,
            why: "[]".into(),
            may_narrow: Default::default(),
        },
        exact: "{}".into(),
        demands: vec![Demand { quorum: 1, roles: Default::default() }],
        expires_ms: None,
        early: None,
        tenant_max: 1,
        agent_max: 1,
    };
    let tenant = tenant();
    let request = RequestApproval { ask: &ask, tenant: &tenant, turn: &slice.turn };
    store.section(|transaction, view, context| request.add_to(transaction, view, context)).unwrap();
    let expected = WaitReason::Approval { approval: "apr-1".into() };
    assert_eq!(waits(&mut store, &governed(&slice, "n1")), expected);
    let other = ConsentCheck { uses: UseConsent { id: "apr-2".into(), ..consent().uses }, narrowed: None };
    let turn_with = store.slice("t", &Turn { approval: Some("apr-1".into()), ..turn() });
    let result = store.run(&Begin { consent: Some(other), ..governed(&turn_with, "n1") });
    let BeginResult::Asks { before: Some(before) } = result else { panic!("{}", result.word()) };
    assert_eq!(before, ("apr-1".to_owned(), "waiting"));
    let full = AskApproval { id: "apr-2".into(), ..ask.clone() };
    let asked = store.section(|transaction, view, context| full.add_to(transaction, view, context, &tenant, &turn()));
    assert_eq!(asked, Ok(AskResult::Full { of_agent: false }));

    let slice = store.slice("t", &turn());
    approved(&mut store);
    let changed = ConsentCheck { narrowed: Some("{}".into()), ..consent() };
    let result = store.run(&Begin { consent: Some(changed), ..governed(&slice, "n1") });
    assert_eq!(result.word(), "consent_changed");
    let equal = store.slice("e", &turn());
    let runs = Begin { claim: Some(claim("e")), ..once(&equal, "n9") };
    started(store.run(&runs));
    let expected = WaitReason::EqualCall { turn: name("e").turn };
    assert_eq!(waits(&mut store, &governed(&slice, "n1")), expected);
    store.records.remove(&name("e").record());
    assert_eq!(store.run(&governed(&slice, "n1")).word(), "abandoned");
    store.run(&EndClaim { effect: effect(), by: claim("e").by, end: EffectEnd::Ended("1".into()), window_ms: 1_000 });
    assert_eq!(store.run(&governed(&slice, "n1")).word(), "answered");
    let may = PossibleFactChange { fact: "untrusted".into(), sets: true, kept_ms: 1 };
    let reader = store.slice("r", &turn());
    let reads = CheckFacts { conditions: Vec::new(), changes: vec![may], ..facts() };
    started(store.run(&Begin { facts: Some(reads), ..plain(&reader, "n8") }));
    assert_eq!(waits(&mut store, &governed(&slice, "n1")), WaitReason::Fact { turn: name("r").turn });
    let unused: Approval = store.record(&approval_key()).unwrap();
    assert_eq!(unused.state.word(), "approved");
}

#[test]
fn a_once_call_waits_one_lease_after_a_restart() {
    detects("begin_guards_the_epoch", || {
        let mut store = MiniStore { now_ms: 100, epoch: 3, ..MiniStore::default() };
        let slice = store.slice("t", &turn());
        let begin = Begin { epoch: 3, ..once(&slice, "n1") };
        let context = store.context();
        (store.epoch, store.epoch_began_ms) = (4, 100);
        let Ok(Step::Commit(transaction, _)) = begin.decide(&View::default(), &context) else { panic!() };
        store.commit(&transaction).is_err()
    });
    let mut store = MiniStore { now_ms: 100, epoch: 4, epoch_began_ms: 100, ..MiniStore::default() };
    let slice = store.slice("t", &turn());
    let in_epoch = |epoch| Begin { epoch, ..once(&slice, "n1") };
    store.now_ms = 100 + LEASE_MS - 1;
    assert_eq!(store.run(&in_epoch(4)).word(), "hold");
    assert_eq!(store.run(&Begin { epoch: 4, is_durable: true, ..plain(&slice, "n1") }).word(), "hold");
    assert_eq!(store.run(&plain(&slice, "n1")).word(), "started", "a call that needs no record begins");
    store.now_ms += 1;
    assert_eq!(store.run(&in_epoch(3)).word(), "hold", "the worker has not reported yet");
    assert_eq!(store.run(&in_epoch(4)).word(), "started");
}

#[test]
fn a_recovered_call_detects_a_begin_lost_in_a_restart() {
    let restarted = || MiniStore { now_ms: 100 + LEASE_MS, epoch: 4, epoch_began_ms: 100, ..MiniStore::default() };
    let report = |store: &mut MiniStore, outcome| {
        let digest = "d0".to_owned();
        let by = "lost".to_owned();
        store.run(&ReportBegunCall { name: name("t"), digest, position: 0, by, once: true, outcome, keep_ms: 1_000 })
    };
    detects("begin_guards_the_recovered_calls", || {
        let mut store = restarted();
        let slice = store.slice("t", &turn());
        let begin = Begin { epoch: 4, ..once(&slice, "n1") };
        let view = store.view_for(|view, context| begin.decide(view, context));
        report(&mut store, JournaledOutcome::Begun);
        store.run_with(&mut view.clone(), &begin).word() == "unknown"
    });
    let mut store = restarted();
    let slice = store.slice("t", &turn());
    let call = RenderedCall { result: "7".into(), ..RenderedCall::default() };
    report(&mut store, JournaledOutcome::Ended(Box::new(call.clone())));
    let result = store.run(&Begin { epoch: 4, ..once(&slice, "n1") });
    assert!(matches!(result, BeginResult::Reported { call: found } if found == call));
    assert_eq!(store.run(&Begin { epoch: 4, ..once(&slice, "lost") }).word(), "started", "it is its own");
}

/// The call must never be reported as not run.
#[test]
fn a_recovered_call_does_not_block_a_repeatable_call() {
    let mut store = MiniStore { now_ms: 100 + LEASE_MS, epoch: 4, epoch_began_ms: 100, ..MiniStore::default() };
    let slice = store.slice("t", &turn());
    let digest = "d0".to_owned();
    let by = "lost".to_owned();
    let outcome = crate::recovery::epoch::JournaledOutcome::Begun;
    store.run(&ReportBegunCall { name: name("t"), digest, position: 0, by, once: false, outcome, keep_ms: 1_000 });
    assert_eq!(store.run(&Begin { epoch: 4, ..plain(&slice, "n1") }).word(), "started");
    assert_eq!(store.run(&Begin { epoch: 4, ..once(&slice, "n1") }).word(), "unknown", "its tool is another now");
}

#[test]
fn a_concurrent_cancel_or_deadline_stops_a_begin() {
    detects("begin_guards_the_cancel", || {
        let mut store = MiniStore::default();
        let slice = store.slice("t", &turn());
        store.put(&slice.name.cancellation(), &Cancellation { reason: "why".into(), admitted_ms: Some(1) });
        matches!(store.run(&once(&slice, "n1")), BeginResult::Canceled { reason } if reason == "why")
    });
    let mut store = MiniStore::default();
    let slice = store.slice("t", &turn());
    store.put(&slice.name.cancellation(), &Cancellation { reason: "why".into(), admitted_ms: Some(9) });
    started(store.run(&once(&slice, "n1")));
    detects("begin_guards_the_deadline", || {
        let mut store = MiniStore { now_ms: 999_999, ..MiniStore::default() };
        let slice = store.slice("t", &turn());
        let begin = once(&slice, "n1");
        let Ok(Step::Commit(transaction, _)) = begin.decide(&View::default(), &store.context()) else { panic!() };
        store.now_ms += 1;
        store.commit(&transaction).is_err()
    });
}

/// Returns the number of attempts that ran.
fn play(steps: &[(u8, usize)]) -> usize {
    let mut store = MiniStore::default();
    let mut slices = vec![store.slice("t", &turn())];
    let names: Vec<String> = (0..steps.len()).map(|at| format!("n{at}")).collect();
    let mut ran = std::collections::BTreeSet::new();
    for (at, (action, which)) in steps.iter().enumerate() {
        let holder = which % slices.len();
        match action {
            0 | 1 => {
                if let BeginResult::Started(_) = store.run(&once(&slices[holder], &names[holder])) {
                    ran.insert(holder);
                }
            }
            _ => {
                let present: Turn = store.record(&name("t").record()).unwrap();
                let redelivered = Turn { crashes: present.crashes + 1, state: State::Ready { upto: 2 }, ..present };
                slices.push(store.slice("t", &redelivered));
            }
        }
        if at + 1 == steps.len() {
            break;
        }
    }
    ran.len()
}

#[test]
fn each_guard_of_the_intent_record_is_needed() {
    // A holder begins and crashes, and the slice is redelivered.
    detects("begin_respects_the_intent_record", || play(&[(0, 0), (2, 0), (0, 1)]) <= 1);
    detects("begin_writes_the_intent_record", || play(&[(0, 0), (2, 0), (0, 1)]) <= 1);
    // The slice of a slow holder is redelivered before the holder begins.
    detects("begin_guards_the_version", || play(&[(2, 0), (0, 1), (0, 0)]) <= 1);
}

proptest! {
    #[test]
    fn a_once_call_runs_at_most_once_across_redeliveries(steps in prop::collection::vec((0..3_u8, 0..6_usize), 1..20)) {
        prop_assert!(play(&steps) <= 1);
    }
}

#[test]
fn a_suspect_start_may_be_written_again_after_a_lost_response() {
    let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
    let slice = store.slice("t", &Turn { suspect: Some(Suspect { group_max: 1, solo_crashes: 0 }), ..turn() });
    let first = started(store.run(&plain(&slice, "n1")));
    let again = started(store.run(&plain(&slice, "n1")));
    assert_eq!(again.version, first.version);
    assert_eq!(store.run(&once(&slice, "n2")).word(), "stale");
}

/// If the inner call waited for the equal outer call, both would wait for each other.
#[test]
fn a_delegated_call_equal_to_its_caller_is_rejected() {
    let result_below = |delegated_by: &str| {
        let mut store = MiniStore { now_ms: 100, ..MiniStore::default() };
        let first = store.slice("a", &turn());
        started(store.run(&Begin { claim: Some(claim("a")), ..once(&first, "n1") }));
        let mut delegated = turn();
        delegated.head.delegated_by = Some(delegated_by.into());
        delegated.task = Some(serde_json::from_str("{\"bu\":9}").unwrap());
        store.slice("k", &delegated);
        let mut below = turn();
        below.head.task = Some((TaskId::new("k").unwrap(), TaskGrant::default()));
        let below = store.slice("b", &below);
        store.run(&Begin { claim: Some(claim("b")), ..once(&below, "n2") })
    };
    detects(
        "claim_knows_who_waits_for_it",
        || matches!(result_below("a/0"), BeginResult::Refused(Refusal::EqualAbove { by }) if by == call("a", 0)),
    );
    assert_eq!(result_below("a/1").word(), "waits");
}
