use tickfleet_model::{Conclusion, FailureKind};

use super::*;
use crate::EntryId;
use crate::task::external::{HandleLeaseTimer, LeaseTimerResult, RenewTaskLease, RenewTaskLeaseResult};

const LEASE_MS: i64 = 1_000;

fn output() -> Conclusion {
    Conclusion::Output { json: "7".into(), is_cut: false }
}

fn queue() -> crate::StreamKey {
    keys::local(&named("t1").tenant, &named("t1").turn)
}

fn offer(trial: &mut Trial, slice: &Slice) -> OfferResult {
    trial.run(&Offer { slice, note: "{\"n\":1}", message: "{}", lease_ms: LEASE_MS, had_parallel_reads: false })
}

fn offered(turn: Turn) -> Trial {
    let (mut trial, slice) = held(turn);
    assert_eq!(offer(&mut trial, &slice), OfferResult::Offered);
    assert_eq!(offer(&mut trial, &slice), OfferResult::Stale);
    trial
}

fn take(trial: &mut Trial) -> EntryId {
    trial.take(&queue(), "process", 1).remove(0).0
}

fn conclude(trial: &mut Trial, entry: &EntryId, conclusion: Conclusion) -> Concluded {
    trial.run(&Conclude { name: named("t1"), entry: entry.clone(), conclusion })
}

fn lease_timer(trial: &mut Trial) -> LeaseTimerResult {
    trial.run(&HandleLeaseTimer { name: named("t1"), bounds: &Bounds::default() })
}

fn back(trial: &mut Trial) -> Slice {
    trial.slices(&keys::ready(Priority::Normal), "w1", 9).remove(0)
}

#[test]
fn an_offered_call_returns_with_its_conclusion() {
    let mut trial = offered(with_permits(2));
    assert_eq!(
        (trial.used(&permit()), trial.used(&counter(limits::IN_FLIGHT))),
        (2, 0),
        "it holds permits, and no slot"
    );
    let (entry, fields) = trial.take(&queue(), "process", 1).remove(0);
    assert!(fields.iter().any(|(name, value)| &**name == "call" && value == "{}"), "{fields:?}");
    assert!(fields.iter().all(|(name, _)| &**name != "r"), "the record is not for programs outside");
    trial.now_ms += 400;
    assert_eq!(conclude(&mut trial, &entry, output()), Concluded::Accepted);
    assert_eq!(conclude(&mut trial, &entry, output()), Concluded::Stale, "the first report counts");
    assert!(!trial.queues.contains_key(&queue()), "the queue belongs to the call");
    let slice = back(&mut trial);
    let (local, conclusion) = slice.turn.concluded().unwrap();
    assert_eq!((local.took_ms, &*local.note, conclusion), (400, "{\"n\":1}", &output()));
    assert_eq!(
        (slice.calls.len(), trial.used(&counter(limits::IN_FLIGHT)), timer(&trial)),
        (2, 1, Some(NOW + 400 + LEASE_MS))
    );
    assert_eq!(fire(&mut trial), DueResult::Later(1_000_000));
    let results = [result("a")];
    let settled = trial.run(&settle(&slice, &results, &frame(), &Bounds::default()));
    let SettleResult::Continues { turn, .. } = settled else { panic!("{settled:?}") };
    assert_eq!((turn.local, turn.begun, turn.position), (None, None, 1));
}

#[test]
fn a_concluded_call_is_never_reported_as_not_run() {
    let execution = || {
        let mut trial = offered(admitted(1));
        assert_eq!(record(&trial).execution_state(0), ExecutionState::NotRun);
        let entry = take(&mut trial);
        conclude(&mut trial, &entry, output());
        record(&trial).execution_state(0)
    };
    assert_eq!(execution(), ExecutionState::TakenByRuntime);
    assert_eq!(mutants::with("a_concluded_call_has_begun", execution), ExecutionState::NotRun);
}

#[test]
fn a_second_concurrent_report_is_rejected_as_stale() {
    let reports = || {
        let mut trial = offered(admitted(1));
        let entry = take(&mut trial);
        let mut stale = View::default();
        stale.insert(Query::Record(named("t1").record()), trial.answer(&Query::Record(named("t1").record())));
        stale.insert(Query::Entry(queue(), entry.clone()), trial.answer(&Query::Entry(queue(), entry.clone())));
        conclude(&mut trial, &entry, output());
        let late = Conclusion::Failed { code: "late".into(), message: "late".into(), kind: FailureKind::Permanent };
        let late = Conclude { name: named("t1"), entry, conclusion: late };
        trial.run_with(&late, &mut stale)
    };
    assert_eq!(reports(), Concluded::Stale);
    assert_eq!(mutants::with("conclude_guards_the_version", reports), Concluded::Accepted);
}

#[test]
fn a_process_keeps_its_call_only_while_it_renews_the_lease() {
    let mut trial = offered(admitted(1));
    trial.now_ms += LEASE_MS;
    assert_eq!(lease_timer(&mut trial), LeaseTimerResult::Later(NOW + 2 * LEASE_MS), "an offer has no lease");
    let entry = take(&mut trial);
    let renewal = RenewTaskLease { name: named("t1"), entry: entry.clone() };
    assert_eq!(trial.run(&renewal), RenewTaskLeaseResult::Renewed);
    trial.now_ms += LEASE_MS - 1;
    assert_eq!(lease_timer(&mut trial), LeaseTimerResult::Later(NOW + 2 * LEASE_MS));
    trial.now_ms += 1;
    assert_eq!(lease_timer(&mut trial), LeaseTimerResult::Offered);
    assert_eq!(
        (trial.run(&renewal), conclude(&mut trial, &entry, output())),
        (RenewTaskLeaseResult::Stale, Concluded::Stale)
    );
    let slice = back(&mut trial);
    assert_eq!(slice.turn.concluded().map(|(_, conclusion)| conclusion), Some(&Conclusion::Lost));
    assert!(matches!(park(&mut trial, &slice, &retry(1), false), ParkResult::Until(_)));
    let turn = record(&trial);
    assert_eq!(turn.execution_state(0), ExecutionState::Tried(1));
    assert_eq!((turn.local, turn.begun), (None, None));
}

#[test]
fn a_cancel_ends_an_offer_at_once_and_a_taken_call_after_its_lease() {
    let mut trial = offered(admitted(1));
    cancel(&mut trial, Some(0));
    assert_eq!(fire(&mut trial), DueResult::External);
    assert_eq!(lease_timer(&mut trial), LeaseTimerResult::Ends);
    assert_eq!(
        (record(&trial).execution_state(0), trial.queues.contains_key(&queue())),
        (ExecutionState::NotRun, false)
    );
    assert_eq!(fire(&mut trial), DueResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"0:tool0:not_run\"]}");

    let mut trial = offered(admitted(1));
    take(&mut trial);
    lease_timer(&mut trial);
    cancel(&mut trial, Some(0));
    trial.now_ms += LEASE_MS;
    assert_eq!(lease_timer(&mut trial), LeaseTimerResult::Ends);
    assert!(!trial.queues.contains_key(&queue()));
    fire(&mut trial);
    assert_eq!(reply(&trial), "{\"results\":[\"0:tool0:taken\"]}");
}

#[test]
fn a_conclusion_after_a_cancel_is_accepted() {
    let mut trial = offered(admitted(1));
    let entry = take(&mut trial);
    cancel(&mut trial, Some(0));
    assert_eq!(conclude(&mut trial, &entry, output()), Concluded::Accepted);
    assert!(back(&mut trial).turn.concluded().is_some());
}

#[test]
fn a_canceled_turn_offers_nothing() {
    let (mut trial, slice) = held(admitted(1));
    cancel(&mut trial, Some(0));
    assert_eq!(offer(&mut trial, &slice), OfferResult::Canceled);
}
