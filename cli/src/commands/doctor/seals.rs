//! The seals of the audit log: is there a key and is it the right one, does the head move, do the newest seals hold.

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_config::AnchorPlace;
use tickfleet_proof::lines;
use tickfleet_proof::seal::{EntryId, SealBody, Signer};
use tickfleet_proof::verify::Verifier;
use tickfleet_store::{LogSeal, Store, StoreError};

use super::Finding;
use crate::output::time_format::{millis, span};
use crate::setup::Setup;

/// Seals that are checked, the newest.
const CHECKED: usize = 200;
/// Entries of those that are read at most.
const READ_MAX: usize = 20_000;
/// Entries that are read at once.
const PAGE: usize = 500;
/// What is not sealed, or whose head is not kept outside, for longer than this shows that nobody does it, ms.
const LATE_MS_MIN: i64 = 30_000;

/// Judges a shard; says nothing where nothing is sealed nor ever was.
pub(super) async fn shard(setup: &Setup, store: &Store) -> Result<Vec<Finding>, StoreError> {
    let is_sealed = store.sealed_state().await?.is_some();
    let signer = match setup.signer() {
        Ok(Some(signer)) => signer,
        Ok(None) if is_sealed => {
            let says = "the audit log was sealed, and this configuration has no seal.key: nothing is sealed any more";
            return Ok(vec![Finding::warn("seals", says, "name the key, or know that later entries prove nothing")]);
        }
        Ok(None) => return Ok(Vec::new()),
        Err(failure) => {
            let says = failure.message().unwrap_or_default();
            return Ok(vec![Finding::fail(
                "seals",
                says,
                "tickfleet audit key --new FILE makes one; schedulers need it",
            )]);
        }
    };
    let mut keys = store.seal_keys().await?;
    if keys.get(signer.key_id()).is_some_and(|known| *known != signer.public_key()) {
        let says = format!("another key has signed under the id {:?}: nothing is sealed by this one", signer.key_id());
        return Ok(vec![Finding::fail("seals", says, "give the newer key another seal.key_id")]);
    }
    keys.insert(signer.key_id().to_owned(), signer.public_key());
    let seals = store.newest_seals(CHECKED).await?;
    let mut findings = vec![moves(setup, store, &signer).await?];
    findings.extend(anchored(setup, store, &seals).await?);
    if !seals.is_empty() {
        findings.push(holds(store, keys, seals).await?);
    }
    Ok(findings)
}

/// Whether the head moves.
async fn moves(setup: &Setup, store: &Store, signer: &Signer) -> Result<Finding, StoreError> {
    let unsealed_ms = store.unsealed_ms().await?;
    let late_ms = LATE_MS_MIN.max(millis(setup.settings().seal.every).saturating_mul(10));
    let key = signer.key_id();
    Ok(if unsealed_ms <= late_ms {
        Finding::ok("seals", format!("the audit log is sealed by {key}, up to {} ago", span(unsealed_ms)))
    } else {
        let says = format!("the oldest entry of the audit log without a seal is {} old", span(unsealed_ms));
        Finding::fail("seals", says, "does a scheduler run, and has it this key? Its log says why it does not seal")
    })
}

/// Whether heads are kept outside.
async fn anchored(setup: &Setup, store: &Store, seals: &[LogSeal]) -> Result<Option<Finding>, StoreError> {
    if setup.settings().seal.anchor == AnchorPlace::None {
        return Ok(None);
    }
    let number = |id: &str| id.parse::<EntryId>().unwrap_or_default();
    let Some(newest) = seals.first().map(|seal| number(&seal.id)) else { return Ok(None) };
    let kept = store.anchored().await?.map_or_else(EntryId::default, |id| number(&id));
    let behind_ms = i64::try_from(newest.ms.saturating_sub(kept.ms)).unwrap_or(i64::MAX);
    if kept >= newest || behind_ms <= LATE_MS_MIN {
        return Ok(Some(Finding::ok("anchors", "heads of the chains are kept where seal.anchor says")));
    }
    let says = "heads of the chains are not kept where seal.anchor says: the end could be cut off unseen";
    Ok(Some(Finding::fail("anchors", says, "the schedulers' log says why that place refuses them")))
}

/// Whether the newest seals and their entries are what was written.
async fn holds(store: &Store, keys: BTreeMap<String, String>, mut seals: Vec<LogSeal>) -> Result<Finding, StoreError> {
    seals.reverse();
    let mut ids = BTreeSet::new();
    for seal in &seals {
        let body = serde_json::from_str::<SealBody>(&seal.body).ok();
        ids.extend(body.and_then(|body| body.entry_ids().ok()).unwrap_or_default());
    }
    let mut verifier = Verifier::new(keys);
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else {
        return Ok(Finding::ok("seals", "the newest seals are of losses alone"));
    };
    let (mut from, until, mut read) = (first.to_string(), last.to_string(), 0);
    while read < READ_MAX {
        let page = store.log_entries(&from, &until, PAGE).await?;
        read += page.len();
        for entry in page.iter().filter(|entry| entry.id.parse().is_ok_and(|id| ids.contains(&id))) {
            verifier.line(&lines::entry(store.shard(), &entry.id, &entry.admitted, &entry.text));
        }
        let Some(last) = page.last().filter(|_| page.len() == PAGE) else { break };
        from = format!("({}", last.id);
    }
    if read >= READ_MAX {
        return Ok(Finding::ok("seals", "too many entries to check here: export and verify them"));
    }
    let count = seals.len();
    for seal in seals {
        verifier.line(&lines::seal(store.shard(), &seal.body, &seal.signature));
    }
    let verdict = verifier.finish(&[], None);
    Ok(match verdict.findings.first() {
        None => Finding::ok(
            "seals",
            format!("the newest {count}, with {} entries, are as they were written", verdict.sealed),
        ),
        Some(first) => {
            let says = format!("the audit log is NOT as it was written: {first}");
            Finding::fail("seals", says, "tickfleet audit export and verify tell all that is wrong, and where")
        }
    })
}
