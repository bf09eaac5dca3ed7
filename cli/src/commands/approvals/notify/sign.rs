//! Signatures of webhooks according to Standard Webhooks: an HMAC-SHA256 of `id.timestamp.body`.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;

const SECRET_BYTES_MIN: usize = 16;

/// The newest key, and older keys that receivers may still use.
pub(super) struct Keys(Vec<hmac::Key>);

impl Keys {
    /// Secrets are separated by whitespace. A secret is `whsec_` followed by base64, or the bytes of the text itself.
    /// The error does not contain the secret.
    pub(super) fn read(text: &str) -> Result<Self, String> {
        let key = |secret: &str| {
            let bytes = match secret.strip_prefix("whsec_") {
                Some(coded) => STANDARD.decode(coded).map_err(|_| "the part after whsec_ is not base64".to_owned())?,
                None => secret.as_bytes().to_vec(),
            };
            if bytes.len() < SECRET_BYTES_MIN {
                return Err(format!("a secret has {SECRET_BYTES_MIN} bytes or more"));
            }
            Ok(hmac::Key::new(hmac::HMAC_SHA256, &bytes))
        };
        let keys: Vec<hmac::Key> = text.split_whitespace().map(key).collect::<Result<_, _>>()?;
        if keys.is_empty() { Err("no secret found".to_owned()) } else { Ok(Self(keys)) }
    }

    /// The header `webhook-signature` has one signature per key.
    pub(super) fn sign(&self, id: &str, timestamp_s: i64, body: &str) -> String {
        let text = format!("{id}.{timestamp_s}.{body}");
        let sign = |key| format!("v1,{}", STANDARD.encode(hmac::sign(key, text.as_bytes())));
        self.0.iter().map(sign).collect::<Vec<_>>().join(" ")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_signature_matches_the_published_example() {
        // The specification's libraries have this example.
        let keys = Keys::read("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let signed = keys.sign("msg_p5jXN8AQM9LWM0D4loKWxJek", 1_614_265_330, r#"{"test": 2432232314}"#);
        assert_eq!(signed, "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=");
    }

    #[test]
    fn an_older_secret_also_signs_and_a_rejected_one_is_not_printed() {
        let both = Keys::read("0123456789abcdef\nfedcba9876543210\n").unwrap();
        assert_eq!(both.sign("a", 1, "b").split(' ').count(), 2);
        for bad in ["", "hunter2", "whsec_***"] {
            assert!(!Keys::read(bad).err().unwrap().contains("hunter2"));
        }
    }
}
