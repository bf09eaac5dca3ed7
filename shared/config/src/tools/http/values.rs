//! Values that several parts of an HTTP definition have.

use crate::document::reader::Cursor;

/// An address without query, template or password.
pub(crate) fn service_url<'a>(cursor: &Cursor<'a>) -> Option<&'a str> {
    let text = cursor.text()?;
    if text.contains("${") {
        return None; // It was noted that the environment lacks this.
    }
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '{' | '}' | '\\');
    if host.is_empty() || text.contains(odd) || host.contains('@') {
        cursor.refuse("http:// or https://, a host, and no query, template or password");
        return None;
    }
    Some(text)
}

/// A JSON pointer.
pub(crate) fn pointer(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    let sound = text.is_empty() || text.starts_with('/');
    if !sound {
        cursor.refuse_with("a JSON pointer such as /result", Some(format!("/{text}")));
    }
    sound.then(|| text.to_owned())
}
