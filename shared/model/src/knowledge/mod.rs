//! A tenant's knowledge base: documents, their passages, and the memories of agents.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::hex;

/// Hexadecimal characters of the ID of a document or memory.
const ID_CHARS: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Document {
    /// Unique within the tenant, see [`document_id`].
    pub id: String,
    /// A path or an address, shown in search results.
    pub source: String,
    pub title: String,
    #[serde(default)]
    pub category: String,
    /// If a later import of this file lacks the document, the document can be deleted.
    #[serde(default)]
    pub file: String,
    /// Covers all imported data. An import skips a document if its digest and model are unchanged.
    pub digest: String,
    /// Empty without embeddings.
    #[serde(default)]
    pub model: String,
    pub passages: usize,
    /// Shard time of the import.
    #[serde(default)]
    pub at_ms: i64,
}

/// A search finds and returns whole passages.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Passage {
    /// Outermost first, without the document's title.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headings: Vec<String>,
    pub text: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Passages {
    pub passages: Vec<Passage>,
    /// One vector per passage, all of the same length; empty without embeddings.
    pub vectors: Vec<Vec<i8>>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Unique within the agent.
    pub id: String,
    pub text: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// Shard time of the creation.
    #[serde(default)]
    pub at_ms: i64,
}

/// The ID is the same at every import. Documents with the same source need different titles. A single document needs an
/// empty title.
#[must_use]
pub fn document_id(source: &str, title: &str) -> String {
    digest(&[source, title])
}

/// Hexadecimal. Different lists of parts have different digests.
#[must_use]
pub fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hex(&hash.finalize()[..ID_CHARS / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_depends_on_part_boundaries() {
        assert_ne!(document_id("ab", "c"), document_id("a", "bc"));
        assert_eq!(document_id("a", "b").len(), ID_CHARS);
    }
}
