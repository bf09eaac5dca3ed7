use super::*;

#[test]
fn a_failed_call_is_retried_when_due() {
    let (mut trial, slice) = held(with_permits(2));
    assert_eq!(park(&mut trial, &slice, &retry(1), false), ParkResult::Until(NOW + 500));
    assert_eq!(park(&mut trial, &slice, &retry(1), false), ParkResult::Stale);
    let turn = record(&trial);
    assert_eq!((turn.state, turn.attempts, turn.retries), (State::Retrying { upto: 2, due_ms: NOW + 500 }, 1, 1));
    assert_eq!((trial.used(&permit()), trial.used(&counter(limits::IN_FLIGHT))), (2, 0), "a retry keeps its permits");
    assert_eq!(fire(&mut trial), DueResult::Later(NOW + 500));
    assert_eq!(trial.members(&keys::parked()).len(), 1);
    trial.now_ms += 500;
    assert_eq!(fire(&mut trial), DueResult::Dispatched);
    assert!(trial.members(&keys::parked()).is_empty());
    let again = trial.slices(&keys::ready(Priority::Normal), "w1", 9).remove(0);
    assert_eq!((again.calls.len(), again.turn.attempts), (2, 1));
    assert_eq!((trial.used(&counter(limits::IN_FLIGHT)), timer(&trial)), (1, Some(1_000_000)));
}

#[test]
fn a_call_waiting_for_approval_releases_its_permits() {
    let (mut trial, slice) = held(with_permits(2));
    trial.timers.insert(keys::throttle_timer(&permit()).into(), 9_000);
    assert_eq!(park(&mut trial, &slice, &wait(approval(), false), false), ParkResult::Until(61_000));
    let turn = record(&trial);
    assert_eq!((trial.used(&permit()), turn.permits.len(), turn.debited), (0, 0, 2));
    assert_eq!(trial.timers[&*keys::throttle_timer(&permit())], NOW, "who waits for a permit is woken");
    assert_eq!(turn.approval.as_deref(), Some("a1"));
    assert!(trial.members(&keys::parked()).is_empty(), "who waits for people is listed elsewhere");
    assert_eq!(fire(&mut trial), DueResult::Throttled);
    assert_eq!((record(&trial).state.word(), timer(&trial)), ("throttled", Some(1_000_000)));
}

#[test]
fn a_begun_call_keeps_its_permits_while_it_waits() {
    let (mut trial, slice) = held(Turn { crashes: 1, ..with_permits(1) });
    park(&mut trial, &slice, &wait(child(), true), false);
    let turn = record(&trial);
    assert_eq!((trial.used(&permit()), turn.crashes), (1, 0), "what crashed was before the work that it waits for");
    assert_eq!((turn.execution_state(0), turn.may_have_run), (ExecutionState::BeganChild, true));
    assert_eq!(fire(&mut trial), DueResult::Dispatched);
}

#[test]
fn a_wait_for_an_ended_child_or_a_changed_claim_is_due_at_once() {
    let ended = || {
        let (mut trial, slice) = held(admitted(1));
        trial.put(&named("t2").finished(), &Cancellation { reason: String::new(), admitted_ms: None });
        park(&mut trial, &slice, &wait(child(), true), false)
    };
    assert_eq!(ended(), ParkResult::Until(NOW));
    let lost = ParkResult::Until(NOW + 60_000);
    assert_eq!(mutants::with("park_guards_what_it_waits_for", ended), lost, "the wake-up is lost");

    let (mut trial, slice) = held(admitted(1));
    let claim = crate::RecordKey::new("claim:1");
    let guard = [Guard::Version(claim, Version::new("old"))];
    let reason = wait(WaitReason::EqualCall { turn: TurnId::new("t2").unwrap() }, false);
    let park = Park { slice: &slice, reason: &reason, had_parallel_reads: false, waits_while: &guard, sections: &[] };
    assert_eq!(trial.run(&park), ParkResult::Until(NOW), "the claim is another's by now");
}

#[test]
fn a_canceled_turn_is_not_parked() {
    let (mut trial, slice) = held(admitted(1));
    cancel(&mut trial, Some(0));
    assert_eq!(park(&mut trial, &slice, &retry(1), false), ParkResult::Canceled);
    let (mut trial, slice) = held(admitted(1));
    cancel(&mut trial, Some(77));
    assert_eq!(
        park(&mut trial, &slice, &retry(1), false),
        ParkResult::Until(NOW + 500),
        "another turn with this ID was meant"
    );
}

#[test]
fn consecutive_breaker_waits_share_one_note() {
    let (mut trial, slice) = held(admitted(1));
    let mut slice = slice;
    for times in 1..=3 {
        let since_ms = slice.turn.unavailable_since("open").unwrap_or(trial.now_ms);
        assert_eq!(since_ms, NOW);
        let reason = ParkReason::Wait {
            reason: WaitReason::Breaker { since_ms },
            most_ms: 10,
            has_begun: false,
            cause: "open".to_owned(),
        };
        park(&mut trial, &slice, &reason, false);
        trial.now_ms += 10;
        let until_ms = trial.now_ms;
        let note = Note::ToolUnavailable { at_ms: NOW, position: 0, times, until_ms, cause: "open".to_owned() };
        assert_eq!(record(&trial).notes, [note]);
        assert_eq!(fire(&mut trial), DueResult::Dispatched);
        slice = trial.slices(&keys::ready(Priority::Normal), "w1", 9).remove(0);
    }
    assert_eq!(slice.turn.unavailable_since("paused"), None, "another cause is another wait");
}

#[test]
fn a_breaker_wait_keeps_the_calls_attempts_and_crashes() {
    let begun = Some(Begun::new(0, "another"));
    let (mut trial, slice) = held(Turn { attempts: 2, crashes: 1, begun: begun.clone(), ..admitted(1) });
    let reason = wait(WaitReason::Breaker { since_ms: NOW }, false);
    park(&mut trial, &slice, &reason, false);
    trial.now_ms += 60_000;
    assert_eq!(fire(&mut trial), DueResult::Dispatched);
    let turn = record(&trial);
    assert_eq!((turn.attempts, turn.crashes, turn.retries, turn.begun), (2, 1, 0, begun));
}
