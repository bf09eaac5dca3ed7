//! The stored form of a record: `<version> <entry> <debits> <content>`.
//!
//! The entry is the slice that the writing transaction enqueued, or `-`. The debits are the counters that it debited,
//! in the order of its [`crate::ConditionalDebit`] guards, or `-` without [`Transaction::stamped`]. Each debit is
//! `<used>:<end>:<start>` (window in ms). Commas separate debits. The content is a schema number and JSON, `1{"…"}`.
//! Large immutable parts (calls, results) are stored by name under the record's key.

use bytes::Bytes;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::transaction::{EntryId, Guard, RecordKey, Transaction, Version, Write};

pub trait Record: Serialize + DeserializeOwned {
    /// A reader refuses records with another number.
    const SCHEMA: u32;

    #[must_use]
    fn encode(&self) -> Bytes {
        json_of(self).into()
    }

    fn decode(content: &[u8]) -> Result<Self, Unreadable> {
        from_json(content)
    }
}

pub(crate) fn json_of<T: Record>(record: &T) -> Vec<u8> {
    let mut text = T::SCHEMA.to_string().into_bytes();
    // Serialization fails only for maps with non-text keys, and no record has such a map.
    if serde_json::to_writer(&mut text, record).is_err() {
        text.truncate(0);
    }
    text
}

pub(crate) fn from_json<T: Record>(content: &[u8]) -> Result<T, Unreadable> {
    let digits = content.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (schema, json) = content.split_at(digits);
    let schema = std::str::from_utf8(schema).ok().and_then(|text| text.parse().ok()).unwrap_or(0);
    if schema != T::SCHEMA {
        return Err(Unreadable::Schema { expected: T::SCHEMA, found: schema });
    }
    serde_json::from_slice(json).map_err(|error| Unreadable::Json(error.to_string()))
}

/// A record of which only the existence matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
pub struct Present {}

impl Record for Present {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    #[error("expected `<version> <entry> <debits> <content>`")]
    Frame,
    #[error("expected schema {expected}, found {found}")]
    Schema { expected: u32, found: u32 },
    #[error("{0}")]
    Json(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
#[serde(from = "(u64, i64, i64)", into = "(u64, i64, i64)")]
pub struct Debited {
    /// Includes this debit.
    pub used: u64,
    /// 0 without a window.
    pub ends_ms: i64,
    /// 0 without a window.
    pub began_ms: i64,
}

impl From<(u64, i64, i64)> for Debited {
    fn from((used, ends_ms, began_ms): (u64, i64, i64)) -> Self {
        Self { used, ends_ms, began_ms }
    }
}

impl From<Debited> for (u64, i64, i64) {
    fn from(Debited { used, ends_ms, began_ms }: Debited) -> Self {
        (used, ends_ms, began_ms)
    }
}

impl Debited {
    #[must_use]
    pub fn parse_all(debits: &str) -> Vec<Self> {
        let parse = |one: &str| {
            let (used, times) = one.split_once(':')?;
            let (ends, began) = times.split_once(':')?;
            Some(Self { used: used.parse().ok()?, ends_ms: ends.parse().ok()?, began_ms: began.parse().ok()? })
        };
        debits.split(',').filter_map(parse).collect()
    }

    /// Without debits, the text is `-`.
    #[must_use]
    pub fn render_all(debited: &[Self]) -> String {
        if debited.is_empty() {
            return "-".to_owned();
        }
        let render = |one: &Self| format!("{}:{}:{}", one.used, one.ends_ms, one.began_ms);
        debited.iter().map(render).collect::<Vec<_>>().join(",")
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordText {
    pub version: Version,
    pub entry: Option<EntryId>,
    /// Empty without [`Transaction::stamped`].
    pub debits: Vec<Debited>,
    pub content: Bytes,
}

impl RecordText {
    pub fn parse(stored: &Bytes) -> Result<Self, Unreadable> {
        let mut blanks = stored.iter().enumerate().filter(|(_, byte)| **byte == b' ').map(|(at, _)| at);
        let (Some(first), Some(second), Some(third)) = (blanks.next(), blanks.next(), blanks.next()) else {
            return Err(Unreadable::Frame);
        };
        let text = |range: std::ops::Range<usize>| {
            stored.get(range).and_then(|bytes| std::str::from_utf8(bytes).ok()).ok_or(Unreadable::Frame)
        };
        let version = text(0..first)?;
        let entry = text(first + 1..second)?;
        let debits = text(second + 1..third)?;
        Ok(Self {
            version: Version::new(version),
            entry: (entry != "-").then(|| EntryId::new(entry)),
            debits: Debited::parse_all(debits),
            content: stored.slice(third + 1..),
        })
    }

    #[must_use]
    pub fn render(version: &Version, entry: Option<&EntryId>, debits: &[Debited], content: &[u8]) -> Bytes {
        let entry = entry.map_or("-", EntryId::as_str);
        let mut text = format!("{version} {entry} {} ", Debited::render_all(debits)).into_bytes();
        text.extend_from_slice(content);
        text.into()
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stored<T> {
    pub version: Version,
    pub entry: Option<EntryId>,
    pub debits: Vec<Debited>,
    pub value: T,
}

impl<T: Record> Stored<T> {
    pub fn read(stored: &Bytes) -> Result<Self, Unreadable> {
        let text = RecordText::parse(stored)?;
        Ok(Self { version: text.version, entry: text.entry, debits: text.debits, value: T::decode(&text.content)? })
    }
}

impl Transaction {
    pub fn put<T: Record>(&mut self, key: &RecordKey, value: &T) -> &mut Self {
        self.write(Write::Put { key: key.clone(), content: value.encode(), ttl_ms: None })
    }

    pub fn put_for<T: Record>(&mut self, key: &RecordKey, value: &T, ttl_ms: i64) -> &mut Self {
        self.write(Write::Put { key: key.clone(), content: value.encode(), ttl_ms: Some(ttl_ms) })
    }

    /// Guards that the record still has this version, or is still absent.
    pub fn guard_read<T>(&mut self, key: &RecordKey, stored: Option<&Stored<T>>) -> &mut Self {
        self.guard(match stored {
            Some(stored) => Guard::Version(key.clone(), stored.version.clone()),
            None => Guard::Absent(key.clone()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Serialize, serde::Deserialize, Debug, PartialEq)]
    struct Sample {
        n: u32,
    }

    impl Record for Sample {
        const SCHEMA: u32 = 12;
    }

    #[test]
    fn a_stored_record_round_trips() {
        let version = Version::new("a-1");
        let entry = EntryId::new("5-0");
        let stored = RecordText::render(
            &version,
            Some(&entry),
            &[Debited { used: 3, ends_ms: 9, began_ms: 0 }],
            &Sample { n: 7 }.encode(),
        );
        assert_eq!(&stored[..], b"a-1 5-0 3:9:0 12{\"n\":7}");
        let read = Stored::<Sample>::read(&stored).unwrap();
        assert_eq!(
            read,
            Stored {
                version,
                entry: Some(entry),
                debits: vec![Debited { used: 3, ends_ms: 9, began_ms: 0 }],
                value: Sample { n: 7 }
            }
        );
    }

    #[test]
    fn a_record_with_another_schema_is_rejected() {
        let stored = RecordText::render(&Version::new("a"), None, &[], b"11{\"n\":7}");
        assert_eq!(Stored::<Sample>::read(&stored), Err(Unreadable::Schema { expected: 12, found: 11 }));
        assert_eq!(Stored::<Sample>::read(&Bytes::from_static(b"a -")), Err(Unreadable::Frame));
    }
}
