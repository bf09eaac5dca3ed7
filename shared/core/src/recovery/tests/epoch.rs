use super::*;

fn assertion(position: usize, by: &str, outcome: Outcome) -> Assert {
    Assert { name: named("t"), digest: "d".into(), position, by: by.into(), once: true, outcome, keep_ms: 1_000 }
}

fn known(trial: &mut Trial, digest: &str) -> KnownMarks {
    let context = trial.context();
    let mut view = View::default();
    let query = Query::Record(keys::marks(&named("t")));
    view.insert(query.clone(), trial.answer(&query));
    marks(&view, &context, &named("t"), digest, 0..4).unwrap()
}

fn ended(text: &str) -> Outcome {
    Outcome::Ended(Box::new(RenderedCall { result: text.to_owned().into(), ..RenderedCall::default() }))
}

#[test]
fn a_mark_reports_a_begun_call_after_a_restart() {
    let mut trial = Trial::at(100);
    trial.epoch_began_ms = 50;
    assert_eq!(trial.run(&assertion(1, "n1", Outcome::Begun)), Asserted::Marked);
    assert_eq!(trial.run(&assertion(1, "n1", ended("\"ok\""))), Asserted::Marked);
    let found = known(&mut trial, "d");
    assert_eq!(found.of_another(1, "n3").unwrap().result.as_ref().unwrap().result, "\"ok\"");
    assert!(found.of_another(1, "n1").is_none() && found.guard.is_some());
    assert!(known(&mut trial, "other content").calls.is_empty());
    assert_eq!(trial.run(&assertion(1, "n2", Outcome::Undone)), Asserted::Unmarked);
    assert_eq!(known(&mut trial, "d").calls.len(), 1, "another attempt's mark stays");
    assert_eq!(trial.run(&assertion(1, "n1", Outcome::Undone)), Asserted::Unmarked);
    assert!(known(&mut trial, "d").calls.is_empty());
}

#[test]
fn a_mark_of_several_attempts_stays() {
    let marks_left = || {
        let mut trial = Trial::at(100);
        trial.epoch_began_ms = 50;
        assert_eq!(trial.run(&assertion(1, "n1", Outcome::Begun)), Asserted::Marked);
        for _ in 0..2 {
            assert_eq!(trial.run(&assertion(1, "n2", Outcome::Begun)), Asserted::Late);
        }
        assert_eq!(trial.run(&assertion(1, "n1", Outcome::Undone)), Asserted::Unmarked);
        known(&mut trial, "d").calls.len()
    };
    assert_eq!(marks_left(), 1, "the other attempt may have had an effect");
    assert_eq!(mutants::with("a_mark_of_several_attempts_stays", marks_left), 0);
}

#[test]
fn without_a_restart_no_mark_is_read() {
    let mut trial = Trial::at(100);
    let context = trial.context();
    assert_eq!(marks(&View::default(), &context, &named("t"), "d", 0..1).unwrap(), KnownMarks::default());
}

#[test]
fn a_call_in_the_turn_record_needs_no_mark() {
    let mut trial = Trial::at(100);
    let name = named("t");
    let mut turn = admitted(3);
    turn.position = 1;
    turn.begun = Some(Begun::new(1, "n1"));
    trial.dispatch(&name, turn);
    assert_eq!(trial.run(&assertion(0, "n0", ended("1"))), Asserted::Known);
    assert_eq!(trial.run(&assertion(1, "n2", Outcome::Begun)), Asserted::Late);
    assert_eq!(trial.run(&assertion(1, "n1", Outcome::Begun)), Asserted::Known);
    assert_eq!(trial.run(&assertion(1, "n1", ended("1"))), Asserted::Marked);
    assert_eq!(trial.run(&assertion(2, "n5", Outcome::Begun)), Asserted::Marked);
    trial.records.remove(&name.record());
    trial.put(&name.finished(), &Crash { heartbeat: None, regular: 0, suspects: 0 });
    assert_eq!(trial.run(&assertion(2, "n5", Outcome::Begun)), Asserted::Known);
}

#[test]
fn a_mark_is_late_if_the_turn_changed_since_the_read() {
    let marked_late = || {
        let mut trial = Trial::at(100);
        let name = named("t");
        trial.dispatch(&name, admitted(2));
        let mut view = View::default();
        let query = Query::Record(name.record());
        view.insert(query.clone(), trial.answer(&query));
        let mut turn = trial.turn(&name).unwrap().value;
        turn.begun = Some(Begun::new(0, "n2"));
        trial.put(&name.record(), &turn);
        trial.run_with(&assertion(0, "n1", Outcome::Begun), &mut view)
    };
    assert_eq!(marked_late(), Asserted::Late);
    assert_eq!(mutants::with("assert_guards_the_turn", marked_late), Asserted::Marked);
}

/// The holder ends a canceled turn. At the same time, another worker reports a call that it began before the restart.
#[test]
fn a_call_that_another_worker_began_is_never_settled_as_not_run() {
    let settled = |epoch: u64| {
        let mut trial = Trial::at(LEASE);
        trial.dispatch(&named("t"), admitted(1));
        let slice = trial.slices(&keys::ready(Priority::Normal), "w1", 1).remove(0);
        (trial.epoch, trial.epoch_began_ms) = (2, LEASE - 10);
        let digest = slice.turn.head.digest.clone();
        let ask = AskUnrun { name: &slice.name, digest: &digest, from: 0, upto: 1, lease_ms: LEASE };
        assert_eq!(trial.run(&ask), Unrun::Hold(2 * LEASE - 10));
        trial.now_ms = 2 * LEASE;
        let Unrun::Known(known) = trial.run(&ask) else { panic!("the lease is over") };
        assert!(known.began.is_empty());
        if epoch == 2 {
            assert_eq!(
                trial.run(&Assert { digest: digest.clone(), ..assertion(0, "w2.1", Outcome::Begun) }),
                Asserted::Marked
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
        if epoch == 2 && settled == Settled::Unsure {
            let Unrun::Known(again) = trial.run(&ask) else { panic!("the lease is over") };
            assert_eq!(again.began.keys().collect::<Vec<_>>(), [&0]);
        }
        settled
    };
    assert_eq!((settled(2), settled(3)), (Settled::Unsure, Settled::Unsure));
    assert_eq!(mutants::with("unrun_guards_the_marks", || settled(2)), Settled::Ended);
    assert_eq!(mutants::with("unrun_guards_the_epoch", || settled(3)), Settled::Ended);
}
