//! The lines of an export: a header, then the entries and seals of each shard in order, then an end. A line has the
//! exact text of an entry, because these bytes were sealed. An export can be split, joined and compressed, but must not
//! be reformatted.

use std::borrow::Cow;
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub const FORMAT: u32 = 1;

/// Unsigned, so the header proves nothing.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Header {
    /// See [`FORMAT`].
    pub export: u32,
    pub fleet: String,
    /// By the exporter's clock.
    pub made_ms: i64,
    /// If set, the export has only entries from this time on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_ms: Option<i64>,
    /// If set, the export has only entries before this time (ms).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<i64>,
    /// If set, the export has only this tenant's entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// Public keys of the signers, by key ID.
    #[serde(default)]
    pub keys: BTreeMap<String, String>,
    /// Time for which the fleet remembers the ID of an ended turn. Later, another turn can have the same ID.
    #[serde(default)]
    pub dedupe_ms: i64,
    #[serde(default)]
    pub tenants: BTreeMap<String, TenantFacts>,
    /// Only from an exporter that follows a log. By shard: the position at which the earlier parts end.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub follows: BTreeMap<u32, String>,
    /// By shard: the time of the oldest remaining entry (ms), if older entries were lost before the export.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub begins: BTreeMap<u32, i64>,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TenantFacts {
    pub time_zone: String,
    /// For all agents of the tenant together; `None` without a cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub day_cap: Option<u64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct End {
    pub entries: u64,
    pub seals: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LostEntries {
    pub shard: u32,
    /// A lower bound if the log was deleted and created again.
    pub entries: u64,
    /// All entries since the log's creation, up to the end of the loss.
    pub counted: u64,
    /// True if the log was deleted and created again, or has lost its newest entries.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub recreated: bool,
    /// The last entry before the loss.
    pub after: String,
    /// The first entry after the loss; `None` if the log had no later entries.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub before: Option<String>,
}

#[derive(Debug)]
pub enum Line<'a> {
    Header(Box<Header>),
    Entry(EntryLine<'a>),
    Seal(SealLine<'a>),
    Lost(LostEntries),
    End(End),
}

#[derive(Debug, Clone)]
pub struct EntryLine<'a> {
    pub shard: u32,
    pub id: Cow<'a, str>,
    /// The shard's notes about the admission; may be empty.
    pub admitted: Cow<'a, str>,
    pub text: Cow<'a, str>,
}

#[derive(Debug, Clone)]
pub struct SealLine<'a> {
    pub shard: u32,
    pub body: &'a str,
    pub signature: Cow<'a, str>,
    /// In the stream of seals; `None` if the line lacks the ID.
    pub id: Option<Cow<'a, str>>,
}

/// Unknown members are rejected, because no seal would cover them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawLine<'a> {
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
    lost: Option<LostEntries>,
    #[serde(default)]
    end: Option<End>,
}

impl<'a> Line<'a> {
    #[must_use]
    pub fn read(line: &'a str) -> Option<Self> {
        if line.starts_with("{\"export\":") {
            return serde_json::from_str(line).ok().map(|header| Self::Header(Box::new(header)));
        }
        let raw: RawLine<'a> = serde_json::from_str(line).ok()?;
        if let Some(end) = raw.end {
            return Some(Self::End(end));
        }
        if let Some(lost) = raw.lost {
            return Some(Self::Lost(lost));
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

#[must_use]
pub fn header(header: &Header) -> String {
    serde_json::to_string(header).unwrap_or_default()
}

#[must_use]
pub fn end(end: End) -> String {
    format!(r#"{{"end":{{"entries":{},"seals":{}}}}}"#, end.entries, end.seals)
}

/// A text that is not one line of JSON becomes a JSON string.
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

#[must_use]
pub fn seal(shard: u32, body: &str, signature: &str) -> String {
    format!(r#"{{"shard":{shard},"body":{body},"signature":{}}}"#, quoted(signature))
}

/// `id` is the seal's ID in the stream of seals. An exporter that follows the log continues from this ID.
#[must_use]
pub fn followed_seal(shard: u32, id: &str, body: &str, signature: &str) -> String {
    format!(r#"{{"shard":{shard},"id":{},"body":{body},"signature":{}}}"#, quoted(id), quoted(signature))
}

#[must_use]
pub fn lost(lost: &LostEntries) -> String {
    format!(r#"{{"lost":{}}}"#, serde_json::to_string(lost).unwrap_or_default())
}

fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn any_entry_round_trips_byte_for_byte() {
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
    fn each_line_kind_round_trips_and_other_lines_are_rejected() {
        let said = Header { export: FORMAT, fleet: "f".into(), ..Header::default() };
        assert!(matches!(Line::read(&header(&said)), Some(Line::Header(read)) if *read == said));
        assert!(matches!(
            Line::read(&end(End { entries: 1, seals: 2 })),
            Some(Line::End(End { entries: 1, seals: 2 }))
        ));
        assert!(matches!(Line::read(&seal(1, "{\"v\": 1}", "s")), Some(Line::Seal(seal)) if seal.body == "{\"v\": 1}"));
        let lost = LostEntries { shard: 1, entries: 3, after: "1-0".into(), ..LostEntries::default() };
        assert!(matches!(Line::read(&self::lost(&lost)), Some(Line::Lost(read)) if read == lost));
        let seal = followed_seal(1, "7-0", "{}", "s");
        let Some(Line::Seal(read)) = Line::read(&seal) else { panic!("no seal") };
        assert_eq!((read.id.as_deref(), read.body), (Some("7-0"), "{}"));
        for bad in ["", "{}", "[]", "{\"id\":\"1-0\"}", "{\"shard\":-1,\"id\":\"1-0\",\"audit\":{}}", "x"] {
            assert!(Line::read(bad).is_none(), "{bad}");
        }
    }
}
