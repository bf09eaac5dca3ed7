//! What was put aside, by its cause: what failed alike counts as one, so that a thousand letters are a few lines.

use std::collections::BTreeMap;

use serde::Serialize;
use tickfleet_model::TenantId;
use tickfleet_store::{Store, StoreError};

use super::list::list;
use super::{Dead, DeadAt, DeadFilter, DeadId, Kind};

/// Those that are read at once.
const PAGE: usize = 500;
/// Entries that one step reads, some more at most.
const READ_MAX: usize = 20_000;
/// Causes that are told apart; what comes beyond is only counted.
const CAUSES_MAX: usize = 500;
/// Bytes of what was told by which causes are told apart.
const TOLD_BYTES_MAX: usize = 160;
/// Tenants that a cause names.
const TENANTS_MAX: usize = 10;

/// Those that failed alike.
#[derive(Debug, Clone, Serialize)]
pub struct Cause {
    /// Letters, calls, or tasks.
    pub kind: Kind,
    /// The code of the refusal, or the outcome.
    pub cause: String,
    /// The tool of calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool: Option<String>,
    /// What was told of calls and tasks, [alike](Dead::told) for all of them; none where nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub told: Option<String>,
    /// How many.
    pub count: u64,
    /// Those of them that can be replayed as they are.
    pub as_they_are: u64,
    /// When the newest was put aside, ms by Redis' clock.
    pub newest_ms: i64,
    /// And the oldest.
    pub oldest_ms: i64,
    /// The newest.
    pub example: DeadId,
    /// Whose they are, ten at most.
    pub tenants: Vec<TenantId>,
}

impl Cause {
    fn of(dead: &Dead) -> Self {
        Self {
            kind: dead.id.kind,
            cause: dead.cause.clone(),
            tool: dead.tool.clone(),
            told: dead.told(),
            count: 0,
            as_they_are: 0,
            newest_ms: dead.at_ms,
            oldest_ms: dead.at_ms,
            example: dead.id.clone(),
            tenants: Vec::new(),
        }
    }

    /// What finds those of this cause, and no others.
    #[must_use]
    pub fn filter(&self) -> DeadFilter {
        DeadFilter {
            kind: Some(self.kind),
            cause: Some(self.cause.clone()),
            tool: self.tool.clone(),
            told: self.told.clone(),
            untold: self.told.is_none(),
            ..DeadFilter::default()
        }
    }

    fn add(&mut self, dead: &Dead) {
        self.count += 1;
        self.as_they_are += u64::from(dead.needs_message.is_none() && !dead.may_have_run);
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

/// By what causes are told apart.
type Alike = (Kind, String, Option<String>, Option<String>);

/// Causes as far as they were read.
#[derive(Debug, Clone, Default)]
pub struct Causes {
    by: BTreeMap<Alike, Cause>,
    /// Entries that were read.
    pub read: usize,
    /// Those for whose causes there was no room: more than 500 differ.
    pub others: u64,
}

impl Causes {
    /// The causes of most first, `limit` of them at most.
    #[must_use]
    pub fn most(self, limit: usize) -> Vec<Cause> {
        let mut causes: Vec<Cause> = self.by.into_values().collect();
        causes.sort_by_key(|cause| std::cmp::Reverse((cause.count, cause.newest_ms)));
        causes.truncate(limit);
        causes
    }

    fn add(&mut self, dead: &Dead) {
        let alike = (dead.id.kind, dead.cause.clone(), dead.tool.clone(), dead.told());
        if self.by.len() >= CAUSES_MAX && !self.by.contains_key(&alike) {
            self.others += 1;
            return;
        }
        self.by.entry(alike).or_insert_with(|| Cause::of(dead)).add(dead);
    }
}

/// Adds those that pass the filter to their causes, from `from` on; answers where it goes on, none at the end. One step reads
/// 20,000 entries, or some more, so that a long log is read in steps that can be stopped.
///
/// # Errors
/// [`StoreError`].
pub async fn causes(
    shards: &[Store],
    filter: &DeadFilter,
    from: DeadAt,
    into: &mut Causes,
) -> Result<Option<DeadAt>, StoreError> {
    let filter = DeadFilter { limit: PAGE, ..filter.clone() };
    let (mut from, mut read) = (from, 0);
    loop {
        let page = list(shards, &filter, from).await?;
        page.dead.iter().for_each(|dead| into.add(dead));
        into.read += page.read;
        read += page.read;
        match page.next {
            Some(next) if read < READ_MAX => from = next,
            next => return Ok(next),
        }
    }
}

impl Dead {
    /// What was told of a call or task, without what differs from one to the next: words with a digit are `#`, but for the
    /// numbers of three digits that services answer with (503). None of letters: of these, their message is told. None, too, where
    /// nothing of it is short enough to be shown.
    #[must_use]
    pub fn told(&self) -> Option<String> {
        if self.id.kind == Kind::Letter {
            return None;
        }
        self.error.as_deref().map(alike).filter(|told| !told.is_empty())
    }
}

/// The beginning of a text, with `#` for each word that has a digit and is no answer of a service.
fn alike(told: &str) -> String {
    let mut text = String::new();
    let is_of_word = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-');
    let mut rest = told;
    while let Some(first) = rest.chars().next() {
        let end = rest.find(|c| is_of_word(c) != is_of_word(first)).unwrap_or(rest.len());
        let (part, behind) = rest.split_at(end);
        let is_answer = part.len() == 3
            && matches!(part.as_bytes(), [b'1'..=b'5', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
        let part = if part.bytes().any(|byte| byte.is_ascii_digit()) && !is_answer { "#" } else { part };
        if text.len() + part.len() > TOLD_BYTES_MAX {
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

    fn dead(at_ms: i64, tool: &str, error: &str) -> Dead {
        Dead {
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
    fn what_failed_alike_is_one_cause_whatever_ids_and_times_it_tells() {
        for (told, shown) in [
            ("unavailable: order-17 got 503 after 1250 ms", "unavailable: # got 503 after # ms"),
            ("unavailable: order-9 got 404 after 3 ms", "unavailable: # got 404 after # ms"),
            ("no route to 10.0.0.7:8080", "no route to #.#.#.#:#"),
            ("nicht möglich ", "nicht möglich"),
            ("", ""),
        ] {
            assert_eq!(alike(told), shown);
            assert_eq!(alike(shown), shown, "what is shown finds those that it was made of");
        }
        assert!(alike(&"ö ".repeat(500)).len() <= TOLD_BYTES_MAX);
        assert_eq!(alike(&"ö".repeat(500)), "", "one word that is longer than all that is shown");
    }

    #[test]
    fn a_cause_finds_its_own_and_no_others_also_where_nothing_was_told() {
        let mut all = vec![dead(1, "a", "got 503 for x1"), dead(2, "a", "got 503 for x2"), dead(3, "a", "got 404")];
        // Nothing was told, nothing that is shown, and of another tool.
        all.extend([dead(4, "a", ""), dead(5, "a", &"ö".repeat(500)), dead(6, "b", "")]);
        all[3].error = None;
        for (at_ms, kind) in [(7, "letter"), (8, "task")] {
            let id = format!("{kind}-0-{at_ms}-0").parse().unwrap();
            all.push(Dead { id, tool: None, ..dead(at_ms, "a", "got 404") });
            all.push(Dead { error: None, ..all[all.len() - 1].clone() });
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
    fn causes_are_counted_with_their_newest_and_oldest_and_are_bounded() {
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
        assert_eq!((first.count, first.newest_ms, first.oldest_ms, first.as_they_are), (3, 9, 3, 3));
        assert_eq!((first.example.to_string().as_str(), first.told.as_deref()), ("call-0-9-0", Some("got 503 for #")));
        assert_eq!((second.count, second.tool.as_deref(), second.tenants.len()), (1, Some("b"), 1));
    }
}
