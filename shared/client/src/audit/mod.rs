//! The audit log, for operators: searching it, and exporting it with its seals.

mod export;
mod search;

pub use export::{Export, ExportError, ExportRange, Resume};
pub use search::{AuditQuery, Found, SearchResult};
