//! Lanes whose next window has begun.

use redis::Value;

use crate::script::reply::{Reply, number_of, text_of};
use crate::verbs::Verb;
use crate::verbs::ending::Ending;
use crate::verbs::turns::policy::{Generations, PolicyRow, add_policies};
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, TenantId};

/// A lane whose timer is due.
#[derive(Debug, Clone)]
pub struct LaneRelease {
    /// The tenant.
    pub tenant: TenantId,
    /// The agent.
    pub agent: AgentId,
    /// The policy that its turns are judged by.
    pub policy: LanePolicy,
    /// The place in the tick where the agent's windows begin, ms.
    pub stagger_ms: i64,
}

/// The policy that the turns of a lane are judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LanePolicy {
    /// This policy of the batch.
    Row(usize),
    /// The agent is no longer configured: they end.
    NoAgent,
    /// The tenant's declaration cannot be read: they wait.
    Withheld,
}

/// The outcome for one lane.
#[derive(Debug, Default)]
pub struct Released {
    /// Turns of which a slice was dispatched.
    pub turns: u64,
    /// Calls dispatched.
    pub calls: u64,
    /// The time by which the lane was late, ms.
    pub late_ms: i64,
    /// Turns that end instead.
    pub endings: Vec<Ending>,
    /// Why something of it was put aside, or could not be done now.
    pub aside: Vec<String>,
}

/// The answer to a batch of lanes.
#[derive(Debug)]
pub enum ReleaseReply {
    /// Lane by lane.
    Released(Vec<Released>),
    /// A newer policy is in force; nothing was written.
    PolicyStale,
    /// Tenants were set meanwhile; nothing was written.
    TenantsStale,
    /// The day bounds do not hold shard time; nothing was written.
    DayStale {
        /// Shard time, ms.
        now_ms: i64,
    },
}

impl Store {
    /// Dispatches from lanes whose next window has begun; `bound` turns per lane at most.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn release(
        &self,
        by: Generations,
        bound: usize,
        rows: &[PolicyRow],
        lanes: &[LaneRelease],
    ) -> Result<ReleaseReply, StoreError> {
        let mut args = self.args();
        args.show(by).show(self.options.ending_lease_ms).show(self.options.tenant_ready_max).show(bound);
        add_policies(&mut args, rows);
        args.show(lanes.len());
        for lane in lanes {
            args.show(&lane.tenant).show(&lane.agent);
            match lane.policy {
                LanePolicy::Row(row) => args.show(row + 1),
                LanePolicy::NoAgent => args.show(0),
                LanePolicy::Withheld => args.show(-1),
            };
            args.show(lane.stagger_ms);
        }
        let mut reply = self.ask(Verb::Release, args).await?;
        let word = reply.text()?;
        let now_ms = reply.number()?;
        match word.as_str() {
            "POLICY_STALE" => Ok(ReleaseReply::PolicyStale),
            "TENANTS_STALE" => Ok(ReleaseReply::TenantsStale),
            "DAY_STALE" => Ok(ReleaseReply::DayStale { now_ms }),
            _ => Ok(ReleaseReply::Released(reply.rest().into_iter().map(released).collect::<Result<_, _>>()?)),
        }
    }
}

fn released(value: Value) -> Result<Released, StoreError> {
    let mut reply = Reply::new(Verb::Release.as_str(), value)?;
    let mut number = || reply.next_value().as_ref().and_then(number_of).unwrap_or(0);
    let (turns, calls, late_ms) = (number(), number(), number());
    let (endings, aside): (Vec<_>, Vec<_>) = reply.rest().into_iter().partition(|v| matches!(v, Value::Array(_)));
    let endings = endings.into_iter().filter_map(|e| Ending::read_one(Verb::Release.as_str(), e)).collect();
    let aside = aside.iter().filter_map(text_of).collect();
    Ok(Released { turns: turns.unsigned_abs(), calls: calls.unsigned_abs(), late_ms, endings, aside })
}
