//! The W3C trace context header.

/// 32 hexadecimal digits. `None` if the header is invalid.
#[must_use]
pub fn trace_id(traceparent: &str) -> Option<&str> {
    is_traceparent(traceparent).then(|| traceparent.split('-').nth(1)).flatten()
}

/// Accepts version 00, and later versions with the same form.
pub(super) fn is_traceparent(text: &str) -> bool {
    let parts: Vec<&str> = text.splitn(5, '-').collect();
    let [version, trace, span, flags] = parts.as_slice() else { return false };
    let hex = |part: &str, len| part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
    let zero = |part: &str| part.bytes().all(|b| b == b'0');
    hex(version, 2)
        && hex(trace, 32)
        && hex(span, 16)
        && hex(flags, 2)
        && *version != "ff"
        && !zero(trace)
        && !zero(span)
}
