//! Percent-encoding for URLs.

/// Characters that stay unencoded if a secret is part of a path. Bot tokens contain a colon.
pub const SECRET_KEEPS: &str = ":@!$&'()*+,;=";

/// Encodes all characters except the unreserved characters of URLs and those in `keep`.
pub fn percent_encoded(text: &str, keep: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for &byte in text.as_bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) || keep.as_bytes().contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}
