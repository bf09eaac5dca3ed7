use super::*;

#[test]
fn a_cancel_makes_the_timer_due_without_changing_the_record() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&task("k1", &bounds));
    let before = trial.turn(&named("k1")).unwrap().version;
    assert_eq!(cancel(&mut trial, "k1", &bounds), Canceled::Ending);
    assert_eq!(trial.turn(&named("k1")).unwrap().version, before);
    assert!(is_over(&trial, "k1"));
    let again = Cancel { name: named("k1"), reason: "other".into(), above: None, bounds: &bounds };
    assert_eq!(trial.run(&again), Canceled::Ending);
    let kept = trial.stored::<Cancellation>(&named("k1").cancellation()).unwrap().value;
    assert_eq!((kept.reason.as_str(), kept.admitted_ms), ("no", Some(5)));
    end(&mut trial, "k1");
    assert_eq!(cancel(&mut trial, "k1", &bounds), Canceled::Ended);
    trial.put(&named("k9").given(), &GivenId { digest: "d".into(), state: GivenState::Admitted });
    assert_eq!(cancel(&mut trial, "k9", &bounds), Canceled::Unknown);
}

#[test]
fn early_cancels_are_bounded_per_tenant() {
    let bound = || {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        let tenant = named("k").tenant;
        let many = (0..tickfleet_model::limits::EARLY_CANCELS_MAX).map(|at| (format!("x{at}").as_str().into(), 100));
        trial.sets.insert(keys::early(&tenant), many.collect());
        let full = cancel(&mut trial, "k1", &bounds);
        trial.now_ms = 100;
        (full, cancel(&mut trial, "k1", &bounds))
    };
    assert_eq!(bound(), (Canceled::Full, Canceled::Waiting));
    assert_eq!(mutants::with("early_cancel_guards_the_bound", bound).0, Canceled::Waiting);
}

#[test]
fn a_cancel_applies_to_a_task_admitted_between_its_reads() {
    let race = |above: Option<TurnName>| {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        let decision = Cancel { name: named("k1"), reason: "no".into(), above, bounds: &bounds };
        let mut view = View::default();
        for query in decision.reads() {
            view.insert(query.clone(), trial.answer(&query));
        }
        trial.run(&task("k1", &bounds));
        trial.put(&named("k1").given(), &GivenId { digest: "d".into(), state: GivenState::Admitted });
        (trial.run_with(&decision, &mut view), is_over(&trial, "k1"))
    };
    for above in [None, Some(named("k0"))] {
        assert_eq!(race(above.clone()), (Canceled::Ending, true));
        assert!(!mutants::with("early_cancel_guards_the_absence", || race(above.clone())).1);
    }
}

#[test]
fn a_cancel_applies_to_a_task_admitted_after_its_reads() {
    let race = || {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        let decision = Cancel { name: named("k1"), reason: "no".into(), above: None, bounds: &bounds };
        let mut view = View::default();
        for query in decision.reads().into_iter().chain([Query::Record(named("k1").finished())]) {
            view.insert(query.clone(), trial.answer(&query));
        }
        trial.run(&task("k1", &bounds));
        (trial.run_with(&decision, &mut view), is_over(&trial, "k1"))
    };
    assert_eq!(race(), (Canceled::Ending, true));
    assert!(!mutants::with("early_cancel_guards_the_absence", race).1);
}

proptest! {
    #[test]
    fn a_cascade_ends_all_descendants_and_no_other_task(
        parents in prop::collection::vec(prop::option::of(0_usize..8), 1..40),
        ended in prop::collection::vec(0_usize..40, 0..8),
        canceled in 0_usize..40,
        fails in any::<bool>(),
    ) {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        let name = |at: usize| format!("k{at}");
        let mut above: BTreeMap<usize, usize> = BTreeMap::new();
        for (at, parent) in parents.iter().enumerate() {
            let parent = parent.filter(|parent| *parent < at);
            let mut decision = task(&name(at), &bounds);
            decision.budget = 0;
            decision.parent = parent.map(|parent| TaskId::new(name(parent)).unwrap());
            prop_assert_eq!(trial.run(&decision), DelegateResult::Offered);
            above.extend(parent.map(|parent| (at, parent)));
        }
        let canceled = canceled % parents.len();
        for at in ended.into_iter().filter(|at| *at != canceled) {
            end(&mut trial, &name(at));
        }
        if fails {
            let decision = End { name: named(&name(canceled)), failed: true };
            prop_assert!(trial.run(&decision));
        } else {
            cancel(&mut trial, &name(canceled), &bounds);
        }
        cascade_all(&mut trial, &bounds);
        for at in 0..parents.len() {
            let ancestors = std::iter::successors(Some(at), |at| above.get(at).copied());
            let is_below = ancestors.clone().any(|one| one == canceled);
            let has_ended = trial.turn(&named(&name(at))).is_none();
            prop_assert_eq!(is_over(&trial, &name(at)), is_below || has_ended, "{}", name(at));
            if is_below && !has_ended {
                let late = child("late", &name(at), 0, &bounds);
                prop_assert_eq!(trial.run(&late), DelegateResult::Refused(Refusal::ParentEnded));
            }
        }
    }
}

#[test]
fn a_cascade_dead_letters_an_unreadable_turn_and_ends_the_others() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&task("k1", &bounds));
    trial.dispatch(&named("t1"), admitted(1));
    trial.records.insert(named("odd").record(), "v - - 9{}".into());
    for member in ["t1", "odd", "queued", "gone", "not an id"] {
        trial.sets.entry(named("k1").descendants()).or_default().insert(member.into(), 1);
    }
    trial.put(&named("queued").given(), &GivenId { digest: "d".into(), state: GivenState::Queued });
    cancel(&mut trial, "k1", &bounds);
    cascade_all(&mut trial, &bounds);
    assert!(is_over(&trial, "t1"));
    let reason = trial.stored::<Cancellation>(&named("t1").cancellation()).unwrap().value.reason;
    assert_eq!(reason, "its parent was canceled: no");
    assert_eq!(trial.queues[&keys::dead()].entries.len(), 1);
    let early = trial.stored::<Cancellation>(&named("queued").cancellation()).unwrap().value;
    assert_eq!(early.admitted_ms, None);
    assert!(trial.members(&named("k1").descendants()).is_empty());
    assert!(trial.timers.contains_key(&*cascade_timer(&named("k1"))));
    end(&mut trial, "k1");
    trial.now_ms += bounds.lease_ms;
    cascade_all(&mut trial, &bounds);
    assert!(!trial.timers.contains_key(&*cascade_timer(&named("k1"))));
}

#[test]
fn a_cascade_ignores_the_bound_on_early_cancels() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&task("k1", &bounds));
    trial.sets.entry(named("k1").descendants()).or_default().insert("queued".into(), 1);
    trial.put(&named("queued").given(), &GivenId { digest: "d".into(), state: GivenState::Queued });
    let many = (0..tickfleet_model::limits::EARLY_CANCELS_MAX).map(|at| (format!("x{at}").as_str().into(), 100));
    trial.sets.insert(keys::early(&named("k1").tenant), many.collect());
    cancel(&mut trial, "k1", &bounds);
    cascade_all(&mut trial, &bounds);
    assert!(trial.members(&named("k1").descendants()).is_empty());
}

#[test]
fn a_cascade_ends_the_children_of_an_ended_child() {
    let runs_on = || {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        trial.run(&task("k0", &bounds));
        trial.run(&child("k1", "k0", 4, &bounds));
        trial.run(&child("k2", "k1", 2, &bounds));
        end(&mut trial, "k1");
        cancel(&mut trial, "k0", &bounds);
        cascade_all(&mut trial, &bounds);
        !is_over(&trial, "k2")
    };
    assert!(!runs_on());
    assert!(mutants::with("delegate_joins_all_ancestors", runs_on));
}

#[test]
fn a_cascade_ends_a_turn_submitted_after_the_cancel() {
    let runs_on = || {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        trial.run(&task("k1", &bounds));
        cancel(&mut trial, "k1", &bounds);
        cascade_all(&mut trial, &bounds);
        // The holder submits one more turn before it receives the cancel notice.
        trial.dispatch(&named("t1"), admitted(1));
        trial.sets.entry(named("k1").descendants()).or_default().insert("t1".into(), 1);
        end(&mut trial, "k1");
        trial.now_ms += bounds.lease_ms;
        cascade_all(&mut trial, &bounds);
        !is_over(&trial, "t1")
    };
    assert!(!runs_on());
    assert!(mutants::with("cascade_waits_for_the_end", runs_on));
}
