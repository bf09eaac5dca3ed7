//! Knowledge for agents: the documents of a tenant, and the memories of an agent.
//!
//! | Key | Holds |
//! |---|---|
//! | record `documents:<tenant>` | generation, number, bytes; a part for each document: size, description |
//! | record `passages:<tenant>` | the generation; a part for each document ID: the document's passages |
//! | record `memories:<tenant>:<agent>` | generation and order of the memories; a part for each memory ID: its text |
//!
//! Readers compare generations. A generation is never repeated, even if the store loses its last writes in a restart.

mod documents;
mod memories;

pub use documents::{DocumentHeader, Documents, DropDocuments, KeepDocument, KeepResult, documents_key, passages_key};
pub use memories::{Forget, Memories, MemoryEntry, Remember, RememberResult, memories_key};
