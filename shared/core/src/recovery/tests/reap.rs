use super::*;

fn crashed_worker(slices: usize) -> Trial {
    let mut trial = Trial::at(LEASE);
    for slice in 0..slices {
        trial.dispatch(&named(&format!("t{slice}")), admitted(2));
    }
    assert_eq!(trial.slices(&keys::ready(Priority::Normal), "w1", slices).len(), slices);
    trial
}

#[test]
fn a_crashed_workers_slices_are_redelivered_in_two_groups() {
    let mut trial = crashed_worker(5);
    let bounds = Bounds::default();
    let before = trial.turn(&named("t0")).unwrap();
    let (groups, quarantined) = reap(&mut trial, "w1", &bounds);
    assert_eq!((groups.iter().map(Vec::len).collect::<Vec<_>>(), quarantined.len()), (vec![3, 2], 0));
    let after = trial.turn(&named("t0")).unwrap();
    assert_ne!(before.version, after.version);
    assert_eq!(after.value.suspect, Some(Suspect { group_max: 3, solo_crashes: 0 }));
    assert_eq!((after.value.crashes, &after.value.state), (1, &State::Ready { upto: 2 }));
    let slices = trial.slices(&keys::suspect(Priority::Normal), "w2", 9);
    let names: Vec<String> = slices.iter().map(|slice| slice.name.turn.to_string()).collect();
    assert_eq!(names, ["t0", "t1", "t2", "t3", "t4"]);
    assert!(slices.iter().all(|slice| slice.calls.len() == 2));
    assert_eq!(trial.used(&CounterKey::new("_out", "acme")), 5);
}

#[test]
fn a_reap_fences_the_old_holder() {
    let mut trial = Trial::at(LEASE);
    let bounds = Bounds::default();
    trial.dispatch(&named("t"), admitted(1));
    let old = trial.slices(&keys::ready(Priority::Normal), "w1", 1).remove(0);
    reap(&mut trial, "w1", &bounds);
    assert!(trial.begin(&old).is_err());
    assert!(trial.settle(&old).is_err());
    let new = trial.slices(&keys::suspect(Priority::Normal), "w2", 1).remove(0);
    assert!(trial.settle(&new).is_ok());
}

#[test]
fn an_unstarted_suspect_counts_no_crash() {
    let mut trial = crashed_worker(4);
    let bounds = Bounds::default();
    reap(&mut trial, "w1", &bounds);
    let slices = trial.slices(&keys::suspect(Priority::Normal), "w2", 4);
    trial.begin(&slices[0]).unwrap();
    trial.begin(&slices[1]).unwrap();
    let (groups, _) = reap(&mut trial, "w2", &bounds);
    assert_eq!(groups.iter().map(Vec::len).sum::<usize>(), 4);
    let of = |name: &str| {
        let turn = trial.turn(&named(name)).unwrap().value;
        (turn.crashes, turn.suspect.unwrap().group_max)
    };
    assert_eq!([of("t0"), of("t1"), of("t2"), of("t3")], [(2, 1), (2, 1), (1, 2), (1, 2)]);
}

#[test]
fn a_slice_beside_suspects_is_spared_but_may_have_run() {
    let mut trial = crashed_worker(1);
    let bounds = Bounds::default();
    reap(&mut trial, "w1", &bounds);
    let suspects = trial.slices(&keys::suspect(Priority::Normal), "w2", 1);
    trial.begin(&suspects[0]).unwrap();
    trial.dispatch(&named("other"), admitted(1));
    trial.slices(&keys::ready(Priority::Normal), "w2", 1);
    reap(&mut trial, "w2", &bounds);
    let other = trial.turn(&named("other")).unwrap().value;
    assert_eq!((other.crashes, other.suspect, other.may_have_run), (0, None, true));
    assert_eq!(trial.turn(&named("t0")).unwrap().value.suspect, Some(Suspect { group_max: 1, solo_crashes: 2 }));
    assert_eq!(trial.slices(&keys::ready(Priority::Normal), "w3", 9).len(), 1);
}

#[test]
fn a_quarantined_slice_keeps_its_calls() {
    let mut trial = Trial::at(LEASE);
    let bounds = Bounds { crashes_max: 1, ..Bounds::default() };
    let name = named("t");
    trial.dispatch(&name, admitted(2));
    let slice = trial.slices(&keys::ready(Priority::Normal), "w1", 1).remove(0);
    trial.begin(&slice).unwrap();
    let (groups, quarantined) = reap(&mut trial, "w1", &bounds);
    assert_eq!((groups.len(), quarantined), (0, vec![name.clone()]));
    let turn = trial.turn(&name).unwrap().value;
    assert_eq!(turn.state, State::Ending { reason: EndReason::Quarantined { crashes: 1 }, due_ms: LEASE });
    let kept: Vec<Arc<str>> = trial.parts[&name.record()].keys().cloned().collect();
    assert_eq!(kept, [parts::call(0), parts::call(1)]);
    assert_eq!((trial.timers[&*name.timer()], trial.used(&CounterKey::new("_out", "acme"))), (LEASE, 0));
}

#[test]
fn invalid_entries_are_removed_and_do_not_block_a_reap() {
    let mut trial = crashed_worker(1);
    let bounds = Bounds::default();
    let ready = keys::ready(Priority::Normal);
    trial.enqueue(&ready, vec![("x".into(), "y".into())]);
    trial.dispatch(&named("ended"), admitted(1));
    trial.dispatch(&named("odd"), admitted(1));
    trial.slices(&ready, "w1", 0);
    trial.take(&ready, "w1", 9);
    trial.records.remove(&named("ended").record());
    trial.records.insert(named("odd").record(), "v - - 9{}".into());
    assert_eq!(reap_once(&mut trial, "w1", &bounds), ReapResult::Removed { dead: 2 });
    assert_eq!(reap(&mut trial, "w1", &bounds).0.len(), 1);
    assert_eq!(trial.queues[&keys::dead()].entries.len(), 2);
}

#[test]
fn a_worker_that_renewed_its_lease_is_not_reaped() {
    let fails = |mutant: Option<&'static str>| {
        let mut trial = crashed_worker(2);
        let bounds = Bounds::default();
        write_heartbeat(&mut trial, "w1");
        let lease = lease(&trial, "w1", trial.now_ms);
        let held = held(&trial, "w1");
        write_heartbeat(&mut trial, "w1");
        let decision = Reap { consumer: "w1".into(), lease, held, bounds: &bounds };
        let reaped = match mutant {
            Some(mutant) => mutants::with(mutant, || trial.run(&decision)),
            None => trial.run(&decision),
        };
        reaped != ReapResult::Alive
    };
    assert!(!fails(None));
    assert!(fails(Some("reap_guards_the_heartbeat")));
}

#[test]
fn a_reap_requires_an_ended_lease_and_no_restart() {
    let reaped = |ends_ms: i64, epoch_began_ms: i64| {
        let mut trial = crashed_worker(2);
        let bounds = Bounds::default();
        trial.epoch_began_ms = epoch_began_ms;
        let decision = Reap {
            consumer: "w1".into(),
            lease: lease(&trial, "w1", ends_ms),
            held: held(&trial, "w1"),
            bounds: &bounds,
        };
        trial.run(&decision)
    };
    assert!(matches!(reaped(LEASE, 0), ReapResult::Redelivered(_)));
    assert_eq!(reaped(LEASE + 1, 0), ReapResult::Alive);
    assert_eq!(reaped(LEASE, 1), ReapResult::Restarted);
    assert!(matches!(
        mutants::with("reap_guards_the_end_of_the_lease", || reaped(LEASE + 1, 0)),
        ReapResult::Redelivered(_)
    ));
    assert!(matches!(mutants::with("reap_guards_the_epoch", || reaped(LEASE, 1)), ReapResult::Redelivered(_)));
}

#[test]
fn only_a_silent_or_gone_worker_has_an_ended_lease() {
    let consumer = ConsumerId::new("w1").unwrap();
    let version = Version::new("v");
    assert_eq!(Lease::ended(&consumer, &Liveness::Alive { lease_ends_ms: 5 }), None);
    let silent = Lease::ended(&consumer, &Liveness::Silent { lease_ends_ms: 5, version: version.clone() }).unwrap();
    assert_eq!((silent.heartbeat, silent.version, silent.ends_ms), (heartbeat("w1"), Some(version), 5));
    assert_eq!(Lease::ended(&consumer, &Liveness::Gone).unwrap().version, None);
}

#[test]
fn a_reap_acknowledges_the_old_entry() {
    let held_after_reap = || {
        let mut trial = crashed_worker(1);
        reap_once(&mut trial, "w1", &Bounds::default());
        held(&trial, "w1").len()
    };
    assert_eq!(held_after_reap(), 0);
    assert_eq!(mutants::with("reap_acknowledges_the_old_entry", held_after_reap), 1);
}

#[test]
fn a_reap_keeps_a_begin_written_after_its_read() {
    let begun_is_kept = || {
        let mut trial = Trial::at(LEASE);
        let bounds = Bounds::default();
        let name = named("t");
        trial.dispatch(&name, admitted(1));
        let mut slice = trial.slices(&keys::ready(Priority::Normal), "w1", 1).remove(0);
        let lease = lease(&trial, "w1", trial.now_ms);
        let held = held(&trial, "w1");
        let query = Query::Record(name.record());
        let mut view = View::default();
        view.insert(query.clone(), trial.answer(&query));
        slice.turn.begun = Some(Begun::new(0, "n1"));
        trial.begin(&slice).unwrap();
        trial.run_with(&Reap { consumer: "w1".into(), lease, held, bounds: &bounds }, &mut view);
        let turn = trial.turn(&name).unwrap().value;
        assert_eq!(turn.crashes, 1);
        turn.begun.is_some()
    };
    assert!(begun_is_kept());
    assert!(!mutants::with("reap_guards_the_version", begun_is_kept));
}

#[test]
fn all_reaps_of_a_crash_use_the_same_group_size() {
    let mut trial = crashed_worker(8);
    let bounds = Bounds::default();
    assert!(matches!(reap_once(&mut trial, "w1", &bounds), ReapResult::Redelivered(group) if group.len() == 4));
    assert!(trial.records.contains_key(&crash("w1")));
    assert!(matches!(reap_once(&mut trial, "w1", &bounds), ReapResult::Redelivered(group) if group.len() == 4));
    assert_eq!(trial.turn(&named("t7")).unwrap().value.suspect, Some(Suspect { group_max: 4, solo_crashes: 0 }));
}

#[test]
fn a_returned_worker_starts_a_new_crash_count() {
    let mut trial = crashed_worker(8);
    let bounds = Bounds::default();
    write_heartbeat(&mut trial, "w1");
    reap(&mut trial, "w1", &bounds);
    write_heartbeat(&mut trial, "w1");
    trial.dispatch(&named("later"), admitted(1));
    trial.slices(&keys::ready(Priority::Normal), "w1", 1);
    reap(&mut trial, "w1", &bounds);
    let later = trial.turn(&named("later")).unwrap().value;
    assert_eq!(later.suspect, Some(Suspect { group_max: 1, solo_crashes: 1 }));
}

#[test]
fn a_transaction_is_bounded_in_bytes() {
    let mut trial = Trial::at(LEASE);
    let bounds = Bounds::default();
    for slice in 0..6 {
        let mut turn = admitted(1);
        turn.head.span = Some("x".repeat(400_000));
        trial.dispatch(&named(&format!("t{slice}")), turn);
    }
    trial.slices(&keys::ready(Priority::Normal), "w1", 6);
    let (groups, _) = reap(&mut trial, "w1", &bounds);
    assert_eq!(groups.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, 2]);
    for slice in trial.slices(&keys::suspect(Priority::Normal), "w2", 6) {
        assert_eq!(slice.turn.suspect, Some(Suspect { group_max: 3, solo_crashes: 0 }));
    }
}
