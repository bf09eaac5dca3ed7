//! Checks the seals of the audit log.

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_config::AnchorPlace;
use tickfleet_proof::lines;
use tickfleet_proof::seal::{EntryId, SealBody, Signer};
use tickfleet_proof::verify::Verifier;
use tickfleet_store::{LogSeal, Store, StoreError};

use crate::checks::CheckResult;
use crate::output::time_format::{millis, span};
use crate::setup::Setup;

const CHECKED: usize = 200;
const READ_MAX: usize = 20_000;
const PAGE: usize = 500;
/// If entries stay unsealed, or seals stay unanchored, for longer than this time (ms), no process does the work.
const LATE_MS_MIN: i64 = 30_000;

/// Checks the seals if a key is configured, or if anything was ever sealed.
pub(super) async fn shard(setup: &Setup, store: &Store) -> Result<Vec<CheckResult>, StoreError> {
    let is_sealed = store.sealed_state().await?.is_some();
    let signer = match setup.signer() {
        Ok(Some(signer)) => signer,
        Ok(None) if is_sealed => {
            let says = "the audit log has seals, but this configuration has no seal.key: sealing has stopped";
            return Ok(vec![CheckResult::warn(
                "seals",
                says,
                "configure the key; entries without a seal prove nothing",
            )]);
        }
        Ok(None) => return Ok(Vec::new()),
        Err(failure) => {
            let says = failure.message().unwrap_or_default();
            return Ok(vec![CheckResult::fail(
                "seals",
                says,
                "tickfleet audit key --new FILE creates one; schedulers need it",
            )]);
        }
    };
    let mut keys = store.seal_keys().await?;
    if keys.get(signer.key_id()).is_some_and(|known| *known != signer.public_key()) {
        let says = format!("another key has signed under the id {:?}: this key seals nothing", signer.key_id());
        return Ok(vec![CheckResult::fail("seals", says, "give the newer key another seal.key_id")]);
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

async fn moves(setup: &Setup, store: &Store, signer: &Signer) -> Result<CheckResult, StoreError> {
    let unsealed_ms = store.unsealed_ms().await?;
    let late_ms = LATE_MS_MIN.max(millis(setup.settings().seal.every).saturating_mul(10));
    let key = signer.key_id();
    Ok(if unsealed_ms <= late_ms {
        CheckResult::ok("seals", format!("audit log sealed by {key}, up to {} ago", span(unsealed_ms)))
    } else {
        let says = format!("the oldest unsealed audit entry is {} old", span(unsealed_ms));
        CheckResult::fail("seals", says, "check that a scheduler runs with this key; its log has the reason")
    })
}

async fn anchored(setup: &Setup, store: &Store, seals: &[LogSeal]) -> Result<Option<CheckResult>, StoreError> {
    if setup.settings().seal.anchor == AnchorPlace::None {
        return Ok(None);
    }
    let number = |id: &str| id.parse::<EntryId>().unwrap_or_default();
    let Some(newest) = seals.first().map(|seal| number(&seal.id)) else { return Ok(None) };
    let kept = store.anchored().await?.map_or_else(EntryId::default, |id| number(&id));
    let behind_ms = i64::try_from(newest.ms.saturating_sub(kept.ms)).unwrap_or(i64::MAX);
    if kept >= newest || behind_ms <= LATE_MS_MIN {
        return Ok(Some(CheckResult::ok("anchors", "anchors of the chains are written to seal.anchor")));
    }
    let says = "anchors of the chains are not written to seal.anchor: a removed end would not be detected";
    Ok(Some(CheckResult::fail("anchors", says, "the schedulers' logs have the reason")))
}

async fn holds(
    store: &Store,
    keys: BTreeMap<String, String>,
    mut seals: Vec<LogSeal>,
) -> Result<CheckResult, StoreError> {
    seals.reverse();
    let mut ids = BTreeSet::new();
    for seal in &seals {
        let body = serde_json::from_str::<SealBody>(&seal.body).ok();
        ids.extend(body.and_then(|body| body.entry_ids().ok()).unwrap_or_default());
    }
    let mut verifier = Verifier::new(keys);
    let (Some(first), Some(last)) = (ids.first(), ids.last()) else {
        return Ok(CheckResult::ok("seals", "the newest seals record losses only"));
    };
    let mut from = first.to_string();
    let until = last.to_string();
    let mut read = 0;
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
        return Ok(CheckResult::ok("seals", "too many entries to check here: export and verify the log"));
    }
    let count = seals.len();
    for seal in seals {
        verifier.line(&lines::seal(store.shard(), &seal.body, &seal.signature));
    }
    let verdict = verifier.finish(&[], None);
    Ok(match verdict.findings.first() {
        None => CheckResult::ok("seals", format!("the newest {count}, with {} entries, are unchanged", verdict.sealed)),
        Some(first) => {
            let says = format!("the audit log was CHANGED: {first}");
            CheckResult::fail(
                "seals",
                says,
                "tickfleet audit export and tickfleet audit verify list every problem and its place",
            )
        }
    })
}
