//! A tamper-evident audit log: the seals that a *sealer* writes beside the log, the format of exports of both, and the
//! checks that a stranger can make on an export without Redis, secrets, or trust in its maker.
//!
//! Each tenant's entries in a shard form a chain of *seals* ([`seal`]). A seal is signed, and lists its entries, their
//! hashes and the previous seal. An export ([`lines`]) has entries and seals as lines of JSON. [`verify`] checks
//! entries and seals against each other and against *anchors* ([`anchor`]), heads of chains that were kept elsewhere.
//! [`prove`] checks from the entries that the fleet kept its guarantees, and [`whatif`] reports how another policy
//! would have decided.

pub mod anchor;
pub mod lines;
pub mod prove;
pub mod report;
pub mod seal;
pub mod verify;
pub mod whatif;
