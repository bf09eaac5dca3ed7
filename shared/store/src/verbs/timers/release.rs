//! Lanes whose next window has begun.

use redis::Value;

use crate::keys::Lane;
use crate::script::args::Args;
use crate::script::reply::{Reply, number_of, text_of};
use crate::verbs::Verb;
use crate::verbs::ending::Ending;
use crate::verbs::turns::limit::{CounterDebits, Counters, LimitRow};
use crate::verbs::turns::policy::{Generations, PolicyRow, add_policies};
use crate::{Store, StoreError};

/// A lane whose timer is due.
#[derive(Debug, Clone)]
pub struct LaneRelease {
    /// The lane.
    pub lane: Lane,
    /// Its turns that are looked at.
    pub turns: LaneTurns,
}

/// The turns of a lane that are looked at.
#[derive(Debug, Clone)]
pub enum LaneTurns {
    /// Whichever lie on an agent's lane: no limit counts what the agent does.
    Any(JudgedBy),
    /// These, the first of them.
    These(Vec<WaitingTurn>),
}

impl LaneTurns {
    /// What these turns debit.
    fn debits(&self) -> impl Iterator<Item = &CounterDebits> + Clone {
        let turns = match self {
            Self::Any(_) => &[],
            Self::These(turns) => turns.as_slice(),
        };
        turns.iter().flat_map(|turn| &turn.counters)
    }
}

/// What decides about the turns of an agent.
#[derive(Debug, Clone)]
pub struct JudgedBy {
    /// The agent.
    pub agent: String,
    /// The policy.
    pub policy: LanePolicy,
    /// The place in the tick where the agent's windows begin, ms.
    pub stagger_ms: i64,
}

/// A turn on a lane.
#[derive(Debug, Clone)]
pub struct WaitingTurn {
    /// `<tenant>:<turn>`, as the lane says.
    pub name: String,
    /// Position of its next call.
    pub next: usize,
    /// What decides about it.
    pub by: JudgedBy,
    /// The counters of limits that its calls debit, from the next one on.
    pub counters: Vec<CounterDebits>,
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
    /// Calls dispatched, but those that had gone out before, and waited for somebody else.
    pub calls: u64,
    /// The time by which the lane was late, ms.
    pub late_ms: i64,
    /// Turns that end instead.
    pub endings: Vec<Ending>,
    /// Why something of it was put aside, or could not be done now.
    pub aside: Vec<String>,
    /// The limits that turns wait for now, a name for each turn.
    pub waits: Vec<String>,
    /// The limits in whose shadow calls went that would have been held up.
    pub shades: Vec<String>,
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
        limits: &[LimitRow],
        lanes: &[LaneRelease],
    ) -> Result<ReleaseReply, StoreError> {
        let mut args = self.args();
        args.show(by).show(self.options.ending_lease_ms).show(self.options.tenant_ready_max).show(bound);
        add_policies(&mut args, rows);
        let told = self.options.audit_admissions;
        let counters = Counters::add(&mut args, limits, told, lanes.iter().flat_map(|lane| lane.turns.debits()));
        args.show(lanes.len());
        for lane in lanes {
            args.show(&lane.lane);
            match &lane.turns {
                LaneTurns::Any(by) => {
                    args.show(-1);
                    add_judge(&mut args, by);
                }
                LaneTurns::These(turns) => {
                    args.show(turns.len());
                    for turn in turns {
                        args.text(turn.name.as_str()).show(turn.next);
                        add_judge(&mut args, &turn.by);
                        counters.add_debits(&mut args, &turn.counters);
                    }
                }
            }
        }
        args.run_id_last();
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

fn add_judge(args: &mut Args, by: &JudgedBy) {
    args.text(by.agent.as_str());
    match by.policy {
        LanePolicy::Row(row) => args.show(row + 1),
        LanePolicy::NoAgent => args.show(0),
        LanePolicy::Withheld => args.show(-1),
    };
    args.show(by.stagger_ms);
}

fn released(value: Value) -> Result<Released, StoreError> {
    let mut reply = Reply::new(Verb::Release.as_str(), value)?;
    let mut number = || reply.next_value().as_ref().and_then(number_of).unwrap_or(0);
    let (turns, calls, late_ms) = (number(), number(), number());
    let (endings, said): (Vec<_>, Vec<_>) = reply.rest().into_iter().partition(|v| matches!(v, Value::Array(_)));
    let endings = endings.into_iter().filter_map(|e| Ending::read_one(Verb::Release.as_str(), e)).collect();
    let mut released =
        Released { turns: turns.unsigned_abs(), calls: calls.unsigned_abs(), late_ms, endings, ..Released::default() };
    for word in said.iter().filter_map(text_of) {
        match word.split_once(' ') {
            Some(("STOP", limit)) => released.waits.push(limit.to_owned()),
            Some(("SHADE", limit)) => released.shades.push(limit.to_owned()),
            _ => released.aside.push(word),
        }
    }
    Ok(released)
}
