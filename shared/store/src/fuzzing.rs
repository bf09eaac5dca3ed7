//! Doors for the fuzz targets: records as they stand in Redis, where somebody's hand may have changed them.

use std::collections::HashMap;

use tickfleet_model::policy::TenantPolicy;

use crate::records::node::NodeSays;
use crate::records::notes::noted;
use crate::records::shard::ShardMeta;
use tickfleet_core::settings::read_tenant;
use crate::{FinishedTurn, TurnRecord};

/// The record of a turn under way, of its fields.
#[must_use]
pub fn turn_record(fields: HashMap<String, String>) -> TurnRecord {
    TurnRecord::read(fields)
}

/// The record of a turn that has ended.
#[must_use]
pub fn finished(text: &str) -> FinishedTurn {
    FinishedTurn::read(text)
}

/// A cause as a log holds it.
#[must_use]
pub fn cause(cause: &str) -> String {
    noted(cause)
}

/// What a consumer and a shard say of themselves, in words.
#[must_use]
pub fn accounts(node: &str, shard: &HashMap<String, String>) -> String {
    format!("{:?} {:?}", NodeSays::read(node), ShardMeta::read(|field| shard.get(field).cloned()))
}

/// A tenant that was set at run time.
///
/// # Errors
/// The problem with its declaration.
pub fn tenant(declaration: &[u8]) -> Result<TenantPolicy, String> {
    read_tenant(declaration)
}
