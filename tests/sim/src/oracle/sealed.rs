//! What must hold of the audit log of a game that seals it: by what was written, as the oracle saw it, and by the export
//! alone, as a stranger has it.

mod anew;
mod tamper;

use std::collections::{BTreeMap, BTreeSet};

use rand::SeedableRng;
use rand::rngs::StdRng;
use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines::Line;
use tickfleet_proof::prove::{Claim, Proof, Prover};
use tickfleet_proof::seal::{SealBody, encode, head_of};
use tickfleet_proof::verify::{Kind, Verdict, Verifier};

use super::Oracle;
use crate::parts::Site;
use crate::settings::sealed::Sealed;
use crate::world::Facts;
use tickfleet_sim_redis::Appended;

/// What was written, each with its time, µs.
#[derive(Default)]
pub(super) struct Seen {
    /// Texts of entries.
    entries: Vec<(i64, String)>,
    /// Heads of chains, by the seals that lead to them.
    heads: BTreeMap<String, i64>,
}

/// A chain's shard and tenant, and the number of a seal in it.
type Place = (u32, String, u64);

/// Whether Redis has lost what was written then.
fn was_lost(facts: &Facts, at_us: i64) -> bool {
    facts.lost.iter().any(|(from, to)| at_us > *from && at_us <= *to)
}

impl Oracle {
    /// An entry of the log was written.
    pub(super) fn logged(&mut self, appended: &Appended) {
        let at_us = self.world.facts().now_us;
        self.log.entries.push((at_us, super::field(appended, "audit").unwrap_or_default()));
    }

    /// A seal was written.
    pub(super) fn was_sealed(&mut self, appended: &Appended) {
        let at_us = self.world.facts().now_us;
        let body = super::field(appended, "body").unwrap_or_default();
        self.log.heads.insert(encode(&head_of(&body)), at_us);
    }

    /// What must hold of the log, as it was exported.
    ///
    /// # Errors
    /// The tools of the game cannot be made.
    pub(crate) fn look_at_log(&self, lines: &[String], site: &Site, seed: u64) -> anyhow::Result<()> {
        let Some(sealed) = &self.settings.sealed else { return Ok(()) };
        let anchors = self.world.facts().anchors.clone();
        let export = Export { keys: keys(sealed)?, lines };
        let mut wrong = self.is_what_was_written(lines);
        wrong.extend(self.is_borne_out(&export, &anchors, sealed));
        wrong.extend(self.unproved(lines));
        if wrong.is_empty() {
            let firm: Vec<Anchor> = anchors.into_iter().filter(|anchor| self.is_kept(anchor)).collect();
            let (changed, unnoticed) = tamper::unnoticed(&export, &firm, &mut StdRng::seed_from_u64(seed));
            let anew = anew::decided(lines, site)?;
            let audited = &mut self.world.facts().audited;
            (audited.changed, audited.anew) = (changed, anew.calls);
            (audited.by_facts, audited.by_no_facts) = anew.by_facts;
            wrong = [unnoticed, anew.wrong].concat();
        }
        wrong.into_iter().for_each(|what| self.world.wrong(what));
        Ok(())
    }

    /// Whether the seal of an anchor is still there: Redis has not lost it.
    fn is_kept(&self, anchor: &Anchor) -> bool {
        let facts = self.world.facts();
        self.log.heads.get(&anchor.head).is_some_and(|at_us| !was_lost(&facts, *at_us))
    }

    /// What was written is in the log, once, and nothing else: but for what Redis has lost.
    fn is_what_was_written(&self, lines: &[String]) -> Vec<String> {
        let facts = self.world.facts();
        let mut left: BTreeMap<&str, (i64, i64)> = BTreeMap::new();
        for (at_us, text) in &self.log.entries {
            let (most, least) = left.entry(text).or_default();
            *most += 1;
            *least += i64::from(!was_lost(&facts, *at_us));
        }
        let mut wrong = Vec::new();
        let found: Vec<Line<'_>> = lines.iter().filter_map(|line| Line::read(line)).collect();
        for line in &found {
            match line {
                Line::Entry(entry) => match left.get_mut(&*entry.text) {
                    Some((most, least)) if *most > 0 => (*most, *least) = (*most - 1, *least - 1),
                    _ => wrong.push(format!("entry {} of the log was never written: {}", entry.id, entry.text)),
                },
                Line::Seal(seal) if !self.log.heads.contains_key(&encode(&head_of(seal.body))) => {
                    wrong.push(format!("a seal of the log was never written: {}", seal.body));
                }
                _ => {}
            }
        }
        let missing = left.iter().filter(|(_, (_, least))| *least > 0);
        wrong.extend(missing.map(|(text, _)| format!("an entry is not in the log that Redis has not lost: {text}")));
        let of_nobody = facts.anchors.iter().filter(|anchor| !self.log.heads.contains_key(&anchor.head));
        wrong.extend(of_nobody.map(|anchor| format!("nobody has written the seal of an anchor: {anchor:?}")));
        wrong
    }

    /// What honest play has written is intact, and anchors bear it out. Where Redis has lost seals that are anchored, that
    /// is said of each, and nothing else.
    fn is_borne_out(&self, export: &Export<'_>, anchors: &[Anchor], sealed: &Sealed) -> Vec<String> {
        let mut wrong = Vec::new();
        let (firm, lost): (Vec<Anchor>, Vec<Anchor>) = anchors.iter().cloned().partition(|anchor| self.is_kept(anchor));
        let verdict = export.verified(&firm);
        if !verdict.intact || verdict.unsealed > 0 || verdict.sealed != verdict.entries {
            let (found, told) = (found(&verdict), &verdict.told);
            wrong.push(format!("{} of {} entries: {found}; {told:?}", verdict.sealed, verdict.entries));
        }
        self.world.facts().audited.sealed = verdict.sealed;
        let chains = verdict.chains.iter();
        wrong.extend(chains.clone().filter(|chain| chain.lost > 0).map(|chain| format!("nothing is lost: {chain:?}")));
        // Who has another key leaves anchors to those behind.
        if sealed.keys == 1 && self.world.facts().lost.is_empty() {
            let loose = chains.filter(|chain| chain.anchored != Some(chain.last_seal));
            wrong.extend(loose.map(|chain| format!("the end of a chain is not kept outside: {chain:?}")));
            wrong.extend(
                verdict.told.iter().map(|told| format!("nothing has happened to the log, and it is told: {told}")),
            );
        }
        let all = export.verified(anchors);
        let said: BTreeSet<(Kind, Place)> = all
            .findings
            .iter()
            .filter_map(|finding| Some((finding.kind, (finding.shard?, finding.tenant.clone()?, finding.seal?))))
            .collect();
        let expected = export.contradicted(&lost);
        if said != expected || all.findings.len() < said.len() {
            wrong.push(format!("Redis has lost {expected:?}, and what is said is: {}; {:?}", found(&all), all.told));
        }
        wrong
    }

    /// What the export alone does not prove.
    fn unproved(&self, lines: &[String]) -> Vec<String> {
        let proof = proved(lines);
        let calls = lines.iter().filter(|line| line.contains(r#""action":"TOOL_CALL""#)).count() as u64;
        // An export knows one time zone, that in force when it was made: a day in which that changed was two.
        let is_known = |claim: &&Claim| !(claim.claim.contains("day") && self.settings.has_zones());
        let broken = proof.claims.iter().filter(|claim| !claim.holds).filter(is_known);
        let mut wrong: Vec<String> = broken.flat_map(|claim| claim.violations.clone()).collect();
        if proof.calls != calls {
            wrong.push(format!("{calls} calls are in the log, and of {} something is proved", proof.calls));
        }
        wrong
    }
}

fn keys(sealed: &Sealed) -> anyhow::Result<BTreeMap<String, String>> {
    let key = |version: usize| -> anyhow::Result<(String, String)> {
        let signer = sealed.signer(version)?;
        Ok((signer.key_id().to_owned(), signer.public_key()))
    };
    (0..sealed.keys).map(key).collect()
}

fn proved(lines: &[String]) -> Proof {
    let mut prover = Prover::new(None, None);
    lines.iter().for_each(|line| prover.line(line));
    prover.finish()
}

/// What was found, in words.
fn found(verdict: &Verdict) -> String {
    verdict.findings.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// An export, and the keys that a stranger trusts.
struct Export<'a> {
    keys: BTreeMap<String, String>,
    lines: &'a [String],
}

impl Export<'_> {
    fn verified(&self, anchors: &[Anchor]) -> Verdict {
        let mut verifier = Verifier::new(self.keys.clone());
        self.lines.iter().for_each(|line| verifier.line(line));
        verifier.finish(anchors, None)
    }

    /// What has to be said of anchors whose seals are lost: another seal has this number, or the chain ends before it.
    fn contradicted(&self, lost: &[Anchor]) -> BTreeSet<(Kind, Place)> {
        let mut chains: BTreeMap<(u32, String), BTreeMap<u64, String>> = BTreeMap::new();
        for line in self.lines {
            let Some(Line::Seal(seal)) = Line::read(line) else { continue };
            let Ok(body) = serde_json::from_str::<SealBody>(seal.body) else { continue };
            let chain = chains.entry((body.shard, body.tenant)).or_default();
            // What the log no longer has is known by the seal behind it.
            if let Some(before) = body.number.checked_sub(1).filter(|before| *before > 0) {
                chain.entry(before).or_insert(body.previous);
            }
            chain.insert(body.number, encode(&head_of(seal.body)));
        }
        let mut said = BTreeSet::new();
        for anchor in lost {
            let of = (anchor.shard, anchor.tenant.clone());
            let chain = chains.get(&of);
            let last = chain.and_then(|chain| chain.keys().last().copied()).unwrap_or(0);
            match chain.and_then(|chain| chain.get(&anchor.number)) {
                Some(head) if *head == anchor.head => {}
                Some(_) => drop(said.insert((Kind::Rewritten, (of.0, of.1, anchor.number)))),
                None if last > 0 && anchor.number > last => {
                    said.insert((Kind::Truncated, (of.0, of.1, last + 1)));
                }
                None => {}
            }
        }
        said
    }
}
