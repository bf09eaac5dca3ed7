//! Delegation, and the budgets of parents and children.

use super::*;

#[test]
fn a_task_is_written_and_offered() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    assert_eq!(trial.run(&task("k1", &bounds)), DelegateResult::Offered);
    let turn = trial.turn(&named("k1")).unwrap();
    assert_eq!((turn.value.state, turn.value.debited), (State::Ready { upto: 1 }, 1));
    assert_eq!(trial.slices(&keys::ready(Priority::Normal), "w1", 9).len(), 1);
    assert_eq!(trial.timers["turn:acme:k1"], 1_000_000);
    assert_eq!((trial.used(&counter("_out")), trial.used(&counter("_unfinished"))), (1, 1));
    assert_eq!(trial.members(&keys::tasks_of(&named("k1").tenant)), ["k1"]);
    assert_eq!(trial.run(&task("k1", &bounds)), DelegateResult::Duplicate);
    let mut other = task("k1", &bounds);
    other.head.digest = "other".into();
    assert_eq!(trial.run(&other), DelegateResult::Conflict);
    end(&mut trial, "k1");
    assert_eq!(trial.run(&task("k1", &bounds)), DelegateResult::Duplicate);
    assert_eq!(
        (trial.used(&counter("_out")), trial.used(&counter("_unfinished")), trial.used(&counter("_bytes"))),
        (0, 0, 0)
    );
}

#[test]
fn an_inbound_entry_admits_its_task_only_once() {
    let delegate_twice = || {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        let decision = inbound(&mut trial, "k1", &bounds);
        trial.put(&named("k1").given(), &GivenId { digest: "d".into(), state: GivenState::Queued });
        assert_eq!(trial.run(&decision), DelegateResult::Offered);
        let given = trial.stored::<GivenId>(&named("k1").given()).unwrap().value;
        assert_eq!(given.state, GivenState::Admitted);
        let left = trial.holds(&keys::tasks(), "s1").len();
        // All records of the task expire before a scheduler decides again about the same entry.
        end(&mut trial, "k1");
        for key in [named("k1").finished(), named("k1").given()] {
            trial.records.remove(&key);
        }
        (left, trial.run(&decision))
    };
    assert_eq!(delegate_twice(), (0, DelegateResult::Duplicate));
    let without = mutants::with("delegate_acknowledges_the_message", delegate_twice);
    assert_eq!(without, (1, DelegateResult::Offered));
}

#[test]
fn a_duplicate_message_is_acknowledged() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    let first = inbound(&mut trial, "k1", &bounds);
    let second = inbound(&mut trial, "k1", &bounds);
    assert_eq!((trial.run(&first), trial.run(&second)), (DelegateResult::Offered, DelegateResult::Duplicate));
    assert!(trial.holds(&keys::tasks(), "s1").is_empty());
}

#[test]
fn two_schedulers_do_not_admit_the_same_task_twice() {
    let race = || {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        let first = task("k1", &bounds);
        let second = task("k1", &bounds);
        let mut view = View::default();
        for query in first.reads().into_iter().chain([Query::Record(named("k1").finished())]) {
            view.insert(query.clone(), trial.answer(&query));
        }
        (trial.run(&second), trial.run_with(&first, &mut view))
    };
    assert_eq!(race(), (DelegateResult::Offered, DelegateResult::Duplicate));
    assert_eq!(mutants::with("delegate_guards_the_absence", race), (DelegateResult::Offered, DelegateResult::Offered));
}

#[test]
fn a_task_beyond_a_bound_is_rejected() {
    let refused = |bounds: Bounds, prepare: fn(&mut Trial)| {
        let mut trial = Trial::at(5);
        prepare(&mut trial);
        let mut decision = task("k2", &bounds);
        decision.head.reply_to = Some(tickfleet_model::InboxName::new("box").unwrap());
        trial.run(&task("k1", &Bounds::default()));
        trial.run(&decision)
    };
    let none = |_: &mut Trial| {};
    let tenant = DelegateResult::Refused(Refusal::TenantQueueFull);
    assert_eq!(refused(Bounds { tenant_turns_max: 1, ..bounds() }, none), tenant);
    assert_eq!(refused(Bounds { tenant_bytes_max: 100, ..bounds() }, none), tenant);
    assert_eq!(
        mutants::with("delegate_guards_the_tenant", || refused(Bounds { tenant_turns_max: 1, ..bounds() }, none)),
        DelegateResult::Offered
    );
    assert_eq!(refused(bounds(), |trial| trial.inboxes_are_full = true), DelegateResult::Refused(Refusal::InboxFull));
    assert_eq!(refused(bounds(), |trial| trial.pressure = true), DelegateResult::Pressure);
    assert_eq!(refused(bounds(), |trial| trial.now_ms = 1_000_000), DelegateResult::Refused(Refusal::DeadlinePassed));
}

#[test]
fn under_memory_pressure_inbound_tasks_need_a_short_queue() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    let decision = inbound(&mut trial, "k1", &bounds);
    trial.pressure = true;
    assert_eq!(trial.run(&decision), DelegateResult::Offered);
    for _ in 0..crate::task::delegate::TIGHT_SLICES {
        trial.enqueue(&keys::ready(Priority::Normal), Vec::new());
    }
    let decision = inbound(&mut trial, "k2", &bounds);
    assert_eq!(trial.run(&decision), DelegateResult::Pressure);
}

#[test]
fn an_expired_or_canceled_inbound_task_ends_at_once() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    let mut late = inbound(&mut trial, "k1", &bounds);
    late.head.deadline_ms = 5;
    assert_eq!(trial.run(&late), DelegateResult::Ends);
    let turn = trial.turn(&named("k1")).unwrap().value;
    assert_eq!(turn.state, State::Ending { reason: EndReason::Expired, due_ms: 5 });
    assert_eq!((turn.execution_state(0), trial.timers["turn:acme:k1"]), (ExecutionState::NotRun, 5));
    assert_eq!(trial.used(&counter("_out")), 0);
    assert!(trial.parts[&named("k1").record()].contains_key(&parts::call(0)));
    let cancel = Cancel { name: named("k2"), reason: "no".into(), above: None, bounds: &bounds };
    assert_eq!(trial.run(&cancel), Canceled::Waiting);
    assert_eq!(trial.members(&keys::early(&named("k2").tenant)), ["k2"]);
    let decision = inbound(&mut trial, "k2", &bounds);
    assert_eq!(trial.run(&decision), DelegateResult::Ends);
    let turn = trial.turn(&named("k2")).unwrap().value;
    assert_eq!(turn.state, State::Ending { reason: EndReason::Canceled, due_ms: 5 });
    assert_eq!(turn.canceled.as_deref(), Some("no"));
    assert!(trial.members(&keys::early(&named("k2").tenant)).is_empty());
}

#[test]
fn a_child_gets_at_most_its_parents_remaining_budget() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&task("k1", &bounds));
    assert_eq!(trial.run(&child("k2", "k1", 6, &bounds)), DelegateResult::Offered);
    let too_much = DelegateResult::Refused(Refusal::BudgetExceedsParent);
    assert_eq!(trial.run(&child("k3", "k1", 5, &bounds)), too_much);
    assert_eq!(trial.run(&child("k3", "k1", 4, &bounds)), DelegateResult::Offered);
    assert_eq!(trial.run(&child("k4", "k1", 1, &bounds)), too_much);
    trial.counters.entry(budget_of("k2")).or_default().used = 1;
    end(&mut trial, "k2");
    assert_eq!(trial.used(&budget_of("k1")), 5);
    assert!(!trial.counters.contains_key(&budget_of("k2")));
    let mut late = child("k5", "k1", 1, &bounds);
    late.head.deadline_ms = 9_000_000;
    trial.run(&late);
    assert_eq!(trial.turn(&named("k5")).unwrap().value.head.deadline_ms, 1_000_000);
    let unknown = DelegateResult::Refused(Refusal::UnknownParent);
    assert_eq!(trial.run(&child("k6", "nobody", 1, &bounds)), unknown);
    trial.dispatch(&named("turn"), admitted(1));
    assert_eq!(trial.run(&child("k6", "turn", 1, &bounds)), unknown);
    end(&mut trial, "k1");
    assert_eq!(trial.run(&child("k6", "k1", 1, &bounds)), DelegateResult::Refused(Refusal::ParentEnded));
}

#[test]
fn a_child_returns_no_budget_to_an_ended_parent() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&task("k1", &bounds));
    assert_eq!(trial.run(&child("k2", "k1", 6, &bounds)), DelegateResult::Offered);
    assert!(end(&mut trial, "k1"));
    assert!(end(&mut trial, "k2"));
    assert!(trial.counters.keys().all(|counter| *counter.limit != *limits::TASK), "{:?}", trial.counters);
}

#[test]
fn an_ended_or_canceled_parent_cannot_delegate() {
    // The scheduler decides with an old copy of the parent's record.
    let late = |cancel: bool| {
        let mut trial = Trial::at(5);
        let bounds = bounds();
        trial.run(&task("k1", &bounds));
        let decision = child("k2", "k1", 1, &bounds);
        let mut view = View::default();
        for query in decision.reads() {
            view.insert(query.clone(), trial.answer(&query));
        }
        if cancel {
            trial.run(&Cancel { name: named("k1"), reason: "no".into(), above: None, bounds: &bounds });
        } else {
            end(&mut trial, "k1");
        }
        trial.run_with(&decision, &mut view)
    };
    let ended = DelegateResult::Refused(Refusal::ParentEnded);
    assert_eq!((late(true), late(false)), (ended, ended));
    assert_eq!(mutants::with("delegate_guards_the_cancel_of_the_parent", || late(true)), DelegateResult::Offered);
    assert_eq!(mutants::with("delegate_guards_the_parent", || late(false)), DelegateResult::Offered);
    let mut trial = Trial::at(5);
    let bounds = bounds();
    let mut of_call = task("k1", &bounds);
    of_call.head.delegated_by = Some("gone/0".into());
    assert_eq!(trial.run(&of_call), ended);
}

#[derive(Debug, Clone)]
enum Act {
    Delegate { name: usize, parent: Option<usize>, budget: u64 },
    Spend { name: usize, calls: u64 },
    End { name: usize },
    Look,
}

fn act() -> impl Strategy<Value = Act> {
    let name = 0_usize..6;
    prop_oneof![
        (name.clone(), prop::option::of(name.clone()), 0_u64..8).prop_map(|(name, parent, budget)| Act::Delegate {
            name,
            parent,
            budget
        }),
        (name.clone(), 1_u64..4).prop_map(|(name, calls)| Act::Spend { name, calls }),
        name.prop_map(|name| Act::End { name }),
        Just(Act::Look),
    ]
}

fn spend_calls(trial: &mut Trial, name: &TurnName, calls: u64) -> u64 {
    let Some(turn) = trial.turn(name) else { return 0 };
    let mut transaction = Transaction::new(trial.draw());
    let counter = CounterKey::new(limits::TASK, name.to_string());
    let max = turn.value.task.unwrap().budget;
    transaction.guard(Guard::Debit(ConditionalDebit::total(counter, calls, max)));
    if trial.commit(&transaction).is_ok() { calls } else { 0 }
}

fn play(acts: &[Act]) -> Result<(), TestCaseError> {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    let mut stale = View::default();
    // Per root task: the granted budget, and the calls below the task.
    let mut root_of: BTreeMap<String, String> = BTreeMap::new();
    let (mut granted, mut spent): (BTreeMap<String, u64>, BTreeMap<String, u64>) = Default::default();
    let mut serial = 0;
    let mut names: BTreeMap<usize, String> = BTreeMap::new();
    for act in acts {
        match act {
            Act::Delegate { name, parent, budget } => {
                serial += 1;
                let id = format!("k{serial}");
                let parent = parent.and_then(|parent| names.get(&parent).cloned());
                let decision = Delegate {
                    parent: parent.as_ref().map(|parent| TaskId::new(parent).unwrap()),
                    budget: *budget,
                    ..task(&id, &bounds)
                };
                if trial.run_with(&decision, &mut stale.clone()) == DelegateResult::Offered {
                    let root = parent.as_ref().map_or_else(|| id.clone(), |parent| root_of[parent].clone());
                    root_of.insert(id.clone(), root);
                    if parent.is_none() {
                        granted.insert(id.clone(), *budget);
                    }
                    names.insert(*name, id);
                }
            }
            Act::Spend { name, calls } => {
                if let Some(name) = names.get(name) {
                    *spent.entry(root_of[name].clone()).or_default() += spend_calls(&mut trial, &named(name), *calls);
                }
            }
            Act::End { name } => {
                if let Some(name) = names.get(name) {
                    trial.run_with(&End { name: named(name), failed: false }, &mut stale.clone());
                }
            }
            Act::Look => {
                stale = View::default();
                for name in names.values() {
                    for query in [Query::Record(named(name).record()), Query::Counter(budget_of(name))] {
                        stale.insert(query.clone(), trial.answer(&query));
                    }
                }
            }
        }
        for (root, granted) in &granted {
            let spent = spent.get(root).copied().unwrap_or_default();
            prop_assert!(spent <= *granted, "{spent} calls were made of {granted} granted to {root}");
        }
        let unfinished = names.values().filter(|name| trial.turn(&named(name)).is_some()).count() as u64;
        prop_assert!(trial.used(&counter("_unfinished")) >= unfinished);
    }
    Ok(())
}

proptest! {
    #[test]
    fn calls_never_exceed_the_budget_of_the_root_task(acts in prop::collection::vec(act(), 1..60)) {
        play(&acts)?;
    }
}

#[test]
fn a_childs_budget_is_deducted_from_its_parents() {
    let acts = [
        Act::Delegate { name: 0, parent: None, budget: 2 },
        Act::Delegate { name: 1, parent: Some(0), budget: 2 },
        Act::Spend { name: 1, calls: 2 },
        Act::Spend { name: 0, calls: 2 },
    ];
    assert!(play(&acts).is_ok());
    assert!(mutants::with("delegate_carves_the_budget", || play(&acts)).is_err());
}

#[test]
fn a_task_list_expires_with_its_newest_member() {
    use crate::task::lists::{ExpireList, lists};
    let mut trial = Trial::at(5);
    let bounds = bounds();
    trial.run(&task("k1", &bounds));
    trial.run(&child("k2", "k1", 1, &bounds));
    assert_eq!(trial.members(&lists()), ["children:acme:k1", "tasks:acme"]);
    assert!(!trial.run(&ExpireList));
    trial.now_ms += tickfleet_model::limits::TASKS_LISTED_MS;
    // A task joins the list between the decision and the commit.
    let mut view = View::default();
    for query in [
        Query::First { set: lists(), upto: Some(trial.now_ms.unsigned_abs()), count: 1 },
        Query::First { set: keys::children(&named("k1")), upto: None, count: 256 },
    ] {
        view.insert(query.clone(), trial.answer(&query));
    }
    let mut later = child("k3", "k1", 1, &bounds);
    let mut parent = trial.turn(&named("k1")).unwrap().value;
    parent.head.deadline_ms = trial.now_ms + 9;
    trial.put(&named("k1").record(), &parent);
    later.head.deadline_ms = trial.now_ms + 9;
    assert_eq!(trial.run(&later), DelegateResult::Offered);
    assert!(trial.run_with(&ExpireList, &mut view));
    assert_eq!(trial.members(&keys::children(&named("k1"))), ["k2", "k3"]);
    trial.now_ms += tickfleet_model::limits::TASKS_LISTED_MS;
    while trial.run(&ExpireList) {}
    assert!(trial.members(&lists()).is_empty() && trial.members(&keys::children(&named("k1"))).is_empty());
}

#[test]
fn a_task_list_is_bounded_in_length_and_age() {
    let mut trial = Trial::at(5);
    let bounds = bounds();
    let list = keys::tasks_of(&named("k").tenant);
    let max = tickfleet_model::limits::TASKS_LISTED_MAX;
    trial.sets.insert(list.clone(), (0..max).map(|at| (format!("x{at:05}").as_str().into(), at)).collect());
    trial.run(&task("k1", &bounds));
    assert_eq!(trial.members(&list).len() as u64, max - 1);
    trial.sets.insert(list.clone(), [("old".into(), 1), ("new".into(), 1_000_000)].into());
    trial.now_ms = tickfleet_model::limits::TASKS_LISTED_MS + 10;
    let mut later = task("k2", &bounds);
    later.head.deadline_ms = trial.now_ms + 1;
    trial.run(&later);
    assert_eq!(trial.members(&list), ["k2", "new"]);
}
