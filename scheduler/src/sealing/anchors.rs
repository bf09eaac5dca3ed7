//! Anchors: the heads of chains, kept where whoever can write to Redis cannot.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use tickfleet_proof::anchor::Anchor;
use tickfleet_proof::seal::{SealBody, head_of, is_signed};
use tickfleet_store::{Pool, Store};

/// Seals that are read at once.
const PAGE: usize = 500;

/// Where heads are kept.
#[derive(Debug, Clone)]
pub enum Place {
    /// In a stream of the shard's own Redis.
    Stream,
    /// In this stream of another Redis.
    OtherStream(Pool, String),
    /// In the process' log.
    Log,
    /// In a file that lines are appended to.
    File(PathBuf),
}

/// How far heads are kept outside.
#[derive(Default)]
pub(super) struct Anchors {
    at: Option<String>,
}

impl Anchors {
    /// Keeps the heads of all chains that have grown since the last time: the last one of each that each key has signed. A
    /// head may be kept twice, where a scheduler died in between.
    ///
    /// # Errors
    /// Why it could not be done, in words.
    pub(super) async fn follow(
        &mut self,
        store: &Store,
        place: &Place,
        public_key: &str,
        key_id: &str,
    ) -> Result<(), String> {
        let at = match &self.at {
            Some(at) => at.clone(),
            None => store.anchored().await.map_err(|e| e.to_string())?.unwrap_or_else(|| "0-0".into()),
        };
        let (mut last, mut heads) = (at.clone(), BTreeMap::new());
        // Seals of an older key are known by its public half: a tenant that is quiet since has no later ones.
        let mut older: Option<BTreeMap<String, String>> = None;
        loop {
            let page = store.seals(&last, PAGE).await.map_err(|e| e.to_string())?;
            for seal in &page {
                last.clone_from(&seal.id);
                let Ok(said) = serde_json::from_str::<SealBody>(&seal.body) else { continue };
                if said.key_id != key_id && older.is_none() {
                    older = Some(store.seal_keys().await.map_err(|e| e.to_string())?);
                }
                let signed_by = match said.key_id == key_id {
                    true => Some(public_key),
                    false => older.as_ref().and_then(|keys| keys.get(&said.key_id)).map(String::as_str),
                };
                // What somebody has put among the seals displaces no head: neither under this key's name, nor by one of his own.
                let signed_by = signed_by.filter(|key| is_signed(key, &head_of(&seal.body), &seal.signature));
                let anchor = signed_by.and_then(|key| Anchor::of(&seal.body, &seal.signature, key));
                heads.extend(anchor.map(|anchor| ((said.tenant, said.key_id), anchor)));
            }
            if page.len() < PAGE {
                break;
            }
        }
        let lines: Vec<String> = heads.values().filter_map(|anchor| serde_json::to_string(anchor).ok()).collect();
        if !lines.is_empty() {
            keep(store, place, lines).await?;
        }
        if last != at {
            store.note_anchored(&last).await.map_err(|e| e.to_string())?;
        }
        self.at = Some(last);
        Ok(())
    }
}

async fn keep(store: &Store, place: &Place, lines: Vec<String>) -> Result<(), String> {
    match place {
        Place::Stream => store.keep_anchors(&lines).await.map_err(|e| e.to_string()),
        Place::OtherStream(pool, stream) => {
            pool.keep_anchors(stream, &lines).await.map_err(|e| format!("seal.anchor: stream {stream}: {e}"))
        }
        Place::Log => {
            lines.iter().for_each(|anchor| tracing::info!(anchor = %anchor, "audit log sealed"));
            Ok(())
        }
        Place::File(path) => {
            let path = path.clone();
            let written = tokio::task::spawn_blocking(move || append(&path, &lines));
            written.await.map_err(|e| e.to_string())?.map_err(|e| format!("seal.anchor: {e}"))
        }
    }
}

/// Appends lines, and waits until the disk has them.
fn append(path: &Path, lines: &[String]) -> std::io::Result<()> {
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    file.write_all(text.as_bytes())?;
    file.sync_data()
}
