//! Prepares the admission of a parsed turn, or the rejection that its producer receives.

use bytes::Bytes;
use serde_json::value::RawValue;
use tickfleet_core::EntryId;
use tickfleet_core::bounds::Bounds;
use tickfleet_core::call::facts::{ExpectedCall, RecordExpectedCalls, SessionName};
use tickfleet_core::keys::TurnName;
use tickfleet_core::recovery::inbound::TakenInbound;
use tickfleet_core::turn::Head;
use tickfleet_core::turn::reject::{Reject, RejectedTenant};
use tickfleet_core::turn::submit::Inbound;
use tickfleet_engine::resolved_limits::known_zone;
use tickfleet_model::day::day_bounds;
use tickfleet_model::policy::{TenantPolicy, UnknownCaller};
use tickfleet_model::{
    AgentPolicy, DayCapAction, InboxName, Policy, Redactor, RejectionCode, TaskGrant, TenantId, Turn, TurnId,
    content_digest, limits,
};
use tickfleet_ops::traces;
use tickfleet_protocol::{RejectedCall, RejectedId, RejectedMessage, RejectionStatus, rejection_reply};
use tracing::Span;

/// Longer messages are cut off in the dead letter.
const RAW_BYTES_MAX: usize = 4_096;

pub(crate) struct Arrival {
    pub(crate) entry: TakenInbound,
    /// A redelivered message has a newer entry, but generated IDs derive from the first entry.
    pub(crate) origin: EntryId,
    /// Counts schedulers that died while they processed the entry.
    pub(crate) crashes: u32,
    pub(crate) raw: Vec<u8>,
}

pub(crate) struct Candidate {
    pub(crate) turn: Turn,
    pub(crate) name: TurnName,
    pub(crate) arrival: Arrival,
    pub(crate) span: Span,
}

impl Candidate {
    pub(crate) fn new(turn: Turn, arrival: Arrival) -> Self {
        let id = minted(Inbound::Turns, &arrival.origin, turn.id.clone());
        let span = tracing::debug_span!(
            target: traces::TARGET, "admit", tenant = %turn.tenant, agent = %turn.agent, turn = %id,
            calls = turn.calls.len(), decision = tracing::field::Empty,
        );
        traces::follow(&span, turn.context.traceparent.as_deref(), turn.context.tracestate.as_deref());
        let name = TurnName { tenant: turn.tenant.clone(), turn: id };
        Self { turn, name, arrival, span }
    }
}

pub(crate) fn refuse(code: RejectionCode, message: String, turn: &Turn) -> Box<RejectedMessage> {
    Box::new(RejectedMessage {
        code,
        message,
        tenant: Some(turn.tenant.clone()),
        turn_id: turn.id.clone(),
        digest: turn.id.is_some().then(|| content_digest(turn)),
        task_id: turn.task.clone(),
        agent: Some(turn.agent.to_string()),
        reply_to: turn.reply_to.clone(),
        dialect: turn.dialect,
        correlation_id: turn.context.correlation_id.clone(),
        traceparent: turn.context.traceparent.clone(),
        calls: turn.calls.iter().cloned().map(RejectedCall::of).collect(),
    })
}

pub(crate) struct Rejection {
    pub(crate) entry: TakenInbound,
    pub(crate) reason: RejectionCode,
    raw: Bytes,
    tenant: Option<TenantId>,
    reply: Option<(InboxName, Bytes)>,
    given: Option<(TurnName, String)>,
    turn: Option<(TurnName, String)>,
}

impl Rejection {
    /// The rejection has a reply only if the entry's tenant and inbox are readable.
    pub(crate) fn of(
        from: Inbound,
        arrival: &Arrival,
        refusal: &RejectedMessage,
        status: RejectionStatus,
        redactor: &Redactor,
    ) -> Self {
        let id = minted(from, &arrival.origin, refusal.turn_id.clone());
        let answered = match (from, &refusal.task_id) {
            (Inbound::Turns, _) => RejectedId::Turn(&id),
            (Inbound::Tasks, Some(task)) => RejectedId::Task(task.as_str()),
            (Inbound::Tasks, None) => RejectedId::Task(id.as_str()),
        };
        let reply = Bytes::from(rejection_reply(refusal, status, answered));
        Self {
            entry: arrival.entry.clone(),
            reason: refusal.code,
            // The dead letter is kept for days, and any submitter may have put secrets into the message.
            raw: redactor.head(&arrival.raw, RAW_BYTES_MAX).into(),
            tenant: refusal.tenant.clone(),
            reply: refusal.reply_to.clone().map(|inbox| (inbox, reply)),
            given: given(refusal),
            turn: None,
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        self.raw.len() + self.reply.as_ref().map_or(0, |(_, reply)| reply.len())
    }

    /// Adds the turn to the rejection. The store needs the turn, because its calls may have begun before a restart of
    /// the store.
    pub(crate) fn of_turn(self, candidate: &Candidate) -> Self {
        Self { turn: Some((candidate.name.clone(), content_digest(&candidate.turn))), ..self }
    }

    /// A tenant that is not configured has no inbox, so it gets no reply.
    pub(crate) fn decision<'a>(&self, from: Inbound, policy: &Policy, bounds: &'a Bounds) -> Reject<'a> {
        let is_known = |tenant: &TenantId| policy.tenants.contains_key(tenant) || policy.withheld.contains(tenant);
        let tenant = self.tenant.clone().map(|tenant| match is_known(&tenant) {
            true => RejectedTenant::Known { tenant, reply: self.reply.clone() },
            false => RejectedTenant::Absent(tenant),
        });
        let entry = self.entry.clone();
        let reason = self.reason;
        let raw = self.raw.clone();
        Reject { from, entry, reason, raw, tenant, given: self.given.clone(), turn: self.turn.clone(), bounds }
    }
}

/// Returns the name and the digest under which the client may have recorded the submission: the rejection is written
/// to this record.
fn given(refusal: &RejectedMessage) -> Option<(TurnName, String)> {
    let turn = refusal.turn_id.clone().or_else(|| refusal.task_id.clone().map(Into::into))?;
    let tenant = refusal.tenant.clone()?;
    Some((TurnName { tenant, turn }, refusal.digest.clone()?))
}

pub(crate) fn minted(from: Inbound, origin: &EntryId, given: Option<TurnId>) -> TurnId {
    given.unwrap_or_else(|| {
        let prefix = if matches!(from, Inbound::Turns) { 't' } else { 'k' };
        // An entry ID consists of digits and a hyphen. The fallback avoids a panic if the store returns something else.
        TurnId::new(format!("{prefix}{origin}")).or_else(|_| TurnId::new("odd-entry")).unwrap_or_else(|_| fallback_id())
    })
}

#[allow(clippy::expect_used, reason = "a constant that is a well-formed ID")]
fn fallback_id() -> TurnId {
    TurnId::new("odd").expect("a well-formed ID")
}

/// `grant` has the grant of the turn's task, and the task's deadline in ms.
pub(crate) fn head(
    candidate: &Candidate,
    policy: &Policy,
    grant: Option<(TaskGrant, i64)>,
    now_ms: i64,
) -> Result<Head, Box<RejectedMessage>> {
    let turn = &candidate.turn;
    let (owner, agent) = look_up(policy, turn)?;
    let deadline_ms = turn.deadline_ms.unwrap_or_else(|| default_deadline(policy, owner, agent, now_ms));
    if deadline_ms > now_ms + limits::DEADLINE_MS_MAX {
        let message = format!("the deadline is more than {} days away", limits::DEADLINE_MS_MAX / 86_400_000);
        return Err(refuse(RejectionCode::InvalidField, message, turn));
    }
    // A turn under a task ends no later than the task.
    let deadline_ms = grant.as_ref().map_or(deadline_ms, |(_, ends_ms)| deadline_ms.min(*ends_ms));
    Ok(Head {
        agent: turn.agent.clone(),
        dialect: turn.dialect,
        reply_to: turn.reply_to.clone(),
        deadline_ms,
        submitted_ms: tickfleet_store::entry_ms(candidate.arrival.origin.as_str()).unwrap_or(0),
        digest: content_digest(turn),
        calls: turn.calls.len(),
        want_audits: turn.want_audits,
        strict: turn.strict,
        allowed_tools: turn.allowed_tools.clone(),
        parallel_reads: turn.parallel_reads,
        pending_approval: turn.pending_approval,
        local_calls: turn.local_calls,
        context: turn.context.clone(),
        task: turn.task.clone().map(|task| (task, grant.map(|(grant, _)| grant).unwrap_or_default())),
        delegated_by: None,
        span: traces::traceparent(&candidate.span),
    })
}

fn look_up<'a>(policy: &'a Policy, turn: &Turn) -> Result<(&'a TenantPolicy, &'a AgentPolicy), Box<RejectedMessage>> {
    policy.look_up(&turn.tenant, &turn.agent).map_err(|unknown| match unknown {
        UnknownCaller::Tenant => {
            refuse(RejectionCode::UnknownTenant, format!("tenant {:?} is not configured", turn.tenant.as_str()), turn)
        }
        UnknownCaller::Withheld => {
            refuse(RejectionCode::UnreadableTenant, tickfleet_engine::delegation::unreadable(&turn.tenant), turn)
        }
        UnknownCaller::Agent => {
            let message = format!("tenant {:?} has no agent {:?}", turn.tenant.as_str(), turn.agent.as_str());
            refuse(RejectionCode::UnknownAgent, message, turn)
        }
    })
}

/// Returns a time in ms: 24 h from now. If calls over the daily cap wait for the next day, the 24 h begin with that day
/// (invariant 15).
fn default_deadline(policy: &Policy, owner: &TenantPolicy, agent: &AgentPolicy, now_ms: i64) -> i64 {
    let base_ms = match policy.caps(owner, agent).on_day_cap {
        DayCapAction::Reject => now_ms,
        DayCapAction::Defer => day_bounds(now_ms, known_zone(policy.time_zone(owner))).1,
    };
    base_ms + limits::DEADLINE_DEFAULT_MS
}

/// The calls that can set facts, by session. Other calls can depend on these facts.
pub(crate) fn expected(policy: &Policy, batch: &[(&Candidate, &Head)]) -> Vec<RecordExpectedCalls> {
    let matrix = &policy.permissions.matrix;
    if matrix.values().all(|row| row.facts.sets.is_empty()) {
        return Vec::new();
    }
    let mut expected: Vec<RecordExpectedCalls> = Vec::new();
    for (candidate, head) in batch {
        let turn = &candidate.turn;
        for (position, call) in turn.calls.iter().enumerate() {
            let row = matrix.get(policy.known_tools.meant(&call.tool)).filter(|row| !row.facts.sets.is_empty());
            // A call with unreadable arguments does not run, so it sets no facts.
            let Some((row, arguments)) = row.zip(RawValue::from_string(call.arguments.clone()).ok()) else { continue };
            let sets = row.facts.sets.iter().map(|set| set.fact.key(&arguments)).collect();
            let session = row.facts.session(&turn.agent, turn.task.as_ref(), &turn.context);
            let session = SessionName::new(&turn.tenant, &session);
            let one = ExpectedCall { turn: candidate.name.turn.clone(), position, deadline_ms: head.deadline_ms, sets };
            match expected.iter_mut().find(|expect| expect.session == session) {
                Some(expect) => expect.calls.push(one),
                None => expected.push(RecordExpectedCalls { session, calls: vec![one] }),
            }
        }
    }
    expected
}
