//! Somebody changes the export: each way has to be found.

use rand::Rng;
use rand::rngs::StdRng;
use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::lines::{self, Line};
use tickfleet_proof::seal::{SealBody, encode, head_of};
use tickfleet_proof::verify::{Kind, Verdict};

use super::{Export, found};

/// What is done to an export.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// A digit of an entry is another one.
    Edits,
    /// An entry is left out.
    Deletes,
    /// Two entries change places.
    Reorders,
    /// The end is cut off.
    Truncates,
}

/// How many ways of changing the export were tried, at places that chance chooses; and those that were not found.
pub(super) fn unnoticed(export: &Export<'_>, firm: &[Anchor], chance: &mut StdRng) -> (u64, Vec<String>) {
    let ways = [Way::Edits, Way::Deletes, Way::Reorders, Way::Truncates];
    let tried: Vec<Option<String>> = ways.into_iter().filter_map(|way| missed(export, firm, way, chance)).collect();
    (tried.len() as u64, tried.into_iter().flatten().collect())
}

/// What is wrong with what is found of one way; none where there is nothing to change so.
fn missed(export: &Export<'_>, firm: &[Anchor], way: Way, chance: &mut StdRng) -> Option<Option<String>> {
    let entries = places(export.lines, |line| matches!(line, Line::Entry(_)));
    let at = *entries.get(chance.random_range(0..entries.len().max(1)))?;
    let mut changed = export.lines.to_vec();
    let (kind, id) = match way {
        Way::Edits => {
            let (id, text) = edited(&changed[at])?;
            changed[at] = text;
            (Kind::Edited, Some(id))
        }
        Way::Deletes => (Kind::Missing, Some(id_of(&changed.remove(at))?)),
        Way::Reorders => {
            let other = *entries.get(entries.iter().position(|place| *place == at)? + 1)?;
            changed.swap(at, other);
            // Of two shards, each has its order.
            (shard_of(&changed[at]) == shard_of(&changed[other])).then_some(())?;
            (Kind::Reordered, Some(id_of(&changed[other])?))
        }
        Way::Truncates => {
            let anchored = places(export.lines, |line| is_anchored(line, firm));
            changed.truncate(chance.random_range(1..=*anchored.last()?));
            (Kind::Truncated, None)
        }
    };
    let verdict = Export { keys: export.keys.clone(), lines: &changed }.verified(firm);
    let is_found = !verdict.intact && names(&verdict, kind, id.as_deref());
    Some((!is_found).then(|| format!("somebody {way:?} {id:?} in the log, and what is found is: {}", found(&verdict))))
}

fn names(verdict: &Verdict, kind: Kind, id: Option<&str>) -> bool {
    let is_it = |of: Option<&String>| id.is_none() || of.map(String::as_str) == id;
    verdict
        .findings
        .iter()
        .any(|finding| finding.kind == kind && (is_it(finding.id.as_ref()) || is_it(finding.beside.as_ref())))
}

/// The lines of this kind.
fn places(lines: &[String], is_it: impl Fn(&Line<'_>) -> bool) -> Vec<usize> {
    let read = lines.iter().enumerate().filter(|(_, line)| Line::read(line).is_some_and(|line| is_it(&line)));
    read.map(|(at, _)| at).collect()
}

/// Whether an anchor knows this seal, and none before it in its chain is the last one that is known.
fn is_anchored(line: &Line<'_>, firm: &[Anchor]) -> bool {
    let Line::Seal(seal) = line else { return false };
    let head = encode(&head_of(seal.body));
    serde_json::from_str::<SealBody>(seal.body).is_ok() && firm.iter().any(|anchor| anchor.head == head)
}

fn id_of(line: &str) -> Option<String> {
    let Some(Line::Entry(entry)) = Line::read(line) else { return None };
    Some(entry.id.into_owned())
}

fn shard_of(line: &str) -> Option<u32> {
    let Some(Line::Entry(entry)) = Line::read(line) else { return None };
    Some(entry.shard)
}

/// The entry with another digit in its text.
fn edited(line: &str) -> Option<(String, String)> {
    let Some(Line::Entry(entry)) = Line::read(line) else { return None };
    let at = entry.text.rfind(|c: char| c.is_ascii_digit())?;
    let digit = if entry.text.as_bytes()[at] == b'7' { "8" } else { "7" };
    let text = format!("{}{digit}{}", &entry.text[..at], &entry.text[at + 1..]);
    Some((entry.id.to_string(), lines::entry(entry.shard, &entry.id, &entry.admitted, &text)))
}
