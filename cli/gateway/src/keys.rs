//! API keys: a file of rows, each with the hash of a key and its permissions.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tickfleet_model::hex;
use tokio_util::sync::CancellationToken;

use crate::verbs::{CredentialKind, Grant, Rate, TenantScope, Verb};

/// With this many random bytes, even an unsalted hash does not reveal the key.
const KEY_BYTES: usize = 32;
/// Scanners of leaked secrets find keys by this prefix.
const PREFIX: &str = "tfk_";
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Also the maximum for names in tokens.
pub(crate) const ID_CHARS_MAX: usize = 64;
/// Kubernetes changes a mounted Secret without a file event, so the file is polled.
const POLL_EVERY: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyRow {
    /// Shown to people and in logs; not secret.
    pub id: String,
    /// 64 hexadecimal characters.
    pub sha256: String,
    /// `*` for operators of all tenants.
    pub tenant: TenantScope,
    /// `*` for all agents, a name that ends in `*` for all with that prefix.
    pub agents: Vec<String>,
    pub verbs: BTreeSet<Verb>,
    /// The name of an approver of `permissions.yaml`. Required with `approve`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approver: Option<String>,
    /// Bounds requests through one gateway. Default: unlimited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires: Option<DateTime<Utc>>,
}

impl KeyRow {
    fn grant(&self) -> Grant {
        let Self { id, tenant, agents, verbs, approver, rate, expires, .. } = self.clone();
        Grant { id, credential: CredentialKind::Key, tenant, agents, verbs, approver, rate, expires }
    }
}

#[derive(Clone)]
pub struct NewKey {
    pub secret: String,
    pub sha256: String,
}

impl std::fmt::Debug for NewKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewKey").field("sha256", &self.sha256).finish_non_exhaustive()
    }
}

impl NewKey {
    pub fn random() -> Result<Self, KeyError> {
        let mut bytes = [0; KEY_BYTES];
        SystemRandom::new().fill(&mut bytes).map_err(|_| KeyError::NoRandomness)?;
        let secret = format!("{PREFIX}{}", URL_SAFE_NO_PAD.encode(bytes));
        let sha256 = hash(&secret);
        Ok(Self { secret, sha256 })
    }
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the API key file {path}: {source}")]
    File { path: String, source: std::io::Error },
    #[error("API key file {path}: {problem}")]
    Invalid { path: String, problem: String },
    #[error("the system's random number generator failed")]
    NoRandomness,
}

#[derive(Debug, Default)]
pub struct ApiKeys {
    by_hash: HashMap<String, Arc<Grant>>,
    ids: BTreeSet<String>,
}

impl ApiKeys {
    pub fn parse(text: &str) -> Result<Self, String> {
        // A file without rows parses as null.
        let rows: Option<Vec<KeyRow>> = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
        let mut by_hash = HashMap::new();
        let mut ids = BTreeSet::new();
        for row in rows.unwrap_or_default() {
            check(&row)?;
            if !ids.insert(row.id.clone()) {
                return Err(format!("two keys have the id {:?}", row.id));
            }
            let hash = row.sha256.to_ascii_lowercase();
            if let Some(other) = by_hash.insert(hash, Arc::new(row.grant())) {
                return Err(format!("the key {:?} has the same hash as another key", other.id));
            }
        }
        Ok(Self { by_hash, ids })
    }

    /// A key has 256 random bits, so the timing of the hash lookup does not help to guess a key.
    #[must_use]
    pub fn find(&self, secret: &str, now: DateTime<Utc>) -> Option<Arc<Grant>> {
        let row = self.by_hash.get(&hash(secret))?;
        row.expires.is_none_or(|end| now < end).then(|| Arc::clone(row))
    }

    #[must_use]
    pub fn names(&self, id: &str) -> bool {
        self.ids.contains(id)
    }

    #[must_use]
    pub fn len(&self) -> usize {
        self.by_hash.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_hash.is_empty()
    }
}

fn check(row: &KeyRow) -> Result<(), String> {
    let KeyRow { id, sha256, .. } = row;
    if id.is_empty() || id.chars().count() > ID_CHARS_MAX || id.chars().any(char::is_control) {
        return Err(format!("key id {id:?}: expected 1 to {ID_CHARS_MAX} characters without control characters"));
    }
    if sha256.len() != 64 || !sha256.bytes().all(|b| b.is_ascii_hexdigit()) {
        return Err(format!(
            "key {id:?}: sha256: expected 64 hexadecimal characters, as printed by tickfleet gateway key"
        ));
    }
    row.grant().check().map_err(|problem| format!("key {id:?}: {problem}"))
}

fn hash(secret: &str) -> String {
    hex(&Sha256::digest(secret.as_bytes()))
}

/// If a reload fails, the previous keys stay valid.
#[derive(Debug, Clone)]
pub struct KeysFile {
    path: PathBuf,
    keys: Arc<ArcSwap<ApiKeys>>,
}

impl KeysFile {
    pub fn open(path: &Path) -> Result<Self, KeyError> {
        let keys = read(path).and_then(|text| parse(path, &text))?;
        Ok(Self { path: path.to_owned(), keys: Arc::new(ArcSwap::from_pointee(keys)) })
    }

    pub fn of(rows: impl IntoIterator<Item = KeyRow>) -> Result<Self, KeyError> {
        let mut keys = ApiKeys::default();
        for row in rows {
            check(&row).map_err(|problem| KeyError::Invalid { path: row.id.clone(), problem })?;
            keys.by_hash.insert(row.sha256.to_ascii_lowercase(), Arc::new(row.grant()));
            keys.ids.insert(row.id);
        }
        Ok(Self { path: PathBuf::new(), keys: Arc::new(ArcSwap::from_pointee(keys)) })
    }

    #[must_use]
    pub fn in_force(&self) -> Arc<ApiKeys> {
        self.keys.load_full()
    }

    /// Rejects a removed key about a second after the file changes.
    pub async fn follow(self, stop: CancellationToken) {
        let mut known = read(&self.path).ok();
        while stop.run_until_cancelled(tokio::time::sleep(POLL_EVERY)).await.is_some() {
            let found = read(&self.path);
            let text = found.as_ref().ok().cloned();
            if text == known {
                continue;
            }
            known = text;
            match found.and_then(|text| parse(&self.path, &text)) {
                Ok(keys) => {
                    tracing::info!(keys = keys.len(), "API keys reloaded");
                    self.keys.store(Arc::new(keys));
                }
                Err(error) => tracing::error!(%error, "API keys not reloaded; the previous keys stay in force"),
            }
        }
    }
}

fn read(path: &Path) -> Result<String, KeyError> {
    let failed = |source| KeyError::File { path: path.display().to_string(), source };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > FILE_BYTES_MAX {
        let problem = format!("it has {length} bytes; at most {FILE_BYTES_MAX} are read");
        return Err(KeyError::Invalid { path: path.display().to_string(), problem });
    }
    std::fs::read_to_string(path).map_err(failed)
}

fn parse(path: &Path, text: &str) -> Result<ApiKeys, KeyError> {
    ApiKeys::parse(text).map_err(|problem| KeyError::Invalid { path: path.display().to_string(), problem })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn file(key: &NewKey, more: &str) -> String {
        format!(
            "- id: shop\n  sha256: {}\n  tenant: demo\n  agents: [kelly, fran*]\n  verbs: [submit]\n{more}",
            key.sha256
        )
    }

    #[test]
    fn a_key_matches_its_hash_until_it_expires() {
        let key = NewKey::random().unwrap();
        let other = NewKey::random().unwrap();
        assert_ne!(key.secret, other.secret);
        let keys = ApiKeys::parse(&file(&key, "  expires: 2027-01-01T00:00:00Z\n")).unwrap();
        let row = keys.find(&key.secret, at("2026-12-31T23:59:59Z")).unwrap();
        assert_eq!((row.id.as_str(), row.tenant.one().unwrap().as_str()), ("shop", "demo"));
        assert!(keys.find(&key.secret, at("2027-01-01T00:00:00Z")).is_none());
        assert!(keys.find(&other.secret, at("2026-01-01T00:00:00Z")).is_none());
        assert!(keys.find(&key.sha256, at("2026-01-01T00:00:00Z")).is_none(), "the hash itself opens nothing");
        assert!(!format!("{key:?}").contains(&key.secret), "a key is not printed by mistake");
    }

    #[test]
    fn a_key_covers_agents_by_exact_name_or_prefix() {
        let keys = ApiKeys::parse(&file(&NewKey::random().unwrap(), "")).unwrap();
        let row = keys.by_hash.values().next().unwrap();
        assert_eq!(
            ["kelly", "kelly2", "fran", "francis", "fra"].map(|agent| row.covers(agent)),
            [true, false, true, true, false]
        );
    }

    #[test]
    fn an_invalid_key_file_is_rejected() {
        let key = NewKey::random().unwrap();
        let other = NewKey::random().unwrap();
        let good = file(&key, "");
        let refused = |text: &str| ApiKeys::parse(text).unwrap_err();
        assert!(refused(&good.replace("[submit]", "[submitt]")).contains("submitt"));
        assert!(refused(&good.replace("[submit]", "[]")).contains("at least one of submit, read, cancel, view"));
        assert!(refused(&good.replace("[kelly, fran*]", "[]")).contains("at least one"));
        assert!(refused(&good.replace("fran*", "f*n")).contains("a prefix followed by *"));
        assert!(ApiKeys::parse(&good.replace("kelly", "josé")).is_ok(), "a letter of several bytes at the end");
        assert!(refused(&good.replace(&key.sha256, &key.secret)).contains("64 hexadecimal characters"));
        assert!(refused(&good.replace("id: shop", "id: shop\n  sekret: x")).contains("sekret"));
        let rated = |rate: &str| ApiKeys::parse(&format!("{good}  rate: {rate}\n"));
        let row = rated("{per_second: 20}").unwrap().find(&key.secret, at("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(row.rate.map(Rate::burst_size), Some(20));
        for (rate, why) in
            [("{per_second: 0}", "from 1"), ("{per_second: 9, burst: 0}", "from 1"), ("{burst: 9}", "per_second")]
        {
            assert!(rated(rate).unwrap_err().contains(why), "{rate}");
        }
        assert!(refused(&format!("{good}{good}")).contains("two keys have the id"));
        assert!(refused(&format!("{good}{}", good.replace("shop", "till"))).contains("the same hash as another key"));
        let all = |text: &str| refused(&good.replace("[submit]", text).replace("[kelly, fran*]", "['*']"));
        assert!(refused(&good.replace("demo", "'*'")).contains("tenant: required"));
        assert!(refused(&good.replace("[submit]", "[submit, view]")).contains("cover all agents"));
        assert!(all("[approve]").contains("approver: required with approve"));
        assert!(all("[view]\n  approver: anna").contains("approver: required with approve"));
        let two = format!("{good}{}", good.replace("shop", "till").replace(&key.sha256, &other.sha256));
        assert_eq!(ApiKeys::parse(&two).unwrap().len(), 2);
        for none in ["", "[]", "# nobody any more\n"] {
            assert!(ApiKeys::parse(none).unwrap().is_empty(), "{none:?}");
        }
    }
}
