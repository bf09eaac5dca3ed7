//! An audit log that stands up: what a *sealer* writes beside the log, what an export of both looks like, and what a stranger
//! can check of an export, without Redis, without secrets and without trust in whoever made it.
//!
//! Each tenant's entries of a shard are a chain of *seals* ([`seal`]): a seal names its entries, their hashes and the seal
//! before it, and is signed. An export ([`lines`]) has entries and seals as lines of JSON. [`verify`] holds the two against
//! each other and against *anchors* ([`anchor`]), heads of chains that were kept elsewhere. [`prove`] reads from entries that
//! the fleet kept its promises, and [`whatif`] what another policy would have decided of them.

pub mod anchor;
pub mod lines;
pub mod prove;
pub mod report;
pub mod seal;
pub mod verify;
pub mod whatif;
