//! What agents may look up: documents of a tenant's knowledge base, cut into passages, and memories of an agent.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The characters of a document's or memory's id.
const ID_CHARS: usize = 32;

/// A document as a list shows it, without its text.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Its id within the tenant, see [`document_id`].
    pub id: String,
    /// The document's origin, as passages name it: a path, an address.
    pub source: String,
    /// Its title.
    pub title: String,
    /// Its category; empty for none.
    #[serde(default)]
    pub category: String,
    /// The file that it was imported from: what is gone from there can be pruned.
    #[serde(default)]
    pub file: String,
    /// The digest of all that it was made of.
    pub digest: String,
    /// The model that embedded its passages; empty where none did.
    #[serde(default)]
    pub model: String,
    /// How many passages it has.
    pub passages: usize,
    /// When it was imported, ms of shard time.
    #[serde(default)]
    pub at_ms: i64,
}

/// A part of a document that is found and returned as one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// The headings that it stands under, outermost first, without the document's title.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headings: Vec<String>,
    /// Its text.
    pub text: String,
}

/// The passages of a document, and what each means to a model where one was asked.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passages {
    /// The passages in their order.
    pub passages: Vec<Passage>,
    /// One vector for each of them, all of one length; empty where nothing was embedded.
    pub vectors: Vec<Vec<i8>>,
}

/// A note that an agent made.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Its id within the agent.
    pub id: String,
    /// Its text.
    pub text: String,
    /// Words to find it by.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// When it was made, ms of shard time.
    #[serde(default)]
    pub at_ms: i64,
}

/// The id of the document of this origin and title: the same at every import. An origin may have several documents, each
/// with a title of its own; the title of its only one may change, and is left empty.
#[must_use]
pub fn document_id(source: &str, title: &str) -> String {
    digest(&[source, title])
}

/// A digest of these parts, in hexadecimal: no two lists of parts share one.
#[must_use]
pub fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize()[..ID_CHARS / 2].iter().fold(String::with_capacity(ID_CHARS), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_apart_in_a_digest() {
        assert_ne!(document_id("ab", "c"), document_id("a", "bc"));
        assert_eq!(document_id("a", "b").len(), ID_CHARS);
    }
}
