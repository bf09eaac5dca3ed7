//! The audit entries of a turn: where in the log they can stand, and how far it is searched.

use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_store::{AuditFound, AuditSearch, Store, TurnName, entry_ms};

use super::{Explain, State, Story};
use crate::failure::Failure;

/// Time around what the record says in which entries are looked for, ms: they are numbered by Redis' clock.
const SLACK_MS: i64 = 1_000;
/// Entries that are read unless a time was given.
const READ_MAX: usize = 100_000;
/// Entries that are read where somebody has said when.
const READ_MAX_ASKED: usize = 1_000_000;
/// The time after its begin in which a turn may have ended of which no record is left: the default deadline, ms.
const LIFE_MS: i64 = 86_400_000;
/// Admissions and failed tries after which the log is read on.
const LIKELY_MAX: usize = 32;

/// The audit entries that were found.
#[derive(Debug, Default, Serialize)]
pub(super) struct Audit {
    /// As they stand in the log.
    pub(super) entries: Vec<Box<RawValue>>,
    /// True if there can be no more.
    pub(super) complete: bool,
    /// Entries of the log that were read.
    pub(super) read: usize,
}

impl Audit {
    fn of(found: AuditFound) -> Self {
        let entries = found.entries.into_iter().filter_map(|entry| RawValue::from_string(entry).ok()).collect();
        Self { entries, complete: found.complete, read: found.read }
    }
}

/// The entries of a turn with a record, or of its one call.
pub(super) async fn of_story(store: &Store, name: &TurnName, story: &Story, args: &Explain) -> Result<Audit, Failure> {
    if matches!(story.state, State::Inbound | State::Rejected) {
        return Ok(Audit { complete: true, ..Audit::default() });
    }
    let Some(accepted) = story.accepted_ms else { return unrecorded(store, name, story.now_ms, args).await };
    // The shard's clock may be ahead of the one that numbers the log.
    let ahead = store.clock_offset_ms().await?;
    let from_ms = args.since.map_or(accepted - ahead - SLACK_MS, |since| since.at(story.now_ms));
    let until_ms = args.until.map_or(story.ended_ms.unwrap_or(story.now_ms) + SLACK_MS, |until| until.at(story.now_ms));
    let tries = story.tries.iter().map(|failed| failed.at_ms);
    let mut likely_ms: Vec<i64> =
        story.admissions.iter().map(|a| a.at_ms).chain(tries).map(|at| at - ahead - SLACK_MS).collect();
    likely_ms.push(from_ms);
    likely_ms.sort_unstable();
    likely_ms.truncate(LIKELY_MAX);
    let expected = story.position.map_or(story.calls_done, |position| usize::from(position < story.calls_done));
    let search = AuditSearch {
        from_ms,
        until_ms,
        likely_ms,
        from_the_end: story.ended_ms.is_some(),
        position: story.position,
        expected: Some(expected),
        read_max: read_max(args),
    };
    Ok(Audit::of(store.audit_of(name, &search).await?))
}

/// The entries of a turn of which no record is left: an id that was made for it tells its time, for one that was given
/// somebody has to.
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

/// When the message came in whose entry an id was made from.
pub(super) fn minted_ms(id: &str) -> Option<i64> {
    id.strip_prefix(['t', 'k']).and_then(entry_ms)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_was_made_tells_its_time_and_others_do_not() {
        assert_eq!(minted_ms("t1700000000000-3"), Some(1_700_000_000_000));
        assert_eq!(minted_ms("k1700000000000-0"), Some(1_700_000_000_000));
        assert_eq!([minted_ms("order-17"), minted_ms("tango-1"), minted_ms("1700000000000-0")], [None; 3]);
    }
}
