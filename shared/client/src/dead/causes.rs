//! Groups dead items by cause.

use std::collections::BTreeMap;

use serde::Serialize;
use tickfleet_model::TenantId;

use super::list::read_page;
use super::{DeadEntry, DeadFilter, DeadId, DeadKind};
use crate::{Client, Cursor, VerbError};

const PAGE: usize = 500;
/// A step may read more, because it completes its last page.
const READ_MAX: usize = 20_000;
/// Items with further causes are only counted together.
const CAUSES_MAX: usize = 500;
/// Errors that differ only after these bytes are one cause.
const NORMALIZED_ERROR_BYTES_MAX: usize = 160;
const TENANTS_MAX: usize = 10;

/// Items that failed in the same way.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    /// The kind of the items: letters, calls or tasks.
    pub kind: DeadKind,
    /// The code of a letter's rejection, or the outcome of a call or task.
    pub cause: String,
    /// The tool, if the items are calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// The [normalized error](DeadEntry::normalized_error), if the items are calls or tasks with an error text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub normalized_error: Option<String>,
    /// The number of items.
    pub count: u64,
    /// The number of items that can be replayed unchanged.
    pub replayable: u64,
    /// Time when the newest item was added (ms by Redis' clock).
    pub newest_ms: i64,
    /// Time when the oldest item was added (ms by Redis' clock).
    pub oldest_ms: i64,
    /// The newest item.
    pub example: DeadId,
    /// The tenants of the items, at most ten.
    pub tenants: Vec<TenantId>,
}

impl Cause {
    fn of(dead: &DeadEntry) -> Self {
        Self {
            kind: dead.id.kind,
            cause: dead.cause.clone(),
            tool: dead.tool.clone(),
            normalized_error: dead.normalized_error(),
            count: 0,
            replayable: 0,
            newest_ms: dead.at_ms,
            oldest_ms: dead.at_ms,
            example: dead.id.clone(),
            tenants: Vec::new(),
        }
    }

    /// Returns a filter that matches exactly the items with this cause.
    #[must_use]
    pub fn filter(&self) -> DeadFilter {
        DeadFilter {
            kind: Some(self.kind),
            cause: Some(self.cause.clone()),
            tool: self.tool.clone(),
            normalized_error: self.normalized_error.clone(),
            without_error: self.normalized_error.is_none(),
            ..DeadFilter::default()
        }
    }

    fn add(&mut self, dead: &DeadEntry) {
        self.count += 1;
        self.replayable += u64::from(dead.needs_message.is_none() && !dead.may_have_run);
        self.oldest_ms = self.oldest_ms.min(dead.at_ms);
        if dead.at_ms > self.newest_ms {
            (self.newest_ms, self.example) = (dead.at_ms, dead.id.clone());
        }
        if let Some(tenant) = dead.tenant.as_ref().filter(|tenant| !self.tenants.contains(tenant))
            && self.tenants.len() < TENANTS_MAX
        {
            self.tenants.push(tenant.clone());
        }
    }
}

type CauseKey = (DeadKind, String, Option<String>, Option<String>);

/// The causes found so far.
#[derive(Debug, Clone, Default)]
pub struct Causes {
    by: BTreeMap<CauseKey, Cause>,
    /// The number of entries read.
    pub read: usize,
    /// The number of items with a cause that is not listed, because there are more than 500 causes.
    pub others: u64,
}

impl Causes {
    /// Returns true if no item has matched so far.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by.is_empty()
    }

    /// Returns the most frequent causes, the most frequent first.
    #[must_use]
    pub fn most(self, limit: usize) -> Vec<Cause> {
        let mut causes: Vec<Cause> = self.by.into_values().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse((cause.count, cause.newest_ms)));
        causes.truncate(limit);
        causes
    }

    fn add(&mut self, dead: &DeadEntry) {
        let alike = (dead.id.kind, dead.cause.clone(), dead.tool.clone(), dead.normalized_error());
        if self.by.len() >= CAUSES_MAX && !self.by.contains_key(&alike) {
            self.others += 1;
            return;
        }
        self.by.entry(alike).or_insert_with(|| Cause::of(dead)).add(dead);
    }
}

/// Counts the matching items by cause, starting at `from`. Returns the position of the next step, or `None` at the end
/// of the log. One step reads about 20,000 entries.
pub async fn causes(
    client: &Client,
    filter: &DeadFilter,
    from: Option<&Cursor>,
    into: &mut Causes,
) -> Result<Option<Cursor>, VerbError> {
    let filter = DeadFilter { limit: PAGE, ..filter.clone() };
    let mut from = Cursor::read(from)?.unwrap_or_default();
    let mut read = 0;
    loop {
        let page = read_page(client.stores(), &filter, from).await?;
        page.dead.iter().for_each(|dead| into.add(dead));
        into.read += page.read;
        read += page.read;
        match page.next {
            Some(next) if read < READ_MAX => from = next,
            next => return Ok(next.as_ref().map(Cursor::of)),
        }
    }
}

impl DeadEntry {
    /// Returns the normalized error of a call or task: `#` replaces each word that contains a digit, except status
    /// codes (503). `None` for letters, and if no part of the error is short enough to be shown.
    #[must_use]
    pub fn normalized_error(&self) -> Option<String> {
        if self.id.kind == DeadKind::Letter {
            return None;
        }
        self.error.as_deref().map(normalized_error).filter(|text| !text.is_empty())
    }
}

fn normalized_error(error: &str) -> String {
    let mut text = String::new();
    let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut rest = error;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_of_word(c) != is_of_word(first)).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        let is_answer = part.len() == 3
            && matches!(part.as_bytes(), [b'1'..=b'5', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
        let part = if part.bytes().any(|byte| byte.is_ascii_digit()) && !is_answer { "#" } else { part };
        if text.len() + part.len() > NORMALIZED_ERROR_BYTES_MAX {
            break;
        }
        text += part;
        rest = behind;
    }
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::list::passes;
    use super::*;

    fn dead(at_ms: i64, tool: &str, error: &str) -> DeadEntry {
        DeadEntry {
            id: format!("call-0-{at_ms}-0").parse().unwrap(),
            at_ms,
            tenant: TenantId::new(tool).ok(),
            agent: None,
            name: None,
            tool: Some(tool.into()),
            from: None,
            cause: "transient".into(),
            error: Some(error.into()),
            may_have_run: false,
            needs_message: None,
        }
    }

    #[test]
    fn error_normalization_replaces_ids_and_times() {
        for (error, shown) in [
            ("unavailable: order-17 got 503 after 1250 ms", "unavailable: # got 503 after # ms"),
            ("unavailable: order-9 got 404 after 3 ms", "unavailable: # got 404 after # ms"),
            ("no route to 10.0.0.7:8080", "no route to #.#.#.#:#"),
            ("nicht möglich ", "nicht möglich"),
            ("", ""),
        ] {
            assert_eq!(normalized_error(error), shown);
            assert_eq!(normalized_error(shown), shown, "what is shown finds those that it was made of");
        }
        assert!(normalized_error(&"ö ".repeat(500)).len() <= NORMALIZED_ERROR_BYTES_MAX);
        assert_eq!(normalized_error(&"ö".repeat(500)), "", "one word that is longer than all that is shown");
    }

    #[test]
    fn the_filter_of_a_cause_matches_exactly_its_own_items() {
        let mut all = vec![dead(1, "a", "got 503 for x1"), dead(2, "a", "got 503 for x2"), dead(3, "a", "got 404")];
        // Without an error, with an error that is too long to be shown, and with another tool.
        all.extend([dead(4, "a", ""), dead(5, "a", &"ö".repeat(500)), dead(6, "b", "")]);
        all[3].error = None;
        for (at_ms, kind) in [(7, "letter"), (8, "task")] {
            let id = format!("{kind}-0-{at_ms}-0").parse().unwrap();
            all.push(DeadEntry { id, tool: None, ..dead(at_ms, "a", "got 404") });
            all.push(DeadEntry { error: None, ..all[all.len() - 1].clone() });
        }
        let mut causes = Causes::default();
        all.iter().for_each(|one| causes.add(one));
        let mut found = 0;
        for cause in causes.most(100) {
            let of_it = all.iter().filter(|one| passes(&cause.filter(), one)).count();
            assert_eq!(of_it as u64, cause.count, "{cause:?}");
            found += of_it;
        }
        assert_eq!(found, all.len());
    }

    #[test]
    fn causes_have_counts_and_time_ranges_and_are_bounded() {
        let mut causes = Causes::default();
        for (at_ms, tool, error) in [
            (7, "a", "got 503 for x1"),
            (9, "a", "got 503 for x2"),
            (3, "a", "got 503 for x3"),
            (5, "b", "got 503 for x1"),
        ] {
            causes.add(&dead(at_ms, tool, error));
        }
        for tool in 0..CAUSES_MAX {
            causes.add(&dead(1, &format!("t{tool}"), "no"));
        }
        assert_eq!(causes.others, 2);
        let most = causes.most(2);
        let [first, second] = most.as_slice() else { unreachable!() };
        assert_eq!((first.count, first.newest_ms, first.oldest_ms, first.replayable), (3, 9, 3, 3));
        assert_eq!(
            (first.example.to_string().as_str(), first.normalized_error.as_deref()),
            ("call-0-9-0", Some("got 503 for #"))
        );
        assert_eq!((second.count, second.tool.as_deref(), second.tenants.len()), (1, Some("b"), 1));
    }
}
