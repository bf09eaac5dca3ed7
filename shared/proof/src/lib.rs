//! A tamper-evident audit log. Each tenant's entries in a shard form a chain of signed *seals* ([`seal`]). *Anchors*
//! ([`anchor`]) are heads of chains in external storage. The checks need no Redis and no secrets, and do not trust the
//! exporter.

pub mod anchor;
pub mod lines;
pub mod prove;
pub mod report;
pub mod seal;
pub mod verify;
pub mod whatif;
