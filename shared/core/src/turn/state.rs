//! The record of an unfinished turn or task.

use std::collections::BTreeSet;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tickfleet_model::{
    AgentId, Conclusion, Context, Dialect, InboxName, Priority, TaskGrant, TaskId, TenantId, TurnId,
};

use crate::keys;
use crate::record::{Debited, Record, Stored, Unreadable, from_json, json_of};
use crate::transaction::{CounterKey, EntryId, StreamKey};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Head {
    #[serde(rename = "ag")]
    pub agent: AgentId,
    #[serde(rename = "di", default, skip_serializing_if = "is_default")]
    pub dialect: Dialect,
    #[serde(rename = "rt", default, skip_serializing_if = "is_default")]
    pub reply_to: Option<InboxName>,
    #[serde(rename = "dl")]
    pub deadline_ms: i64,
    /// By the store's clock; 0 if unknown.
    #[serde(rename = "ts", default, skip_serializing_if = "is_default")]
    pub submitted_ms: i64,
    /// Shows whether a message with the same ID has the same content.
    #[serde(rename = "dg")]
    pub digest: String,
    #[serde(rename = "n")]
    pub calls: usize,
    #[serde(rename = "au", default, skip_serializing_if = "is_default")]
    pub want_audits: bool,
    /// True if the model may send null for an omitted argument.
    #[serde(rename = "st", default, skip_serializing_if = "is_default")]
    pub strict: bool,
    /// `None` allows all tools of the agent.
    #[serde(rename = "to", default, skip_serializing_if = "is_default")]
    pub allowed_tools: Option<BTreeSet<String>>,
    #[serde(rename = "pr", default, skip_serializing_if = "is_default")]
    pub parallel_reads: bool,
    /// True if the inbox receives a message when a call waits for approval.
    #[serde(rename = "pa", default, skip_serializing_if = "is_default")]
    pub pending_approval: bool,
    #[serde(rename = "lc", default, skip_serializing_if = "is_default")]
    pub local_calls: bool,
    #[serde(rename = "cx", default, skip_serializing_if = "is_empty_context")]
    pub context: Context,
    #[serde(rename = "tk", default, skip_serializing_if = "is_default")]
    pub task: Option<(TaskId, TaskGrant)>,
    /// `<turn>/<position>` of the delegating call.
    #[serde(rename = "by", default, skip_serializing_if = "is_default")]
    pub delegated_by: Option<String>,
    /// `traceparent` of the span that admitted the turn.
    #[serde(rename = "sp", default, skip_serializing_if = "is_default")]
    pub span: Option<String>,
}

impl PartialEq for Head {
    /// Not all fields can be compared directly, so the JSON texts are compared.
    fn eq(&self, other: &Self) -> bool {
        serde_json::to_string(self).ok() == serde_json::to_string(other).ok()
    }
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn is_empty_context(context: &Context) -> bool {
    context.user_context.is_none()
        && context.session_data.is_none()
        && context.session_id.is_none()
        && context.correlation_id.is_none()
        && context.traceparent.is_none()
        && context.tracestate.is_none()
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Destination {
    #[serde(rename = "r")]
    Workers(Priority),
    /// An external runtime or the caller's process ([`Turn::local`]) must renew the lease within `lease_ms`.
    #[serde(rename = "x")]
    External { lease_ms: i64 },
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "s", rename_all = "snake_case")]
pub enum State {
    /// Waits in the throttle queue of `counter`.
    Throttled { counter: CounterKey, since_ms: i64 },
    /// The slice is on a queue, or with a worker that has not begun the call at `position`.
    Ready {
        /// Position after the last call of the slice.
        upto: usize,
    },
    /// A worker has begun the call at `position`, see [`Turn::begun`].
    Running {
        /// Position after the last call of the slice.
        upto: usize,
    },
    /// The call at `position` is retried at `due_ms`.
    Retrying {
        /// Position after the last call of the slice.
        upto: usize,
        due_ms: i64,
    },
    Waiting {
        /// Position after the last call of the slice. If equal to `position`, the calls must acquire their permits
        /// again.
        upto: usize,
        reason: WaitReason,
        /// When the call is checked again without a wake-up.
        due_ms: i64,
    },
    /// The turn ends at `due_ms`. Until then, workers may report results after a restart of the store.
    Ending { reason: EndReason, due_ms: i64 },
}

impl State {
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Throttled { .. } => "throttled",
            Self::Ready { .. } => "ready",
            Self::Running { .. } => "running",
            Self::Retrying { .. } => "retrying",
            Self::Waiting { .. } => "waiting",
            Self::Ending { .. } => "ending",
        }
    }

    #[must_use]
    pub const fn awaits(&self) -> Option<&TurnId> {
        match self {
            Self::Waiting { reason, .. } => reason.awaits(),
            _ => None,
        }
    }

    #[must_use]
    pub const fn is_parked(&self) -> bool {
        matches!(self, Self::Retrying { .. } | Self::Waiting { .. })
    }

    /// Returns `None` if no slice is on a queue or held by a worker.
    #[must_use]
    pub const fn in_flight_upto(&self) -> Option<usize> {
        match self {
            Self::Ready { upto } | Self::Running { upto } => Some(*upto),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "w", rename_all = "snake_case")]
pub enum EndReason {
    Expired,
    Canceled,
    DailyCapReached {
        resets_ms: i64,
    },
    TaskBudgetReached,
    LimitReached {
        limit: String,
        /// Time (ms) when the limit allows calls again; 0 if unknown.
        resets_ms: i64,
    },
    /// A call needs more than the limit's maximum.
    OverLimit {
        limit: String,
    },
    /// The call lacks the amount that the limit sums up.
    NoAmount {
        limit: String,
    },
    /// The slice crashed too many workers, or calls were lost or unreadable.
    Quarantined {
        crashes: u32,
    },
    AgentRemoved,
}

impl EndReason {
    /// A stable name for `explain` and `whatif`.
    #[must_use]
    pub const fn word(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Canceled => "cancelled",
            Self::DailyCapReached { .. } => "daily_cap_reached",
            Self::TaskBudgetReached => "task_budget_reached",
            Self::LimitReached { .. } => "limit_reached",
            Self::OverLimit { .. } => "over_limit",
            Self::NoAmount { .. } => "no_amount",
            Self::Quarantined { .. } => "internal",
            Self::AgentRemoved => "rejected",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "f", rename_all = "snake_case")]
pub enum WaitReason {
    /// A human decision.
    Approval { approval: String },
    /// The end of a turn or task that this call began.
    Child { turn: TurnId },
    /// The end of a turn that may change a fact.
    Fact { turn: TurnId },
    /// The end of an equal call, which holds the idempotency claim.
    EqualCall { turn: TurnId },
    /// The tool's circuit breaker is open, or an operator paused the tool.
    Breaker { since_ms: i64 },
    /// More room in a budget of tokens or money.
    Budget { counter: CounterKey },
    /// A worker that can read the slice.
    Reader { attempts: u32 },
}

/// The `match` expressions have no wildcard, so the compiler requires a decision for each new reason.
impl WaitReason {
    #[must_use]
    pub const fn awaits(&self) -> Option<&TurnId> {
        match self {
            Self::Child { turn } | Self::Fact { turn } | Self::EqualCall { turn } => Some(turn),
            Self::Approval { .. } | Self::Breaker { .. } | Self::Budget { .. } | Self::Reader { .. } => None,
        }
    }

    /// True if people or other work end the wait. The slice returns its permits during such a wait.
    #[must_use]
    pub const fn is_for_others(&self) -> bool {
        match self {
            Self::Approval { .. }
            | Self::Child { .. }
            | Self::Fact { .. }
            | Self::EqualCall { .. }
            | Self::Budget { .. } => true,
            Self::Breaker { .. } | Self::Reader { .. } => false,
        }
    }

    /// Returns a time only for a circuit breaker or a paused tool.
    #[must_use]
    pub const fn unavailable_since_ms(&self) -> Option<i64> {
        match self {
            Self::Breaker { since_ms } => Some(*since_ms),
            Self::Approval { .. }
            | Self::Child { .. }
            | Self::Fact { .. }
            | Self::EqualCall { .. }
            | Self::Budget { .. }
            | Self::Reader { .. } => None,
        }
    }

    /// True if a person ends the wait. Metrics count turns with other waits as parked.
    #[must_use]
    pub const fn is_for_people(&self) -> bool {
        match self {
            Self::Approval { .. } => true,
            Self::Child { .. }
            | Self::Fact { .. }
            | Self::EqualCall { .. }
            | Self::Breaker { .. }
            | Self::Budget { .. }
            | Self::Reader { .. } => false,
        }
    }
}

/// The intent record of a call. Once this record is committed, the call may have taken effect.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begun {
    #[serde(rename = "p")]
    pub position: usize,
    /// A worker's nonce, or `runtime` for an external runtime.
    #[serde(rename = "by")]
    pub by: String,
    /// The call's result reports this consent, even if the worker dies.
    #[serde(rename = "co", default, skip_serializing_if = "is_default")]
    pub consent: Option<UsedConsent>,
}

impl Begun {
    #[must_use]
    pub fn new(position: usize, by: impl Into<String>) -> Self {
        Self { position, by: by.into(), consent: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsedConsent {
    #[serde(rename = "ap")]
    pub approval: String,
    #[serde(rename = "by")]
    pub by: Vec<String>,
    /// A JSON object from JSON pointers to the approvers' new values.
    #[serde(rename = "na", default, skip_serializing_if = "is_default")]
    pub narrowed: Option<String>,
}

/// A slice that was redelivered after a crash, see [`crate::recovery`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Suspect {
    /// Maximum number of suspects that run together on a worker, including this one.
    #[serde(rename = "g")]
    pub group_max: u32,
    /// Number of workers that died while this slice was their only suspect.
    #[serde(rename = "l", default, skip_serializing_if = "is_default")]
    pub solo_crashes: u32,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskPart {
    /// Includes the calls of subtasks.
    #[serde(rename = "bu")]
    pub budget: u64,
    #[serde(rename = "up", default, skip_serializing_if = "is_default")]
    pub parent: Option<TaskId>,
    /// The tasks above the parent, innermost first.
    #[serde(rename = "ab", default, skip_serializing_if = "is_default")]
    pub above: Vec<TaskId>,
    #[serde(rename = "to", default, skip_serializing_if = "is_default")]
    pub renewed_ms: i64,
    #[serde(rename = "co", default, skip_serializing_if = "is_default")]
    pub counted: Option<String>,
    #[serde(rename = "re", default, skip_serializing_if = "is_default")]
    pub reserved: Option<Reservation>,
    #[serde(rename = "sb", default, skip_serializing_if = "is_default")]
    pub steps_bytes: u64,
    #[serde(rename = "sn", default, skip_serializing_if = "is_default")]
    pub steps: u64,
    /// Input tokens, output tokens, and cost in millionths.
    #[serde(rename = "us", default, skip_serializing_if = "is_default")]
    pub used: (u64, u64, u64),
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    #[serde(rename = "i")]
    pub request: String,
    #[serde(rename = "e")]
    pub entry: EntryId,
    /// The counter, the unit, the amount, and the end of the counter's window (ms).
    #[serde(rename = "d")]
    pub debits: Vec<(CounterKey, BudgetUnit, u64, i64)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BudgetUnit {
    Tokens,
    /// In millionths.
    Money,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "n", rename_all = "snake_case")]
pub enum Note {
    Admitted {
        #[serde(rename = "t")]
        at_ms: i64,
        #[serde(rename = "c")]
        calls: usize,
        #[serde(rename = "l")]
        limits: Vec<(CounterKey, u64)>,
        /// In the order of `limits`; only with `audit.admissions`.
        #[serde(rename = "am", default, skip_serializing_if = "Vec::is_empty")]
        amounts: Vec<u64>,
        /// In the order of `limits`. Empty until a holder or a later transition stores the states.
        #[serde(rename = "d", default, skip_serializing_if = "Vec::is_empty")]
        debited: Vec<Debited>,
    },
    Throttled {
        #[serde(rename = "t")]
        at_ms: i64,
        counter: CounterKey,
        /// Time (ms) when the counter may allow calls again; 0 if unknown.
        until_ms: i64,
    },
    Failed {
        #[serde(rename = "t")]
        at_ms: i64,
        position: usize,
        /// From 1. 0 if the retry only asks for the outcome of a begun call.
        attempt: u32,
        delay_ms: i64,
        cause: String,
    },
    ToolUnavailable {
        #[serde(rename = "t")]
        at_ms: i64,
        position: usize,
        times: u32,
        until_ms: i64,
        cause: String,
    },
    /// If `calls` is 0, later notes about permits are missing.
    Permits {
        #[serde(rename = "t")]
        at_ms: i64,
        #[serde(rename = "c")]
        calls: usize,
        /// False if the calls returned their permits.
        taken: bool,
    },
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    #[serde(rename = "h")]
    pub head: Head,
    #[serde(rename = "q")]
    pub destination: Destination,
    /// The score in throttle queues: smaller for an earlier admission.
    #[serde(rename = "pl")]
    pub place: u64,
    #[serde(rename = "t")]
    pub admitted_ms: i64,
    /// Counts toward the tenant's maximum of unfinished work.
    #[serde(rename = "b")]
    pub bytes: u64,
    /// True if the producer chose the turn's ID.
    #[serde(rename = "g", default, skip_serializing_if = "is_default")]
    pub given: bool,
    #[serde(rename = "p", default, skip_serializing_if = "is_default")]
    pub position: usize,
    #[serde(rename = "d", default, skip_serializing_if = "is_default")]
    pub debited: usize,
    /// Of the call at `position`.
    #[serde(rename = "a", default, skip_serializing_if = "is_default")]
    pub attempts: u32,
    /// Of all calls.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub retries: u32,
    /// Workers that died with the current slice.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub crashes: u32,
    /// Workers that could not read the turn's slices.
    #[serde(rename = "ur", default, skip_serializing_if = "is_default")]
    pub unreadable: u32,
    #[serde(rename = "u", default, skip_serializing_if = "is_default")]
    pub may_have_run: bool,
    /// True if the call at `position` began work outside its turn, for example a delegated task.
    #[serde(rename = "e", default, skip_serializing_if = "is_default")]
    pub began_child: bool,
    #[serde(rename = "be", default, skip_serializing_if = "is_default")]
    pub begun: Option<Begun>,
    #[serde(rename = "cx", default, skip_serializing_if = "is_default")]
    pub canceled: Option<String>,
    #[serde(rename = "su", default, skip_serializing_if = "is_default")]
    pub suspect: Option<Suspect>,
    /// Only the transaction that enqueues the slice sets `Stored::entry`. A holder that rewrites the record keeps the
    /// entry here.
    #[serde(rename = "en", default, skip_serializing_if = "is_default")]
    pub entry: Option<EntryId>,
    #[serde(rename = "pm", default, skip_serializing_if = "is_default")]
    pub permits: Vec<(CounterKey, u64)>,
    /// The call at `position` is in progress and may change this session's facts.
    #[serde(rename = "se", default, skip_serializing_if = "is_default")]
    pub session: Option<String>,
    /// The approval of the call at `position`.
    #[serde(rename = "ap", default, skip_serializing_if = "is_default")]
    pub approval: Option<String>,
    #[serde(rename = "k", default, skip_serializing_if = "is_default")]
    pub task: Option<TaskPart>,
    #[serde(rename = "lo", default, skip_serializing_if = "is_default")]
    pub local: Option<LocalCall>,
    #[serde(rename = "lg", default, skip_serializing_if = "is_default")]
    pub notes: Vec<Note>,
    #[serde(rename = "s")]
    pub state: State,
}

impl Record for Turn {
    const SCHEMA: u32 = 1;
}

impl Turn {
    pub const NOTES_MAX: usize = 40;

    #[must_use]
    pub fn new(head: Head, destination: Destination, state: State, now_ms: i64) -> Self {
        Self {
            head,
            destination,
            place: u64::try_from(now_ms).unwrap_or(0),
            admitted_ms: now_ms,
            bytes: 0,
            given: false,
            position: 0,
            debited: 0,
            attempts: 0,
            retries: 0,
            crashes: 0,
            unreadable: 0,
            may_have_run: false,
            began_child: false,
            begun: None,
            canceled: None,
            suspect: None,
            entry: None,
            permits: Vec::new(),
            session: None,
            approval: None,
            task: None,
            local: None,
            notes: Vec::new(),
            state,
        }
    }

    /// After a crash, this is the queue of suspects.
    #[must_use]
    pub fn queue(&self, tenant: &TenantId) -> StreamKey {
        match self.destination {
            Destination::Workers(priority) if self.crashes > 0 => keys::suspect(priority),
            Destination::Workers(priority) => keys::ready(priority),
            Destination::External { .. } => match &self.local {
                Some(local) => keys::local(tenant, &local.turn),
                None => keys::external(tenant, &self.head.agent),
            },
        }
    }

    /// A task can stay at an external runtime for days, so such a task does not count.
    #[must_use]
    pub const fn is_in_flight(&self) -> bool {
        self.state.in_flight_upto().is_some() && self.is_for_workers()
    }

    #[must_use]
    pub const fn is_for_workers(&self) -> bool {
        matches!(self.destination, Destination::Workers(_))
    }

    /// Drops the note if the turn already has [`Self::NOTES_MAX`] notes.
    pub fn note(&mut self, note: Note) {
        if self.notes.len() < Self::NOTES_MAX {
            self.notes.push(note);
        }
    }

    /// The next calls did not cause the crashes of the ended slice.
    pub fn clear_suspicion(&mut self) {
        self.crashes = 0;
        self.suspect = None;
    }

    #[must_use]
    pub const fn is_task(&self) -> bool {
        self.task.is_some()
    }
}

impl Stored<Turn> {
    /// Returns `None` if no slice is on a queue or held by a worker.
    #[must_use]
    pub fn in_flight_entry(&self) -> Option<&EntryId> {
        self.value.state.in_flight_upto()?;
        self.entry.as_ref().or(self.value.entry.as_ref())
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    #[serde(rename = "t")]
    pub admitted_ms: i64,
    #[serde(rename = "e")]
    pub ended_ms: i64,
    #[serde(rename = "dg")]
    pub digest: String,
    /// Workers that died with the turn's last slice.
    #[serde(rename = "c", default, skip_serializing_if = "is_default")]
    pub crashes: u32,
    /// Of all calls.
    #[serde(rename = "r", default, skip_serializing_if = "is_default")]
    pub retries: u32,
    #[serde(rename = "w", default, skip_serializing_if = "is_default")]
    pub reason: Option<EndReason>,
    #[serde(rename = "cx", default, skip_serializing_if = "is_default")]
    pub canceled: Option<String>,
    #[serde(rename = "lg", default, skip_serializing_if = "is_default")]
    pub notes: Vec<Note>,
    /// Set only if `reply` is empty, because a reply names the agent.
    #[serde(rename = "ag", default, skip_serializing_if = "is_default")]
    pub agent: Option<AgentId>,
    /// JSON. Empty if the store's memory was short and an inbox has the reply.
    #[serde(skip)]
    pub reply: String,
}

/// JSON, a line break, and the reply. An escaped reply would be longer, and clients would parse the reply twice.
impl Record for Finished {
    const SCHEMA: u32 = 1;

    fn encode(&self) -> Bytes {
        let mut text = json_of(self);
        text.push(b'\n');
        text.extend_from_slice(self.reply.as_bytes());
        text.into()
    }

    fn decode(content: &[u8]) -> Result<Self, Unreadable> {
        let end = content.iter().position(|byte| *byte == b'\n').unwrap_or(content.len());
        let (json, reply) = content.split_at(end);
        let finished: Self = from_json(json)?;
        let reply = std::str::from_utf8(reply.get(1..).unwrap_or_default());
        let reply = reply.map_err(|error| Unreadable::Json(error.to_string()))?.to_owned();
        Ok(Self { reply, ..finished })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalCall {
    /// The name of the offer's queue contains this ID.
    #[serde(rename = "t")]
    pub turn: TurnId,
    /// The slice returns to the queue of this priority.
    #[serde(rename = "p")]
    pub priority: Priority,
    #[serde(rename = "of")]
    pub offered_ms: i64,
    /// 0 if unknown.
    #[serde(rename = "to", default, skip_serializing_if = "is_zero")]
    pub renewed_ms: i64,
    /// JSON for the worker that ends the call.
    #[serde(rename = "n", default, skip_serializing_if = "String::is_empty")]
    pub note: String,
    /// `None` while the call is offered or runs.
    #[serde(rename = "c", default, skip_serializing_if = "Option::is_none")]
    pub conclusion: Option<Conclusion>,
    /// From the offer to the end of the function.
    #[serde(rename = "ms", default, skip_serializing_if = "is_zero")]
    pub took_ms: i64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_zero(number: &i64) -> bool {
    *number == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finished_record_stores_its_reply_after_a_newline() {
        let reply = r#"{"turn_id":"t","results":["a\nb"]}"#.to_owned();
        let finished = Finished {
            admitted_ms: 1,
            ended_ms: 2,
            digest: "d".into(),
            crashes: 0,
            retries: 0,
            reason: None,
            canceled: None,
            agent: None,
            notes: Vec::new(),
            reply: reply.clone(),
        };
        let text = finished.encode();
        assert_eq!(text, format!("1{{\"t\":1,\"e\":2,\"dg\":\"d\"}}\n{reply}"));
        assert_eq!(Finished::decode(&text), Ok(finished));
        assert!(Finished::decode(b"1{}\n").is_err());
    }
}
