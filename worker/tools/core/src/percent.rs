//! Percent-encoding of what goes into a URL.

/// The characters that a secret keeps unencoded in a path beside the unreserved ones: bot tokens carry a colon.
pub const SECRET_KEEPS: &str = ":@!$&'()*+,;=";

/// Percent-encodes everything but the unreserved characters of URLs and those in `keep`.
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
