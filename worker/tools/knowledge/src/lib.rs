//! The lookup tools of every worker. They search a tenant's knowledge base and an agent's memories.
//!
//! Read in this order:
//!
//! - [`tools`]: the tools that models call.
//! - [`search`]: searches a knowledge base.
//! - `base` and `lexicon`: a knowledge base in memory, and the index of its words.
//! - `embeddings`: embeddings of texts.
//! - [`recall`]: searches all sources of an agent.
//! - [`documents`] and [`import`]: how documents get into a knowledge base.

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
