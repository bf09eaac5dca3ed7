//! The audit log, for operators: search, follow, and export it with its seals.

mod export;
mod follow;
mod search;

pub use export::{Export, ExportError, ExportRange, Resume};
pub use follow::{Batch, LogItem, LogPosition, begin, next};
pub use search::{AuditMatch, AuditQuery, SearchResult};
