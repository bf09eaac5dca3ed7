use super::*;

#[test]
fn an_unread_slice_ends_at_its_deadline() {
    let mut trial = Trial::at(NOW);
    trial.dispatch(&named("t1"), with_permits(2));
    assert_eq!(fire(&mut trial), DueResult::Later(1_000_000));
    trial.now_ms = 1_000_000;
    assert_eq!(fire(&mut trial), DueResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"0:tool0:not_run\",\"1:tool1:not_run\"]}");
    assert!(trial.queues[&keys::ready(Priority::Normal)].entries.is_empty());
    assert_eq!((trial.used(&permit()), trial.used(&counter(limits::IN_FLIGHT))), (0, 0));
    assert_eq!(fire(&mut trial), DueResult::Gone);
}

#[test]
fn a_canceled_turn_without_a_holder_reports_each_calls_state() {
    let (mut trial, slice) = held(with_permits(3));
    park(&mut trial, &slice, &retry(2), true);
    cancel(&mut trial, None);
    assert_eq!(fire(&mut trial), DueResult::Ended);
    let expected = "{\"results\":[\"0:tool0:tried\",\"1:tool1:may_have_run\",\"2:tool2:may_have_run\"]}";
    assert_eq!(reply(&trial), expected);
    assert!(!trial.records.contains_key(&slice.name.cancellation()));
    assert_eq!(trial.used(&permit()), 0);
}

#[test]
fn a_read_slice_without_a_holder_may_have_run() {
    let (mut trial, slice) = held(admitted(1));
    trial.queues.get_mut(&slice.queue).unwrap().held.clear();
    trial.now_ms = 1_000_000;
    assert_eq!(fire(&mut trial), DueResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"0:tool0:may_have_run\"]}");
}

#[test]
fn after_a_restart_an_expired_turn_waits_for_worker_reports() {
    let mut trial = Trial::at(NOW);
    trial.dispatch(&named("t1"), with_permits(3));
    (trial.now_ms, trial.epoch, trial.epoch_began_ms) = (1_000_000, 2, 999_000);
    assert_eq!(fire(&mut trial), DueResult::Ending(1_009_000));
    assert_eq!((trial.used(&permit()), trial.used(&counter(limits::IN_FLIGHT))), (0, 0));
    assert!(trial.queues[&keys::ready(Priority::Normal)].entries.is_empty(), "nobody begins it any more");
    let reported = RecoveredCall { by: "n1".to_owned(), once: true, result: Some((&result("ran")).into()) };
    let begun = RecoveredCall { by: "n1".to_owned(), once: true, result: None };
    let calls = [(0, reported), (1, begun)].into_iter().collect();
    trial.put(
        &keys::recovered_calls(&named("t1")),
        &RecoveredCalls { digest: "d".to_owned(), until_ms: 2_000_000, calls },
    );
    assert_eq!(fire(&mut trial), DueResult::Later(1_009_000));
    trial.now_ms = 1_009_000;
    assert_eq!(fire(&mut trial), DueResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"ran\",\"1:tool1:may_have_run\",\"2:tool2:not_run\"]}");
}

#[test]
fn a_due_retry_waits_while_its_tenant_has_too_many_slices_out() {
    let (mut trial, slice) = held(admitted(1));
    park(&mut trial, &slice, &retry(1), false);
    trial.now_ms += 500;
    trial.counters.entry(counter(limits::IN_FLIGHT)).or_default().used = Bounds::default().tenant_in_flight_max;
    assert_eq!(fire(&mut trial), DueResult::Later(NOW + 1_500));
}

#[test]
fn a_due_timer_with_a_stale_view_decides_again() {
    let stale = |trial: &Trial| {
        let mut view = View::default();
        for key in [named("t1").record(), named("t1").cancellation()] {
            let query = Query::Record(key);
            view.insert(query.clone(), trial.answer(&query));
        }
        view
    };
    let name = named("t1");
    let due = Due { name: &name, render: &Texts, sections: &[], bounds: &Bounds::default() };

    let held = || {
        let mut trial = Trial::at(1_000_000);
        trial.dispatch(&name, admitted(1));
        let mut view = stale(&trial);
        trial.slices(&keys::ready(Priority::Normal), "w1", 1);
        trial.run_with(&due, &mut view)
    };
    assert!(matches!(held(), DueResult::Later(_)), "its holder ends it");
    assert_eq!(mutants::with("expire_guards_that_nobody_has_read", held), DueResult::Ended);

    let lost = || {
        let mut trial = Trial::at(NOW);
        trial.dispatch(&name, admitted(1));
        let mut view = stale(&trial);
        cancel(&mut trial, Some(0));
        trial.run_with(&due, &mut view)
    };
    assert_eq!(lost(), DueResult::Ended);
    assert_eq!(mutants::with("due_guards_the_cancellation", lost), DueResult::Later(1_000_000), "the cancel is lost");
}

/// The scheduler's clock is ahead of the store's clock.
#[test]
fn a_deadline_follows_the_clock_of_the_store() {
    let commit = || {
        let mut trial = Trial::at(NOW);
        let name = named("t1");
        let bounds = Bounds::default();
        trial.dispatch(&name, admitted(1));
        let context = Context { now_ms: 1_000_000, ..trial.context() };
        let due = Due { name: &name, render: &Texts, sections: &[], bounds: &bounds };
        let Step::Commit(transaction, DueResult::Ended) = trial.decide(&due, &mut View::default(), &context) else {
            panic!()
        };
        trial.commit(&transaction).map(drop)
    };
    assert_eq!(commit(), Err(crate::Conflict::Time { now_ms: NOW }));
    assert_eq!(mutants::with("due_guards_the_time", commit), Ok(()));
}

/// After a restart of the store, a worker may still report results.
#[test]
fn a_stale_restart_epoch_cannot_end_a_turn() {
    let commit = || {
        let mut trial = Trial::at(1_000_000);
        let name = named("t1");
        let bounds = Bounds::default();
        trial.dispatch(&name, admitted(1));
        let context = trial.context();
        let due = Due { name: &name, render: &Texts, sections: &[], bounds: &bounds };
        let Step::Commit(transaction, DueResult::Ended) = trial.decide(&due, &mut View::default(), &context) else {
            panic!()
        };
        (trial.epoch, trial.epoch_began_ms) = (2, 1_000_000);
        trial.commit(&transaction).map(drop)
    };
    assert_eq!(commit(), Err(crate::Conflict::Epoch { number: 2, began_ms: 1_000_000 }));
    assert_eq!(mutants::with("end_guards_the_epoch", commit), Ok(()));
}

/// The store lost the first holder's read, but not the begun call.
#[test]
fn a_running_slice_returned_by_a_second_holder_may_have_run() {
    for unreadable in [false, true] {
        let (mut trial, slice) = held(admitted(2));
        trial.begin(&slice).unwrap();
        let requeued = if unreadable {
            let fields = trial.fields(&slice.queue, &slice.entry).unwrap();
            let entry = HeldEntry { queue: slice.queue.clone(), entry: slice.entry.clone(), fields };
            trial.run(&RequeueUnreadable { entry: &entry, name: &slice.name, attempts_max: 3 })
        } else {
            trial.run(&RequeueSlice { slice: &slice, reason: &RequeueReason::Unknown })
        };
        let expected = if unreadable { RequeueResult::Waits(NOW + 1_000) } else { RequeueResult::Redelivered };
        assert_eq!(requeued, expected);
        assert_eq!(
            (record(&trial).execution_state(0), record(&trial).execution_state(1)),
            (ExecutionState::MayHaveRun, ExecutionState::MayHaveRun)
        );
    }
}

#[test]
fn a_running_slice_with_a_lost_take_may_have_run() {
    let (mut trial, slice) = held(admitted(1));
    trial.begin(&slice).unwrap();
    let queue = trial.queues.get_mut(&slice.queue).unwrap();
    queue.held.clear();
    queue.read = 0;
    trial.now_ms = 1_000_000;
    assert_eq!(fire(&mut trial), DueResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"0:tool0:may_have_run\"]}");
}

/// The slice returns in a new entry that no worker has read.
#[test]
fn a_slice_returned_during_the_decision_did_not_run() {
    let (mut trial, slice) = held(admitted(1));
    trial.now_ms = 1_000_000;
    let name = named("t1");
    let bounds = Bounds::default();
    let due = Due { name: &name, render: &Texts, sections: &[], bounds: &bounds };
    let mut view = View::default();
    let mut context = trial.context();
    let mut attempt = |trial: &mut Trial, context: &mut Context| {
        let Step::Commit(transaction, fired) = trial.decide(&due, &mut view, context) else { panic!() };
        let conflict = trial.commit(&transaction).err();
        if let Some(conflict) = conflict {
            view.learn(&conflict);
            context.conflicts.push(conflict);
        }
        context.version = trial.draw();
        fired
    };
    attempt(&mut trial, &mut context);
    assert_eq!(context.conflicts, [crate::Conflict::Read]);
    trial.run(&RequeueSlice { slice: &slice, reason: &RequeueReason::Unsent { nonce: None } });
    attempt(&mut trial, &mut context);
    assert!(matches!(context.conflicts.last(), Some(crate::Conflict::Record { .. })));
    assert_eq!(attempt(&mut trial, &mut context), DueResult::Ended);
    assert_eq!(reply(&trial), "{\"results\":[\"0:tool0:not_run\"]}");
}

/// The store lost that a worker held the slice.
#[test]
fn a_turn_ended_after_a_restart_includes_reported_results() {
    struct NoPolicy;
    impl limit::Policy for NoPolicy {
        fn rules(&self, _: &TurnName, _: &Head, _: &[tickfleet_model::Call]) -> limit::LimitDecision {
            limit::LimitDecision::Withheld
        }
        fn generations(&self) -> limit::Generations {
            limit::Generations::default()
        }
    }
    let name = named("t1");
    let bounds = Bounds::default();
    let tick = CounterKey::new(limits::TICK, "acme:kelly");
    let mut trial = Trial::at(NOW);
    let mut transaction = Transaction::new(trial.draw());
    let mut turn = Turn { debited: 0, ..admitted(3) };
    for position in 0..3 {
        transaction.write(Write::PutPart(name.record(), parts::call(position), call(position)));
    }
    throttle::throttle(&mut transaction, &name, &mut turn, tick.clone(), NOW, NOW);
    trial.commit(&transaction).unwrap();
    (trial.now_ms, trial.epoch, trial.epoch_began_ms) = (1_000_000, 2, 5_000);
    let reported = RecoveredCall { by: "n1".to_owned(), once: true, result: Some((&result("ran")).into()) };
    let begun = RecoveredCall { by: "n1".to_owned(), once: true, result: None };
    let calls = [(0, reported), (1, begun)].into_iter().collect();
    trial.put(&keys::recovered_calls(&name), &RecoveredCalls { digest: "d".to_owned(), until_ms: 2_000_000, calls });
    let release =
        release::Release { counter: tick, name, policy: &NoPolicy, render: &Texts, sections: &[], bounds: &bounds };
    assert!(matches!(trial.run(&release), release::ReleaseResult::Advanced(advance::AdvanceResult::Ended { .. })));
    assert_eq!(reply(&trial), "{\"results\":[\"ran\",\"1:tool1:may_have_run\",\"2:tool2:not_run\"]}");
}

#[test]
fn a_call_that_failed_before_a_crash_may_have_run_again() {
    let turn = |crashes| Turn { attempts: 1, crashes, ..admitted(1) };
    assert_eq!(
        (turn(0).execution_state(0), turn(1).execution_state(0)),
        (ExecutionState::Tried(1), ExecutionState::MayHaveRun)
    );
}

#[test]
fn a_canceled_throttled_turn_wakes_the_next_in_its_queue() {
    let tick = CounterKey::new(limits::TICK, "acme:kelly");
    let mut trial = Trial::at(NOW);
    let mut transaction = Transaction::new(trial.draw());
    throttle::throttle(&mut transaction, &named("t1"), &mut admitted(1), tick.clone(), 300_000, NOW);
    trial.commit(&transaction).unwrap();
    cancel(&mut trial, Some(0));
    assert_eq!(fire(&mut trial), DueResult::Ended);
    assert_eq!(trial.timers[&*keys::throttle_timer(&tick)], NOW);
}

#[test]
fn a_discarded_turn_becomes_a_dead_letter() {
    let mut trial = Trial::at(NOW);
    let counter = CounterKey::new(limits::TICK, "acme");
    let bounds = Bounds::default();
    let discard = super::super::release::Discard { counter, name: named("t"), why: "broken".into(), bounds: &bounds };
    trial.run(&discard);
    assert_eq!(trial.log(&keys::dead()).len(), 1);
}
