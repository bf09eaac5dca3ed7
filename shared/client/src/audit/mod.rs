//! The audit log, for operators: searches it, follows it, and exports it with its seals.

mod condition;
mod export;
mod follow;
mod search;

pub use condition::ArgumentConditions;
pub use export::{Export, ExportError, ExportRange, ExportResume};
pub use follow::{LogBatch, LogItem, LogPosition, begin, next};
pub use search::{AuditMatch, AuditPage, AuditQuery};
