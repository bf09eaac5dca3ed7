//! The lookup tools of every worker: they search a tenant's knowledge base and an agent's memories.
//!
//! Read in this order: [`tools`] (the tools that models call), [`search`] (searching a knowledge base), `base` and
//! `lexicon` (the in-memory index for it), `embeddings` (embeddings of texts), [`recall`] (searching everything that an
//! agent may remember), [`documents`] and [`import`] (how documents get into a knowledge base).

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
