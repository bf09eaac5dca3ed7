//! An OAuth grant, encrypted so that a reader of Redis cannot obtain the tokens. The key is derived from the configured
//! refresh token.

use ring::aead::{Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use secrecy::{ExposeSecret, SecretString};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use tickfleet_model::hex;

const SEALED_BYTES_MAX: usize = 32 * 1024;

#[derive(Clone, Serialize, Deserialize)]
pub(super) struct StoredGrant {
    pub(super) access: String,
    pub(super) refresh: String,
    /// Workers stop using the access token at this time (ms of the clock of the shard that stores the grant).
    pub(super) good_until_ms: i64,
    /// Each new grant has a higher number.
    pub(super) number: u64,
}

pub(super) struct Seal {
    key: LessSafeKey,
    pub(super) id: String,
}

impl Seal {
    /// Fails only if the cipher rejects the key, which would be a bug.
    pub(super) fn new(client_id: &str, refresh_token: &SecretString) -> Result<Self, String> {
        let hash = |purpose: &str| {
            let mut hash = Sha256::new();
            for part in [purpose, client_id, refresh_token.expose_secret()] {
                // Without the lengths, different sequences of parts could have the same hash input.
                hash.update((part.len() as u64).to_be_bytes());
                hash.update(part);
            }
            <[u8; 32]>::from(hash.finalize())
        };
        let key = UnboundKey::new(&CHACHA20_POLY1305, &hash("tickfleet grant key"));
        let key = LessSafeKey::new(key.map_err(|_| "no key for the grants of X")?);
        let id = hex(&hash("tickfleet grant name")[..16]);
        Ok(Self { key, id })
    }

    pub(super) fn close(&self, kept: &StoredGrant) -> Result<Vec<u8>, String> {
        let mut nonce = [0_u8; NONCE_LEN];
        SystemRandom::new().fill(&mut nonce).map_err(|_| "the system's random number generator failed")?;
        let mut text = serde_json::to_vec(kept).map_err(|error| error.to_string())?;
        let aad = Aad::from(self.id.as_bytes());
        let sealed = self.key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut text);
        sealed.map_err(|_| "the grant could not be sealed")?;
        Ok([nonce.as_slice(), &text].concat())
    }

    /// `None` if the data is too large, was encrypted by another seal, or was changed later.
    pub(super) fn open(&self, sealed: &[u8]) -> Option<StoredGrant> {
        if sealed.len() > SEALED_BYTES_MAX {
            return None;
        }
        let (nonce, text) = sealed.split_first_chunk::<NONCE_LEN>()?;
        let mut text = text.to_vec();
        let aad = Aad::from(self.id.as_bytes());
        let opened = self.key.open_in_place(Nonce::assume_unique_for_key(*nonce), aad, &mut text).ok()?;
        serde_json::from_slice(opened).ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn only_the_configured_token_opens_a_sealed_grant() {
        let seal = |client: &str, token: &str| Seal::new(client, &SecretString::from(token)).unwrap();
        let ours = seal("me", "refresh-1");
        let kept = StoredGrant { access: "a-1".into(), refresh: "refresh-2".into(), good_until_ms: 7, number: 1 };
        let sealed = ours.close(&kept).unwrap();
        assert!(!sealed.windows(9).any(|window| window == b"refresh-2"));
        assert_eq!(seal("me", "refresh-1").open(&sealed).unwrap().refresh, "refresh-2");
        for other in [seal("me", "refresh-2"), seal("merefresh", "-1")] {
            assert!(other.open(&sealed).is_none() && other.id != ours.id);
        }
        let mut changed = sealed.clone();
        changed[NONCE_LEN] ^= 1;
        for bad in [&changed[..], &sealed[..8], b"", &[0; 64]] {
            assert!(ours.open(bad).is_none());
        }
        assert_ne!(sealed, ours.close(&kept).unwrap(), "no nonce twice");
    }
}
