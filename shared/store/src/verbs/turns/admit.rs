//! Admission: a batch of turns is decided in one script.

use redis::Value;

use crate::keys::Queue;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::ending::Ending;
use crate::verbs::turns::limit::{CounterDebits, Counters, LimitRow};
use crate::verbs::turns::policy::{Generations, PolicyRow, add_policies};
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, InboxName, Priority, TaskId, TenantId, TurnId};

/// One turn to be admitted. Policies are numbered from 0 in the batch.
#[derive(Debug, Clone)]
pub struct Admission {
    /// The inbound entry, acknowledged with the decision.
    pub entry: String,
    /// The tenant.
    pub tenant: TenantId,
    /// The agent.
    pub agent: AgentId,
    /// The turn's id, given or minted.
    pub turn: TurnId,
    /// True if the producer gave the id.
    pub given: bool,
    /// Digest of the content.
    pub digest: String,
    /// The index in the batch of the policy that applies.
    pub policy: usize,
    /// The priority, which names the `ready` stream.
    pub priority: Priority,
    /// When the turn expires, ms.
    pub deadline_ms: i64,
    /// The place in the tick where the agent's windows begin, ms.
    pub stagger_ms: i64,
    /// The inbox that the reply goes to.
    pub reply_to: Option<InboxName>,
    /// The task whose budget is debited too.
    pub task: Option<TaskId>,
    /// The meta that slices carry, JSON.
    pub meta: String,
    /// The calls, JSON each.
    pub calls: Vec<String>,
    /// The counters of limits that its calls debit.
    pub counters: Vec<CounterDebits>,
}

/// The outcome of one turn at admission.
#[derive(Debug, Clone)]
pub enum Admitted {
    /// A slice is on its queue.
    Dispatched,
    /// It waits on its agent's lane, or on that of a limit.
    Laned,
    /// It was admitted before; nothing was written.
    Duplicate,
    /// Its id belongs to another content; to be rejected.
    Conflict,
    /// A bound was reached (the word says which); to be rejected.
    Refused(String),
    /// It ends at once; to be settled.
    Ending(Box<Ending>),
    /// It ends when its timer says so: Redis restarted less than a lease ago, and a worker may still say that it ran.
    Later,
}

/// The answer to a batch.
#[derive(Debug)]
pub enum AdmitReply {
    /// Decided, turn by turn.
    Decided {
        /// Shard time, ms.
        now_ms: i64,
        /// In the order of the batch.
        turns: Vec<Admitted>,
        /// The limits that turns wait for now, a name for each turn.
        waits: Vec<String>,
        /// The limits in whose shadow calls went that would have been held up.
        shades: Vec<String>,
    },
    /// A newer policy is in force; nothing was written.
    PolicyStale,
    /// Tenants were set meanwhile; nothing was written.
    TenantsStale,
    /// The day bounds do not hold shard time; nothing was written.
    DayStale {
        /// Shard time, ms.
        now_ms: i64,
    },
    /// Redis' memory is nearly full: turns come in small bites, so that what they become finds room. Nothing was
    /// written.
    Pressure {
        /// The number of turns that may come now; fewer than did.
        turns_max: usize,
    },
}

impl Store {
    /// Decides a batch of turns in one script.
    ///
    /// # Errors
    /// [`StoreError`]. On a script error the caller repeats turn by turn and rejects the culprit.
    pub async fn admit(
        &self,
        by: Generations,
        rows: &[PolicyRow],
        limits: &[LimitRow],
        turns: &[Admission],
    ) -> Result<AdmitReply, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(by).show(o.ending_lease_ms).show(o.tenant_turns_max).show(o.tenant_ready_max);
        args.show(o.inbox_unread_max).show(o.inboxes_max).show(o.reply_retain_ms).show(o.tenant_bytes_max);
        add_policies(&mut args, rows);
        let counters =
            Counters::add(&mut args, limits, o.audit_admissions, turns.iter().flat_map(|turn| &turn.counters));
        args.show(turns.len());
        for t in turns {
            args.text(t.entry.as_str()).text(t.tenant.as_str());
            args.show(format_args!("{}:{}", t.tenant, t.agent)).show(format_args!("{}:{}", t.tenant, t.turn));
            // Only a given id can come back with another content.
            args.text(if t.given { t.digest.as_str() } else { "" });
            args.show(t.policy + 1).show(Queue::Ready(t.priority)).show(t.deadline_ms);
            args.show(t.stagger_ms).maybe(t.reply_to.as_ref()).maybe(t.task.as_ref());
            args.text(t.meta.as_str()).show(t.calls.len());
            for call in &t.calls {
                args.text(call.as_str());
            }
            counters.add_debits(&mut args, &t.counters);
        }
        args.run_id_last();
        let mut reply = self.ask(Verb::Admit, args).await?;
        let word = reply.text()?;
        let now_ms = reply.number()?;
        match word.as_str() {
            "POLICY_STALE" => Ok(AdmitReply::PolicyStale),
            "TENANTS_STALE" => Ok(AdmitReply::TenantsStale),
            "DAY_STALE" => Ok(AdmitReply::DayStale { now_ms }),
            "PRESSURE" => Ok(AdmitReply::Pressure { turns_max: usize::try_from(reply.number()?).unwrap_or(0) }),
            _ => {
                let (mut waits, mut shades) = (Vec::new(), Vec::new());
                let turns = reply.rest().into_iter().map(|value| admitted(value, &mut waits, &mut shades));
                let turns = turns.collect::<Result<_, _>>()?;
                Ok(AdmitReply::Decided { now_ms, turns, waits, shades })
            }
        }
    }
}

fn admitted(value: Value, waits: &mut Vec<String>, shades: &mut Vec<String>) -> Result<Admitted, StoreError> {
    if matches!(value, Value::Array(_)) {
        return Ok(Admitted::Ending(Box::new(Ending::read(Verb::Admit.as_str(), value)?)));
    }
    let word = text_of(&value).unwrap_or_default();
    let (word, rest) = word.split_once(' ').unwrap_or((word.as_str(), ""));
    let limits = rest.split(' ').filter(|name| !name.is_empty()).map(str::to_owned);
    match word {
        "DISPATCHED" => {
            shades.extend(limits);
            Ok(Admitted::Dispatched)
        }
        "LANED" => {
            waits.extend(limits);
            Ok(Admitted::Laned)
        }
        "REFUSED" => Ok(Admitted::Refused(rest.to_owned())),
        "LATER" => Ok(Admitted::Later),
        "DUPLICATE" => Ok(Admitted::Duplicate),
        "CONFLICT" => Ok(Admitted::Conflict),
        _ => Err(unexpected(Verb::Admit.as_str(), &value)),
    }
}
