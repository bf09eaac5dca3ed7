//! Knowledge for agents: the documents of a tenant, and the memories of an agent.
//!
//! | Key | Holds |
//! |---|---|
//! | record `documents:<tenant>` | generation, number and bytes; a part for each document ID: its bytes and description |
//! | record `passages:<tenant>` | the generation; a part for each document ID: its passages |
//! | record `memories:<tenant>:<agent>` | generation and order; a part for each memory ID |
//!
//! Readers detect a change by the generation. A generation is never repeated, even if a store lost the last ones.

mod documents;
mod memories;

pub use documents::{DocumentHeader, Documents, DropDocuments, KeepDocument, KeepResult, documents_key, passages_key};
pub use memories::{Forget, Memories, MemoryEntry, Remember, RememberResult, memories_key};
