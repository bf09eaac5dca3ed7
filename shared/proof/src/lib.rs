//! A tamper-evident audit log: the *seals* that a sealer writes in addition to the log, the export format for log and
//! seals, and the checks of an export. The checks need no Redis and no secrets, and do not trust the exporter.
//!
//! Each tenant's entries in a shard form a chain of *seals* ([`seal`]). A seal is signed, and lists its entries, their
//! hashes and the previous seal. An export ([`lines`]) has entries and seals as lines of JSON. [`verify`] checks
//! entries and seals against each other and against *anchors* ([`anchor`]): heads of chains in external storage.
//! [`prove`] checks from the entries that the fleet kept its guarantees, and [`whatif`] reports how another policy
//! would have decided.

pub mod anchor;
pub mod lines;
pub mod prove;
pub mod report;
pub mod seal;
pub mod verify;
pub mod whatif;
