//! The lookup tools of every worker: they search a tenant's knowledge base and an agent's memories.

mod audit;
mod base;
mod chunks;
pub mod documents;
mod embeddings;
pub mod import;
mod lexicon;
mod memories;
pub mod recall;
pub mod search;
pub mod tools;
mod words;

pub use embeddings::Embedder;
pub use search::Knowledge;
