//! Seals are signed records beside the audit log. Each seal covers a batch of entries of one tenant in one shard. A
//! seal's *head* is the SHA-256 of the exact bytes of its *body*, and is signed with Ed25519.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::digest::{Context, SHA256, digest};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair as _, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

pub const FORMAT: u32 = 1;
const LEAF_BYTES: usize = 16;
/// Signed before each head. Without this prefix, a signature for another purpose could be valid for a seal.
const SIGNED: &[u8] = b"tickfleet audit seal\n";
const SEED_BYTES: usize = 32;

pub type Hash = [u8; 32];

/// The time of the write (ms by Redis' clock), and a number within this millisecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EntryId {
    pub ms: u64,
    pub seq: u64,
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an entry id, such as 1795306210410-0")]
pub struct NoEntryId(String);

impl FromStr for EntryId {
    type Err = NoEntryId;

    fn from_str(text: &str) -> Result<Self, NoEntryId> {
        let parts = text.split_once('-').and_then(|(ms, seq)| Some((ms.parse().ok()?, seq.parse().ok()?)));
        let (ms, seq) = parts.ok_or_else(|| NoEntryId(text.chars().take(64).collect()))?;
        Ok(Self { ms, seq })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leaf {
    pub id: EntryId,
    /// Covers ID, admission and text.
    pub hash: Hash,
}

impl Leaf {
    /// Each length is hashed before its part, so that different entries never hash the same bytes.
    #[must_use]
    pub fn of(id: EntryId, admitted: &str, text: &str) -> Self {
        let mut context = Context::new(&SHA256);
        for part in [id.to_string().as_str(), admitted, text] {
            context.update(&(part.len() as u64).to_be_bytes());
            context.update(part.as_bytes());
        }
        Self { id, hash: hash_of(context.finish().as_ref()) }
    }

    #[must_use]
    pub fn short(&self) -> &[u8] {
        &self.hash[..LEAF_BYTES]
    }
}

/// Each tenant has one chain in each shard. Entries without a tenant have the chain with an empty `tenant`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChainName {
    /// The first part of the fleet's Redis keys.
    pub fleet: String,
    pub shard: u32,
    pub tenant: String,
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tenant = if self.tenant.is_empty() { "(no tenant)" } else { &self.tenant };
        write!(f, "{tenant} in shard {}", self.shard)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Head {
    /// Number of the last seal; 0 without seals.
    pub number: u64,
    /// In all seals of the chain.
    pub entries: u64,
    pub hash: Hash,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.number, self.entries, encode(&self.hash))
    }
}

impl FromStr for Head {
    type Err = BadSeal;

    fn from_str(text: &str) -> Result<Self, BadSeal> {
        let mut parts = text.split(' ');
        let mut next = || parts.next().ok_or(BadSeal("the head of a chain is cut"));
        let number = next()?;
        let entries = next()?;
        let hash = next()?;
        let number = number.parse().map_err(|_| BadSeal("the head of a chain has no number"))?;
        let entries = entries.parse().map_err(|_| BadSeal("the head of a chain counts no entries"))?;
        Ok(Self { number, entries, hash: decode_hash(hash)? })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Losses {
    /// Trimmed or deleted entries of any tenant.
    pub entries: u64,
    /// How often the log was deleted and created again, with an unknown loss of entries.
    pub breaks: u64,
    pub gap: Option<Gap>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gap {
    /// 0 if unknown.
    pub entries: u64,
    /// The last entry before the gap.
    pub after: String,
    /// The first entry after the gap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// The seal's head is the hash of the exact bytes of the body.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SealBody {
    /// See [`FORMAT`].
    pub v: u32,
    pub fleet: String,
    pub shard: u32,
    /// Empty for entries without a tenant.
    pub tenant: String,
    /// Position in the chain, from 1.
    pub number: u64,
    /// The head of the previous seal; zeros for the first seal.
    pub previous: String,
    /// Position of the first entry in the chain, from 1.
    pub first: u64,
    pub count: u64,
    /// In the format of `ids_of`.
    pub ids: String,
    /// The first 16 bytes of each entry's hash, joined.
    pub leaves: String,
    /// The hash of the joined full hashes.
    pub root: String,
    /// Entries of the shard that were lost before they were sealed, up to this seal.
    pub lost: u64,
    /// How often the shard's log was deleted and created again.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub breaks: u64,
    /// Found since the previous seal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap: Option<Gap>,
    /// By the shard's clock.
    pub sealed_ms: i64,
    pub key_id: String,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl SealBody {
    #[must_use]
    pub fn chain(&self) -> ChainName {
        ChainName { fleet: self.fleet.clone(), shard: self.shard, tenant: self.tenant.clone() }
    }

    pub fn entry_ids(&self) -> Result<Vec<EntryId>, BadSeal> {
        let ids = read_ids(&self.ids)?;
        if ids.len() as u64 != self.count {
            return Err(BadSeal("its list of entries and its count differ"));
        }
        Ok(ids)
    }

    /// Includes seals without entries, and seals with an entry in the range. Also includes seals made in the range for
    /// earlier entries, because anchors have the time of the seal.
    #[must_use]
    pub fn is_in_time_range(&self, from_ms: Option<i64>, until_ms: Option<i64>) -> bool {
        let Ok(ids) = self.entry_ids() else { return false };
        let ms = |id: &EntryId| i64::try_from(id.ms).unwrap_or(i64::MAX);
        let is_later = |id: &EntryId| from_ms.is_none_or(|from| ms(id) >= from);
        let is_before = |id: &EntryId| until_ms.is_none_or(|until| ms(id) < until);
        let sealed_later = from_ms.is_some_and(|from| self.sealed_ms >= from) && ids.first().is_some_and(is_before);
        ids.is_empty() || sealed_later || ids.iter().any(|id| is_later(id) && is_before(id))
    }

    pub fn short_hashes(&self) -> Result<Vec<u8>, BadSeal> {
        let bytes = URL_SAFE_NO_PAD.decode(&self.leaves).map_err(|_| BadSeal("its hashes are not base64"))?;
        if bytes.len() as u64 != self.count * LEAF_BYTES as u64 {
            return Err(BadSeal("it does not have as many hashes as entries"));
        }
        Ok(bytes)
    }
}

#[must_use]
pub const fn short_bytes() -> usize {
    LEAF_BYTES
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadSeal(pub &'static str);

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sealed {
    /// The exact bytes are hashed, so the text must not be reformatted.
    pub body: String,
    pub signature: String,
    pub head: Head,
}

#[must_use]
pub fn seal(chain: &ChainName, head: &Head, leaves: &[Leaf], losses: &Losses, sealed_ms: i64, by: &Signer) -> Sealed {
    let ids: Vec<EntryId> = leaves.iter().map(|leaf| leaf.id).collect();
    let short: Vec<u8> = leaves.iter().flat_map(|leaf| leaf.short().to_vec()).collect();
    let body = SealBody {
        v: FORMAT,
        fleet: chain.fleet.clone(),
        shard: chain.shard,
        tenant: chain.tenant.clone(),
        number: head.number + 1,
        previous: encode(&head.hash),
        first: head.entries + 1,
        count: leaves.len() as u64,
        ids: ids_of(&ids),
        leaves: URL_SAFE_NO_PAD.encode(short),
        root: encode(&root_of(leaves.iter().map(|leaf| &leaf.hash))),
        lost: losses.entries,
        breaks: losses.breaks,
        gap: losses.gap.clone(),
        sealed_ms,
        key_id: by.key_id.clone(),
    };
    let body = serde_json::to_string(&body).unwrap_or_default();
    let hash = head_of(&body);
    let head = Head { number: head.number + 1, entries: head.entries + leaves.len() as u64, hash };
    Sealed { signature: by.sign(&hash), body, head }
}

pub(crate) fn root_of<'a>(hashes: impl Iterator<Item = &'a Hash>) -> Hash {
    let mut context = Context::new(&SHA256);
    hashes.for_each(|hash| context.update(hash));
    hash_of(context.finish().as_ref())
}

#[must_use]
pub fn head_of(body: &str) -> Hash {
    hash_of(digest(&SHA256, body.as_bytes()).as_ref())
}

fn hash_of(bytes: &[u8]) -> Hash {
    let mut hash = [0; 32];
    // A SHA-256 has 32 bytes.
    hash.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    hash
}

#[must_use]
pub fn encode(hash: &Hash) -> String {
    URL_SAFE_NO_PAD.encode(hash)
}

pub fn decode_hash(text: &str) -> Result<Hash, BadSeal> {
    let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| BadSeal("a hash is not base64"))?;
    if bytes.len() == 32 { Ok(hash_of(&bytes)) } else { Err(BadSeal("a hash does not have 32 bytes")) }
}

/// The first ID is written in full. Each later ID is `+<ms since the previous>-<number>`, or `-<number>` in the same
/// millisecond.
fn ids_of(ids: &[EntryId]) -> String {
    let mut text = String::new();
    let mut last: Option<EntryId> = None;
    for id in ids {
        match last {
            None => text.push_str(&id.to_string()),
            Some(last) if last.ms == id.ms => text.push_str(&format!(" -{}", id.seq)),
            Some(last) => text.push_str(&format!(" +{}-{}", id.ms.saturating_sub(last.ms), id.seq)),
        }
        last = Some(*id);
    }
    text
}

fn read_ids(text: &str) -> Result<Vec<EntryId>, BadSeal> {
    const BAD: BadSeal = BadSeal("its ids cannot be read");
    let mut ids: Vec<EntryId> = Vec::new();
    for word in text.split_ascii_whitespace() {
        let id = match ids.last() {
            None => word.parse().map_err(|_| BAD)?,
            Some(last) => {
                let (ms, seq) = word.split_once('-').ok_or(BAD)?;
                let more: u64 =
                    if ms.is_empty() { 0 } else { ms.strip_prefix('+').ok_or(BAD)?.parse().map_err(|_| BAD)? };
                EntryId { ms: last.ms.checked_add(more).ok_or(BAD)?, seq: seq.parse().map_err(|_| BAD)? }
            }
        };
        ids.push(id);
    }
    Ok(ids)
}

pub struct Signer {
    key_id: String,
    pair: Ed25519KeyPair,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({})", self.key_id)
    }
}

impl Signer {
    /// The secret has 32 bytes, in base64 or as 64 hexadecimal digits. The error does not show the secret.
    pub fn new(key_id: &str, secret: &str) -> Result<Self, BadSeal> {
        let seed = seed_of(secret.trim()).ok_or(BadSeal("the secret key is not 32 bytes in base64 or hexadecimal"))?;
        let pair = Ed25519KeyPair::from_seed_unchecked(&seed).map_err(|_| BadSeal("the secret key is invalid"))?;
        Ok(Self { key_id: key_id.to_owned(), pair })
    }

    #[must_use]
    pub fn key_id(&self) -> &str {
        &self.key_id
    }

    #[must_use]
    pub fn public_key(&self) -> String {
        URL_SAFE_NO_PAD.encode(self.pair.public_key().as_ref())
    }

    fn sign(&self, head: &Hash) -> String {
        URL_SAFE_NO_PAD.encode(self.pair.sign(&signed(head)).as_ref())
    }
}

#[must_use]
pub fn is_signed(public_key: &str, head: &Hash, signature: &str) -> bool {
    let (Ok(key), Ok(signature)) = (URL_SAFE_NO_PAD.decode(public_key), URL_SAFE_NO_PAD.decode(signature)) else {
        return false;
    };
    UnparsedPublicKey::new(&ED25519, key).verify(&signed(head), &signature).is_ok()
}

fn signed(head: &Hash) -> Vec<u8> {
    [SIGNED, head].concat()
}

fn seed_of(secret: &str) -> Option<Vec<u8>> {
    let hex = || {
        let digits: Option<Vec<u8>> = secret.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
        digits.map(|digits| digits.chunks(2).map(|two| two.iter().fold(0, |byte, digit| byte * 16 + digit)).collect())
    };
    let plain = secret.trim_end_matches('=').replace('+', "-").replace('/', "_");
    let seed: Option<Vec<u8>> = if secret.len() == SEED_BYTES * 2 { hex() } else { URL_SAFE_NO_PAD.decode(plain).ok() };
    seed.filter(|seed| seed.len() == SEED_BYTES)
}

/// In base64. `chance` must be random.
#[must_use]
pub fn secret_text(chance: &[u8; SEED_BYTES]) -> String {
    URL_SAFE_NO_PAD.encode(chance)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn entry_ids_round_trip_through_their_compact_form() {
        let ids: Vec<EntryId> = ["5-0", "5-1", "5-18446744073709551615", "9-0", "18446744073709551615-3"]
            .iter()
            .map(|id| id.parse().unwrap())
            .collect();
        let text = ids_of(&ids);
        assert_eq!(text, "5-0 -1 -18446744073709551615 +4-0 +18446744073709551606-3");
        assert_eq!(read_ids(&text).unwrap(), ids);
        assert_eq!(read_ids("").unwrap(), []);
        for bad in ["5", "5-0 6-0", "5-0 +x-1", "18446744073709551615-0 +1-0"] {
            assert!(read_ids(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_secret_is_accepted_only_in_base64_or_hexadecimal() {
        let seed: Vec<u8> = (0..32).collect();
        let hex: String = seed.iter().map(|byte| format!("{byte:02x}")).collect();
        let padded = base64::engine::general_purpose::STANDARD.encode(&seed);
        let key = Signer::new("k", &secret_text(&seed.clone().try_into().unwrap())).unwrap().public_key();
        assert_eq!(Signer::new("k", &format!("{hex}\n")).unwrap().public_key(), key);
        assert_eq!(Signer::new("k", &padded).unwrap().public_key(), key);
        for bad in ["", "abc", &hex[..62], "zz"] {
            assert!(Signer::new("k", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_signature_verifies_only_its_head_and_key() {
        let one = Signer::new("a", &"01".repeat(32)).unwrap();
        let two = Signer::new("b", &"02".repeat(32)).unwrap();
        let head = head_of("x");
        let signature = one.sign(&head);
        assert!(is_signed(&one.public_key(), &head, &signature));
        assert!(!is_signed(&two.public_key(), &head, &signature));
        assert!(!is_signed(&one.public_key(), &head_of("y"), &signature));
        assert!(!is_signed("no key", &head, &signature) && !is_signed(&one.public_key(), &head, "no signature"));
    }

    #[test]
    fn a_leaf_hash_depends_on_part_boundaries() {
        let id = EntryId { ms: 1, seq: 0 };
        assert_ne!(Leaf::of(id, "ab", "c"), Leaf::of(id, "a", "bc"));
        assert_ne!(Leaf::of(id, "", "x"), Leaf::of(id, "x", ""));
    }

    #[test]
    fn a_head_round_trips_through_text() {
        let head = Head { number: 3, entries: 77, hash: head_of("x") };
        assert_eq!(head.to_string().parse::<Head>().unwrap(), head);
        assert!("3 x".parse::<Head>().is_err());
    }
}
