//! Finds the audit entries of a turn.

use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_store::{AuditSearch, AuditSearchResult, Store, TurnName, entry_ms};

use super::{Explain, ExplainedState, Explanation};
use crate::failure::Failure;

/// In ms, added at both ends of the search. The record contains shard time, but entry IDs contain Redis' time.
const SLACK_MS: i64 = 1_000;
/// Bounds the search if no time is given.
const READ_MAX: usize = 100_000;
/// Bounds the search if the user gives a time.
const READ_MAX_ASKED: usize = 1_000_000;
/// In ms. A turn without a record is assumed to end this soon after its start: the default deadline.
const LIFE_MS: i64 = 86_400_000;
/// The search starts at the times of admissions and failed attempts, up to this many.
const LIKELY_MAX: usize = 32;

#[derive(Debug, Default, Serialize)]
pub(super) struct Audit {
    pub(super) entries: Vec<Box<RawValue>>,
    pub(super) complete: bool,
    pub(super) read: usize,
}

impl Audit {
    fn of(found: AuditSearchResult) -> Self {
        let entries = found.entries.into_iter().filter_map(|entry| RawValue::from_string(entry).ok()).collect();
        Self { entries, complete: found.complete, read: found.read }
    }
}

/// If a call is requested, finds only the entries of this call.
pub(super) async fn of_explanation(
    store: &Store,
    name: &TurnName,
    explanation: &Explanation,
    args: &Explain,
) -> Result<Audit, Failure> {
    if matches!(explanation.state, ExplainedState::Inbound | ExplainedState::Rejected) {
        return Ok(Audit { complete: true, ..Audit::default() });
    }
    let Some(accepted) = explanation.accepted_ms else {
        return unrecorded(store, name, explanation.now_ms, args).await;
    };
    // IDs of log entries contain times of Redis' clock. Shard time may be ahead of that clock.
    let ahead = store.seam().shard_stats().await?.offset_ms;
    let from_ms = args.since.map_or(accepted - ahead - SLACK_MS, |since| since.at(explanation.now_ms));
    let until_ms = args
        .until
        .map_or(explanation.ended_ms.unwrap_or(explanation.now_ms) + SLACK_MS, |until| until.at(explanation.now_ms));
    let tries = explanation.tries.iter().map(|failed| failed.at_ms);
    let mut likely_ms: Vec<i64> =
        explanation.admissions.iter().map(|a| a.at_ms).chain(tries).map(|at| at - ahead - SLACK_MS).collect();
    likely_ms.push(from_ms);
    likely_ms.sort_unstable();
    likely_ms.truncate(LIKELY_MAX);
    let expected =
        explanation.position.map_or(explanation.calls_done, |position| usize::from(position < explanation.calls_done));
    let search = AuditSearch {
        from_ms,
        until_ms,
        likely_ms,
        from_the_end: explanation.ended_ms.is_some(),
        position: explanation.position,
        expected: Some(expected),
        read_max: read_max(args),
    };
    Ok(Audit::of(store.audit_of(name, &search).await?))
}

/// A generated ID contains a time. For any other ID, the user must give a time.
pub(super) async fn unrecorded(store: &Store, name: &TurnName, now_ms: i64, args: &Explain) -> Result<Audit, Failure> {
    let minted = minted_ms(name.turn.as_str());
    let Some(from_ms) = args.since.map(|since| since.at(now_ms)).or(minted) else { return Ok(Audit::default()) };
    let search = AuditSearch {
        from_ms,
        until_ms: args.until.map_or(now_ms.min(from_ms.saturating_add(LIFE_MS)), |until| until.at(now_ms)),
        likely_ms: vec![from_ms],
        from_the_end: false,
        position: None,
        expected: None,
        read_max: read_max(args),
    };
    Ok(Audit::of(store.audit_of(name, &search).await?))
}

const fn read_max(args: &Explain) -> usize {
    if args.since.is_some() { READ_MAX_ASKED } else { READ_MAX }
}

/// `None` for an ID that the submitter chose.
pub(super) fn minted_ms(id: &str) -> Option<i64> {
    id.strip_prefix(['t', 'k']).and_then(entry_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_generated_id_contains_its_time_and_other_ids_do_not() {
        assert_eq!(minted_ms("t1700000000000-3"), Some(1_700_000_000_000));
        assert_eq!(minted_ms("k1700000000000-0"), Some(1_700_000_000_000));
        assert_eq!([minted_ms("order-17"), minted_ms("tango-1"), minted_ms("1700000000000-0")], [None; 3]);
    }
}
