//! Checks the header of each part. The header's statements are unsigned, so the seals must confirm them.

use std::collections::{BTreeMap, BTreeSet};

use super::{ChainName, EntryId, Finding, FindingKind, FoundSeal, Header, SealBody, Verifier};

pub(super) struct Part {
    line: u64,
    fleet: String,
    tenant: Option<String>,
    /// A contradiction with `tenant` is reported only once.
    lies: bool,
}

impl Verifier {
    /// The first header can name the entries before the export. Each later header must continue where the previous part
    /// ends.
    pub(super) fn take_header(&mut self, header: Header) {
        let entry = |text: &String| text.split(' ').next()?.parse::<EntryId>().ok();
        let follows = header.follows.iter().filter_map(|(shard, text)| Some((*shard, entry(text)?)));
        if self.header.is_none() && self.verdict.entries == 0 {
            self.before = follows.collect();
        } else {
            follows.for_each(|(shard, id)| self.check_continuity(shard, id));
        }
        let fleet = header.fleet.clone();
        let tenant = header.tenant.clone();
        self.parts.push(Part { line: self.lines, fleet, tenant, lies: false });
        match &mut self.header {
            Some(first) => first.keys.extend(header.keys),
            None => self.header = Some(header),
        }
    }

    /// Later parts may be missing, so a gap is a finding even without a seal for the gap.
    fn check_continuity(&mut self, shard: u32, behind: EntryId) {
        let known = self.last.get(&shard).max(self.before.get(&shard)).copied();
        let Some(last) = known.filter(|last| *last < behind) else { return };
        let what = format!("this part continues after it, but the part before ends with entry {last}");
        self.note(Finding { line: Some(self.lines), ..Finding::of_entry(FindingKind::Missing, shard, behind, what) });
    }

    pub(super) fn compare_with_part(&mut self, body: &SealBody) {
        let Some(part) = self.parts.last_mut().filter(|part| !part.lies) else { return };
        let Some(tenant) = part.tenant.as_ref().filter(|tenant| **tenant != body.tenant) else { return };
        let other = if body.tenant.is_empty() { "no tenant" } else { &body.tenant };
        let what = format!("it says that the export contains only {tenant}, but it has seals of {other}");
        part.lies = true;
        let line = part.line;
        self.note(Finding::at_line(FindingKind::HeaderWrong, line, &what));
    }

    /// The expected fleet, or else the fleets of all signed seals.
    pub(super) fn fleets(&mut self, seals: &BTreeMap<ChainName, Vec<FoundSeal>>) -> BTreeSet<String> {
        let Some(fleet) = self.expected.fleet.clone() else {
            let signed = seals.values().flatten().filter(|seal| seal.signed);
            return signed.map(|seal| seal.body.fleet.clone()).collect();
        };
        for name in seals.keys().filter(|name| name.fleet != fleet) {
            let what = format!("its seals are of the fleet {}; expected {fleet}", name.fleet);
            self.note(Finding::of_chain(FindingKind::HeaderWrong, name, what));
        }
        BTreeSet::from([fleet])
    }

    pub(super) fn check_parts(&mut self, fleets: &BTreeSet<String>) {
        if fleets.is_empty() {
            return;
        }
        let sealed = fleets.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let is = if self.expected.fleet.is_some() { "expected" } else { "its seals are of" };
        let wrong: Vec<Finding> = self
            .parts
            .iter()
            .filter(|part| !fleets.contains(&part.fleet))
            .map(|part| {
                let what = format!("it says that the export is of the fleet {}; {is} {sealed}", part.fleet);
                Finding::at_line(FindingKind::HeaderWrong, part.line, &what)
            })
            .collect();
        wrong.into_iter().for_each(|finding| self.note(finding));
    }
}
