//! The history and the model usage of tasks that a model runs.

use super::*;

fn model_task() -> (Trial, EntryId) {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&task("k1", &bounds));
    let entry = trial.take(&keys::ready(Priority::Normal), "w1", 1).remove(0).0;
    (trial, entry)
}

fn steps<'a>(entry: &EntryId, known: u64, texts: &[&str], bounds: &'a Bounds) -> AddSteps<'a> {
    let entries = texts.iter().map(|text| Bytes::from((*text).to_owned())).collect();
    AddSteps { name: named("k1"), entry: entry.clone(), known, entries, spent: None, bounds }
}

#[test]
fn the_fence_rejects_stale_or_out_of_order_steps() {
    let ((mut trial, entry), bounds) = (model_task(), bounds());
    let Stepped::Ok(fenced) = trial.run(&steps(&entry, 0, &["a", "b"], &bounds)) else { panic!("not added") };
    assert_eq!(fenced.version, trial.turn(&named("k1")).unwrap().version);
    assert!(matches!(trial.run(&steps(&entry, 0, &["a", "b"], &bounds)), Stepped::Already(_)));
    assert_eq!(trial.run(&steps(&entry, 0, &["x", "b"], &bounds)), Stepped::Stale);
    assert_eq!(trial.run(&steps(&entry, 1, &["x"], &bounds)), Stepped::Stale);
    assert!(matches!(trial.run(&steps(&entry, 2, &["c"], &bounds)), Stepped::Ok(_)));
    let history = &trial.parts[&keys::steps(&named("k1"))];
    assert_eq!(history.keys().cloned().collect::<Vec<_>>(), [part(0), part(1), part(2)]);
    assert_eq!(trial.expire[&keys::steps(&named("k1"))] - trial.now_ms, 1_000_000 - 5 + bounds.retain_ms);
    assert_eq!(trial.run(&steps(&EntryId::new("1-999"), 3, &["d"], &bounds)), Stepped::Stale);
    let repeated = mutants::with("steps_are_in_order", || trial.run(&steps(&entry, 1, &["x"], &bounds)));
    assert!(matches!(repeated, Stepped::Ok(_)));
}

#[test]
fn a_history_is_bounded_in_bytes() {
    let full = || {
        let ((mut trial, entry), bounds) = (model_task(), bounds());
        let mut turn = trial.turn(&named("k1")).unwrap().value;
        turn.entry = Some(entry.clone());
        turn.task.as_mut().unwrap().steps_bytes = tickfleet_model::limits::TASK_HISTORY_BYTES_MAX as u64;
        trial.put(&named("k1").record(), &turn);
        let mut decision = steps(&entry, 0, &["a"], &bounds);
        decision.spent = Some(spent("r1", 1, 1));
        let stepped = trial.run(&decision);
        let used = trial.turn(&named("k1")).unwrap().value.task.unwrap().used;
        assert_eq!(used, (1, 1, 7));
        matches!(stepped, Stepped::Full(_))
    };
    assert!(full());
    assert!(!mutants::with("a_history_is_bounded", full));
}

#[test]
fn two_holders_do_not_both_add_a_step() {
    let race = || {
        let ((mut trial, entry), bounds) = (model_task(), bounds());
        let mut view = View::default();
        let query = Query::Record(named("k1").record());
        view.insert(query.clone(), trial.answer(&query));
        trial.run(&steps(&entry, 0, &["a"], &bounds));
        trial.run_with(&steps(&entry, 0, &["x"], &bounds), &mut view) == Stepped::Stale
    };
    assert!(race());
    assert!(!mutants::with("step_guards_the_version", race));
}

fn spent(request: &str, input: u64, output: u64) -> ReportedModelUse {
    let used = ModelUse { request: request.into(), tokens_in: input, tokens_out: output, cost: 7 };
    ReportedModelUse { used, day: Day { start_ms: 0, end_ms: 1_000 } }
}

fn tokens() -> CounterKey {
    CounterKey::new("tokens", "acme")
}

fn reserve(entry: &EntryId, request: &str, amount: u64) -> Reserve {
    let window = Window::Day { start_ms: 0, end_ms: 1_000 };
    let debit = ConditionalDebit { window, ..ConditionalDebit::total(tokens(), amount, 100) };
    let debits = vec![BudgetDebit { debit, unit: BudgetUnit::Tokens, waits: true }];
    Reserve { name: named("k1"), entry: entry.clone(), request: request.into(), debits }
}

#[test]
fn a_request_is_debited_before_it_is_sent_and_corrected_after() {
    let ((mut trial, entry), bounds) = (model_task(), bounds());
    assert!(matches!(trial.run(&reserve(&entry, "r1", 60)), ReserveResult::Ok(_)));
    let ReserveResult::Already(fenced) = trial.run(&reserve(&entry, "r1", 60)) else { panic!() };
    assert_eq!(Some(fenced.turn), trial.turn(&named("k1")).map(|stored| stored.value));
    assert_eq!(trial.used(&tokens()), 60);
    let mut decision = steps(&entry, 0, &["a"], &bounds);
    decision.spent = Some(spent("r1", 10, 5));
    assert!(matches!(trial.run(&decision), Stepped::Ok(_)));
    assert_eq!(trial.used(&tokens()), 15);
    let mut again = steps(&entry, 1, &[], &bounds);
    again.spent = Some(spent("r1", 10, 5));
    trial.run(&again);
    let input = CounterKey::new(UsageUnit::TokensIn.limit(&named("k1").tenant, 0), "kelly");
    assert_eq!((trial.used(&input), trial.used(&tokens())), (10, 15));
    let ReserveResult::Ok(fenced) = trial.run(&reserve(&entry, "r2", 40)) else { panic!("no room") };
    assert_eq!(trial.used(&tokens()), 55);
    let unreserve = Unreserve { name: named("k1"), entry, request: "r2".into() };
    let Fenced { turn, .. } = *trial.run(&unreserve).unwrap();
    assert_ne!(fenced.turn, turn);
    let again = trial.run(&unreserve).unwrap();
    assert_eq!((trial.used(&tokens()), again.version), (15, trial.turn(&named("k1")).unwrap().version));
}

#[test]
fn a_resent_request_is_debited_again_for_the_new_holder() {
    let debited = || {
        let ((mut trial, entry), bounds) = (model_task(), bounds());
        assert!(matches!(trial.run(&reserve(&entry, "r1", 40)), ReserveResult::Ok(_)));
        let mut useless = steps(&entry, 0, &[], &bounds);
        useless.spent = Some(spent("r1", 3, 0));
        let mut before = trial.clone();
        before.run(&useless);
        assert_eq!(before.used(&tokens()), 3);
        let mut turn = trial.turn(&named("k1")).unwrap().value;
        turn.task.as_mut().unwrap().counted = before.turn(&named("k1")).unwrap().value.task.unwrap().counted;
        let next = trial.enqueue(&keys::ready(Priority::Normal), Vec::new());
        turn.entry = Some(next.clone());
        trial.put(&named("k1").record(), &turn);
        assert_eq!(trial.run(&reserve(&entry, "r1", 40)), ReserveResult::Stale);
        trial.run(&reserve(&next, "r1", 40));
        let mut decision = steps(&next, 0, &["a"], &bounds);
        decision.spent = Some(spent("r1", 10, 5));
        trial.run(&decision);
        let input = CounterKey::new(UsageUnit::TokensIn.limit(&named("k1").tenant, 0), "kelly");
        assert_eq!(trial.used(&input), 10);
        trial.used(&tokens())
    };
    assert_eq!(debited(), 40 + 15, "nobody knows what the first one cost");
    assert_eq!(mutants::with("reserve_debits_each_holder", debited), 15);
}

#[test]
fn reservations_prevent_a_budget_overrun() {
    let overrun = || {
        let (mut trial, entry) = model_task();
        let all = (0..3).map(|at| matches!(trial.run(&reserve(&entry, &format!("r{at}"), 60)), ReserveResult::Ok(_)));
        all.filter(|sent| *sent).count() > 1
    };
    assert!(!overrun());
    assert!(mutants::with("reserve_debits_the_budget", overrun));
}

#[test]
fn a_late_correction_does_not_change_the_next_window() {
    let next_window = || {
        let ((mut trial, entry), bounds) = (model_task(), bounds());
        trial.run(&reserve(&entry, "r1", 60));
        *trial.counters.get_mut(&tokens()).unwrap() =
            crate::CounterState { used: 50, ends_ms: 2_000, began_ms: 1_000, queued: false };
        let mut decision = steps(&entry, 0, &["a"], &bounds);
        decision.spent = Some(spent("r1", 10, 5));
        trial.run(&decision);
        trial.used(&tokens())
    };
    assert_eq!(next_window(), 50);
    assert_eq!(mutants::with("a_correction_is_of_its_window", next_window), 5);
}

fn join(trial: &mut Trial, wait: &BudgetWait) -> Result<(), crate::Conflict> {
    let mut view = View::default();
    let context = trial.context();
    let query = Query::Score(keys::budget_queue(&wait.counter), wait.name.to_string().into());
    view.insert(query.clone(), trial.answer(&query));
    let mut transaction = Transaction::new(context.version.clone());
    wait.add_to(&mut transaction, &view, &context).unwrap();
    trial.commit(&transaction).map(drop)
}

#[test]
fn a_task_rechecks_a_budget_that_gains_room_while_it_queues() {
    let wait = BudgetWait { name: named("k2"), counter: tokens(), place: 1 };
    let timer = named("k2").timer();
    let returned = |joins_in_between: bool| {
        let ((mut trial, entry), bounds) = (model_task(), bounds());
        trial.run(&reserve(&entry, "r1", 90));
        trial.run(&task("k2", &bounds));
        let mut decision = steps(&entry, 0, &["a"], &bounds);
        decision.spent = Some(spent("r1", 10, 5));
        let mut view = View::default();
        let query = Query::First { set: keys::budget_queue(&tokens()), upto: None, count: 4 };
        view.insert(query.clone(), trial.answer(&query));
        if joins_in_between {
            join(&mut trial, &wait).unwrap();
            // The task has checked again, and now waits for a wake.
            trial.timers.insert(timer.as_str().into(), 9_000);
            join(&mut trial, &wait).unwrap();
            trial.run_with(&decision, &mut view);
        } else {
            trial.run_with(&decision, &mut view);
            join(&mut trial, &wait).unwrap();
        }
        trial.timers[timer.as_str()] < 1_000
    };
    assert!(returned(true) && returned(false));
    assert!(!mutants::with("wake_knows_all_that_wait", || returned(true)));
    assert!(!mutants::with("budget_wait_looks_again", || returned(false)));
    // The task is already in the queue, and wakes before it parks again.
    let mut trial = Trial::at(5);
    join(&mut trial, &wait).unwrap();
    let context = trial.context();
    let view = {
        let mut view = View::default();
        let query = Query::Score(keys::budget_queue(&tokens()), "acme:k2".into());
        view.insert(query.clone(), trial.answer(&query));
        view
    };
    let mut transaction = Transaction::new(context.version.clone());
    wait.add_to(&mut transaction, &view, &context).unwrap();
    trial.sets.clear();
    assert_eq!(trial.commit(&transaction), Err(crate::Conflict::NoMember));
}

#[test]
fn a_task_waiting_for_a_budget_wakes_when_it_has_room() {
    let ((mut trial, entry), bounds) = (model_task(), bounds());
    trial.run(&reserve(&entry, "r1", 90));
    trial.run(&task("k2", &bounds));
    let waiting = trial.take(&keys::ready(Priority::Normal), "w2", 1).remove(0).0;
    let short = Reserve { name: named("k2"), ..reserve(&waiting, "r1", 20) };
    let ReserveResult::Short(shortage) = trial.run(&short) else { panic!("it has room") };
    assert_eq!((shortage.used, shortage.amount, shortage.action), (90, 20, ShortageAction::Wait));
    let wait = BudgetWait { name: named("k2"), counter: tokens(), place: 1 };
    join(&mut trial, &wait).unwrap();
    let mut decision = steps(&entry, 0, &["a"], &bounds);
    decision.spent = Some(spent("r1", 10, 5));
    trial.run(&decision);
    assert_eq!(trial.timers["turn:acme:k2"], 5);
    assert!(trial.members(&keys::budget_queue(&tokens())).is_empty());
    assert!(matches!(trial.run(&short), ReserveResult::Ok(_)));
    let never = Reserve { name: named("k2"), ..reserve(&waiting, "r9", 101) };
    assert!(matches!(trial.run(&never), ReserveResult::Short(shortage) if shortage.action == ShortageAction::Never));
    let stale = Reserve { entry: EntryId::new("1-999"), ..short };
    assert_eq!(trial.run(&stale), ReserveResult::Stale);
}
