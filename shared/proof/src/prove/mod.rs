//! Proves, only from the entries of an export, that the fleet kept its guarantees. The statements of the entries must
//! agree with each other and with the number of calls. [`verify`](crate::verify) checks whether the fleet wrote these
//! entries.

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

/// Further violations of a claim are only counted.
const VIOLATIONS_MAX: usize = 1_000;

const WHY_REUSED: &str = "their ids were reused after their records had expired, as the export says";

#[derive(Debug, Clone, Serialize)]
pub struct Proof {
    pub holds: bool,
    pub calls: u64,
    /// Other entries, even outside the time range.
    pub others: u64,
    pub first_ms: Option<i64>,
    pub last_ms: Option<i64>,
    pub claims: Vec<Claim>,
    /// Unsigned statements of the export. The claims hold only if these statements are true.
    pub assumptions: Vec<String>,
    pub unseen: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct Claim {
    pub claim: &'static str,
    pub holds: bool,
    /// Calls, windows or keys, see `unit`.
    pub checked: u64,
    pub unit: &'static str,
    pub unchecked: u64,
    pub why_unchecked: &'static str,
    pub violations: Vec<String>,
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

struct SeenResult {
    id: EntryId,
    ended_ms: i64,
}

/// Names are only compared, and hashes need less memory.
type NameHash = [u8; 16];

/// Each length is hashed before its part, so that different parts never hash the same bytes.
fn name_hash(parts: &[&str]) -> NameHash {
    let mut context = Context::new(&SHA256);
    for part in parts {
        context.update(&(part.len() as u64).to_be_bytes());
        context.update(part.as_bytes());
    }
    let mut mark = NameHash::default();
    mark.iter_mut().zip(context.finish().as_ref()).for_each(|(to, from)| *to = *from);
    mark
}

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
    seen: HashMap<NameHash, SeenResult>,
    windows: Windows,
    limits: Limits,
    effects: Effects,
    /// By shard. Parts of an export can overlap, so an entry can be read twice.
    taken: BTreeMap<u32, HashSet<EntryId>>,
}

impl Prover {
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

    pub fn line(&mut self, line: &str) {
        match Line::read(line) {
            Some(Line::Header(header)) => self.take_header(*header),
            Some(Line::Entry(entry)) => {
                // A line without a valid entry ID does not come from a log.
                let Ok(id) = entry.id.parse::<EntryId>() else {
                    self.unread += 1;
                    return;
                };
                if self.taken.entry(entry.shard).or_default().insert(id) {
                    self.entry(entry.shard, id, &entry.admitted, &entry.text);
                }
            }
            Some(Line::Seal(_)) => self.sealed = true,
            Some(Line::End(_) | Line::Lost(_)) => {}
            None if line.trim().is_empty() => {}
            None => self.unread += 1,
        }
    }

    /// The header of a part with one tenant does not list other tenants. Earlier statements about other tenants are
    /// kept.
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
                // Windows extend beyond the time range, so resets outside the range count too.
                if let EntryRead::Remade(counter) = other {
                    self.limits.recreated(shard, counter);
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
        self.windows.add(&call);
        self.limits.add(shard, &call);
        self.effects.add(&call);
    }

    fn one_result(&mut self, call: &CallEntry<'_>) {
        self.results.checked += 1;
        let result = SeenResult { id: call.id, ended_ms: call.ended_ms };
        let Some(before) = self.seen.insert(name_hash(&[call.tenant(), call.call()]), result) else { return };
        // After the fleet has dropped an ID, another turn can use the same ID.
        if self.header.dedupe_ms > 0 && call.ended_ms - before.ended_ms >= self.header.dedupe_ms {
            self.results.unchecked += 1;
            return;
        }
        let name = format!("{}:{}", call.tenant(), call.call());
        self.results.violated(format!("{name} has a result in entry {} and one in entry {}", before.id, call.id));
    }

    #[must_use]
    pub fn finish(self) -> Proof {
        let assumptions = self.assumptions();
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
            assumptions,
            unseen,
        }
    }

    /// A reader can compare these statements with the fleet's configuration.
    fn assumptions(&self) -> Vec<String> {
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
