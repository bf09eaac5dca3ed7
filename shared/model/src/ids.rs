//! IDs are parts of Redis keys, so they have only ASCII letters, digits and `_ . -`.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::limits;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    #[error("{what} is empty; expected 1 to {max} characters of A-Z a-z 0-9 _ . -")]
    Empty {
        what: &'static str,
        /// In bytes.
        max: usize,
    },
    #[error("{what} has {len} bytes; at most {max} are allowed")]
    TooLong {
        what: &'static str,
        /// In bytes.
        len: usize,
        /// In bytes.
        max: usize,
    },
    #[error("{what} has the character {found:?} at byte {at}; allowed are A-Z a-z 0-9 _ . -")]
    Character {
        what: &'static str,
        found: char,
        /// In bytes.
        at: usize,
    },
}

fn check(what: &'static str, max: usize, text: &str) -> Result<(), IdError> {
    if text.is_empty() {
        return Err(IdError::Empty { what, max });
    }
    if text.len() > max {
        return Err(IdError::TooLong { what, len: text.len(), max });
    }
    let odd = text.char_indices().find(|(_, c)| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')));
    match odd {
        Some((at, found)) => Err(IdError::Character { what, found, at }),
        None => Ok(()),
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:expr) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            pub fn new(text: impl AsRef<str>) -> Result<Self, IdError> {
                let text = text.as_ref();
                check($what, $max, text)?;
                Ok(Self(text.into()))
            }

            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = IdError;
            fn try_from(text: String) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.to_string()
            }
        }

        impl std::str::FromStr for $name {
            type Err = IdError;
            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }
    };
}

id!(
    /// All keys of a tenant are in the same shard.
    TenantId, "tenant", limits::NAME_BYTES_MAX);
id!(
    /// Unique within its tenant.
    AgentId, "agent", limits::NAME_BYTES_MAX);
id!(
    /// Unique within its tenant. The producer sets the ID, or the ID is derived from the inbound entry.
    TurnId, "turn_id", limits::ID_BYTES_MAX);
id!(
    /// Unique within its tenant.
    TaskId, "task_id", limits::ID_BYTES_MAX);
id!(
    /// The `reply_to` of turns and tasks.
    InboxName, "reply_to", limits::NAME_BYTES_MAX);
id!(
    /// A producer's name for turns or tasks that belong together.
    SessionName, "session_id", limits::NAME_BYTES_MAX);
id!(
    /// One incarnation of a process. Each start of the process creates a new name.
    ConsumerId, "consumer", limits::ID_BYTES_MAX);

impl From<TaskId> for TurnId {
    /// Tasks and turns share one space of IDs.
    fn from(task: TaskId) -> Self {
        Self(task.0)
    }
}

/// Format: `<turn id>/<position>`. A provider's call IDs may not be unique.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CallId {
    pub turn: TurnId,
    pub position: usize,
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.turn, self.position)
    }
}

impl fmt::Debug for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CallId({self})")
    }
}

/// `<ms>-<seq>`, as Redis prints the ID. Only the store interprets the text.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EntryId(pub String);

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// `CRC32(tenant) mod shards`, CRC-32 as in zip and PNG (IEEE).
#[must_use]
pub fn shard_of(tenant: &TenantId, shards: u32) -> u32 {
    crc32fast::hash(tenant.as_str().as_bytes()) % shards.max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_reject_key_separators_and_invalid_characters() {
        for bad in ["a:b", "a{b", "a/b", "a b", "a\0b", "é", "a\n"] {
            assert!(matches!(AgentId::new(bad), Err(IdError::Character { .. })), "{bad:?}");
        }
        assert!(matches!(AgentId::new(""), Err(IdError::Empty { .. })));
        assert!(matches!(AgentId::new("x".repeat(limits::NAME_BYTES_MAX + 1)), Err(IdError::TooLong { .. })));
        assert_eq!(AgentId::new("kelly.v2_-").map(|a| a.to_string()), Ok("kelly.v2_-".into()));
    }

    #[test]
    fn the_shard_hash_matches_its_published_test_vectors() {
        // `docs/reference/protocol.md` publishes these test vectors for producers in other languages.
        let shard = |tenant: &str| TenantId::new(tenant).map(|t| shard_of(&t, 16));
        assert_eq!(crc32fast::hash(b"123456789"), 0xCBF4_3926);
        assert_eq!(shard("123456789"), Ok(6));
        assert_eq!(shard("atlas-ux"), Ok(crc32fast::hash(b"atlas-ux") % 16));
    }
}
