//! Notes in audit entries about the admission of calls. The setting `audit.admissions` enables the notes.
//!
//! The field `admitted` of an entry has the notes, separated by `;`. `tickfleet_model::admission` parses the field.
//!
//! | Note | Holds |
//! |---|---|
//! | `A` | time, admitted calls, calls in the tick, maximum, end of the tick, calls of the day, maximum |
//! | `T` | calls of the task, maximum |
//! | `D` | configured limit: counter, amount, used, maximum, end and start of the window |
//! | `D0` | no configured limit with a window was debited |
//! | `D` alone | further configured limits are left out |
//! | `L`, `W` | earlier wait: time, limit (`L`) or kind of limit (`W`), earliest end of the wait (0: unknown) |

use bytes::Bytes;
use tickfleet_protocol::audit::with_meta;

use crate::keys::limits;
use crate::record::Debited;
use crate::transaction::CounterKey;
use crate::turn::{Note, Turn};

/// Small, because every call of a slice repeats these notes.
const DEBITS_BYTES_MAX: usize = 1_000;
const WAITS_MAX: usize = 4;

/// Returns the turn's last admission as text for the audit log. `None` if the turn was never admitted, if its list of
/// notes is full, or if the debited counters are unknown. `debited` has the counters that are not in the turn's record
/// yet.
#[must_use]
pub fn admitted(turn: &Turn, debited: &[Debited]) -> Option<String> {
    if turn.notes.len() >= Turn::NOTES_MAX {
        return None;
    }
    let at = turn.notes.iter().rposition(|note| matches!(note, Note::Admitted { .. }))?;
    let Some(Note::Admitted { at_ms, calls, limits, amounts, debited: known }) = turn.notes.get(at) else {
        return None;
    };
    let debited = if known.is_empty() { debited } else { known };
    let of = |name: &str| limits.iter().zip(debited).find(|((counter, _), _)| &*counter.limit == name);
    let ((_, tick_max), tick) = of(limits::TICK)?;
    let ((_, day_max), day) = of(limits::DAY)?;
    // A debit opens the counter's window at the commit, which may be later than the decision. So use the latest of
    // these times.
    let at_ms = debited.iter().map(|one| one.began_ms).fold(*at_ms, i64::max);
    let mut text = format!("A{at_ms},{calls},{},{tick_max},{},{},{day_max}", tick.used, tick.ends_ms, day.used);
    if let Some(((_, max), task)) = of(limits::TASK) {
        text.push_str(&format!(";T{},{max}", task.used));
    }
    text.push_str(&debits(limits, amounts, debited));
    let before = turn.notes.get(..at).unwrap_or_default();
    let since = before.iter().rposition(|note| matches!(note, Note::Admitted { .. })).map_or(0, |at| at + 1);
    let waits = before.get(since..).unwrap_or_default().iter().filter_map(wait);
    waits.take(WAITS_MAX).for_each(|wait| text.push_str(&wait));
    Some(text)
}

fn debits(limits: &[(CounterKey, u64)], amounts: &[u64], debited: &[Debited]) -> String {
    let mut text = String::new();
    for (((counter, max), amount), debited) in limits.iter().zip(amounts).zip(debited) {
        if crate::keys::limits::is_built_in(&counter.limit) || debited.ends_ms == 0 || *amount == 0 {
            continue;
        }
        let Debited { used, ends_ms, began_ms } = *debited;
        let one = format!(";D{}@{},{amount},{used},{max},{ends_ms},{began_ms}", counter.limit, counter.counter);
        if text.len() + one.len() > DEBITS_BYTES_MAX {
            text.push_str(";D");
            return text;
        }
        text.push_str(&one);
    }
    if text.is_empty() { ";D0".to_owned() } else { text }
}

/// Returns `None` for other notes, and for a wait without a limit. Such a wait begins when a slice ends before the
/// admission of its next calls (see [`crate::turn::throttle::undecided_queue`]).
fn wait(note: &Note) -> Option<String> {
    let Note::Throttled { at_ms, counter, until_ms } = note else { return None };
    let is_known = until_ms > at_ms;
    if &*counter.limit == limits::TICK && !is_known {
        return None;
    }
    let until_ms = if is_known { *until_ms } else { 0 };
    Some(match &*counter.limit {
        limits::TICK => format!(";W{at_ms},t,{until_ms}"),
        limits::DAY | limits::TENANT_DAY => format!(";W{at_ms},d,{until_ms}"),
        limits::IN_FLIGHT => format!(";W{at_ms},r,{until_ms}"),
        limit => format!(";L{at_ms},{limit},{until_ms}"),
    })
}

/// Adds the end of the call, and the permits that its slice returned or took again since the admission.
#[must_use]
pub fn with_end(entry: &Bytes, turn: &Turn, ended_ms: i64) -> Bytes {
    let admitted = turn.notes.iter().rposition(|note| matches!(note, Note::Admitted { .. })).unwrap_or(0);
    let permit = |note: &Note| match note {
        Note::Permits { at_ms, calls, taken } => Some(format!("{}{at_ms},{calls}", if *taken { 'H' } else { 'G' })),
        _ => None,
    };
    let permits: Vec<String> = turn.notes.iter().skip(admitted).filter_map(permit).collect();
    let mut members = vec![("ended_ms", ended_ms.to_string())];
    if !permits.is_empty() {
        members.push(("places", format!("\"{}\"", permits.join(";"))));
    }
    with_meta(entry, &members).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tickfleet_model::{AdmissionNote, DebitNotes, PermitsNote, WaitNote};

    use crate::call::testing::turn;

    #[test]
    fn an_entry_reports_the_last_admission_and_the_waits_before_it() {
        let limits = [
            (limits::TASK, "acme:job", 50),
            (limits::DAY, "acme:kelly", 100),
            (limits::TICK, "acme:kelly", 10),
            ("mails", "acme", 5),
        ];
        let limits: Vec<_> =
            limits.iter().map(|(limit, counter, max)| (CounterKey::new(limit, counter), *max)).collect();
        let tick = CounterKey::new(limits::TICK, "acme:kelly");
        let notes = vec![
            Note::Admitted { at_ms: 500, calls: 1, limits: limits.clone(), amounts: Vec::new(), debited: Vec::new() },
            Note::Throttled { at_ms: 600, counter: tick.clone(), until_ms: 600 },
            Note::Throttled { at_ms: 700, counter: CounterKey::new("mails", "acme"), until_ms: 9_000 },
            Note::Throttled { at_ms: 900, counter: tick, until_ms: 1_000 },
            Note::Throttled { at_ms: 950, counter: CounterKey::new("at_once", "~"), until_ms: 950 },
            Note::Admitted { at_ms: 1_000, calls: 2, limits, amounts: vec![2, 2, 2, 2], debited: Vec::new() },
            Note::Permits { at_ms: 1_100, calls: 1, taken: false },
        ];
        let mut turn = Turn { notes, ..turn() };
        let debited = |used, ends_ms, began_ms| Debited { used, ends_ms, began_ms };
        let debited = [debited(7, 0, 0), debited(12, 86_400_000, 0), debited(2, 5_000, 0), debited(4, 9_000, 3)];
        let text = admitted(&turn, &debited).unwrap();
        assert_eq!(
            text,
            "A1000,2,2,10,5000,12,100;T7,50;Dmails@acme,2,4,5,9000,3;L700,mails,9000;W900,t,1000;L950,at_once,0"
        );
        assert_eq!(AdmissionNote::read(&text).unwrap().tick_used, 2);
        assert_eq!(AdmissionNote::task(&text), Some((7, 50)));
        assert_eq!(DebitNotes::read(&text).debits.len(), 1);
        assert_eq!(WaitNote::read_all(&text).len(), 3);
        let entry = with_end(&Bytes::from(r#"{"meta":{"outcome":"ok"}}"#), &turn, 2_000);
        assert_eq!(entry, r#"{"meta":{"outcome":"ok","ended_ms":2000,"places":"G1100,1"}}"#);
        assert_eq!(PermitsNote::read_all("G1100,1").len(), 1);
        let wait = turn.notes.last().unwrap().clone();
        turn.notes.resize(Turn::NOTES_MAX, wait);
        assert_eq!(admitted(&turn, &debited), None, "a later admission may not be in the full list");
    }
}
