//! Creates seals for a page of the log.

use std::collections::BTreeMap;

use tickfleet_core::audit::seal::Seal;
use tickfleet_proof::seal::{ChainName, EntryId, Gap, Head, Leaf, Losses, Signer, encode, seal};
use tickfleet_protocol::audit::tenant_of;
use tickfleet_store::LogPage;

use super::position::Position;

#[derive(Debug)]
pub(super) struct Step {
    pub(super) position: Position,
    /// The chain with the empty name has the entries without a tenant.
    pub(super) chains: BTreeMap<String, Vec<Leaf>>,
    pub(super) losses: Losses,
    /// Entries that were trimmed before they were sealed, as detected in this step.
    pub(super) gone: u64,
}

/// `None` if there is nothing to seal and nothing was lost. A loss is detected only at the end of the log, or if all
/// sealed entries have been trimmed.
pub(super) fn step(position: &Position, page: &LogPage, page_max: usize) -> Option<Step> {
    let read = page.entries.len() as u64;
    // Entries that were trimmed before the first sealing do not count as lost.
    let begun = if position.is_new() { page.added.saturating_sub(page.length) } else { position.counted };
    let recreated = page.added < begun;
    let (counted, breaks) = if recreated { (0, position.breaks + 1) } else { (begun, position.breaks) };
    let first = page.first.as_deref().and_then(|id| id.parse::<EntryId>().ok());
    let at = position.after().parse::<EntryId>().unwrap_or_default();
    let gone = if recreated && read == 0 {
        // The next step reads the recreated log from its first entry.
        page.added.saturating_sub(page.length)
    } else if page.entries.len() < page_max {
        page.added.saturating_sub(counted + read)
    } else if first.is_some_and(|first| first > at) {
        page.added.saturating_sub(counted + page.length)
    } else {
        0
    };
    if read == 0 && gone == 0 && !recreated {
        return None;
    }
    let mut chains: BTreeMap<String, Vec<Leaf>> = BTreeMap::new();
    let mut last = position.after().to_owned();
    for entry in &page.entries {
        let id = entry.id.parse().unwrap_or_default();
        chains.entry(tenant_of(&entry.text)).or_default().push(Leaf::of(id, &entry.admitted, &entry.text));
        last.clone_from(&entry.id);
    }
    // A recreated log can have lower IDs than the last entry that was read.
    if recreated && read == 0 {
        last = "0-0".into();
    }
    let gap = (gone > 0 || recreated).then(|| {
        // The lost entries may belong to other tenants, so the chain without a tenant records the gap too.
        chains.entry(String::new()).or_default();
        Gap {
            entries: gone,
            after: position.after().to_owned(),
            before: page.entries.first().map(|entry| entry.id.clone()),
        }
    });
    let losses = Losses { entries: position.lost + gone, breaks, gap };
    let tag = chains.values().flatten().last().map(|leaf| encode(&leaf.hash)[..12].to_owned());
    let tag = tag.unwrap_or_else(|| "-".into());
    let position = Position::new(last, counted + read + gone, breaks, losses.entries, tag);
    Some(Step { position, chains, losses, gone })
}

pub(super) fn seals(
    fleet: &str,
    shard: u32,
    chains: &BTreeMap<String, Vec<Leaf>>,
    heads: &BTreeMap<String, Head>,
    losses: &Losses,
    now_ms: i64,
    signer: &Signer,
) -> (Vec<Seal>, Vec<(String, Head)>) {
    let none = Head::default();
    let made = chains.iter().map(|(tenant, leaves)| {
        let chain = ChainName { fleet: fleet.to_owned(), shard, tenant: tenant.clone() };
        let sealed = seal(&chain, heads.get(tenant).unwrap_or(&none), leaves, losses, now_ms, signer);
        let head = sealed.head.to_string();
        let body = sealed.body;
        let signature = sealed.signature;
        (Seal { tenant: tenant.clone(), head, body, signature }, (tenant.clone(), sealed.head))
    });
    made.unzip()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_store::LogEntry;

    use super::*;

    fn page(ids: &[&str], added: u64, length: u64, first: &str) -> LogPage {
        let entry =
            |id: &&str| LogEntry { id: (*id).into(), text: r#"{"tenant":"acme"}"#.into(), admitted: String::new() };
        let first = (!first.is_empty()).then(|| first.to_owned());
        LogPage { entries: ids.iter().map(entry).collect(), added, length, first }
    }

    fn at(last: &str, counted: u64) -> Position {
        Position::new(last.into(), counted, 0, 0, "x".into())
    }

    #[test]
    fn a_seal_position_survives_a_round_trip() {
        let position = Position::new("5-0".into(), 7, 1, 3, "abc".into());
        assert_eq!(Position::read(&position.to_string()), position);
        assert_eq!(Position::read(""), Position::default());
        assert_eq!(Position::read("a hand was here"), Position::default());
        assert_eq!(Position::default().to_string(), "");
    }

    #[test]
    fn entries_trimmed_before_sealing_began_count_as_no_loss() {
        let step = step(&Position::default(), &page(&["5-0", "6-0"], 12, 2, "5-0"), 9).unwrap();
        assert_eq!((step.gone, step.position.counted), (0, 12));
    }

    #[test]
    fn entries_trimmed_before_they_were_sealed_count_as_lost() {
        let found = step(&at("4-0", 10), &page(&["7-0", "8-0"], 14, 2, "7-0"), 9).unwrap();
        assert_eq!((found.gone, found.position.counted, found.losses.entries), (2, 14, 2));
        assert_eq!(found.losses.gap.as_ref().unwrap().before.as_deref(), Some("7-0"));
        assert!(found.chains.contains_key("") && found.chains["acme"].len() == 2);
        // The page is full. The sealed entries were trimmed, so the loss is known.
        let found = step(&at("4-0", 10), &page(&["7-0", "8-0"], 20, 6, "7-0"), 2).unwrap();
        assert_eq!((found.gone, found.position.counted), (4, 16));
        // The page is full. The log still has some sealed entries, so the loss is not known yet.
        let found = step(&at("4-0", 10), &page(&["7-0", "8-0"], 20, 6, "3-0"), 2).unwrap();
        assert_eq!((found.gone, found.position.counted), (0, 12));
        let found = step(&at("4-0", 10), &page(&[], 13, 0, ""), 2).unwrap();
        assert_eq!((found.gone, found.position.counted), (3, 13));
        assert!(step(&at("4-0", 10), &page(&[], 10, 0, ""), 2).is_none());
    }

    #[test]
    fn a_recreated_log_counts_as_a_break() {
        let found = step(&at("9-0", 10), &page(&["11-0"], 1, 1, "11-0"), 5).unwrap();
        assert_eq!((found.position.breaks, found.position.counted, found.gone), (1, 1, 0));
        let found = step(&at("9-0", 10), &page(&[], 1, 1, "2-0"), 5).unwrap();
        assert_eq!((found.position.breaks, found.position.after()), (1, "0-0"));
        let found = step(&found.position, &page(&["2-0"], 1, 1, "2-0"), 5).unwrap();
        assert_eq!((found.position.breaks, found.position.counted), (1, 1));
        assert!(step(&found.position, &page(&[], 1, 1, "2-0"), 5).is_none());
    }
}
