//! Verifies signatures with `ring`, which the program links anyway.

use jsonwebtoken::crypto::{CryptoProvider, JwtVerifier, KeyUtils};
use jsonwebtoken::errors::{Error, ErrorKind};
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, DecodingKeyKind};
use ring::signature as by_ring;

static PROVIDER: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(Error::from(ErrorKind::UnsupportedAlgorithm)),
    verifier_factory: |algorithm, key| verifier(*algorithm, key),
    key_utils: KeyUtils::new_unimplemented(),
};

pub(super) fn install() {
    // An error means that a provider is already installed.
    let _ = PROVIDER.install_default();
}

struct RingVerifier {
    algorithm: Algorithm,
    key: DecodingKey,
}

impl JwtVerifier for RingVerifier {
    fn algorithm(&self) -> Algorithm {
        self.algorithm
    }
}

impl Verifier<Vec<u8>> for RingVerifier {
    fn verify(&self, message: &[u8], signature: &Vec<u8>) -> Result<(), signature::Error> {
        let checked = match self.key.kind() {
            DecodingKeyKind::RsaModulusExponent { n, e } => rsa(self.algorithm).is_some_and(|parameters| {
                by_ring::RsaPublicKeyComponents { n, e }.verify(parameters, message, signature).is_ok()
            }),
            DecodingKeyKind::SecretOrDer(bytes) => elliptic(self.algorithm).is_some_and(|algorithm| {
                by_ring::UnparsedPublicKey::new(algorithm, bytes).verify(message, signature).is_ok()
            }),
        };
        if checked { Ok(()) } else { Err(signature::Error::new()) }
    }
}

/// A public key must never act as a shared secret, so the algorithm must be of the key's family.
fn verifier(algorithm: Algorithm, key: &DecodingKey) -> Result<Box<dyn JwtVerifier>, Error> {
    let is_known = rsa(algorithm).is_some() || elliptic(algorithm).is_some();
    if key.family() != algorithm.family() || !is_known {
        return Err(Error::from(ErrorKind::InvalidAlgorithm));
    }
    Ok(Box::new(RingVerifier { algorithm, key: key.clone() }))
}

/// All parameters reject moduli of less than 2,048 bits.
fn rsa(algorithm: Algorithm) -> Option<&'static by_ring::RsaParameters> {
    match algorithm {
        Algorithm::RS256 => Some(&by_ring::RSA_PKCS1_2048_8192_SHA256),
        Algorithm::RS384 => Some(&by_ring::RSA_PKCS1_2048_8192_SHA384),
        Algorithm::RS512 => Some(&by_ring::RSA_PKCS1_2048_8192_SHA512),
        Algorithm::PS256 => Some(&by_ring::RSA_PSS_2048_8192_SHA256),
        Algorithm::PS384 => Some(&by_ring::RSA_PSS_2048_8192_SHA384),
        Algorithm::PS512 => Some(&by_ring::RSA_PSS_2048_8192_SHA512),
        _ => None,
    }
}

fn elliptic(algorithm: Algorithm) -> Option<&'static dyn by_ring::VerificationAlgorithm> {
    match algorithm {
        Algorithm::ES256 => Some(&by_ring::ECDSA_P256_SHA256_FIXED),
        Algorithm::ES384 => Some(&by_ring::ECDSA_P384_SHA384_FIXED),
        Algorithm::EdDSA => Some(&by_ring::ED25519),
        _ => None,
    }
}
