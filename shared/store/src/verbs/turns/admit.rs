//! Verbs of the scheduler: admit and reject, release, promote.

use redis::Value;

use crate::keys::{Queue, TurnName};
use crate::script::args::Args;
use crate::script::reply::{Reply, number_of, text_of, unexpected};
use crate::verbs::ending::Ending;
use crate::{Store, StoreError};
use tickfleet_model::{AgentId, Caps, DayCapAction, InboxName, Priority, TaskId, TenantId, TurnId};

/// Caps together with the calendar day that they count in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PolicyRow {
    /// The caps.
    pub caps: Caps,
    /// When the day began, ms.
    pub day_start_ms: i64,
    /// When it ends, ms.
    pub day_end_ms: i64,
}

/// What a batch is decided by, as the shard counts it: it refuses to be decided by less than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generations {
    /// The policy's.
    pub policy: u64,
    /// That of the tenants that were set at run time.
    pub tenants: u64,
}

impl std::fmt::Display for Generations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.policy, self.tenants)
    }
}

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
    /// Whether the producer gave the id.
    pub given: bool,
    /// Digest of the content.
    pub digest: String,
    /// Which policy of the batch applies.
    pub policy: usize,
    /// Which `ready` stream.
    pub priority: Priority,
    /// When the turn expires, ms.
    pub deadline_ms: i64,
    /// Where in the tick the agent's windows begin, ms.
    pub stagger_ms: i64,
    /// Where the reply goes.
    pub reply_to: Option<InboxName>,
    /// The task whose budget is debited too.
    pub task: Option<TaskId>,
    /// The meta that slices carry, JSON.
    pub meta: String,
    /// The calls, JSON each.
    pub calls: Vec<String>,
}

/// Streams of a shard that are inbound.
pub(crate) const INBOUND: [Inbound; 2] = [Inbound::Turns, Inbound::Tasks];

/// What became of one turn at admission.
#[derive(Debug, Clone)]
pub enum Admitted {
    /// A slice is on its queue.
    Dispatched,
    /// It waits on its agent's lane.
    Laned,
    /// It was admitted before; nothing was written.
    Duplicate,
    /// Its id belongs to another content; to be rejected.
    Conflict,
    /// A bound was reached (the word says which); to be rejected.
    Refused(String),
    /// It ends at once; to be settled.
    Ending(Box<Ending>),
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
        /// How many may come now; fewer than did.
        turns_max: usize,
    },
}

/// A lane whose timer is due.
#[derive(Debug, Clone)]
pub struct LaneRelease {
    /// The tenant.
    pub tenant: TenantId,
    /// The agent.
    pub agent: AgentId,
    /// What its turns are judged by.
    pub policy: LanePolicy,
    /// Where in the tick the agent's windows begin, ms.
    pub stagger_ms: i64,
}

/// What the turns of a lane are judged by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LanePolicy {
    /// This policy of the batch.
    Row(usize),
    /// The agent is no longer configured: they end.
    NoAgent,
    /// The tenant's declaration cannot be read: they wait.
    Withheld,
}

/// What became of one lane.
#[derive(Debug, Default)]
pub struct Released {
    /// Turns of which a slice was dispatched.
    pub turns: u64,
    /// Calls dispatched.
    pub calls: u64,
    /// How late the lane was, ms.
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

/// What became of a turn's timer.
#[derive(Debug)]
pub enum Promoted {
    /// A parked retry is back on its queue.
    Promoted,
    /// Nothing was due; the timer is set anew.
    Later,
    /// An external runtime fell silent and lost its task, which is offered to another.
    Lapsed,
    /// The turn has ended.
    Gone,
    /// Its slice was with nobody and on no queue, or its lane's timer was gone: they are made anew from its record.
    Restored,
    /// Its record cannot be read and is put aside, or what is due cannot be done now: why.
    Aside(String),
    /// The turn ends; to be settled.
    Ending(Box<Ending>),
}

/// An inbound stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Inbound {
    /// Turns.
    Turns,
    /// Tasks, and what external runtimes say about theirs.
    Tasks,
}

impl Inbound {
    /// The stream's suffix, which is also its entries' field with an `s` less.
    #[must_use]
    pub const fn stream(self) -> &'static str {
        match self {
            Self::Turns => "turns",
            Self::Tasks => "tasks",
        }
    }

    /// The field that holds the message.
    #[must_use]
    pub const fn field(self) -> &'static str {
        match self {
            Self::Turns => "turn",
            Self::Tasks => "task",
        }
    }
}

/// An inbound entry that cannot be admitted.
#[derive(Debug, Clone)]
pub struct Rejection {
    /// The entry.
    pub entry: String,
    /// A stable word.
    pub reason: String,
    /// The message as it came, bounded.
    pub raw: Vec<u8>,
    /// Tenant and inbox of the reply, where they can be read.
    pub reply_to: Option<(TenantId, InboxName)>,
    /// The reply, JSON; empty where there is nobody to tell.
    pub reply: String,
    /// The id that its producer gave, and the digest of its content: it may be sent again. None where they cannot be
    /// read.
    pub given: Option<(TurnName, String)>,
}

fn policies(args: &mut Args, rows: &[PolicyRow]) {
    args.show(rows.len());
    for row in rows {
        args.show(row.caps.tick_ms).show(row.caps.calls_per_tick).show(row.caps.calls_per_day);
        args.show(row.day_start_ms).show(row.day_end_ms);
        args.show(row.caps.tenant_calls_per_day.map_or(-1, i64::from));
        args.text(match row.caps.on_day_cap {
            DayCapAction::Reject => "reject",
            DayCapAction::Defer => "defer",
        });
    }
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
        turns: &[Admission],
    ) -> Result<AdmitReply, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(by).show(o.ending_lease_ms).show(o.tenant_turns_max).show(o.tenant_ready_max);
        args.show(o.inbox_unread_max).show(o.inboxes_max).show(o.reply_retain_ms);
        policies(&mut args, rows);
        args.show(turns.len());
        for t in turns {
            args.text(t.entry.as_str()).text(t.tenant.as_str()).text(t.agent.as_str()).text(t.turn.as_str());
            // Only a given id can come back with another content.
            args.text(if t.given { t.digest.as_str() } else { "" });
            args.show(t.policy + 1).show(Queue::Ready(t.priority)).show(t.deadline_ms);
            args.show(t.stagger_ms).maybe(t.reply_to.as_ref()).maybe(t.task.as_ref());
            args.text(t.meta.as_str()).show(t.calls.len());
            for call in &t.calls {
                args.text(call.as_str());
            }
        }
        let mut reply = Reply::new("admit", self.run_draining("admit", args).await?)?;
        let word = reply.text()?;
        let now_ms = reply.number()?;
        match word.as_str() {
            "POLICY_STALE" => Ok(AdmitReply::PolicyStale),
            "TENANTS_STALE" => Ok(AdmitReply::TenantsStale),
            "DAY_STALE" => Ok(AdmitReply::DayStale { now_ms }),
            "PRESSURE" => Ok(AdmitReply::Pressure { turns_max: usize::try_from(reply.number()?).unwrap_or(0) }),
            _ => {
                let turns = reply.rest().into_iter().map(admitted).collect::<Result<_, _>>()?;
                Ok(AdmitReply::Decided { now_ms, turns })
            }
        }
    }

    /// Takes entries that cannot be admitted to the dead stream and writes their replies. Answers for each whether it
    /// was ours to reject.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn reject(&self, from: Inbound, entries: &[Rejection]) -> Result<Vec<bool>, StoreError> {
        let mut args = self.args();
        let o = &self.options;
        args.show(o.reply_retain_ms).show(o.dead_entries_max).show(o.dedupe_ms.max(o.retain_ms));
        args.text(from.stream()).show(o.inbox_unread_max).show(o.inboxes_max).show(entries.len());
        for e in entries {
            args.text(e.entry.as_str()).text(e.reason.as_str()).text(e.raw.as_slice());
            args.maybe(e.reply_to.as_ref().map(|(tenant, _)| tenant))
                .maybe(e.reply_to.as_ref().map(|(_, inbox)| inbox));
            args.text(if e.reply_to.is_some() { e.reply.as_str() } else { "" });
            args.maybe(e.given.as_ref().map(|(name, _)| name)).text(e.given.as_ref().map_or("", |(_, digest)| digest));
        }
        let mut reply = Reply::new("reject", self.run("reject", args).await?)?;
        Ok(reply.rest().iter().map(|w| text_of(w).as_deref() == Some("OK")).collect())
    }

    /// Names of timers that are due, at most `count`: lanes and turns. Also when the next one is, ms from now
    /// (none: there is no timer).
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn due(
        &self,
        now_ms: i64,
        count: usize,
    ) -> Result<(Vec<(TenantId, AgentId)>, Vec<TurnName>), StoreError> {
        let (mut lanes, mut turns, mut odd) = (Vec::new(), Vec::new(), 0);
        loop {
            let mut command = redis::cmd("ZRANGEBYSCORE");
            command.arg(self.keys.key("timers")).arg("-inf").arg(now_ms).arg("LIMIT").arg(odd).arg(count);
            let names: Vec<String> = self.connection.query("due", &command).await?;
            for name in &names {
                if let Some(lane) = name.strip_prefix("l:").and_then(lane_of) {
                    lanes.push(lane);
                } else if let Some(turn) = name.strip_prefix("t:").and_then(TurnName::parse) {
                    turns.push(turn);
                } else {
                    odd += 1;
                }
            }
            // Names that nobody here can read (a foreign writer's, a later build's) stay first: what is due behind
            // them must not wait for them.
            if !lanes.is_empty() || !turns.is_empty() || names.len() < count {
                return Ok((lanes, turns));
            }
        }
    }

    /// Shard time, ms, without side effect: Redis `TIME` plus the shard's offset.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn now_ms(&self) -> Result<i64, StoreError> {
        if let crate::TimeSource::Injected(ms) = &self.time {
            return Ok(ms.load(std::sync::atomic::Ordering::SeqCst));
        }
        let mut pipe = redis::pipe();
        pipe.cmd("TIME").cmd("HGET").arg(self.keys.key("meta")).arg("offset_ms");
        let ((s, us), offset): ((i64, i64), Option<i64>) = self.connection.pipeline("now", &pipe).await?;
        Ok(s * 1_000 + us / 1_000 + offset.unwrap_or(0))
    }

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
        policies(&mut args, rows);
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
        let mut reply = Reply::new("release", self.run_draining("release", args).await?)?;
        let word = reply.text()?;
        let now_ms = reply.number()?;
        match word.as_str() {
            "POLICY_STALE" => Ok(ReleaseReply::PolicyStale),
            "TENANTS_STALE" => Ok(ReleaseReply::TenantsStale),
            "DAY_STALE" => Ok(ReleaseReply::DayStale { now_ms }),
            _ => Ok(ReleaseReply::Released(reply.rest().into_iter().map(released).collect::<Result<_, _>>()?)),
        }
    }

    /// Acts on timers of turns that are due.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn promote(&self, turns: &[TurnName]) -> Result<Vec<Promoted>, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(o.ending_lease_ms).show(o.crashes_max).show(turns.len());
        for turn in turns {
            args.show(turn);
        }
        let mut reply = Reply::new("promote", self.run_draining("promote", args).await?)?;
        reply.text()?;
        reply.number()?;
        Ok(reply.rest().into_iter().map(promoted).collect())
    }
}

fn lane_of(name: &str) -> Option<(TenantId, AgentId)> {
    let (tenant, agent) = name.split_once(':')?;
    Some((TenantId::new(tenant).ok()?, AgentId::new(agent).ok()?))
}

fn admitted(value: Value) -> Result<Admitted, StoreError> {
    if matches!(value, Value::Array(_)) {
        return Ok(Admitted::Ending(Box::new(Ending::read("admit", value)?)));
    }
    let word = text_of(&value).unwrap_or_default();
    match word.as_str() {
        "DISPATCHED" => Ok(Admitted::Dispatched),
        "LANED" => Ok(Admitted::Laned),
        "DUPLICATE" => Ok(Admitted::Duplicate),
        "CONFLICT" => Ok(Admitted::Conflict),
        other => match other.strip_prefix("REFUSED ") {
            Some(code) => Ok(Admitted::Refused(code.to_owned())),
            None => Err(unexpected("admit", &value)),
        },
    }
}

fn released(value: Value) -> Result<Released, StoreError> {
    let mut reply = Reply::new("release", value)?;
    let mut number = || reply.next_value().as_ref().and_then(number_of).unwrap_or(0);
    let (turns, calls, late_ms) = (number(), number(), number());
    let (endings, aside): (Vec<_>, Vec<_>) = reply.rest().into_iter().partition(|v| matches!(v, Value::Array(_)));
    let endings = endings.into_iter().filter_map(|e| Ending::read_one("release", e)).collect();
    let aside = aside.iter().filter_map(text_of).collect();
    Ok(Released { turns: turns.unsigned_abs(), calls: calls.unsigned_abs(), late_ms, endings, aside })
}

/// One answer that cannot be read costs no other.
fn promoted(value: Value) -> Promoted {
    if matches!(value, Value::Array(_)) {
        return match Ending::read("promote", value) {
            Ok(ending) => Promoted::Ending(Box::new(ending)),
            Err(error) => Promoted::Aside(error.to_string()),
        };
    }
    match text_of(&value).as_deref() {
        Some("PROMOTED") => Promoted::Promoted,
        Some("LATER") => Promoted::Later,
        Some("LAPSED") => Promoted::Lapsed,
        Some("GONE") => Promoted::Gone,
        Some("RESTORED") => Promoted::Restored,
        Some(other) => Promoted::Aside(other.trim_start_matches("ASIDE ").to_owned()),
        None => Promoted::Aside(unexpected("promote", &value).to_string()),
    }
}
