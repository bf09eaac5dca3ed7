//! Reads the audit log and its seals in batches, for continuous exports. A [`LogPosition`] counts the entries that were
//! ever added, so that trimmed entries show as a gap.

use std::fmt;
use std::str::FromStr;

use tickfleet_proof::lines::{self, LostEntries};
use tickfleet_proof::seal::{EntryId, SealBody};
use tickfleet_store::{LogEntry, LogPage, LogSeal, Store, StoreError};

/// Maximum entries in a batch, and maximum seals in a batch.
const PAGE: usize = 500;

/// A position in the log of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPosition {
    begun: bool,
    entry: EntryId,
    /// Entries ever added to the log up to this position, including entries that were never read.
    counted: u64,
    /// How often the log was recreated or lost its last writes.
    recreated: u64,
    /// Entries that were trimmed or lost before they were read.
    lost: u64,
    seal: EntryId,
}

impl LogPosition {
    /// Updates the position with a line that was written to an export.
    pub fn take(&mut self, line: &lines::Line<'_>) {
        match line {
            lines::Line::Entry(entry) => {
                self.counted += 1;
                self.entry = entry.id.parse().unwrap_or(self.entry);
            }
            lines::Line::Seal(seal) => {
                let id = seal.id.as_deref().and_then(|id| id.parse().ok());
                self.seal = id.unwrap_or(self.seal);
            }
            lines::Line::Lost(lost) => self.take_lost(lost),
            lines::Line::Header(_) | lines::Line::End(_) => {}
        }
    }

    fn take_lost(&mut self, lost: &LostEntries) {
        self.lost += lost.entries;
        self.counted = lost.counted;
        self.recreated += u64::from(lost.recreated);
        // In a recreated log, the next entry may have a lower ID than the last one.
        self.entry = lost.after.parse().unwrap_or(self.entry);
    }
}

/// The text is empty before the first read.
impl fmt::Display for LogPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.begun {
            return Ok(());
        }
        write!(f, "{} {} {} {} {}", self.entry, self.counted, self.recreated, self.lost, self.seal)
    }
}

/// The error for a text that is not a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a position in the audit log")]
pub struct InvalidPosition(String);

impl FromStr for LogPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let parts: Vec<&str> = text.split(' ').collect();
        let read = || {
            let [entry, counted, recreated, lost, seal] = parts[..] else { return None };
            Some(Self {
                begun: true,
                entry: entry.parse().ok()?,
                counted: counted.parse().ok()?,
                recreated: recreated.parse().ok()?,
                lost: lost.parse().ok()?,
                seal: seal.parse().ok()?,
            })
        };
        read().ok_or_else(|| InvalidPosition(text.to_owned()))
    }
}

/// An item of a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogItem {
    /// An entry.
    Entry(LogEntry),
    /// A seal. The seal's entries come before it.
    Seal(LogSeal),
    /// Entries that were trimmed or lost before they were read.
    Lost(LostEntries),
}

impl LogItem {
    /// Formats the item as a line of an export.
    #[must_use]
    pub fn line(&self, shard: u32) -> String {
        match self {
            Self::Entry(entry) => lines::entry(shard, &entry.id, &entry.admitted, &entry.text),
            Self::Seal(seal) => lines::followed_seal(shard, &seal.id, &seal.body, &seal.signature),
            Self::Lost(lost) => lines::lost(lost),
        }
    }
}

/// The next items of a shard's log, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogBatch {
    /// The shard.
    pub shard: u32,
    /// The items in order. Empty if the batch only sets the first position in an empty log.
    pub items: Vec<LogItem>,
    /// The position after these items.
    pub after: LogPosition,
    /// True if there may be more to read.
    pub more: bool,
}

impl LogBatch {
    /// Returns the number of entries in the batch.
    #[must_use]
    pub fn entries(&self) -> u64 {
        self.items.iter().filter(|item| matches!(item, LogItem::Entry(_))).count() as u64
    }

    /// Returns the entries that were trimmed or lost before they were read, if any.
    #[must_use]
    pub fn lost(&self) -> Option<&LostEntries> {
        self.items.iter().find_map(|item| if let LogItem::Lost(lost) = item { Some(lost) } else { None })
    }

    /// Returns the time of the batch's first entry (ms by Redis' clock).
    #[must_use]
    pub fn first_ms(&self) -> Option<i64> {
        let first =
            self.items.iter().find_map(|item| if let LogItem::Entry(entry) = item { Some(entry) } else { None })?;
        i64::try_from(first.id.parse::<EntryId>().ok()?.ms).ok()
    }
}

/// Returns the position before the oldest entry of a shard's log.
pub async fn begin(store: &Store) -> Result<LogPosition, StoreError> {
    let page = store.log_page("0-0", 1).await?;
    let counted = page.added.saturating_sub(page.length);
    Ok(LogPosition { begun: true, counted, ..LogPosition::default() })
}

/// Reads the next batch of a shard. Returns `None` if there is nothing new.
pub async fn next(store: &Store, position: &LogPosition) -> Result<Option<LogBatch>, StoreError> {
    // The seals come first, because the entries of a seal are always written before the seal.
    let seals = store.seals(&position.seal.to_string(), PAGE).await?;
    let page = store.log_page(&position.entry.to_string(), PAGE).await?;
    Ok(batch(store.shard(), position, page, seals))
}

fn batch(shard: u32, position: &LogPosition, page: LogPage, seals: Vec<LogSeal>) -> Option<LogBatch> {
    // Entries that were trimmed before the first read do not count as missing.
    let begun = if position.begun { position.counted } else { page.added.saturating_sub(page.length) };
    let mut after = LogPosition { begun: true, counted: begun, ..*position };
    let mut items = Vec::new();
    if let Some(lost) = lost(shard, &after, &page) {
        after.take_lost(&lost);
        items.push(LogItem::Lost(lost));
    }
    let full = page.entries.len() == PAGE;
    let more_seals = seals.len() == PAGE;
    for entry in page.entries {
        after.counted += 1;
        // Redis returns only valid IDs, so the fallback is never used.
        after.entry = entry.id.parse().unwrap_or(after.entry);
        items.push(LogItem::Entry(entry));
    }
    for seal in seals {
        // If the page is full, some entries of this seal may still follow.
        let ended =
            serde_json::from_str::<SealBody>(&seal.body).ok().and_then(|body| body.entry_ids().ok()?.last().copied());
        if full && ended.is_some_and(|ended| ended > after.entry) {
            break;
        }
        after.seal = seal.id.parse().unwrap_or(after.seal);
        items.push(LogItem::Seal(seal));
    }
    (after != *position).then_some(LogBatch { shard, items, after, more: full || more_seals })
}

/// A loss is detected only at the end of the log, or if all entries before the position have been trimmed.
fn lost(shard: u32, position: &LogPosition, page: &LogPage) -> Option<LostEntries> {
    let first = page.first.as_deref().and_then(|id| id.parse::<EntryId>().ok());
    let read = page.entries.len() as u64;
    let all_read_is_gone = first.is_none_or(|first| first > position.entry);
    let recreated = page.added < position.counted;
    let trimmed = page.added.saturating_sub(page.length);
    // A log that was recreated after the clock stepped back must be exported, even with repeated entry IDs.
    let is_new_log = recreated && (all_read_is_gone || read == 0 && trimmed == 0);
    let mut after = position.entry;
    let mut counted = position.counted;
    let entries = match recreated {
        false if page.entries.len() < PAGE => page.added.saturating_sub(counted + read),
        false if all_read_is_gone => trimmed.saturating_sub(counted),
        false => 0,
        true if is_new_log => {
            counted = 0;
            trimmed
        }
        // Redis has lost its last writes, but still has earlier entries. The number of lost entries is unknown.
        true => {
            counted = page.added.saturating_sub(read);
            0
        }
    };
    if is_new_log && read == 0 {
        after = EntryId::default();
    }
    let before = page.entries.first().map(|entry| entry.id.clone());
    let lost = LostEntries { shard, entries, counted: counted + entries, recreated, after: after.to_string(), before };
    (entries > 0 || recreated).then_some(lost)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn page(ids: &[u64], added: u64, length: u64, first: &str) -> LogPage {
        let entry = |id: &u64| LogEntry { id: format!("{id}-0"), text: "{}".into(), admitted: String::new() };
        let first = (!first.is_empty()).then(|| first.to_owned());
        LogPage { entries: ids.iter().map(entry).collect(), added, length, first }
    }

    fn at(entry: u64, counted: u64) -> LogPosition {
        let entry = EntryId { ms: entry, seq: 0 };
        LogPosition { begun: true, entry, counted, ..LogPosition::default() }
    }

    #[test]
    fn a_log_position_is_restored_from_text_and_from_exported_lines() {
        let position: LogPosition = "5-1 7 1 3 9-0".parse().unwrap();
        assert_eq!(position.to_string(), "5-1 7 1 3 9-0");
        assert_eq!(("".parse(), LogPosition::default().to_string()), (Ok(LogPosition::default()), String::new()));
        for bad in ["5-1", "a b c d e", "5-1 7 1 3 9-0 x"] {
            bad.parse::<LogPosition>().unwrap_err();
        }
        let found = batch(0, &at(4, 10), page(&[7, 8], 14, 2, "7-0"), Vec::new()).unwrap();
        let mut read = at(4, 10);
        for item in &found.items {
            read.take(&lines::Line::read(&item.line(0)).unwrap());
        }
        assert_eq!(read, found.after);
    }

    #[test]
    fn entries_trimmed_before_they_were_read_are_reported_as_lost() {
        let found = batch(3, &LogPosition::default(), page(&[5, 6], 12, 2, "5-0"), Vec::new()).unwrap();
        assert_eq!((found.lost(), found.after.counted, found.entries()), (None, 12, 2));
        let found = batch(3, &at(4, 10), page(&[7, 8], 14, 2, "7-0"), Vec::new()).unwrap();
        let after = "4-0".to_owned();
        let before = Some("7-0".to_owned());
        let lost = LostEntries { shard: 3, entries: 2, counted: 12, recreated: false, after, before };
        assert_eq!((found.lost(), found.after.counted), (Some(&lost), 14));
        let found = batch(3, &at(4, 10), page(&[], 13, 0, ""), Vec::new()).unwrap();
        assert_eq!((found.lost().map(|lost| lost.entries), found.after.counted), (Some(3), 13));
        assert_eq!(batch(3, &found.after, page(&[], 13, 0, ""), Vec::new()), None);
        // The page is full, and entries before it were trimmed.
        let ids: Vec<u64> = (20..20 + PAGE as u64).collect();
        let found = batch(3, &at(4, 10), page(&ids, 1_000, 600, "20-0"), Vec::new()).unwrap();
        assert_eq!((found.lost().map(|lost| lost.entries), found.after.counted), (Some(390), 900));
        // The page is full, and the log still has entries that were read before. The loss is not known yet.
        let found = batch(3, &at(4, 10), page(&ids, 1_000, 995, "3-0"), Vec::new()).unwrap();
        assert_eq!((found.lost(), found.after.counted), (None, 510));
    }

    #[test]
    fn a_recreated_log_is_reported_once_and_read_from_its_beginning() {
        let found = batch(0, &at(9, 10), page(&[11], 1, 1, "11-0"), Vec::new()).unwrap();
        assert!(found.lost().unwrap().recreated);
        assert_eq!((found.after.counted, found.after.recreated, found.after.lost), (1, 1, 0));
        // The clock has stepped back, so the recreated log has lower IDs.
        let found = batch(0, &at(9, 10), page(&[], 1, 1, "2-0"), Vec::new()).unwrap();
        assert_eq!((found.after.entry, found.after.counted), (EntryId::default(), 0));
        let found = batch(0, &found.after, page(&[2], 1, 1, "2-0"), Vec::new()).unwrap();
        assert_eq!((found.lost(), found.after.counted), (None, 1));
        assert_eq!(batch(0, &found.after, page(&[], 1, 1, "2-0"), Vec::new()), None);
    }

    #[test]
    fn a_redis_rollback_causes_no_repeated_export_and_no_lost_entries() {
        let found = batch(0, &at(9, 100), page(&[], 95, 50, "1-0"), Vec::new()).unwrap();
        assert_eq!(found.lost().map(|lost| (lost.entries, lost.recreated)), Some((0, true)));
        assert_eq!((found.after.entry.ms, found.after.counted), (9, 95));
        let found = batch(0, &found.after, page(&[12], 96, 51, "1-0"), Vec::new()).unwrap();
        assert_eq!((found.lost(), found.after.counted), (None, 96));
    }
}
