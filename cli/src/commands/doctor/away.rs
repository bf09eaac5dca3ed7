//! Primaries of a cluster that do not answer: the others are looked at all the same.

use super::Finding;
use crate::failure::Failure;

/// What could not be looked at.
#[derive(Default)]
pub(super) struct Away {
    /// Shards whose primary does not answer.
    shards: Vec<u32>,
    /// Why the first of them could not be asked: what the command ends with.
    pub(super) first: Option<Failure>,
}

impl Away {
    /// Whether the primary of this shard is known not to answer: it need not be waited for once more.
    pub(super) fn has(&self, shard: usize) -> bool {
        self.shards.iter().any(|away| usize::try_from(*away) == Ok(shard))
    }

    /// What was found about `shards`, or that their primary does not answer.
    ///
    /// # Errors
    /// Anything else that went wrong.
    pub(super) fn or_told(
        &mut self,
        shards: &[u32],
        found: Result<Vec<Finding>, Failure>,
    ) -> Result<Vec<Finding>, Failure> {
        let (failure, why) = match found {
            Err(Failure::Redis(why)) => (Failure::Redis(why.clone()), why),
            Err(Failure::RedisTold(why)) => (Failure::RedisTold(why.clone()), why),
            found => return found,
        };
        let named = shards.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let says = format!("shards {named} are unreachable: {why}");
        self.shards.extend(shards);
        self.first.get_or_insert(failure);
        let advice = "start their primary or fail over to a replica; turns of their tenants wait until then";
        Ok(vec![Finding::fail("primary", says, advice)])
    }
}
