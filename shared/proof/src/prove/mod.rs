//! Proving: reads from the entries of an export that the fleet kept what it promises. Nothing but the export is needed, and
//! nothing else is believed: each entry says when its call was admitted, which counters that debited and what they allowed
//! then, and these have to agree with each other and with the number of calls that there are.
//!
//! What an entry does not say is told as not checked. Whether the entries are those that the fleet wrote,
//! [`verify`](crate::verify) says.

mod effects;
mod entry;
mod limits;
mod windows;

use std::collections::{BTreeMap, HashMap, HashSet};

use ring::digest::{Context, SHA256};
use serde::Serialize;

use crate::lines::{Header, Line};
use crate::seal::EntryId;
use effects::Effects;
use entry::{CallEntry, EntryRead};
use limits::Limits;
use windows::Windows;

/// Violations that are kept of a claim; of more, it is said how many.
const VIOLATIONS_MAX: usize = 1_000;

const WHY_REUSED: &str = "their ids were reused after their records had expired, as the export says";

/// What came of proving.
#[derive(Debug, Clone, Serialize)]
pub struct Proof {
    /// True if no claim is violated.
    pub holds: bool,
    /// Calls that ended in the time.
    pub calls: u64,
    /// Entries in the time that are no calls: what operators did.
    pub others: u64,
    /// When the first of them ended, ms.
    pub first_ms: Option<i64>,
    /// When the last of them ended, ms.
    pub last_ms: Option<i64>,
    /// The claims.
    pub claims: Vec<Claim>,
    /// What the claims rest on that the export says of itself, and that nobody has signed.
    pub as_said: Vec<String>,
    /// What cannot be seen.
    pub unseen: Vec<String>,
}

/// One claim.
#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    /// What is claimed.
    pub claim: &'static str,
    /// True if nothing speaks against it.
    pub holds: bool,
    /// What was checked: so many calls, windows or keys.
    pub checked: u64,
    /// Of what.
    pub unit: &'static str,
    /// Calls that do not say what is needed.
    pub unchecked: u64,
    /// Why they do not.
    pub why_unchecked: &'static str,
    /// What speaks against it.
    pub violations: Vec<String>,
    /// Violations beyond those.
    pub more_violations: u64,
}

impl Claim {
    fn new(claim: &'static str, unit: &'static str, why_unchecked: &'static str) -> Self {
        Self {
            claim,
            holds: true,
            checked: 0,
            unit,
            unchecked: 0,
            why_unchecked,
            violations: Vec::new(),
            more_violations: 0,
        }
    }

    fn violated(&mut self, what: String) {
        self.holds = false;
        if self.violations.len() < VIOLATIONS_MAX {
            self.violations.push(what);
        } else {
            self.more_violations += 1;
        }
    }
}

/// A result, to find a second one of the same call.
struct Result {
    id: EntryId,
    ended_ms: i64,
}

/// Stands for names that are only to be met again: kept whole, they would take most of the memory.
type Mark = [u8; 16];

/// The beginning of a hash of these, each with its length before it.
fn mark(parts: &[&str]) -> Mark {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let mut mark = Mark::default();
    mark.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
    mark
}

/// Takes the lines of exports, one after the other.
pub struct Prover {
    from_ms: Option<i64>,
    until_ms: Option<i64>,
    header: Header,
    calls: u64,
    others: u64,
    unread: u64,
    sealed: bool,
    span: Option<(i64, i64)>,
    results: Claim,
    seen: HashMap<Mark, Result>,
    windows: Windows,
    limits: Limits,
    effects: Effects,
    /// The entries of each shard that were taken: parts of an export may overlap.
    taken: BTreeMap<u32, HashSet<EntryId>>,
}

impl Prover {
    /// A prover of what ended in this time, ms.
    #[must_use]
    pub fn new(from_ms: Option<i64>, until_ms: Option<i64>) -> Self {
        Self {
            from_ms,
            until_ms,
            header: Header::default(),
            calls: 0,
            others: 0,
            unread: 0,
            sealed: false,
            span: None,
            results: Claim::new("No call has two results.", "calls", WHY_REUSED),
            seen: HashMap::new(),
            windows: Windows::default(),
            limits: Limits::default(),
            effects: Effects::default(),
            taken: BTreeMap::new(),
        }
    }

    /// Takes the next line.
    pub fn line(&mut self, line: &str) {
        match Line::read(line) {
            Some(Line::Header(header)) => self.take_header(*header),
            Some(Line::Entry(entry)) => {
                // What two parts of an export have is one entry, not two results. What has no id of an entry, no log has.
                let Ok(id) = entry.id.parse::<EntryId>() else {
                    self.unread += 1;
                    return;
                };
                if self.taken.entry(entry.shard).or_default().insert(id) {
                    self.entry(entry.shard, id, &entry.admitted, &entry.text);
                }
            }
            Some(Line::Seal(_)) => self.sealed = true,
            Some(Line::End(_) | Line::Gone(_)) => {}
            None if line.trim().is_empty() => {}
            None => self.unread += 1,
        }
    }

    /// The last one counts; of tenants of which it says nothing, because it is of another one alone, what was said before it.
    fn take_header(&mut self, header: Header) {
        let mut tenants = std::mem::take(&mut self.header.tenants);
        tenants.extend(header.tenants);
        self.header = Header { tenants, ..header };
    }

    fn entry(&mut self, shard: u32, id: EntryId, admitted: &str, text: &str) {
        let call = match EntryRead::of(id, admitted, text) {
            EntryRead::Call(call) => call,
            other => {
                self.others += 1;
                // Also those outside of the time: windows reach beyond it.
                if let EntryRead::Remade(counter) = other {
                    self.limits.remade(shard, counter);
                }
                return;
            }
        };
        let ended = call.ended_ms;
        if self.from_ms.is_some_and(|from| ended < from) || self.until_ms.is_some_and(|until| ended >= until) {
            return;
        }
        self.calls += 1;
        self.span = Some(self.span.map_or((ended, ended), |(first, last)| (first.min(ended), last.max(ended))));
        self.one_result(&call);
        self.windows.take(&call);
        self.limits.take(shard, &call);
        self.effects.take(&call);
    }

    fn one_result(&mut self, call: &CallEntry) {
        self.results.checked += 1;
        let result = Result { id: call.id, ended_ms: call.ended_ms };
        let Some(before) = self.seen.insert(mark(&[&call.tenant, &call.call]), result) else { return };
        // An id that was forgotten may be given again: then it is another turn.
        if self.header.dedupe_ms > 0 && call.ended_ms - before.ended_ms >= self.header.dedupe_ms {
            self.results.unchecked += 1;
            return;
        }
        let name = format!("{}:{}", call.tenant, call.call);
        self.results.violated(format!("{name} has a result in entry {} and one in entry {}", before.id, call.id));
    }

    /// Says what came of it.
    #[must_use]
    pub fn finish(self) -> Proof {
        let as_said = self.as_said();
        let mut unseen = vec![
            "Calls that had no result when the export was made, and what was trimmed before it.".to_owned(),
            "Whether tools that are declared idempotent are idempotent, and effects of tools that their results do \
             not show."
                .to_owned(),
        ];
        if !self.sealed {
            unseen.push(
                "Whether entries were changed: there are no seals, so `tickfleet audit verify` has nothing to check."
                    .into(),
            );
        }
        if self.unread > 0 {
            unseen.push(format!("{} lines that are not from an export.", self.unread));
        }
        let reused = self.results.unchecked;
        if reused > 0 {
            unseen.push(format!(
                "Whether {reused} ids that were reused after their records had expired belong to other turns.",
            ));
        }
        let effects = self.effects.claim();
        if effects.checked == 0 {
            unseen.push("Whether an effect ran twice: no entry names an effect key.".to_owned());
        }
        let limits = self.limits.claim();
        unseen.push(
            match limits.checked {
                0 => "Whether a window of a limit overran: no entry names a limit with windows that stops calls.",
                _ => "Limits on concurrent calls and on model usage: they have no windows of calls.",
            }
            .to_owned(),
        );
        let mut claims = vec![self.results];
        claims.extend(self.windows.claims(&self.header));
        claims.extend([limits, effects]);
        Proof {
            holds: claims.iter().all(|claim| claim.holds),
            calls: self.calls,
            others: self.others,
            first_ms: self.span.map(|(first, _)| first),
            last_ms: self.span.map(|(_, last)| last),
            claims,
            as_said,
            unseen,
        }
    }

    /// What is taken from the export's first line. Who knows better holds it against the fleet's configuration.
    fn as_said(&self) -> Vec<String> {
        let known = match self.header.dedupe_ms {
            0 => "An id is never reused for another turn.".to_owned(),
            ms => format!("An id can be reused {ms} ms after its turn has ended."),
        };
        let tenants = self.windows.tenants().into_iter().map(|tenant| {
            let facts = self.header.tenants.get(tenant);
            let zone = facts.map_or("UTC", |facts| &facts.time_zone);
            match facts.and_then(|facts| facts.day_cap) {
                Some(cap) => format!("Days of {tenant} are in the time zone {zone}; the cap is {cap} calls a day."),
                None => format!("Days of {tenant} are in the time zone {zone}; there is no cap on calls a day."),
            }
        });
        std::iter::once(known).chain(tenants).collect()
    }
}

#[cfg(test)]
mod tests;
