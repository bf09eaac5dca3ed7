//! Checks the seals of one chain in order, each with its entries.

use super::{ChainVerdict, Finding, FindingKind, FoundSeal, Verifier};
use crate::seal::{ChainName, EntryId, FORMAT, Hash, decode_hash, root_of, short_bytes};

impl Verifier {
    pub(super) fn check_order(&mut self, _name: &ChainName, chain: &[&FoundSeal]) {
        for pair in chain.windows(2) {
            if pair[1].body.number < pair[0].body.number {
                let what = format!("it follows seal {}", pair[0].body.number);
                let finding = Finding::of_seal(FindingKind::Reordered, &pair[1].body, what);
                self.note(Finding { line: Some(pair[1].line), ..finding });
            }
        }
    }

    /// Each seal must contain the head of the previous seal, and the entries must be unchanged.
    pub(super) fn check_chain(&mut self, name: &ChainName, chain: &[&FoundSeal]) {
        let (Some(first), Some(last)) = (chain.first(), chain.last()) else { return };
        for pair in chain.windows(2) {
            self.check_link(name, pair[0], pair[1]);
        }
        for seal in chain {
            self.check_entries(seal);
        }
        if first.body.number == 1 && decode_hash(&first.body.previous) != Ok([0; 32]) {
            let finding = Finding::of_seal(FindingKind::Forked, &first.body, "the first seal names an earlier seal");
            self.note(Finding { line: Some(first.line), ..finding });
        }
        self.verdict.chains.push(ChainVerdict {
            shard: name.shard,
            tenant: name.tenant.clone(),
            first_seal: first.body.number,
            last_seal: last.body.number,
            entries_before: first.body.first.saturating_sub(1),
            entries: chain.iter().map(|seal| seal.body.count).sum(),
            lost: last.body.lost,
            anchored_before: None,
            anchored: None,
            sealed_ms: last.body.sealed_ms,
        });
    }

    fn check_link(&mut self, name: &ChainName, before: &FoundSeal, seal: &FoundSeal) {
        let earlier = &before.body;
        let body = &seal.body;
        let missing = body.number.saturating_sub(earlier.number);
        if missing == 0 {
            let same = if before.head == seal.head { "the same seal is" } else { "another seal is" };
            let what = format!("{same} already in line {}", before.line);
            let kind = if before.head == seal.head { FindingKind::Inserted } else { FindingKind::Forked };
            return self.note(Finding { line: Some(seal.line), ..Finding::of_seal(kind, body, what) });
        }
        if missing > 1 {
            let entries = body.first.saturating_sub(earlier.first + earlier.count);
            let upto = body.number - 1;
            let what = format!("seals {} to {upto} with {entries} entries are missing", earlier.number + 1);
            let finding = Finding::of_chain(FindingKind::SealMissing, name, what);
            return self.note(Finding { seal: Some(earlier.number + 1), line: Some(seal.line), ..finding });
        }
        let problem = if decode_hash(&body.previous) != Ok(before.head) {
            "it does not follow from the seal before it"
        } else if body.first != earlier.first + earlier.count {
            "its number does not continue from the seal before it"
        } else if body.lost < earlier.lost {
            "it records fewer losses than the seal before it"
        } else {
            self.report_losses(name, before, seal);
            return;
        };
        self.note(Finding { line: Some(seal.line), ..Finding::of_seal(FindingKind::Forked, body, problem) });
    }

    /// A note, not a finding: these entries were lost before they were sealed.
    fn report_losses(&mut self, name: &ChainName, before: &FoundSeal, seal: &FoundSeal) {
        let lost = seal.body.lost - before.body.lost;
        let broken = seal.body.breaks != before.body.breaks;
        if lost == 0 && !broken {
            return;
        }
        let number = seal.body.number;
        let how_many = if broken { format!("{lost} entries or more") } else { format!("{lost} entries") };
        let why = if broken { "; its log was recreated" } else { "" };
        self.verdict.notes.push(format!(
            "{how_many} of shard {} were lost before sealing, between seals {} and {number} of {name}: some may have \
             been of this tenant{why}.",
            name.shard,
            number - 1,
        ));
    }

    fn check_entries(&mut self, seal: &FoundSeal) {
        let body = &seal.body;
        let broken =
            |what: &str| Finding { line: Some(seal.line), ..Finding::of_seal(FindingKind::SealBroken, body, what) };
        if body.v != FORMAT {
            return self.note(broken("this version does not support its format"));
        }
        let (ids, short) = match (body.entry_ids(), body.short_hashes()) {
            (Ok(ids), Ok(short)) => (ids, short),
            (Err(bad), _) | (_, Err(bad)) => return self.note(broken(bad.0)),
        };
        let mut hashes = Vec::with_capacity(ids.len());
        let mut whole = true;
        for (id, named) in ids.iter().zip(short.chunks(short_bytes())) {
            match self.check_entry(body.shard, *id, named, seal) {
                Some(hash) => hashes.push(hash),
                None => whole = false,
            }
        }
        if whole && decode_hash(&body.root) != Ok(root_of(hashes.iter())) {
            self.note(broken("its entries differ from the sealed ones, although each looks valid"));
        }
    }

    /// The oldest entries of a log are trimmed first. So the entry must be older than the shard's entries in the
    /// export, and older than `anchors_from_ms`.
    fn may_be_trimmed(&self, shard: u32, id: EntryId) -> bool {
        let ms = i64::try_from(id.ms).unwrap_or(i64::MAX);
        self.expected.anchors_from_ms.is_some_and(|from| ms < from)
            && self.first.get(&shard).is_none_or(|first| id < *first)
    }

    /// `None` after a reported problem, or if the entry may have been trimmed.
    fn check_entry(&mut self, shard: u32, id: EntryId, named: &[u8], seal: &FoundSeal) -> Option<Hash> {
        let number = seal.body.number;
        let of = |finding: Finding| Finding { tenant: Some(seal.body.tenant.clone()), seal: Some(number), ..finding };
        let Some(found) = self.entries.get_mut(&(shard, id)) else {
            if self.may_be_trimmed(shard, id) {
                self.trimmed += 1;
                return None;
            }
            let is_earlier = self.before.get(&shard).is_some_and(|before| id <= *before);
            if is_earlier && self.expected.partial {
                self.earlier += 1;
                return None;
            }
            let is_first = self.first.get(&shard).is_none_or(|first| id < *first);
            let says = if is_earlier {
                ", after which it claims to continue. If older parts are gone, pass --partial"
            } else if is_first && self.expected.anchors_from_ms.is_none() {
                ". If its log was trimmed, pass the time from which it must be complete (--anchors-from)"
            } else {
                ""
            };
            let what = format!("it was sealed, but is missing from this export{says}");
            self.note(of(Finding::of_entry(FindingKind::Missing, shard, id, what)));
            return None;
        };
        let before = found.sealed.replace(number).filter(|before| *before != number);
        let line = found.line;
        let hash = found.leaf.hash;
        let is_it = found.leaf.short() == named;
        if let Some(before) = before {
            let what = format!("seal {before} covers it too: sealed entries were sealed again");
            self.note(of(Finding { line: Some(line), ..Finding::of_entry(FindingKind::Forked, shard, id, what) }));
        }
        if is_it {
            return Some(hash);
        }
        let finding = Finding::of_entry(FindingKind::Edited, shard, id, "it differs from what was sealed".to_owned());
        self.note(Finding { line: Some(line), ..of(finding) });
        None
    }
}
