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

/// Decodes once. A percent sign without two hexadecimal digits stays, and bytes that are not UTF-8 become U+FFFD.
#[must_use]
pub fn percent_decoded(text: &str) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((byte, after)) = rest.split_first() {
        let digits = after.get(..2).filter(|two| *byte == b'%' && two.iter().all(u8::is_ascii_hexdigit));
        let value = digits.and_then(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok());
        decoded.push(value.unwrap_or(*byte));
        rest = if value.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&decoded).into_owned()
}
