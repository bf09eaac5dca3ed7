//! The public keys of an issuer by id: a JSON Web Key Set (RFC 7517).

use std::collections::HashMap;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, AlgorithmFamily, DecodingKey, DecodingKeyKind};
use serde::Deserialize;

pub(super) const SET_BYTES_MAX: usize = 1 << 20;
const KEYS_MAX: usize = 1_000;
/// `ring` accepts the same lengths.
const MODULUS_BYTES: std::ops::RangeInclusive<usize> = 256..=1024;

#[derive(Debug, Default)]
pub(super) struct KeySet {
    /// Keys of different types may share an id.
    by_id: HashMap<String, Vec<VerificationKey>>,
    /// A key without an id is used only if it is the only key of the set.
    nameless: Vec<VerificationKey>,
    /// Keys for other purposes than signatures, and keys with an unsupported algorithm.
    pub(super) skipped: usize,
}

#[derive(Debug)]
struct VerificationKey {
    algorithms: Vec<Algorithm>,
    key: DecodingKey,
}

#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<serde_json::Value>,
}

impl KeySet {
    pub(super) fn parse(text: &[u8]) -> Result<Self, String> {
        if text.len() > SET_BYTES_MAX {
            return Err(format!("more than {SET_BYTES_MAX} bytes of keys"));
        }
        let set: JwkSet = serde_json::from_slice(text).map_err(|error| format!("not a JSON Web Key Set: {error}"))?;
        if set.keys.len() > KEYS_MAX {
            return Err(format!("a set of {} keys; at most {KEYS_MAX} are read", set.keys.len()));
        }
        let mut read = Self::default();
        for key in set.keys {
            match serde_json::from_value::<Jwk>(key).ok().and_then(|jwk| Some((usable(&jwk)?, jwk.common.key_id))) {
                Some((key, Some(id))) => read.by_id.entry(id).or_default().push(key),
                Some((key, None)) => read.nameless.push(key),
                None => read.skipped += 1,
            }
        }
        Ok(read)
    }

    pub(super) fn len(&self) -> usize {
        self.by_id.values().map(Vec::len).sum::<usize>() + self.nameless.len()
    }

    fn named(&self, id: Option<&str>) -> Option<&[VerificationKey]> {
        match id {
            Some(id) => self.by_id.get(id).map(Vec::as_slice),
            None if self.len() == 1 => {
                self.by_id.values().chain([&self.nameless]).find(|k| !k.is_empty()).map(Vec::as_slice)
            }
            None => None,
        }
    }

    /// Without an id, finds the only key of the set. The inner error means that the key is for other algorithms.
    pub(super) fn find(&self, id: Option<&str>, algorithm: Algorithm) -> Option<Result<&DecodingKey, ()>> {
        let keys = self.named(id)?;
        Some(keys.iter().find(|key| key.algorithms.contains(&algorithm)).map(|key| &key.key).ok_or(()))
    }
}

fn usable(jwk: &Jwk) -> Option<VerificationKey> {
    if jwk.common.public_key_use.as_ref().is_some_and(|r#use| *r#use != PublicKeyUse::Signature) {
        return None;
    }
    let mut algorithms: Vec<Algorithm> = match &jwk.algorithm {
        AlgorithmParameters::RSA(_) => AlgorithmFamily::Rsa.algorithms().to_vec(),
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P256 => vec![Algorithm::ES256],
        AlgorithmParameters::EllipticCurve(key) if key.curve == EllipticCurve::P384 => vec![Algorithm::ES384],
        AlgorithmParameters::OctetKeyPair(key) if key.curve == EllipticCurve::Ed25519 => vec![Algorithm::EdDSA],
        // Another curve, or a shared secret. A public set must not contain shared secrets.
        _ => return None,
    };
    if let Some(only) = jwk.common.key_algorithm {
        let only = Algorithm::try_from(only).ok()?;
        algorithms.retain(|algorithm| *algorithm == only);
    }
    let key = DecodingKey::from_jwk(jwk).ok()?;
    let is_sound = match key.kind() {
        DecodingKeyKind::RsaModulusExponent { n, .. } => MODULUS_BYTES.contains(&n.len()),
        DecodingKeyKind::SecretOrDer(_) => true,
    };
    (is_sound && !algorithms.is_empty()).then_some(VerificationKey { algorithms, key })
}
