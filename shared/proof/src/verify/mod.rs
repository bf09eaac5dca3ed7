//! Verifies an export: the entries against the seals, the seals against each other and their signatures, and the chains
//! against anchors.

mod anchored;
mod chain;
mod finding;
mod header;

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::anchor::Anchor;
use crate::lines::{End, EntryLine, Header, Line, LostEntries, SealLine};
use crate::seal::{ChainName, EntryId, Hash, Leaf, SealBody, head_of, is_signed};

use header::Part;

pub use finding::{Finding, FindingKind};

/// Further findings are only counted.
const FINDINGS_MAX: usize = 10_000;

/// The export's own statements are unsigned, so only the caller's facts can excuse missing entries.
#[derive(Debug, Clone, Default)]
pub struct Expected {
    /// Seals of another fleet are a finding, and anchors of another fleet are ignored. `None` takes the fleet from the
    /// signed seals.
    pub fleet: Option<String>,
    /// If set, anchored chains of other tenants are not expected.
    pub tenant: Option<String>,
    /// True if earlier parts exist but are not verified. Sealed entries before the export's stated start are then not
    /// missing.
    pub partial: bool,
    /// Seals and entries from this time on must be in the export. Older seals and entries can be missing.
    pub anchors_from_ms: Option<i64>,
}

#[derive(Debug, Clone, Default, Serialize)]
pub struct ExportVerdict {
    /// True if `findings` is empty. The sealed entries are then unchanged.
    pub intact: bool,
    pub entries: u64,
    pub sealed: u64,
    /// Entries after the last seal are not checked.
    pub unsealed: u64,
    pub seals: u64,
    pub chains: Vec<ChainVerdict>,
    pub findings: Vec<Finding>,
    pub more_findings: u64,
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Serialize)]
pub struct ChainVerdict {
    pub shard: u32,
    /// Empty for entries without a tenant.
    pub tenant: String,
    pub first_seal: u64,
    pub last_seal: u64,
    pub entries_before: u64,
    pub entries: u64,
    /// Entries of the shard that were lost before they were sealed, up to the last seal.
    pub lost: u64,
    pub anchored_before: Option<u64>,
    pub anchored: Option<u64>,
    /// Time of the chain's last seal, by the shard's clock.
    pub sealed_ms: i64,
}

struct FoundEntry {
    line: u64,
    leaf: Leaf,
    sealed: Option<u64>,
}

struct FoundSeal {
    line: u64,
    body: SealBody,
    head: Hash,
    /// The signature is valid for a trusted key, or for a key of the header if the verifier trusts no keys.
    signed: bool,
}

pub struct Verifier {
    /// By key ID.
    trusted: BTreeMap<String, String>,
    expected: Expected,
    header: Option<Header>,
    parts: Vec<Part>,
    end: Option<End>,
    entries: HashMap<(u32, EntryId), FoundEntry>,
    last: BTreeMap<u32, EntryId>,
    first: BTreeMap<u32, EntryId>,
    seals: BTreeMap<ChainName, Vec<FoundSeal>>,
    by_untrusted: BTreeMap<String, u64>,
    /// By shard: the export continues after this entry, according to the first header.
    before: BTreeMap<u32, EntryId>,
    /// Missing sealed entries up to the positions in `before`.
    earlier: u64,
    trimmed: u64,
    verdict: ExportVerdict,
    lines: u64,
}

impl Verifier {
    /// `trusted` has public keys by key ID. If empty, the keys in the export's header count, and a note reports this.
    #[must_use]
    pub fn new(trusted: BTreeMap<String, String>) -> Self {
        Self {
            trusted,
            expected: Expected::default(),
            header: None,
            parts: Vec::new(),
            end: None,
            entries: HashMap::new(),
            last: BTreeMap::new(),
            first: BTreeMap::new(),
            seals: BTreeMap::new(),
            by_untrusted: BTreeMap::new(),
            before: BTreeMap::new(),
            earlier: 0,
            trimmed: 0,
            verdict: ExportVerdict::default(),
            lines: 0,
        }
    }

    #[must_use]
    pub fn expecting(mut self, expected: Expected) -> Self {
        self.expected = expected;
        self
    }

    pub fn line(&mut self, line: &str) {
        self.lines += 1;
        if line.trim().is_empty() {
            return;
        }
        match Line::read(line) {
            Some(Line::Header(header)) => self.take_header(*header),
            Some(Line::Entry(entry)) => self.take_entry(&entry),
            Some(Line::Seal(seal)) => self.take_seal(&seal),
            Some(Line::Lost(lost)) => self.take_lost(&lost),
            Some(Line::End(end)) => self.end = Some(end),
            None => self.note(Finding::at_line(FindingKind::Unreadable, self.lines, "it is not a line of an export")),
        }
    }

    /// The first header, with the keys of all headers.
    #[must_use]
    pub const fn header(&self) -> Option<&Header> {
        self.header.as_ref()
    }

    fn note(&mut self, finding: Finding) {
        if self.verdict.findings.len() < FINDINGS_MAX {
            self.verdict.findings.push(finding);
        } else {
            self.verdict.more_findings += 1;
        }
    }

    fn take_lost(&mut self, lost: &LostEntries) {
        let before = lost.before.as_deref().map_or_else(|| "the end".to_owned(), |id| format!("entry {id}"));
        let more = if lost.recreated { " or more: Redis had lost the log or its end" } else { "" };
        self.verdict.notes.push(format!(
            "{} entries of shard {}, between entry {} and {before}, were lost before export{more}.",
            lost.entries, lost.shard, lost.after
        ));
    }

    fn take_entry(&mut self, entry: &EntryLine<'_>) {
        self.verdict.entries += 1;
        let line = self.lines;
        let shard = entry.shard;
        let Ok(id) = entry.id.parse::<EntryId>() else {
            return self.note(Finding::at_line(FindingKind::Unreadable, line, "it has no entry id"));
        };
        let leaf = Leaf::of(id, &entry.admitted, &entry.text);
        if self.before.get(&shard).is_some_and(|before| id <= *before) {
            // The part begins earlier than its header states, so the statement cannot excuse missing entries.
            self.before.remove(&shard);
        }
        if let Some(before) = self.entries.get(&(shard, id)) {
            let what = if before.leaf == leaf { "the same entry is" } else { "another entry with this id is" };
            let what = format!("{what} already in line {}", before.line);
            return self
                .note(Finding { line: Some(line), ..Finding::of_entry(FindingKind::Inserted, shard, id, what) });
        }
        if let Some(last) = self.last.insert(shard, id).filter(|last| *last > id) {
            let what = format!("it follows {last}, which was written later");
            self.note(Finding {
                line: Some(line),
                ..Finding::of_entry(FindingKind::Reordered, shard, id, what).beside(last)
            });
        }
        let first = self.first.entry(shard).or_insert(id);
        *first = id.min(*first);
        self.entries.insert((shard, id), FoundEntry { line, leaf, sealed: None });
    }

    fn take_seal(&mut self, seal: &SealLine<'_>) {
        self.verdict.seals += 1;
        let line = self.lines;
        let Ok(body) = serde_json::from_str::<SealBody>(seal.body) else {
            return self.note(Finding::at_line(FindingKind::SealBroken, line, "the body of this seal cannot be read"));
        };
        let head = head_of(seal.body);
        if body.shard != seal.shard {
            let what = format!("it is among the seals of shard {}", seal.shard);
            self.note(Finding { line: Some(line), ..Finding::of_seal(FindingKind::SealBroken, &body, what) });
        }
        let signed = self.check_signature(&body, &head, &seal.signature, line);
        if signed {
            self.compare_with_part(&body);
        }
        self.seals.entry(body.chain()).or_default().push(FoundSeal { line, body, head, signed });
    }

    fn check_signature(&mut self, body: &SealBody, head: &Hash, signature: &str, line: u64) -> bool {
        let named = || self.header.as_ref().and_then(|header| header.keys.get(&body.key_id));
        let key = self.trusted.get(&body.key_id);
        let what = match key.or_else(|| named().filter(|_| self.trusted.is_empty())) {
            Some(key) if is_signed(key, head, signature) => {
                if self.trusted.is_empty() {
                    *self.by_untrusted.entry(body.key_id.clone()).or_default() += 1;
                }
                return true;
            }
            Some(_) => "its signature is invalid for the key".to_owned(),
            None => format!("unknown key id {:?}", body.key_id),
        };
        self.note(Finding { line: Some(line), ..Finding::of_seal(FindingKind::SealBroken, body, what) });
        false
    }

    /// Ignores anchors of seals after `until_ms`, because the export was made before such seals.
    #[must_use]
    pub fn finish(mut self, anchors: &[Anchor], until_ms: Option<i64>) -> ExportVerdict {
        let seals = std::mem::take(&mut self.seals);
        for (name, mut chain) in seals.iter().map(|(name, chain)| (name, chain.iter().collect::<Vec<_>>())) {
            self.check_order(name, &chain);
            chain.sort_by_key(|seal| seal.body.number);
            self.check_chain(name, &chain);
        }
        self.check_unsealed(&seals);
        let fleets = self.fleets(&seals);
        self.check_parts(&fleets);
        self.check_anchors(&seals, &fleets, anchors, until_ms);
        self.collect_notes();
        self.verdict.findings.sort_by_key(|finding| (finding.shard, finding.line.unwrap_or(u64::MAX)));
        self.verdict.intact = self.verdict.findings.is_empty();
        self.verdict
    }

    /// An entry without a seal is not sealed yet if it follows the last seal. Otherwise the entry was inserted.
    fn check_unsealed(&mut self, seals: &BTreeMap<ChainName, Vec<FoundSeal>>) {
        let mut last: BTreeMap<u32, EntryId> = BTreeMap::new();
        for (name, chain) in seals {
            let ids = chain.iter().filter_map(|seal| seal.body.entry_ids().ok()?.last().copied());
            let upto = last.entry(name.shard).or_default();
            *upto = ids.max().map_or(*upto, |id| id.max(*upto));
        }
        let mut inserted = Vec::new();
        for ((shard, id), found) in &self.entries {
            if found.sealed.is_some() {
                self.verdict.sealed += 1;
            } else if last.get(shard).is_some_and(|upto| id <= upto) {
                let what = "no seal covers it, although later entries are sealed".to_owned();
                let finding = Finding::of_entry(FindingKind::Inserted, *shard, *id, what);
                inserted.push(Finding { line: Some(found.line), ..finding });
            } else {
                self.verdict.unsealed += 1;
            }
        }
        inserted.sort_by_key(|finding| finding.line);
        inserted.into_iter().for_each(|finding| self.note(finding));
    }

    fn collect_notes(&mut self) {
        let mut notes = Vec::new();
        if self.verdict.seals == 0 {
            notes.push("No seals: nothing can be checked.".to_owned());
        }
        for (key, seals) in &self.by_untrusted {
            notes.push(format!(
                "{seals} seals were checked with the key {key:?} that the export itself contains: pass a key that you \
                 trust (--key)."
            ));
        }
        if self.verdict.unsealed > 0 {
            notes
                .push(format!("{} entries at the end are not sealed and could not be checked.", self.verdict.unsealed));
        }
        if self.earlier > 0 {
            let behind: Vec<String> = self.before.iter().map(|(shard, id)| format!("{id} in shard {shard}")).collect();
            notes.push(format!(
                "{} sealed entries belong to an earlier part: this part continues after entry {}.",
                self.earlier,
                behind.join(", ")
            ));
        }
        if self.trimmed > 0 {
            notes.push(format!("{} sealed entries were written before that time and are missing.", self.trimmed));
        }
        match (self.end, self.header.as_ref()) {
            (None, Some(header)) if !header.follows.is_empty() => {}
            (None, Some(_)) => {
                notes.push("The export has no last line: it was truncated, or is still being written.".to_owned())
            }
            (Some(end), _) if (end.entries, end.seals) != (self.verdict.entries, self.verdict.seals) => {
                notes.push(format!(
                    "The export's last line counts {} entries and {} seals: there are {} and {}.",
                    end.entries, end.seals, self.verdict.entries, self.verdict.seals
                ));
            }
            _ => {}
        }
        for chain in &self.verdict.chains {
            let name = ChainName { fleet: String::new(), shard: chain.shard, tenant: chain.tenant.clone() };
            if chain.first_seal > 1 {
                let known = chain.anchored_before.map(|seal| format!("; an anchor lists seal {seal} of them"));
                notes.push(format!(
                    "{name} begins with seal {}: {} entries before it are not in this export{}.",
                    chain.first_seal,
                    chain.entries_before,
                    known.unwrap_or_default()
                ));
            }
            if chain.anchored.is_none() {
                notes.push(format!("No anchor confirms a seal of {name}: its end may have been cut off."));
            } else if chain.anchored.is_some_and(|seal| seal < chain.last_seal) {
                let last = chain.anchored.unwrap_or_default();
                notes.push(format!("{name} is confirmed by anchors up to seal {last} of {}.", chain.last_seal));
            }
        }
        self.verdict.notes.append(&mut notes);
    }
}
