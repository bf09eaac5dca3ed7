//! Looking for the audit entries of one turn. The log has no index by turn, for that would cost every call a write; its
//! entries are numbered by the time at which they were written, so a bounded search around the right times finds them.

mod aside;
pub(crate) mod seals;

use std::collections::{BTreeMap, HashMap};

use redis::Value;

use crate::connection::pool::Pool;
use crate::script::reply::into_text;
use crate::{Keys, StoreError, TurnName};

/// Entries that one command reads.
const PAGE: usize = 1_000;

/// The place to look, and what to look for.
#[derive(Debug, Clone)]
pub struct AuditSearch {
    /// From this time on, ms by Redis' clock.
    pub from_ms: i64,
    /// Up to this time, ms by Redis' clock.
    pub until_ms: i64,
    /// Times after which entries are likely: the search goes on from each of them.
    pub likely_ms: Vec<i64>,
    /// True if the end of the time is likely too: the last entry of a turn is written in the script that ends it.
    pub from_the_end: bool,
    /// The one call, where only its entry is wanted.
    pub position: Option<usize>,
    /// The number of entries that there should be; none if that is not known.
    pub expected: Option<usize>,
    /// Entries that are read at most.
    pub read_max: usize,
}

/// The findings of a search.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFound {
    /// The entries, JSON, in the order in which they were written.
    pub entries: Vec<String>,
    /// True if these are all.
    pub complete: bool,
    /// Entries that were read.
    pub read: usize,
}

/// A search under way.
struct Search<'a> {
    pool: &'a Pool,
    stream: String,
    needles: Vec<String>,
    expected: usize,
    found: BTreeMap<(u64, u64), String>,
    read: usize,
}

/// The end that one direction of a search came to.
#[derive(PartialEq, Eq)]
enum Went {
    /// All that was to be found is found, or nothing is left to be read there.
    Through,
    /// It has read what it might.
    Spent,
}

impl Pool {
    /// The audit entries of a turn, as far as a bounded search finds them.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn audit_of(&self, keys: &Keys, name: &TurnName, wanted: &AuditSearch) -> Result<AuditFound, StoreError> {
        // Texts are compared, not parsed: ids need no escaping, and the writer puts no blanks between members.
        let mut needles = vec![format!("\"tenant\":\"{}\"", name.tenant)];
        needles.push(match wanted.position {
            Some(position) => format!("\"call\":\"{}/{position}\"", name.turn),
            None => format!("\"turn\":\"{}\"", name.turn),
        });
        let expected = wanted.expected.unwrap_or(usize::MAX);
        let stream = keys.key("audit");
        let pool = self.at(keys)?;
        let mut search = Search { pool: &pool, stream, needles, expected, found: BTreeMap::new(), read: 0 };
        let complete = search.run(wanted).await?;
        Ok(AuditFound { complete, read: search.read, entries: search.found.into_values().collect() })
    }
}

impl Search<'_> {
    /// Answers whether all was found.
    async fn run(&mut self, wanted: &AuditSearch) -> Result<bool, StoreError> {
        let (from, until) = (wanted.from_ms.max(0).to_string(), wanted.until_ms.max(0).to_string());
        let likely: Vec<i64> = wanted.likely_ms.iter().map(|at| *at.max(&wanted.from_ms)).collect();
        let ways = likely.len() + usize::from(wanted.from_the_end);
        let share = (wanted.read_max / ways.max(1)).max(PAGE);
        if wanted.from_the_end && self.backwards(&from, until.clone(), share).await? == Went::Through {
            return Ok(true);
        }
        // Read from its beginning without a gap, the whole time was searched.
        let mut whole = likely.first().is_some_and(|first| *first <= wanted.from_ms.max(0));
        for (at, start) in likely.iter().enumerate() {
            // What lies behind the next likely time is read from there.
            let next = likely.get(at + 1).filter(|next| *next > start).map(ToString::to_string);
            whole &= self.forwards(start.to_string(), next.as_deref().unwrap_or(&until), share).await? == Went::Through;
            if self.is_done() {
                return Ok(true);
            }
        }
        Ok(whole)
    }

    fn is_done(&self) -> bool {
        self.found.len() >= self.expected
    }

    async fn backwards(&mut self, from: &str, mut until: String, share: usize) -> Result<Went, StoreError> {
        let end = self.read + share;
        while self.read < end {
            let mut command = redis::cmd("XREVRANGE");
            command.arg(&self.stream).arg(&until).arg(from).arg("COUNT").arg(PAGE);
            match self.page(&command).await? {
                Some(last) if !self.is_done() => until = format!("({last}"),
                _ => return Ok(Went::Through),
            }
        }
        Ok(Went::Spent)
    }

    async fn forwards(&mut self, mut from: String, until: &str, share: usize) -> Result<Went, StoreError> {
        let end = self.read + share;
        while self.read < end {
            let mut command = redis::cmd("XRANGE");
            command.arg(&self.stream).arg(&from).arg(until).arg("COUNT").arg(PAGE);
            match self.page(&command).await? {
                Some(last) if !self.is_done() => from = format!("({last}"),
                _ => return Ok(Went::Through),
            }
        }
        Ok(Went::Spent)
    }

    /// Reads one page; answers its last entry's id where more may follow.
    async fn page(&mut self, command: &redis::Cmd) -> Result<Option<String>, StoreError> {
        let page: Vec<(String, HashMap<String, Value>)> = self.pool.query("audit", command).await?;
        let (count, last) = (page.len(), page.last().map(|(id, _)| id.clone()));
        self.read += count;
        for (id, mut fields) in page {
            let Some(text) = fields.remove("audit").and_then(into_text) else { continue };
            if self.needles.iter().all(|needle| text.contains(needle.as_str())) {
                self.found.insert(number(&id), text);
            }
        }
        Ok(last.filter(|_| count == PAGE))
    }
}

/// An entry's id as what it is: the time, and a number within it.
fn number(id: &str) -> (u64, u64) {
    let (ms, seq) = id.split_once('-').unwrap_or((id, "0"));
    (ms.parse().unwrap_or_default(), seq.parse().unwrap_or_default())
}
