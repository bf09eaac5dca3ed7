//! From a parsed turn to what the admit script wants, or to the refusal that its producer gets.

use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_model::limit::counters::Maker;
use tickfleet_model::policy::{TenantPolicy, Unknown};
use tickfleet_model::{AgentPolicy, Call, Policy, Redactor, RejectionCode, Turn, TurnId, content_digest, limits};
use tickfleet_ops::traces;
use tickfleet_protocol::{RejectedCall, RejectedId, RejectedMessage, RejectionStatus, rejection_reply};
use tickfleet_store::{Admission, Ending, Expected, ExpectedCall, Inbound, PolicyRow, Rejection, SliceMeta, TurnName};
use tracing::Span;

use crate::policy::{Reckoning, Rows, stagger_ms};

/// Bytes of a refused message that the dead stream keeps.
const RAW_BYTES_MAX: usize = 4_096;

/// An inbound entry on its way.
pub(crate) struct Arrival {
    /// The entry.
    pub(crate) entry: String,
    /// The entry that a minted id derives from: the first one, if reap has written it anew.
    pub(crate) origin: String,
    /// The number of times that a scheduler has died with it.
    pub(crate) crashes: u32,
    /// The message.
    pub(crate) raw: Vec<u8>,
}

/// A turn that may be admitted, with what its refusal would need.
pub(crate) struct Candidate {
    pub(crate) turn: Turn,
    pub(crate) id: TurnId,
    pub(crate) arrival: Arrival,
    /// From reading it to the decision.
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
        Self { turn, id, arrival, span }
    }
}

/// Everything about a refusal but where it came from.
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

/// The rejection of an inbound entry, with its reply if tenant and inbox can be read.
pub(crate) fn rejection(
    from: Inbound,
    arrival: &Arrival,
    refusal: &RejectedMessage,
    status: RejectionStatus,
    redactor: &Redactor,
) -> Rejection {
    let id = minted(from, &arrival.origin, refusal.turn_id.clone());
    let answered = match (from, &refusal.task_id) {
        (Inbound::Turns, _) => RejectedId::Turn(&id),
        (Inbound::Tasks, Some(task)) => RejectedId::Task(task.as_str()),
        (Inbound::Tasks, None) => RejectedId::Task(id.as_str()),
    };
    let reply = rejection_reply(refusal, status, answered);
    Rejection {
        entry: arrival.entry.clone(),
        reason: refusal.code.to_string(),
        // It stays for days, and anybody may have written it.
        raw: redactor.head(&arrival.raw, RAW_BYTES_MAX).into_bytes(),
        reply_to: refusal.tenant.clone().zip(refusal.reply_to.clone()),
        absent: None,
        reply,
        given: given(refusal),
    }
}

/// The name and digest by which `submit` may have remembered the turn.
fn given(refusal: &RejectedMessage) -> Option<(TurnName, String)> {
    let (tenant, turn) = (refusal.tenant.clone()?, refusal.turn_id.clone()?);
    Some((TurnName { tenant, turn }, refusal.digest.clone()?))
}

/// The id of a turn or task: the producer's, or one minted from the inbound entry.
pub(crate) fn minted(from: Inbound, origin: &str, given: Option<TurnId>) -> TurnId {
    given.unwrap_or_else(|| {
        let prefix = if from == Inbound::Turns { 't' } else { 'k' };
        // An entry id is digits and a hyphen; the fallback only spares a panic if Redis says something else.
        TurnId::new(format!("{prefix}{origin}")).or_else(|_| TurnId::new("odd-entry")).unwrap_or_else(|_| odd())
    })
}

#[allow(clippy::expect_used, reason = "a constant that is a well-formed id")]
fn odd() -> TurnId {
    TurnId::new("odd").expect("a well-formed id")
}

/// Checks what only the policy knows, and builds what the script wants. `grant` is what the turn's task grants, and when that
/// expires, ms.
///
/// # Errors
/// The refusal: unknown or unreadable tenant, unknown agent, a deadline too far away.
pub(crate) fn admission(
    candidate: &Candidate,
    by: &Reckoning<'_>,
    rows: &mut Rows,
    grant: Option<(tickfleet_model::TaskGrant, i64)>,
) -> Result<Admission, Box<RejectedMessage>> {
    let (turn, now_ms) = (&candidate.turn, by.now_ms);
    let (owner, policy) = look_up(by.policy, turn)?;
    let row = by.clock.row_of(by.policy, (&turn.tenant, owner), (&turn.agent, policy), now_ms);
    let deadline_ms = deadline(turn, row, now_ms)?;
    // What runs under a task ends with it at the latest.
    let deadline_ms = grant.as_ref().map_or(deadline_ms, |(_, ends_ms)| deadline_ms.min(*ends_ms));
    let digest = content_digest(turn);
    let meta = SliceMeta {
        agent: turn.agent.clone(),
        dialect: turn.dialect,
        reply_to: turn.reply_to.clone(),
        deadline_ms,
        submitted_ms: tickfleet_store::entry_ms(&candidate.arrival.origin).unwrap_or(0),
        digest: digest.clone(),
        calls: turn.calls.len(),
        want_audits: turn.want_audits,
        strict: turn.strict,
        allowed_tools: turn.allowed_tools.clone(),
        parallel_reads: turn.parallel_reads,
        pending_approval: turn.pending_approval,
        context: turn.context.clone(),
        task: turn.task.clone().map(|task| (task, grant.map(|(grant, _)| grant).unwrap_or_default())),
        is_task: false,
        by: None,
        span: traces::traceparent(&candidate.span),
    };
    // A plain answer that calls nothing ends at once, like a turn whose deadline has passed: nothing is debited, and
    // its reply has no results.
    let (deadline_ms, calls) = if turn.calls.is_empty() {
        (0, vec![Ending::NO_CALL.to_owned()])
    } else {
        (deadline_ms, turn.calls.iter().map(json).collect())
    };
    let maker = maker(turn, owner, policy);
    by.takes();
    Ok(Admission {
        entry: candidate.arrival.entry.clone(),
        tenant: turn.tenant.clone(),
        agent: turn.agent.clone(),
        turn: candidate.id.clone(),
        given: turn.id.is_some(),
        digest,
        counters: by.counters(&maker, &turn.calls, rows),
        policy: rows.number(row),
        priority: turn.priority,
        deadline_ms,
        stagger_ms: stagger_ms(&turn.tenant, &turn.agent, by.policy.defaults.tick_ms),
        reply_to: turn.reply_to.clone(),
        task: turn.task.clone(),
        meta: json(&meta),
        calls,
    })
}

/// When a turn expires, ms of shard time.
fn deadline(turn: &Turn, row: PolicyRow, now_ms: i64) -> Result<i64, Box<RejectedMessage>> {
    let deadline_ms = turn.deadline_ms.unwrap_or_else(|| default_deadline(row, now_ms));
    if deadline_ms > now_ms + limits::DEADLINE_MS_MAX {
        let message = format!("the deadline is more than {} days away", limits::DEADLINE_MS_MAX / 86_400_000);
        return Err(refuse(RejectionCode::InvalidField, message, turn));
    }
    Ok(deadline_ms)
}

/// Who makes a turn's calls.
fn maker<'a>(turn: &'a Turn, owner: &'a TenantPolicy, policy: &'a AgentPolicy) -> Maker<'a> {
    Maker {
        tenant: &turn.tenant,
        owner,
        agent: &turn.agent,
        policy,
        context: &turn.context,
        task: turn.task.as_ref(),
        parallel_reads: turn.parallel_reads,
    }
}

/// The turn's tenant and agent, if both are configured.
fn look_up<'a>(policy: &'a Policy, turn: &Turn) -> Result<(&'a TenantPolicy, &'a AgentPolicy), Box<RejectedMessage>> {
    policy.look_up(&turn.tenant, &turn.agent).map_err(|unknown| match unknown {
        Unknown::Tenant => {
            refuse(RejectionCode::UnknownTenant, format!("tenant {:?} is not configured", turn.tenant.as_str()), turn)
        }
        Unknown::Withheld => {
            refuse(RejectionCode::UnreadableTenant, tickfleet_engine::delegation::unreadable(&turn.tenant), turn)
        }
        Unknown::Agent => {
            let message = format!("tenant {:?} has no agent {:?}", turn.tenant.as_str(), turn.agent.as_str());
            refuse(RejectionCode::UnknownAgent, message, turn)
        }
    })
}

/// Rule 15: 24 h, and if calls wait for the next day, until a day after that has begun.
fn default_deadline(row: PolicyRow, now_ms: i64) -> i64 {
    match row.caps.on_day_cap {
        tickfleet_model::DayCapAction::Reject => now_ms + limits::DEADLINE_DEFAULT_MS,
        tickfleet_model::DayCapAction::Defer => row.day_end_ms + limits::DEADLINE_DEFAULT_MS,
    }
}

/// Our own types always serialise; should one not, an empty object is refused downstream rather than lost.
pub(crate) fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_else(|_| "{}".into())
}

/// What has to be said of turns before they are admitted: which of their calls may set facts that others may need. None in
/// a fleet without facts.
pub(crate) fn expected(policy: &Policy, batch: &[(&Candidate, &Admission)]) -> Vec<Expected> {
    let matrix = &policy.permissions.matrix;
    if matrix.values().all(|row| row.facts.sets.is_empty()) {
        return Vec::new();
    }
    let of_turn = |(candidate, admission): &(&Candidate, &Admission)| {
        let turn = &candidate.turn;
        let of_call = |(position, call): (usize, &Call)| {
            let row = &matrix.get(policy.known_tools.meant(&call.tool)).filter(|row| !row.facts.sets.is_empty())?.facts;
            // What cannot be read does not run.
            let arguments = RawValue::from_string(call.arguments.clone()).ok()?;
            let sets = row.sets.iter().map(|set| (set.fact.key(&arguments), set.kept_ms)).collect();
            let session = row.session(&turn.agent, turn.task.as_ref(), &turn.context);
            Some(ExpectedCall { position, session, sets })
        };
        let calls: Vec<ExpectedCall> = turn.calls.iter().enumerate().filter_map(of_call).collect();
        let name = TurnName { tenant: turn.tenant.clone(), turn: candidate.id.clone() };
        (!calls.is_empty()).then_some(Expected { name, deadline_ms: admission.deadline_ms, calls })
    };
    batch.iter().filter_map(of_turn).collect()
}
