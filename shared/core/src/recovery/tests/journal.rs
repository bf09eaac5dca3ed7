//! The journal of the calls that a worker began, which it reports after a restart of the store.

use super::*;
use crate::recovery::journal::{Journal, JournalCall, Report};
use crate::transaction::EntryId;
use crate::turn::slice::Delivery;

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
