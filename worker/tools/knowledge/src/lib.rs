//! Tools that look things up, and come with every worker: a tenant's knowledge base, an agent's memories.
//!
//! Read in this order: [`tools`] (what models call), [`search`] (a question to a knowledge base), `base` and `lexicon` (what
//! is held in memory for that), `embeddings` (what texts mean to a model), [`recall`] (a question to all that an agent may
//! remember), [`documents`] and [`import`] (how a knowledge base comes to be).

mod audit;
mod base;
mod chunks;
pub mod documents;
mod embeddings;
pub mod import;
mod lexicon;
mod notes;
pub mod recall;
pub mod search;
pub mod tools;
mod words;

pub use embeddings::Embedder;
pub use search::Knowledge;
