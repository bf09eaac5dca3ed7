//! Decodes the text of a response: UTF-8, or the encoding that the service declares.

use std::borrow::Cow;

use encoding_rs::Encoding;
use reqwest::header::{self, HeaderMap};

/// `None` if the body is not text. A declared encoding is often only a server's default, so valid UTF-8 takes
/// precedence.
pub(super) fn text<'a>(body: &'a [u8], headers: &HeaderMap) -> Option<Cow<'a, str>> {
    let declared = declared(headers);
    if declared.is_none_or(Encoding::is_ascii_compatible)
        && let Ok(text) = std::str::from_utf8(body)
    {
        // JSON does not allow a byte order mark, so it is dropped.
        return Some(Cow::Borrowed(text.strip_prefix('\u{feff}').unwrap_or(text)));
    }
    let (text, _, is_odd) = declared?.decode(body);
    (!is_odd).then_some(text)
}

/// `None` for other media types: servers declare their default encoding for images too, and some encodings decode any
/// bytes.
fn declared(headers: &HeaderMap) -> Option<&'static Encoding> {
    let kind = headers.get(header::CONTENT_TYPE)?.to_str().ok()?.to_ascii_lowercase();
    let mut parts = kind.split(';').map(str::trim);
    let media = parts.next()?;
    if !(media.starts_with("text/") || media.ends_with("json") || media.ends_with("xml")) {
        return None;
    }
    let label = parts.find_map(|part| part.strip_prefix("charset")?.trim_start().strip_prefix('='))?;
    Encoding::for_label_no_replacement(label.trim().trim_matches('"').as_bytes())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn read(kind: &str, body: &[u8]) -> Option<String> {
        let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, kind.parse().unwrap())]);
        text(body, &headers).map(Cow::into_owned)
    }

    #[test]
    fn a_declared_charset_is_decoded_unless_the_text_is_utf_8() {
        let umlaut = b"Z\xfcrich";
        for kind in [
            "text/plain; charset=iso-8859-1",
            "application/problem+json;Charset = \"Latin1\"; v=1",
            "text/xml;charset=cp1252",
        ] {
            assert_eq!(read(kind, umlaut).as_deref(), Some("Zürich"), "{kind}");
            assert_eq!(read(kind, "Zürich".as_bytes()).as_deref(), Some("Zürich"), "{kind}");
        }
        assert_eq!(read("text/plain; charset=utf-16", b"\xff\xfeZ\0\xfc\0").as_deref(), Some("Zü"));
        assert_eq!(read("text/plain; charset=utf-16be", b"\0Z\0\xfc").as_deref(), Some("Zü"));
        assert_eq!(read("text/plain; charset=iso-2022-jp", b"\x1b$B$\"\x1b(B").as_deref(), Some("あ"));
        assert_eq!(read("text/plain; charset=shift_jis", b"\x82\xa0").as_deref(), Some("あ"));
        for kind in [
            "text/plain",
            "text/plain; charset=utf-8",
            "text/plain; charset=odd",
            "text/plain; charset=",
            "application/pdf; charset=iso-8859-1",
            "image/png; charset=iso-8859-1",
            "",
        ] {
            assert_eq!(read(kind, umlaut), None, "{kind}");
            assert_eq!(read(kind, b"ASCII").as_deref(), Some("ASCII"), "{kind}");
        }
        assert_eq!(read("text/plain; charset=shift_jis", b"\x82"), None, "cut in the middle");
        assert_eq!(read("application/json", b"\xef\xbb\xbf{}").as_deref(), Some("{}"), "without the mark");
        assert_eq!(text(umlaut, &HeaderMap::new()), None);
    }
}
