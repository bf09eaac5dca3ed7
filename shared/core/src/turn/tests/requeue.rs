use super::*;

#[test]
fn a_returned_slice_is_redelivered() {
    let begun = |by: &str| Some(Begun::new(0, by));
    let unsent = || RequeueReason::Unsent { nonce: Some("mine".to_owned()) };
    for (reason, before, fates) in [
        (unsent(), begun("mine"), [ExecutionState::NotRun, ExecutionState::NotRun]),
        (unsent(), begun("another"), [ExecutionState::Begun, ExecutionState::NotRun]),
        (RequeueReason::Interrupted, None, [ExecutionState::Tried(1), ExecutionState::NotRun]),
        (RequeueReason::ParallelReads, None, [ExecutionState::MayHaveRun, ExecutionState::MayHaveRun]),
        (RequeueReason::Unknown, None, [ExecutionState::NotRun, ExecutionState::NotRun]),
    ] {
        let (mut trial, slice) = held(Turn { begun: before, ..admitted(2) });
        let requeue = RequeueSlice { slice: &slice, reason: &reason };
        assert_eq!(trial.run(&requeue), RequeueResult::Redelivered);
        assert_eq!(trial.run(&requeue), RequeueResult::Stale);
        let turn = record(&trial);
        assert_eq!([turn.execution_state(0), turn.execution_state(1)], fates, "{reason:?}");
        let again = trial.slices(&slice.queue, "w2", 9);
        assert_eq!((again.len(), again[0].calls.len(), again[0].version == slice.version), (1, 2, false));
        assert_eq!((trial.holds(&slice.queue, "w1").len(), trial.used(&counter(limits::IN_FLIGHT))), (0, 1));
    }
}

#[test]
fn an_unknown_slice_from_before_a_restart_may_have_run() {
    let (mut trial, slice) = held(admitted(1));
    (trial.epoch, trial.epoch_began_ms) = (2, NOW);
    trial.run(&RequeueSlice { slice: &slice, reason: &RequeueReason::Unknown });
    assert_eq!(record(&trial).execution_state(0), ExecutionState::MayHaveRun);
}

#[test]
fn returning_an_unknown_slice_detects_a_concurrent_restart() {
    let returned = || {
        let (mut trial, slice) = held(admitted(1));
        let requeue = RequeueSlice { slice: &slice, reason: &RequeueReason::Unknown };
        let context = trial.context();
        let decided = trial.decide(&requeue, &mut View::default(), &context);
        (trial.epoch, trial.epoch_began_ms) = (2, NOW);
        let Step::Commit(transaction, _) = decided else { panic!("it does not commit") };
        if trial.commit(&transaction).is_err() {
            trial.run(&requeue);
        }
        record(&trial).execution_state(0)
    };
    assert_eq!(returned(), ExecutionState::MayHaveRun);
    assert_eq!(mutants::with("requeue_guards_the_epoch", returned), ExecutionState::NotRun);
}

#[test]
fn an_unreadable_slice_is_retried_then_quarantined() {
    let mut trial = Trial::at(NOW);
    trial.dispatch(&named("t1"), with_permits(2));
    for (attempt, delay_ms) in [(1, 1_000), (2, 2_000), (3, 0)] {
        let (entry, fields) = trial.take(&keys::ready(Priority::Normal), "w1", 1).remove(0);
        let entry = HeldEntry { queue: keys::ready(Priority::Normal), entry, fields };
        let name = named("t1");
        let requeue = RequeueUnreadable { entry: &entry, name: &name, attempts_max: 3 };
        let due_ms = trial.now_ms + delay_ms;
        let expected = if attempt == 3 { RequeueResult::Ends } else { RequeueResult::Waits(due_ms) };
        assert_eq!(trial.run(&requeue), expected);
        assert_eq!(trial.run(&requeue), RequeueResult::Stale);
        trial.now_ms = due_ms;
        if attempt < 3 {
            assert_eq!(fire(&mut trial), DueResult::Dispatched);
        }
    }
    assert_eq!(fire(&mut trial), DueResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"0:tool0:not_run\",\"1:tool1:not_run\"]}");
    let finished = trial.stored::<Finished>(&named("t1").finished()).unwrap().value;
    assert_eq!(finished.reason, Some(EndReason::Quarantined { crashes: 0 }));
    assert_eq!((trial.used(&permit()), trial.used(&counter(limits::IN_FLIGHT))), (0, 0));
}

#[test]
fn an_entry_that_is_not_a_slice_becomes_a_dead_letter() {
    let mut trial = Trial::at(NOW);
    let queue = keys::ready(Priority::Normal);
    trial.enqueue(&queue, vec![("x".into(), "secret".into())]);
    let (entry, fields) = trial.take(&queue, "w1", 1).remove(0);
    let entry = HeldEntry { queue: queue.clone(), entry, fields };
    let bounds = Bounds::default();
    let put_aside = DeadLetterStrayEntry { entry: &entry, why: "it names no turn", bounds: &bounds };
    assert!(trial.run(&put_aside));
    assert!(!trial.run(&put_aside), "nobody holds it any more");
    let letters = format!("{:?}", trial.queues[&keys::dead()].entries);
    assert!(letters.contains("it names no turn") && !letters.contains("secret"));
}

/// Only a slice's first entry has the counters' states after the admission.
#[test]
fn a_returned_slice_keeps_its_recorded_debits() {
    let mut trial = Trial::at(NOW);
    let tick = CounterKey::new(limits::TICK, "acme:kelly");
    let note =
        Note::Admitted { at_ms: NOW, calls: 1, limits: vec![(tick, 10)], amounts: Vec::new(), debited: Vec::new() };
    trial.dispatch(&named("t1"), Turn { notes: vec![note], ..admitted(1) });
    let queue = keys::ready(Priority::Normal);
    let (entry, mut fields) = trial.take(&queue, "w1", 1).remove(0);
    fields.insert(0, ("d".into(), "3:1100:0".into()));
    let slice = Slice::read(queue, entry, &fields).unwrap();
    trial.run(&RequeueSlice { slice: &slice, reason: &RequeueReason::Unsent { nonce: None } });
    let debited = crate::record::Debited { used: 3, ends_ms: 1_100, began_ms: 0 };
    assert!(matches!(&record(&trial).notes[..], [Note::Admitted { debited: known, .. }] if *known == [debited]));
}
