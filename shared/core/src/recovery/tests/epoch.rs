use super::*;

fn report_begun(position: usize, by: &str, outcome: JournaledOutcome) -> ReportBegunCall {
    ReportBegunCall {
        name: named("t"),
        digest: "d".into(),
        position,
        by: by.into(),
        once: true,
        outcome,
        keep_ms: 1_000,
    }
}

fn known(trial: &mut Trial, digest: &str) -> RecoveredCallsView {
    let context = trial.context();
    let mut view = View::default();
    let query = Query::Record(keys::recovered_calls(&named("t")));
    view.insert(query.clone(), trial.answer(&query));
    recovered_calls(&view, &context, &named("t"), digest, 0..4).unwrap()
}

fn ended(text: &str) -> JournaledOutcome {
    JournaledOutcome::Ended(Box::new(RenderedCall { result: text.to_owned().into(), ..RenderedCall::default() }))
}

#[test]
fn a_begun_call_is_recovered_after_a_restart() {
    let mut trial = Trial::at(100);
    trial.epoch_began_ms = 50;
    assert_eq!(trial.run(&report_begun(1, "n1", JournaledOutcome::Begun)), ReportBegunResult::Recorded);
    assert_eq!(trial.run(&report_begun(1, "n1", ended("\"ok\""))), ReportBegunResult::Recorded);
    let found = known(&mut trial, "d");
    assert_eq!(found.of_another(1, "n3").unwrap().result.as_ref().unwrap().result, "\"ok\"");
    assert!(found.of_another(1, "n1").is_none() && found.guard.is_some());
    assert!(known(&mut trial, "other content").calls.is_empty());
    assert_eq!(trial.run(&report_begun(1, "n2", JournaledOutcome::Undone)), ReportBegunResult::Removed);
    assert_eq!(known(&mut trial, "d").calls.len(), 1, "another attempt's report stays");
    assert_eq!(trial.run(&report_begun(1, "n1", JournaledOutcome::Undone)), ReportBegunResult::Removed);
    assert!(known(&mut trial, "d").calls.is_empty());
}

#[test]
fn a_recovered_call_of_several_attempts_stays() {
    let recovered_left = || {
        let mut trial = Trial::at(100);
        trial.epoch_began_ms = 50;
        assert_eq!(trial.run(&report_begun(1, "n1", JournaledOutcome::Begun)), ReportBegunResult::Recorded);
        for _ in 0..2 {
            assert_eq!(trial.run(&report_begun(1, "n2", JournaledOutcome::Begun)), ReportBegunResult::Late);
        }
        assert_eq!(trial.run(&report_begun(1, "n1", JournaledOutcome::Undone)), ReportBegunResult::Removed);
        known(&mut trial, "d").calls.len()
    };
    assert_eq!(recovered_left(), 1, "the other attempt may have had an effect");
    assert_eq!(mutants::with("a_recovered_call_of_several_attempts_stays", recovered_left), 0);
}

#[test]
fn without_a_restart_no_recovered_call_is_read() {
    let mut trial = Trial::at(100);
    let context = trial.context();
    assert_eq!(
        recovered_calls(&View::default(), &context, &named("t"), "d", 0..1).unwrap(),
        RecoveredCallsView::default()
    );
}

#[test]
fn a_call_in_the_turn_record_is_not_recorded_again() {
    let mut trial = Trial::at(100);
    let name = named("t");
    let mut turn = admitted(3);
    turn.position = 1;
    turn.begun = Some(Begun::new(1, "n1"));
    trial.dispatch(&name, turn);
    assert_eq!(trial.run(&report_begun(0, "n0", ended("1"))), ReportBegunResult::NotNeeded);
    assert_eq!(trial.run(&report_begun(1, "n2", JournaledOutcome::Begun)), ReportBegunResult::Late);
    assert_eq!(trial.run(&report_begun(1, "n1", JournaledOutcome::Begun)), ReportBegunResult::NotNeeded);
    assert_eq!(trial.run(&report_begun(1, "n1", ended("1"))), ReportBegunResult::Recorded);
    assert_eq!(trial.run(&report_begun(2, "n5", JournaledOutcome::Begun)), ReportBegunResult::Recorded);
    trial.records.remove(&name.record());
    trial.put(&name.finished(), &Crash { heartbeat: None, regular: 0, suspects: 0 });
    assert_eq!(trial.run(&report_begun(2, "n5", JournaledOutcome::Begun)), ReportBegunResult::NotNeeded);
}

#[test]
fn a_report_is_late_if_the_turn_changed_since_the_read() {
    let recorded_late = || {
        let mut trial = Trial::at(100);
        let name = named("t");
        trial.dispatch(&name, admitted(2));
        let mut view = View::default();
        let query = Query::Record(name.record());
        view.insert(query.clone(), trial.answer(&query));
        let mut turn = trial.turn(&name).unwrap().value;
        turn.begun = Some(Begun::new(0, "n2"));
        trial.put(&name.record(), &turn);
        trial.run_with(&report_begun(0, "n1", JournaledOutcome::Begun), &mut view)
    };
    assert_eq!(recorded_late(), ReportBegunResult::Late);
    assert_eq!(mutants::with("report_begun_guards_the_turn", recorded_late), ReportBegunResult::Recorded);
}

/// Another worker reports a call that it began, while the holder ends the canceled turn.
#[test]
fn a_call_that_another_worker_began_is_never_settled_as_not_run() {
    let settled = |epoch: u64| {
        let mut trial = Trial::at(LEASE);
        trial.dispatch(&named("t"), admitted(1));
        let slice = trial.slices(&keys::ready(Priority::Normal), "w1", 1).remove(0);
        (trial.epoch, trial.epoch_began_ms) = (2, LEASE - 10);
        let digest = slice.turn.head.digest.clone();
        let ask = QueryUnrunCalls { name: &slice.name, digest: &digest, from: 0, upto: 1, lease_ms: LEASE };
        assert_eq!(trial.run(&ask), UnrunCallsResult::RetryAt(2 * LEASE - 10));
        trial.now_ms = 2 * LEASE;
        let UnrunCallsResult::Confirmed(known) = trial.run(&ask) else { panic!("the lease is over") };
        assert!(known.began.is_empty());
        if epoch == 2 {
            assert_eq!(
                trial.run(&ReportBegunCall {
                    digest: digest.clone(),
                    ..report_begun(0, "w2.1", JournaledOutcome::Begun)
                }),
                ReportBegunResult::Recorded
            );
        }
        trial.epoch = epoch;
        let bounds = Bounds::default();
        let frame = ReplyFrame { head: "{\"results\":[".to_owned(), messages: None, audits: false };
        let results = [RenderedCall { failed: true, ..RenderedCall::default() }];
        let settle = Settle {
            slice: &slice,
            results: &results,
            frame: &frame,
            sections: &[&known],
            reason: Some(&EndReason::Canceled),
            canceled: Some("enough"),
            bounds: &bounds,
        };
        let settled = trial.run(&settle);
        if epoch == 2 && settled == SettleResult::Unsure {
            let UnrunCallsResult::Confirmed(again) = trial.run(&ask) else { panic!("the lease is over") };
            assert_eq!(again.began.keys().collect::<Vec<_>>(), [&0]);
        }
        settled
    };
    assert_eq!((settled(2), settled(3)), (SettleResult::Unsure, SettleResult::Unsure));
    assert_eq!(mutants::with("unrun_guards_the_recovered_calls", || settled(2)), SettleResult::Ended);
    assert_eq!(mutants::with("unrun_guards_the_epoch", || settled(3)), SettleResult::Ended);
}
