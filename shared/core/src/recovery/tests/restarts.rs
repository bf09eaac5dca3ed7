//! A store restarts and loses its last writes while workers run `once` calls. No call takes effect twice.

use super::*;
use crate::recovery::epoch::settled;
use crate::recovery::journal::{Journal, JournalCall, Report};
use crate::transaction::{EntryId, Guard, Transaction};
use crate::turn::slice::Delivery;

#[derive(Debug, Clone)]
enum Act {
    Take(u8),
    Begin(u8),
    End(u8),
    Settle(u8),
    Restart(u8),
    Crash(u8),
    Pass(i64),
}

fn act() -> impl Strategy<Value = Act> {
    let worker = 0_u8..3;
    prop_oneof![
        3 => worker.clone().prop_map(Act::Take),
        3 => worker.clone().prop_map(Act::Begin),
        2 => worker.clone().prop_map(Act::End),
        2 => worker.clone().prop_map(Act::Settle),
        1 => (1_u8..6).prop_map(Act::Restart),
        1 => worker.prop_map(Act::Crash),
        2 => (1_000_i64..12_000).prop_map(Act::Pass),
    ]
}

struct Worker {
    consumer: String,
    journal: Journal<()>,
    slice: Option<Slice>,
    by: Option<String>,
}

impl Worker {
    fn new(serial: &mut u32, epoch: u64) -> Self {
        *serial += 1;
        // The journal keeps calls for longer than any run of this test.
        let mut journal = Journal::new(1_000_000, 1_000);
        journal.reported(epoch);
        Self { consumer: format!("w{serial}"), journal, slice: None, by: None }
    }
}

struct Play {
    trial: Trial,
    past: Vec<Trial>,
    workers: Vec<Worker>,
    serial: u32,
    effects: BTreeMap<TurnName, u32>,
}

impl Play {
    fn new() -> Self {
        let mut trial = Trial::at(LEASE);
        for turn in 0..2 {
            trial.dispatch(&named(&format!("t{turn}")), admitted(1));
        }
        let mut serial = 0;
        let workers = (0..3).map(|_| Worker::new(&mut serial, 1)).collect();
        Self { trial, past: Vec::new(), workers, serial, effects: BTreeMap::new() }
    }

    fn begin(&mut self, at: usize) {
        let worker = &mut self.workers[at];
        let Some(slice) = worker.slice.as_ref().filter(|_| worker.by.is_none()) else { return };
        let epoch = worker.journal.epoch();
        if epoch != self.trial.epoch {
            return;
        }
        let context = self.trial.context();
        let name = slice.name.clone();
        let query = Query::Record(keys::recovered_calls(&slice.name));
        let mut view = View::default();
        view.insert(query.clone(), self.trial.answer(&query));
        let known = recovered_calls(&view, &context, &name, "d", 0..1).unwrap();
        let by = format!("n{}", context.version);
        let is_recovered = known.of_another(0, &by).is_some() && !mutants::is_active("begin_reads_recovered_calls");
        if is_recovered || slice.turn.begun.is_some() {
            return;
        }
        let mut turn = slice.turn.clone();
        turn.begun = Some(Begun::new(0, by.clone()));
        turn.entry = Some(slice.entry.clone());
        turn.state = State::Running { upto: 1 };
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard(settled(&context, LEASE));
        transaction.guard(Guard::Version(name.record(), slice.version.clone()));
        transaction.guards.extend(known.guard);
        transaction.put(&name.record(), &turn);
        if self.trial.commit(&transaction).is_ok() {
            *self.effects.entry(name.clone()).or_default() += 1;
            let digest = "d".to_owned();
            let until_ms = 1_000_000;
            let delivery = slice.delivery();
            let call = JournalCall { delivery, digest, position: 0, by: by.clone(), once: true, until_ms };
            assert!(worker.journal.begin(call, epoch));
            worker.by = Some(by);
        }
    }

    fn restart(&mut self, lost: usize) {
        let now_ms = self.trial.now_ms;
        let epoch = self.trial.epoch + 1;
        let kept = self.past.len().saturating_sub(lost);
        self.past.truncate(kept + 1);
        if let Some(before) = self.past.pop() {
            let next = self.trial.clone();
            self.trial = before;
            self.trial.never_again(&next);
        }
        (self.trial.now_ms, self.trial.epoch, self.trial.epoch_began_ms) = (now_ms, epoch, now_ms);
        for worker in &mut self.workers {
            for report in worker.journal.reports(now_ms) {
                if let Report::Call(assert) = report {
                    self.trial.run(&assert);
                }
            }
            worker.journal.reported(epoch);
        }
    }

    fn act(&mut self, act: &Act) {
        match act {
            Act::Take(at) => {
                let worker = &mut self.workers[usize::from(*at)];
                if worker.slice.is_none() {
                    for queue in queues() {
                        if worker.slice.is_none() {
                            worker.slice = self.trial.slices(&queue, &worker.consumer, 1).pop();
                        }
                    }
                }
            }
            Act::Begin(at) => self.begin(usize::from(*at)),
            Act::End(at) => {
                let worker = &mut self.workers[usize::from(*at)];
                if let (Some(slice), Some(_)) = (&worker.slice, &worker.by) {
                    let result = RenderedCall { result: "1".into(), ..RenderedCall::default() };
                    worker.journal.end(&slice.delivery(), 0, result);
                }
            }
            Act::Settle(at) => {
                let worker = &mut self.workers[usize::from(*at)];
                if worker.by.is_some()
                    && let Some(slice) = worker.slice.take()
                {
                    worker.by = None;
                    let _ = self.trial.settle(&slice);
                    worker.journal.confirm(&slice.delivery(), usize::MAX, self.trial.now_ms);
                }
            }
            Act::Restart(lost) => return self.restart(usize::from(*lost)),
            Act::Crash(at) => {
                let next = Worker::new(&mut self.serial, self.trial.epoch);
                let crashed = std::mem::replace(&mut self.workers[usize::from(*at)], next);
                let began_ms = self.trial.epoch_began_ms;
                self.trial.now_ms += LEASE;
                if began_ms == 0 || self.trial.now_ms >= began_ms + LEASE {
                    reap(&mut self.trial, &crashed.consumer, &Bounds::default());
                }
            }
            Act::Pass(ms) => self.trial.now_ms += ms,
        }
        self.past.push(self.trial.clone());
    }
}

fn play(acts: &[Act]) -> Result<(), TestCaseError> {
    let mut play = Play::new();
    for act in acts {
        play.act(act);
        for (name, effects) in &play.effects {
            prop_assert!(*effects <= 1, "{name} took effect {effects} times");
        }
    }
    Ok(())
}

proptest! {
    /// A worker reports the calls that it began after each restart. If it crashed during the restart, nothing would
    /// report a call that the store lost. So workers in this test crash only between restarts.
    #[test]
    fn no_once_call_takes_effect_twice(acts in prop::collection::vec(act(), 1..50)) {
        let mut safe = Vec::new();
        for act in acts {
            if let Act::Crash(_) = act {
                // After this time, no restart loses the acts before the crash.
                safe.extend(std::iter::repeat_n(Act::Pass(1), 6));
            }
            safe.push(act);
        }
        play(&safe)?;
    }
}

#[test]
fn without_recovered_calls_a_call_takes_effect_twice() {
    use Act::{Begin, Crash, Pass, Restart, Take};
    let mut lost = vec![Take(2), Take(0), Begin(0), Restart(2), Pass(11_000)];
    lost.extend([Crash(0), Take(1), Begin(1)]);
    assert!(play(&lost).is_ok());
    assert!(mutants::with("begin_reads_recovered_calls", || play(&lost)).is_err());
}

#[test]
fn a_journal_drops_confirmed_calls_after_its_retention() {
    let mut journal = Journal::<&str>::new(100, 10);
    let call = |turn: &str| JournalCall {
        delivery: delivered(turn, "1-0"),
        digest: "d".into(),
        position: 0,
        by: "n".into(),
        once: turn != "d",
        until_ms: 1_000,
    };
    let result = |text: &str| RenderedCall { result: text.to_owned().into(), ..RenderedCall::default() };
    journal.reported(1);
    for turn in ["a", "b", "c"] {
        assert!(journal.begin(call(turn), 1));
    }
    journal.end(&delivered("a", "1-0"), 0, result("1234567"));
    journal.change("fact", 0, 10);
    journal.end(&delivered("b", "1-0"), 0, result("1234567"));
    journal.undo(&delivered("c", "1-0"), 0);
    let outcomes = |journal: &mut Journal<&str>| -> Vec<String> {
        let word = |report: Report<&str>| match report {
            Report::Call(ReportBegunCall { name, outcome: JournaledOutcome::Begun, .. }) => {
                format!("{} begun", name.turn)
            }
            Report::Call(ReportBegunCall { name, outcome: JournaledOutcome::Ended(_), .. }) => {
                format!("{} ended", name.turn)
            }
            Report::Call(ReportBegunCall { name, outcome: JournaledOutcome::Undone, .. }) => {
                format!("{} undone", name.turn)
            }
            Report::Change(change) => change.to_owned(),
        };
        journal.reports(500).map(word).collect()
    };
    assert_eq!(outcomes(&mut journal), ["a begun", "b ended", "c undone", "fact"]);
    journal.confirm(&delivered("a", "1-0"), usize::MAX, 20);
    journal.forget(110);
    assert_eq!(outcomes(&mut journal), ["a begun", "b ended", "c undone", "fact"]);
    journal.forget(121);
    assert_eq!(outcomes(&mut journal), ["b ended", "c undone"]);
    let Some(Report::Call(assert)) = journal.reports(500).next() else { panic!("no report") };
    assert_eq!(assert.keep_ms, 500);
    let undone = journal.undo(&delivered("c", "1-0"), 0).unwrap();
    assert_eq!((undone.outcome, undone.name), (JournaledOutcome::Undone, named("c")), "it was reported as begun");
}

fn delivered(turn: &str, entry: &str) -> Delivery {
    Delivery { name: named(turn), entry: EntryId::new(entry) }
}

#[test]
fn a_redelivery_does_not_change_the_calls_of_an_earlier_delivery() {
    let mut journal: Journal<()> = Journal::new(1_000, 1_000);
    let (first, second) = (delivered("a", "1-0"), delivered("a", "2-0"));
    let call = |delivery: &Delivery| JournalCall {
        delivery: delivery.clone(),
        digest: "d".into(),
        position: 0,
        by: delivery.entry.to_string(),
        once: true,
        until_ms: 9_000,
    };
    let outcomes = |journal: &mut Journal<()>| -> Vec<JournaledOutcome> {
        let outcome = |report| match report {
            Report::Call(assert) => assert.outcome,
            Report::Change(()) => panic!("no change was recorded"),
        };
        journal.reports(10).map(outcome).collect()
    };
    journal.reported(1);
    assert!(journal.begin(call(&first), 1));
    assert!(journal.undo(&second, 0).is_none(), "the second delivery has begun nothing");
    journal.confirm(&second, usize::MAX, 10);
    journal.forget(5_000);
    assert_eq!(outcomes(&mut journal), [JournaledOutcome::Begun], "the call may still run");
    journal.reported(1);
    assert!(journal.begin(call(&second), 1));
    journal.end(&first, 0, RenderedCall::default());
    assert_eq!(outcomes(&mut journal), [JournaledOutcome::Ended(Box::default()), JournaledOutcome::Begun]);
    assert_eq!(journal.undo(&second, 0).unwrap().by, "2-0");
    assert_eq!(outcomes(&mut journal), [JournaledOutcome::Ended(Box::default()), JournaledOutcome::Undone]);
}

#[test]
fn no_call_begins_while_a_report_is_due_or_in_progress() {
    let mut journal: Journal<()> = Journal::new(1_000, 1_000);
    let call = |turn: &str| JournalCall {
        delivery: delivered(turn, "1-0"),
        digest: "d".to_owned(),
        position: 0,
        by: "n1".to_owned(),
        once: false,
        until_ms: 9,
    };
    assert!(!journal.begin(call("a"), 0), "nothing was reported yet");
    journal.reported(1);
    assert!(journal.begin(call("b"), 1));
    assert_eq!(journal.reports(1).count(), 1);
    assert!(!journal.begin(call("c"), 1) && !journal.begin(call("c"), 0), "the report would lack this call");
    journal.reported(2);
    assert!(!journal.begin(call("d"), 1), "its slice was taken before the restart");
    assert!(journal.begin(call("e"), 2));
    mutants::with("no_call_begins_during_a_report", || assert!(journal.begin(call("f"), 1)));
}
