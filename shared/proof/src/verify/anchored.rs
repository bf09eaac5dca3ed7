//! Checks the chains against anchors.

use std::collections::{BTreeMap, BTreeSet};

use super::{ChainVerdict, Finding, FindingKind, FoundSeal, Verifier};
use crate::anchor::Anchor;
use crate::seal::{ChainName, decode_hash, encode, is_signed};

impl Verifier {
    /// Without an expected fleet and without signed seals, the fleet is unknown, and the anchors of all fleets are
    /// checked.
    pub(super) fn check_anchors(
        &mut self,
        seals: &BTreeMap<ChainName, Vec<FoundSeal>>,
        fleets: &BTreeSet<String>,
        anchors: &[Anchor],
        until_ms: Option<i64>,
    ) {
        let mut known: BTreeMap<ChainName, Vec<&Anchor>> = BTreeMap::new();
        let mut unsigned = 0_u64;
        let mut foreign = 0_u64;
        for anchor in anchors.iter().filter(|anchor| until_ms.is_none_or(|until| anchor.sealed_ms <= until)) {
            let trusted = self.trusted.get(&anchor.key_id).unwrap_or(&anchor.public_key);
            let signed = decode_hash(&anchor.head).is_ok_and(|head| is_signed(trusted, &head, &anchor.signature));
            if !fleets.is_empty() && !fleets.contains(&anchor.fleet) {
                foreign += 1;
            } else if signed {
                known.entry(anchor.chain()).or_default().push(anchor);
            } else {
                unsigned += 1;
            }
        }
        if unsigned > 0 {
            self.verdict.notes.push(format!("{unsigned} anchors have no valid signature and are ignored."));
        }
        if foreign > 0 {
            self.verdict.notes.push(format!("{foreign} anchors are of another fleet and are ignored."));
        }
        // An export under another fleet's name would not contradict any anchor, so one anchor must be of the export's
        // fleet.
        let fits = fleets.is_empty() || anchors.iter().any(|anchor| fleets.contains(&anchor.fleet));
        if !fits && !anchors.is_empty() && !seals.is_empty() {
            self.note(Finding::new(FindingKind::HeaderWrong, "all anchors are of another fleet than its seals"));
        }
        let mut others = 0_u64;
        let mut past = 0_u64;
        for (name, anchors) in known {
            match seals.get(&name) {
                Some(chain) => self.check_against(&name, chain, &anchors),
                None if self.expected.tenant.as_ref().is_some_and(|tenant| *tenant != name.tenant) => others += 1,
                None if !anchors.iter().any(|anchor| self.must_exist(anchor)) => past += 1,
                None => self.chain_is_missing(&name),
            }
        }
        if others > 0 {
            self.verdict.notes.push(format!("{others} anchored chains of other tenants are not checked."));
        }
        if past > 0 {
            let note = format!("{past} anchored chains were sealed before that time and are not checked.");
            self.verdict.notes.push(note);
        }
    }

    fn must_exist(&self, anchor: &Anchor) -> bool {
        self.expected.anchors_from_ms.is_none_or(|from_ms| anchor.sealed_ms >= from_ms)
    }

    fn chain_is_missing(&mut self, name: &ChainName) {
        let says = match self.header.as_ref().and_then(|header| header.tenant.as_ref()) {
            Some(tenant) => format!(", which claims to contain only {tenant}"),
            None => String::new(),
        };
        let what = format!("an anchor lists its seals, but this export has none of them{says}");
        self.note(Finding::of_chain(FindingKind::Truncated, name, what));
    }

    fn check_against(&mut self, name: &ChainName, chain: &[FoundSeal], anchors: &[&Anchor]) {
        let heads: BTreeMap<u64, &FoundSeal> = chain.iter().map(|seal| (seal.body.number, seal)).collect();
        let (Some((first, begins)), Some((last, ends))) = (heads.first_key_value(), heads.last_key_value()) else {
            return;
        };
        let mut anchored = None;
        for anchor in anchors {
            let number = anchor.number;
            let here = heads.get(&number).map(|seal| encode(&seal.head));
            let before = (number + 1 == *first).then(|| begins.body.previous.clone());
            match here.or(before) {
                Some(head) if head == anchor.head => anchored = anchored.max(Some(number).filter(|n| n >= first)),
                Some(_) => {
                    let what =
                        "an anchor has a different seal with this number: the chain was rewritten from here or earlier";
                    let finding = Finding::of_chain(FindingKind::Rewritten, name, what);
                    self.note(Finding {
                        seal: Some(number),
                        line: heads.get(&number).map(|seal| seal.line),
                        ..finding
                    });
                }
                None => {}
            }
        }
        self.check_beginning(name, begins, anchors);
        let furthest = anchors.iter().max_by_key(|anchor| anchor.number).filter(|anchor| anchor.number > *last);
        if let Some(anchor) = furthest {
            let entries = anchor.entries.saturating_sub(ends.body.first.saturating_sub(1) + ends.body.count);
            let what = format!(
                "the export ends with seal {last}; an anchor lists {} with {entries} more entries, up to {}. If the \
                 export is older than that, pass its time (--anchors-until)",
                anchor.number, anchor.sealed_ms
            );
            let finding = Finding::of_chain(FindingKind::Truncated, name, what);
            self.note(Finding { seal: Some(last + 1), line: Some(ends.line), ..finding });
        }
        if let Some(verdict) = self.verdict_of(name) {
            verdict.anchored = anchored;
        }
    }

    /// Seals before [`anchors_from_ms`](super::Expected::anchors_from_ms) may have been trimmed, so they may be
    /// missing.
    fn check_beginning(&mut self, name: &ChainName, begins: &FoundSeal, anchors: &[&Anchor]) {
        let first = begins.body.number;
        let before = anchors.iter().filter(|anchor| anchor.number < first).max_by_key(|anchor| anchor.number);
        let Some(before) = before else { return };
        if self.expected.anchors_from_ms.is_some() && self.must_exist(before) {
            let what = format!("the export begins with seal {first}; an anchor lists {}", before.number);
            let finding = Finding::of_chain(FindingKind::SealMissing, name, what);
            self.note(Finding { seal: Some(before.number), line: Some(begins.line), ..finding });
        }
        let number = before.number;
        if let Some(verdict) = self.verdict_of(name) {
            verdict.anchored_before = Some(number);
        }
    }

    fn verdict_of(&mut self, name: &ChainName) -> Option<&mut ChainVerdict> {
        self.verdict.chains.iter_mut().find(|chain| chain.shard == name.shard && chain.tenant == name.tenant)
    }
}
