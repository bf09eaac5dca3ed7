//! The lines of an export: a header, then entries and seals of each shard in their order, then an end.
//!
//! An entry's text stands in its line as it is, for people and programs to read; its very bytes are what was sealed. So an
//! export may be cut into parts, joined and compressed, but not formatted anew.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

/// The format of exports.
pub const FORMAT: u32 = 1;

/// What an export says of itself. Nothing of it is evidence.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Header {
    /// [`FORMAT`].
    pub export: u32,
    /// The fleet.
    pub fleet: String,
    /// When it was made, ms by the clock of whoever made it.
    pub made_ms: i64,
    /// It has entries from this time on, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<i64>,
    /// And up to this one, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// It has this tenant's entries alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Public keys by their ids.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// For how long an id is known after its turn has ended, ms; later it may be another turn's.
    #[serde(default)]
    pub dedupe_ms: i64,
    /// Of each tenant, what the days of its calls are reckoned by.
    #[serde(default)]
    pub tenants: BTreeMap<String, TenantFacts>,
    /// Of each shard, how far a log that is followed was exported before this part: where it goes on.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub follows: BTreeMap<u32, String>,
    /// Of each shard whose log had lost its oldest entries by then, when the first that it still had was written, ms.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub begins: BTreeMap<u32, i64>,
}

/// What days of a tenant are reckoned by.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TenantFacts {
    /// The IANA name of its time zone.
    pub time_zone: String,
    /// Calls of all its agents in a day at most; none without a cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day_cap: Option<u64>,
}

/// The end of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    /// Entries in it.
    pub entries: u64,
    /// Seals in it.
    pub seals: u64,
}

/// Entries that were gone from the log before they were exported.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Gone {
    /// The shard.
    pub shard: u32,
    /// How many, or of a log that was made anew how many at least.
    pub entries: u64,
    /// Entries that were ever added to the log up to there.
    pub counted: u64,
    /// Whether the log was made anew, or has lost what was written last.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub remade: bool,
    /// They were behind this entry.
    pub after: String,
    /// And before this one; none where the log had no more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

/// One line.
#[derive(Debug)]
pub enum Line<'a> {
    /// What the export says of itself.
    Header(Box<Header>),
    /// An entry.
    Entry(EntryLine<'a>),
    /// A seal.
    Seal(SealLine<'a>),
    /// What could not be exported.
    Gone(Gone),
    /// The end.
    End(End),
}

/// An entry of the audit log.
#[derive(Debug, Clone)]
pub struct EntryLine<'a> {
    /// The shard that it was written in.
    pub shard: u32,
    /// Its id.
    pub id: Cow<'a, str>,
    /// What the shard wrote of its admission; empty where it wrote nothing.
    pub admitted: Cow<'a, str>,
    /// Its text.
    pub text: Cow<'a, str>,
}

/// A seal.
#[derive(Debug, Clone)]
pub struct SealLine<'a> {
    /// The shard that it was written in.
    pub shard: u32,
    /// Its body.
    pub body: &'a str,
    /// The signature of its head.
    pub signature: Cow<'a, str>,
    /// Its place among the seals; none where the export does not say.
    pub id: Option<Cow<'a, str>>,
}

/// A member that is not one of these is sealed by nobody.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw<'a> {
    #[serde(default)]
    shard: Option<u32>,
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    admitted: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    audit: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    body: Option<&'a RawValue>,
    #[serde(borrow, default)]
    signature: Option<Cow<'a, str>>,
    #[serde(default)]
    gone: Option<Gone>,
    #[serde(default)]
    end: Option<End>,
}

impl<'a> Line<'a> {
    /// Reads a line; none where it is no line of an export.
    #[must_use]
    pub fn read(line: &'a str) -> Option<Self> {
        if line.starts_with("{\"export\":") {
            return serde_json::from_str(line).ok().map(|header| Self::Header(Box::new(header)));
        }
        let raw: Raw<'a> = serde_json::from_str(line).ok()?;
        if let Some(end) = raw.end {
            return Some(Self::End(end));
        }
        if let Some(gone) = raw.gone {
            return Some(Self::Gone(gone));
        }
        if let (Some(body), Some(signature)) = (raw.body, raw.signature) {
            return Some(Self::Seal(SealLine { shard: raw.shard?, body: body.get(), signature, id: raw.id }));
        }
        let text = raw.audit.map(|audit| Cow::Borrowed(audit.get())).or(raw.text)?;
        Some(Self::Entry(EntryLine {
            shard: raw.shard?,
            id: raw.id?,
            admitted: raw.admitted.unwrap_or_default(),
            text,
        }))
    }
}

/// The header as a line, without its end.
#[must_use]
pub fn header(header: &Header) -> String {
    serde_json::to_string(header).unwrap_or_default()
}

/// The end as a line.
#[must_use]
pub fn end(end: End) -> String {
    format!(r#"{{"end":{{"entries":{},"seals":{}}}}}"#, end.entries, end.seals)
}

/// An entry as a line. A text that is no JSON of one line stands in it as a string.
#[must_use]
pub fn entry(shard: u32, id: &str, admitted: &str, text: &str) -> String {
    let mut line = format!(r#"{{"shard":{shard},"id":{}"#, quoted(id));
    if !admitted.is_empty() {
        line.push_str(r#","admitted":"#);
        line.push_str(&quoted(admitted));
    }
    let is_plain = !text.contains('\n') && serde_json::from_str::<&RawValue>(text).is_ok_and(|raw| raw.get() == text);
    if is_plain {
        line.push_str(r#","audit":"#);
        line.push_str(text);
    } else {
        line.push_str(r#","text":"#);
        line.push_str(&quoted(text));
    }
    line.push('}');
    line
}

/// A seal as a line.
#[must_use]
pub fn seal(shard: u32, body: &str, signature: &str) -> String {
    format!(r#"{{"shard":{shard},"body":{body},"signature":{}}}"#, quoted(signature))
}

/// A seal as a line that says its place among the seals, from which on an exporter that follows goes on.
#[must_use]
pub fn followed_seal(shard: u32, id: &str, body: &str, signature: &str) -> String {
    format!(r#"{{"shard":{shard},"id":{},"body":{body},"signature":{}}}"#, quoted(id), quoted(signature))
}

/// What could not be exported, as a line.
#[must_use]
pub fn gone(gone: &Gone) -> String {
    format!(r#"{{"gone":{}}}"#, serde_json::to_string(gone).unwrap_or_default())
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn an_entry_comes_back_byte_by_byte_whatever_it_is() {
        for (admitted, text) in [
            ("", r#"{"a": 1,  "b":"\u00e9"}"#),
            ("A1,2,3", r#"{"n":1e400,"x":{"x":[ ]}}"#),
            ("", "no JSON \" at all"),
            ("x\"y", "{\"a\":\n1}"),
            ("", " {}"),
            ("", ""),
        ] {
            let line = entry(3, "5-1", admitted, text);
            assert!(!line.contains('\n'), "{line}");
            let Some(Line::Entry(read)) = Line::read(&line) else { panic!("{line}") };
            assert_eq!((read.shard, &*read.id, &*read.admitted, &*read.text), (3, "5-1", admitted, text));
        }
    }

    #[test]
    fn header_seal_and_end_are_told_apart_and_anything_else_is_nothing() {
        let said = Header { export: FORMAT, fleet: "f".into(), ..Header::default() };
        assert!(matches!(Line::read(&header(&said)), Some(Line::Header(read)) if *read == said));
        assert!(matches!(
            Line::read(&end(End { entries: 1, seals: 2 })),
            Some(Line::End(End { entries: 1, seals: 2 }))
        ));
        assert!(matches!(Line::read(&seal(1, "{\"v\": 1}", "s")), Some(Line::Seal(seal)) if seal.body == "{\"v\": 1}"));
        let lost = Gone { shard: 1, entries: 3, after: "1-0".into(), ..Gone::default() };
        assert!(matches!(Line::read(&gone(&lost)), Some(Line::Gone(read)) if read == lost));
        let seal = followed_seal(1, "7-0", "{}", "s");
        let Some(Line::Seal(read)) = Line::read(&seal) else { panic!("no seal") };
        assert_eq!((read.id.as_deref(), read.body), (Some("7-0"), "{}"));
        for bad in ["", "{}", "[]", "{\"id\":\"1-0\"}", "{\"shard\":-1,\"id\":\"1-0\",\"audit\":{}}", "x"] {
            assert!(Line::read(bad).is_none(), "{bad}");
        }
    }
}
