//! The facts that a shard says of itself: the hash `meta`, which scripts write.

use super::turn::whole;

/// A shard's own account of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ShardMeta {
    /// The time by which shard time is ahead of the server's clock, ms.
    pub(crate) offset_ms: i64,
    /// The number of times that the server's clock stepped back.
    pub(crate) steps: u64,
    /// By how much the last time, ms.
    pub(crate) step_ms: i64,
    /// Generation of the policy in force; none where no scheduler ever ran.
    pub(crate) policy_generation: Option<u64>,
    /// Digest of the policy in force; empty where there is none.
    pub(crate) policy_digest: String,
    /// The number of shards that the data was written with.
    pub(crate) shards: Option<u32>,
    /// True if new work is refused because memory is nearly full.
    pub(crate) pressure: bool,
    /// Tools that were switched off at run time.
    pub(crate) tools_off: Vec<String>,
}

impl ShardMeta {
    /// Reads the hash, of which `field` answers a field.
    pub(crate) fn read(field: impl Fn(&str) -> Option<String>) -> Self {
        let number = |name: &str| field(name).as_deref().and_then(whole);
        let tools_off = field("tools_off").unwrap_or_default();
        Self {
            offset_ms: number("offset_ms").unwrap_or(0),
            steps: number("steps").map_or(0, i64::unsigned_abs),
            step_ms: number("step_ms").unwrap_or(0),
            policy_generation: number("policy_gen").map(i64::unsigned_abs),
            policy_digest: field("policy").unwrap_or_default(),
            shards: field("shards").and_then(|shards| shards.parse().ok()),
            pressure: field("pressure").as_deref().is_some_and(is_set),
            tools_off: tools_off.split_whitespace().map(String::from).collect(),
        }
    }
}

/// Returns true if a flag is set, as scripts write it.
pub(crate) fn is_set(flag: &str) -> bool {
    flag == "1"
}
