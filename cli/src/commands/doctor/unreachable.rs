//! Handles unreachable primaries of a cluster, so that the other primaries are still checked.

use crate::checks::CheckResult;
use crate::failure::Failure;

#[derive(Default)]
pub(super) struct UnreachableShards {
    shards: Vec<u32>,
    /// The command ends with this failure.
    pub(super) first: Option<Failure>,
}

impl UnreachableShards {
    /// True if the primary of the shard is known to be unreachable. A check must not wait for it again.
    pub(super) fn has(&self, shard: usize) -> bool {
        self.shards.iter().any(|unreachable| usize::try_from(*unreachable) == Ok(shard))
    }

    /// Turns the failure of an unreachable primary into a finding. Any other failure is returned.
    pub(super) fn or_finding(
        &mut self,
        shards: &[u32],
        found: Result<Vec<CheckResult>, Failure>,
    ) -> Result<Vec<CheckResult>, Failure> {
        let (failure, why) = match found {
            Err(Failure::Redis(why)) => (Failure::Redis(why.clone()), why),
            Err(Failure::RedisReported(why)) => (Failure::RedisReported(why.clone()), why),
            found => return found,
        };
        let named = shards.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let says = format!("shards {named} are unreachable: {why}");
        self.shards.extend(shards);
        self.first.get_or_insert(failure);
        let advice = "start their primary or fail over to a replica; turns of their tenants wait until then";
        Ok(vec![CheckResult::fail("primary", says, advice)])
    }
}
