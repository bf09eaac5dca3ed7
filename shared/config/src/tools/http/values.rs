//! Values in several parts of an HTTP definition.

use crate::document::reader::Cursor;

pub const SERVICE_URL: &str = "http:// or https://, a host, and no query, template or password";

#[must_use]
pub fn is_service_url(text: &str) -> bool {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://")).unwrap_or_default();
    let host = rest.split('/').next().unwrap_or_default();
    let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '?' | '#' | '{' | '}' | '\\');
    !host.is_empty() && !text.contains(odd) && !host.contains('@')
}

pub(crate) fn service_url<'a>(cursor: &Cursor<'a>) -> Option<&'a str> {
    let text = cursor.text()?;
    if text.contains("${") {
        return None; // The missing variable has already been noted.
    }
    if !is_service_url(text) {
        cursor.refuse(SERVICE_URL);
        return None;
    }
    Some(text)
}

pub(crate) fn pointer(cursor: &Cursor<'_>) -> Option<String> {
    let text = cursor.text()?;
    let sound = text.is_empty() || text.starts_with('/');
    if !sound {
        cursor.refuse_with("a JSON pointer such as /result", Some(format!("/{text}")));
    }
    sound.then(|| text.to_owned())
}
