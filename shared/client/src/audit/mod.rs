//! The audit log, for operators: search, follow, and export it with its seals.

mod export;
mod follow;
mod search;

pub use export::{Export, ExportError, ExportRange, Resume};
pub use follow::{Batch, Item, Position, begin, next};
pub use search::{AuditQuery, Found, SearchResult};
