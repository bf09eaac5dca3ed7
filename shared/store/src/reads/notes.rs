//! A turn's history, as shown by `explain`.

pub use tickfleet_model::AdmissionNote;

use tickfleet_core::keys::limits;
use tickfleet_core::turn::Note;

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct FailedAttempt {
    /// In shard time.
    pub at_ms: i64,
    pub position: usize,
    /// From 1. 0 for a query about an earlier attempt with an unknown outcome.
    pub attempt: u32,
    pub delay_ms: i64,
    pub cause: String,
}

#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct BreakerWait {
    /// When the first wait began, in shard time.
    pub at_ms: i64,
    pub position: usize,
    pub times: u32,
    /// When the last wait ends, in shard time.
    pub until_ms: i64,
    pub why: String,
}

/// A cap that did not apply is 0.
#[must_use]
pub fn admissions(notes: &[Note]) -> Vec<AdmissionNote> {
    notes.iter().filter_map(admission).collect()
}

fn admission(note: &Note) -> Option<AdmissionNote> {
    let Note::Admitted { at_ms, calls, limits: applied, debited, .. } = note else { return None };
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let of = |limit: &str| {
        let at = applied.iter().position(|(counter, _)| *counter.limit == *limit);
        let cap = at.and_then(|at| applied.get(at)).map_or(0, |(_, max)| number(*max));
        let debited = at.and_then(|at| debited.get(at));
        (cap, debited.map_or(0, |debited| number(debited.used)), debited.map_or(0, |debited| debited.ends_ms))
    };
    let ((tick_cap, tick_used, tick_ends_ms), (day_cap, day_used, _)) = (of(limits::TICK), of(limits::DAY));
    let calls = number(*calls as u64);
    Some(AdmissionNote { at_ms: *at_ms, calls, tick_used, tick_cap, tick_ends_ms, day_used, day_cap })
}

#[must_use]
pub fn failed_attempts(notes: &[Note]) -> Vec<FailedAttempt> {
    let failed = |note: &Note| match note {
        Note::Failed { at_ms, position, attempt, delay_ms, cause } => Some(FailedAttempt {
            at_ms: *at_ms,
            position: *position,
            attempt: *attempt,
            delay_ms: *delay_ms,
            cause: cause.clone(),
        }),
        _ => None,
    };
    notes.iter().filter_map(failed).collect()
}

#[must_use]
pub fn breaker_waits(notes: &[Note]) -> Vec<BreakerWait> {
    notes.iter().filter_map(breaker_wait).collect()
}

#[must_use]
pub fn current_breaker_wait(notes: &[Note]) -> Option<BreakerWait> {
    notes.last().and_then(breaker_wait)
}

fn breaker_wait(note: &Note) -> Option<BreakerWait> {
    let Note::ToolUnavailable { at_ms, position, times, until_ms, cause } = note else { return None };
    Some(BreakerWait { at_ms: *at_ms, position: *position, times: *times, until_ms: *until_ms, why: cause.clone() })
}

#[cfg(test)]
mod tests {
    use tickfleet_core::CounterKey;
    use tickfleet_core::record::Debited;

    use super::*;

    #[test]
    fn an_admission_note_shows_the_agents_tick_and_day_caps() {
        let key = |limit: &str| CounterKey::new(limit, "acme:kelly");
        let limits = vec![(key(limits::TASK), 9), (key(limits::TICK), 10), (key("mails"), 3), (key(limits::DAY), 100)];
        let debited = |used, ends_ms| Debited { used, ends_ms, began_ms: 0 };
        let debited = vec![debited(1, 0), debited(4, 5_000), debited(1, 1), debited(40, 90_000)];
        let note = Note::Admitted { at_ms: 1_000, calls: 2, limits, amounts: Vec::new(), debited };
        let expected = AdmissionNote {
            at_ms: 1_000,
            calls: 2,
            tick_used: 4,
            tick_cap: 10,
            tick_ends_ms: 5_000,
            day_used: 40,
            day_cap: 100,
        };
        let rest = Note::ToolUnavailable { at_ms: 1, position: 0, times: 2, until_ms: 9, cause: "open".into() };
        assert_eq!(admissions(&[rest.clone(), note.clone()]), [expected]);
        assert_eq!(
            (current_breaker_wait(&[rest.clone(), note.clone()]), breaker_waits(&[rest, note]).len()),
            (None, 1)
        );
    }
}
