//! Searches the audit log for the entries of one turn. An index by turn would cost a write for every call, so the
//! search reads a few likely time ranges.

mod dead_letters;
pub(crate) mod seals;

use std::collections::BTreeMap;
use std::ops::Bound;

use tickfleet_core::{EntryId, keys};
use tickfleet_protocol::audit::TurnEntries;

use super::{entry_number, field};
use crate::seam::inspect::Range;
use crate::{Store, StoreError, TurnName};

const PAGE: usize = 1_000;

#[derive(Debug, Clone)]
pub struct AuditSearch {
    pub from_ms: i64,
    pub until_ms: i64,
    /// The search reads forward from each of these times.
    pub likely_ms: Vec<i64>,
    /// True if the search first goes backward from the end. The last entry of a turn is committed with the turn's end.
    pub from_the_end: bool,
    pub position: Option<usize>,
    pub expected: Option<usize>,
    pub read_max: usize,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditSearchResult {
    pub entries: Vec<String>,
    pub complete: bool,
    pub read: usize,
}

struct Search<'a> {
    store: &'a Store,
    wanted_entries: TurnEntries,
    expected: usize,
    found: BTreeMap<u128, String>,
    read: usize,
}

#[derive(PartialEq, Eq)]
enum SearchEnd {
    Complete,
    /// The search read the maximum number of entries before it was complete.
    ReadMax,
}

impl Store {
    pub async fn audit_of(&self, name: &TurnName, wanted: &AuditSearch) -> Result<AuditSearchResult, StoreError> {
        let wanted_entries = TurnEntries::new(&name.tenant, &name.turn, wanted.position);
        let expected = wanted.expected.unwrap_or(usize::MAX);
        let mut search = Search { store: self, wanted_entries, expected, found: BTreeMap::new(), read: 0 };
        let complete = search.run(wanted).await?;
        Ok(AuditSearchResult { complete, read: search.read, entries: search.found.into_values().collect() })
    }
}

impl Search<'_> {
    /// True if all entries were found, or if the whole time range was searched.
    async fn run(&mut self, wanted: &AuditSearch) -> Result<bool, StoreError> {
        let begin = from_ms(wanted.from_ms);
        let end = upto_ms(wanted.until_ms);
        let likely: Vec<i64> = wanted.likely_ms.iter().map(|at| *at.max(&wanted.from_ms)).collect();
        let ways = likely.len() + usize::from(wanted.from_the_end);
        let share = (wanted.read_max / ways.max(1)).max(PAGE);
        if wanted.from_the_end && self.backwards(&begin, end.clone(), share).await? == SearchEnd::Complete {
            return Ok(true);
        }
        // True if the ranges cover the whole time range, and each is read to its end.
        let mut whole = likely.first().is_some_and(|first| *first <= wanted.from_ms.max(0));
        for (at, start) in likely.iter().enumerate() {
            let next = likely.get(at + 1).filter(|next| *next > start).map(|next| upto_ms(*next));
            let next = next.as_ref().unwrap_or(&end);
            whole &= self.forwards(from_ms(*start), next, share).await? == SearchEnd::Complete;
            if self.is_done() {
                return Ok(true);
            }
        }
        Ok(whole)
    }

    fn is_done(&self) -> bool {
        self.found.len() >= self.expected
    }

    async fn backwards(
        &mut self,
        from: &Bound<EntryId>,
        mut upto: Bound<EntryId>,
        share: usize,
    ) -> Result<SearchEnd, StoreError> {
        let end = self.read + share;
        while self.read < end {
            match self.page(Range { from: from.clone(), upto, ..Range::newest(PAGE) }).await? {
                Some(last) if !self.is_done() => upto = Bound::Excluded(last),
                _ => return Ok(SearchEnd::Complete),
            }
        }
        Ok(SearchEnd::ReadMax)
    }

    async fn forwards(
        &mut self,
        mut from: Bound<EntryId>,
        upto: &Bound<EntryId>,
        share: usize,
    ) -> Result<SearchEnd, StoreError> {
        let end = self.read + share;
        while self.read < end {
            match self.page(Range { from, upto: upto.clone(), ..Range::oldest(PAGE) }).await? {
                Some(last) if !self.is_done() => from = Bound::Excluded(last),
                _ => return Ok(SearchEnd::Complete),
            }
        }
        Ok(SearchEnd::ReadMax)
    }

    async fn page(&mut self, range: Range) -> Result<Option<EntryId>, StoreError> {
        let page = self.store.seam().entries(&keys::audit(), &range).await?;
        self.read += page.len();
        let last = page.last().map(|(id, _)| id.clone()).filter(|_| page.len() == PAGE);
        for (id, fields) in page {
            let text = field(&fields, "audit");
            if self.wanted_entries.contain(&text) {
                self.found.insert(entry_number(id.as_str()).unwrap_or_default(), text);
            }
        }
        Ok(last)
    }
}

fn from_ms(at_ms: i64) -> Bound<EntryId> {
    Bound::Included(EntryId::new(format!("{}-0", at_ms.max(0))))
}

fn upto_ms(at_ms: i64) -> Bound<EntryId> {
    Bound::Included(EntryId::new(format!("{}-{}", at_ms.max(0), u64::MAX)))
}

/// Each text is an ID, a time in ms, `-` or `+`. `(` before an ID excludes that entry.
fn range_of(from: &str, until: &str, count: usize) -> Range {
    let bound = |text: &str, sequence: u64| {
        let id =
            |text: &str| EntryId::new(if text.contains('-') { text.to_owned() } else { format!("{text}-{sequence}") });
        match text {
            "-" | "+" => Bound::Unbounded,
            text => match text.strip_prefix('(') {
                Some(text) => Bound::Excluded(id(text)),
                None => Bound::Included(id(text)),
            },
        }
    };
    Range { from: bound(from, 0), upto: bound(until, u64::MAX), ..Range::oldest(count) }
}
