//! Percent-encoding for URLs.

/// Characters of a secret that stay unencoded in a path, in addition to the unreserved characters. Bot tokens contain a
/// colon.
pub const SECRET_KEEPS: &str = ":@!$&'()*+,;=";

/// Percent-encodes all characters except the unreserved characters of URLs and those in `keep`.
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
