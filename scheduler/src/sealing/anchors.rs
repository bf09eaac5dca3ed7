//! Anchors: copies of the heads of seal chains, stored where writers of the store cannot change them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use tickfleet_core::audit::seal::{self, SealResult};
use tickfleet_core::leases::Candidate;
use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::seal::{SealBody, head_of, is_signed};
use tickfleet_store::{Pool, Store};

const PAGE: usize = 500;
const HEADS_AT_ONCE: usize = 250;
const ANCHORS_MAX: u64 = 100_000;

#[derive(Debug, Clone)]
pub enum AnchorTarget {
    Stream,
    OtherStream(Pool, String),
    Log,
    File(PathBuf),
}

/// Up to this seal, the heads have been copied. `None` until the seal is read from the store.
#[derive(Default)]
pub(super) struct Anchors {
    at: Option<String>,
}

impl Anchors {
    /// For each chain, copies the last head that each key has signed. After a crash, a head may be copied again.
    /// `public_key` and `key_id` belong to the sealer's key.
    pub(super) async fn write_new_heads(
        &mut self,
        store: &Store,
        target: &AnchorTarget,
        public_key: &str,
        key_id: &str,
        candidate: Candidate,
    ) -> Result<(), String> {
        let at = match &self.at {
            Some(at) => at.clone(),
            None => store.anchored().await.map_err(|e| e.to_string())?.unwrap_or_default(),
        };
        let mut last = at.clone();
        let mut heads = BTreeMap::new();
        // Public keys by key ID. An older signing key may have signed the last seal of a tenant without newer entries.
        let mut older: Option<BTreeMap<String, String>> = None;
        loop {
            let after = if last.is_empty() { "0-0" } else { last.as_str() };
            let page = store.seals(after, PAGE).await.map_err(|e| e.to_string())?;
            for seal in &page {
                last.clone_from(&seal.id);
                let Ok(body) = serde_json::from_str::<SealBody>(&seal.body) else { continue };
                if body.key_id != key_id && older.is_none() {
                    older = Some(store.seal_keys().await.map_err(|e| e.to_string())?);
                }
                let signed_by = match body.key_id == key_id {
                    true => Some(public_key),
                    false => older.as_ref().and_then(|keys| keys.get(&body.key_id)).map(String::as_str),
                };
                // A forged seal must not replace a head of this key or of an older key.
                let signed_by = signed_by.filter(|key| is_signed(key, &head_of(&seal.body), &seal.signature));
                let anchor = signed_by.and_then(|key| Anchor::of(&seal.body, &seal.signature, key));
                heads.extend(anchor.map(|anchor| ((body.tenant, body.key_id), anchor)));
            }
            if page.len() < PAGE {
                break;
            }
        }
        if last == at {
            self.at = Some(at);
            return Ok(());
        }
        let lines: Vec<String> = heads.values().filter_map(|anchor| serde_json::to_string(anchor).ok()).collect();
        let own = write_heads(target, lines).await?;
        self.at = record_anchored(store, candidate, at, last, own).await?;
        Ok(())
    }
}

/// Returns the last recorded seal. `None` if another process holds the lease.
async fn record_anchored(
    store: &Store,
    candidate: Candidate,
    before: String,
    upto: String,
    own: Vec<String>,
) -> Result<Option<String>, String> {
    let own: Vec<Bytes> = own.into_iter().map(Bytes::from).collect();
    let mut chunks = own.chunks(HEADS_AT_ONCE).peekable();
    loop {
        let anchors = chunks.next().unwrap_or_default().to_vec();
        let is_last = chunks.peek().is_none();
        let anchor = seal::Anchor {
            candidate: candidate.clone(),
            before: before.clone(),
            upto: if is_last { upto.clone() } else { before.clone() },
            anchors,
            anchors_max: ANCHORS_MAX,
        };
        match store.decide(anchor).await.map_err(|e| e.to_string())?.result {
            SealResult::Done if is_last => return Ok(Some(upto)),
            SealResult::Done => {}
            SealResult::Stale { state } => return Ok(Some(state)),
            SealResult::Held | SealResult::OtherKey => return Ok(None),
        }
    }
}

/// If the target is the shard's own stream, the caller must write the returned lines.
async fn write_heads(target: &AnchorTarget, lines: Vec<String>) -> Result<Vec<String>, String> {
    match target {
        _ if lines.is_empty() => {}
        AnchorTarget::Stream => return Ok(lines),
        AnchorTarget::OtherStream(pool, stream) => {
            pool.keep_anchors(stream, &lines).await.map_err(|e| format!("seal.anchor: stream {stream}: {e}"))?;
        }
        AnchorTarget::Log => lines.iter().for_each(|anchor| tracing::info!(anchor = %anchor, "audit log sealed")),
        AnchorTarget::File(path) => {
            let path = path.clone();
            let written = tokio::task::spawn_blocking(move || append(&path, &lines));
            written.await.map_err(|e| e.to_string())?.map_err(|e| format!("seal.anchor: {e}"))?;
        }
    }
    Ok(Vec::new())
}

fn append(path: &Path, lines: &[String]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    file.write_all(text.as_bytes())?;
    file.sync_data()
}
