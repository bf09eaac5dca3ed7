use std::fmt;

use serde::Serialize;
use tickfleet_core::audit::AuditAppend;
use tickfleet_model::{Task, TenantId, Turn, TurnId, content_digest, task_digest};
use tickfleet_protocol::{
    AuditAction, AuditValue, OperatorAct, RejectedMessage, TaskMessage, parse_task_message, parse_turn, write_task,
    write_turn,
};
use tickfleet_store::{HandleResult, Inbound, Store, StoreError, Submission, TurnName};

use super::list::{find, task_id, turn_id};
use super::{DeadEntry, DeadEntryDetails, DeadId, DeadKind};
use crate::has_own_content;
use crate::operate::Operator;

/// An operator's action on an item.
#[derive(Debug, Clone, Copy)]
pub enum DeadAction<'a> {
    /// Sends the item's message again.
    Replay {
        /// A turn, or a task if the letter is from the stream `tasks`. If `None`, the item's own message is sent.
        message: Option<&'a [u8]>,
        /// True to replay an item even if it may already have taken effect.
        allow_duplicate_effects: bool,
    },
    /// Deletes a letter, or removes a call or task from the list.
    Drop,
}

/// The result of a replay or a drop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum ReplayStatus {
    /// The item was replayed or dropped.
    Ok,
    /// The item never existed, or is no longer stored.
    NotFound,
    /// An operator has already replayed or dropped the item.
    Again,
    /// A turn with the replay's ID and content was submitted before. Nothing was sent.
    Duplicate,
    /// Another turn already uses the replay's ID.
    Conflict,
    /// Too much work waits for admission; retry later.
    QueueFull,
    /// The inbox for the reply has too many unread replies; read them first.
    InboxFull,
    /// The tenant has reached its maximum number of inboxes.
    TooManyInboxes,
    /// Redis memory is nearly full; retry later.
    Pressure,
    /// The maximum number of stored replays and drops of calls is reached.
    Full,
    /// The item can be replayed only with a new message.
    NeedsMessage,
    /// The item may already have taken effect, and the request does not confirm the replay.
    MayHaveRun,
    /// The message is not valid.
    Invalid,
}

impl ReplayStatus {
    /// Returns why the item was not handled. `None` if it was.
    const fn failure(self) -> Option<&'static str> {
        match self {
            Self::Ok => None,
            Self::NotFound => Some("no entry with this id"),
            Self::Again => Some("already replayed or dropped"),
            Self::Duplicate => Some("not sent: a turn with the same id and content was submitted before"),
            Self::Conflict => Some("not sent: another turn has this id"),
            Self::InboxFull => Some("not sent: the inbox for its reply is full (inbox_full)"),
            Self::TooManyInboxes => Some("not sent: the tenant has too many inboxes (too_many_inboxes)"),
            Self::QueueFull => Some("not sent: the queue is full (queue_full); retry later"),
            Self::Pressure => Some("not sent: Redis memory is nearly full (pressure); retry later"),
            Self::Full => Some("too many failed calls in the audit log are already handled"),
            Self::NeedsMessage => Some("it can only be replayed with another message"),
            Self::MayHaveRun => Some("it may have taken effect: replay it by id and allow duplicate effects"),
            Self::Invalid => Some("invalid message"),
        }
    }
}

impl From<HandleResult> for ReplayStatus {
    fn from(handled: HandleResult) -> Self {
        match handled {
            HandleResult::Ok => Self::Ok,
            HandleResult::Gone => Self::NotFound,
            HandleResult::Again => Self::Again,
            HandleResult::Duplicate => Self::Duplicate,
            HandleResult::Conflict => Self::Conflict,
            HandleResult::QueueFull => Self::QueueFull,
            HandleResult::InboxFull => Self::InboxFull,
            HandleResult::TooManyInboxes => Self::TooManyInboxes,
            HandleResult::Pressure => Self::Pressure,
            HandleResult::Full => Self::Full,
        }
    }
}

/// The result of an action on one item.
#[derive(Debug, Clone, Serialize)]
pub struct ReplayReport {
    /// The ID of the item.
    pub id: DeadId,
    /// The result.
    pub result: ReplayStatus,
    /// The turn or task that the replay created, `tenant:id`.
    #[serde(rename = "replayed_as", skip_serializing_if = "Option::is_none")]
    pub becomes: Option<String>,
    /// Why the item was not handled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl ReplayReport {
    fn new(id: &DeadId, result: ReplayStatus, reason: Option<String>) -> Self {
        let reason = reason.or_else(|| result.failure().map(ToOwned::to_owned));
        Self { id: id.clone(), result, becomes: None, reason }
    }
}

impl fmt::Display for ReplayReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let becomes = self.becomes.as_ref().map(|becomes| format!(", as {becomes}")).unwrap_or_default();
        write!(f, "{}: {}{becomes}", self.id, self.reason.as_deref().unwrap_or("done"))
    }
}

struct ReplayMessage {
    to: Inbound,
    name: TurnName,
    message: Submission,
}

/// Replays or drops one item. One transaction sends the message and marks the item as handled, so the message is not
/// sent twice. Returns [`ReplayStatus::NotFound`] for an item of a tenant other than `within`. After an error, the call
/// can be repeated.
pub async fn handle(
    shards: &[Store],
    id: &DeadId,
    action: DeadAction<'_>,
    within: Option<&TenantId>,
    operator: Operator<'_>,
) -> Result<ReplayReport, StoreError> {
    let Some((store, whole)) = of(shards, id, within).await? else {
        return Ok(ReplayReport::new(id, ReplayStatus::NotFound, None));
    };
    let DeadAction::Replay { message, allow_duplicate_effects } = action else {
        let entry = entry(store, &whole, AuditAction::Drop, &about(&whole.dead), operator).await?;
        return Ok(ReplayReport::new(id, store.drop_dead(id.aside(), entry).await?.into(), None));
    };
    if let (Some(reason), None) = (whole.dead.needs_message, message) {
        return Ok(ReplayReport::new(id, ReplayStatus::NeedsMessage, Some(reason.into())));
    }
    if whole.dead.may_have_run && !allow_duplicate_effects {
        return Ok(ReplayReport::new(id, ReplayStatus::MayHaveRun, None));
    }
    let sent = match sent(store, &whole, message, within) {
        Ok(sent) => sent,
        Err(reason) => return Ok(ReplayReport::new(id, ReplayStatus::Invalid, Some(reason))),
    };
    let becomes = sent.name.to_string();
    let mut details = about(&whole.dead);
    details.push(("replayed_as", AuditValue::Text(&becomes)));
    if message.is_some() {
        details.push(("edited", AuditValue::Name("yes")));
    }
    let entry = entry(store, &whole, AuditAction::Replay, &details, operator).await?;
    let result: ReplayStatus = store.replay(id.aside(), sent.to, &sent.message, entry).await?.into();
    let becomes =
        matches!(result, ReplayStatus::Ok | ReplayStatus::Duplicate | ReplayStatus::Conflict).then_some(becomes);
    Ok(ReplayReport { becomes, ..ReplayReport::new(id, result, None) })
}

/// `None` if the item does not exist or belongs to another tenant.
async fn of<'a>(
    shards: &'a [Store],
    id: &DeadId,
    within: Option<&TenantId>,
) -> Result<Option<(&'a Store, DeadEntryDetails)>, StoreError> {
    let Some(store) = shards.iter().find(|store| store.shard() == id.shard) else { return Ok(None) };
    let found = find(shards, id).await?;
    let is_theirs = |whole: &DeadEntryDetails| within.is_none() || whole.dead.tenant.as_ref() == within;
    Ok(found.filter(is_theirs).map(|whole| (store, whole)))
}

fn sent(
    store: &Store,
    whole: &DeadEntryDetails,
    message: Option<&[u8]>,
    within: Option<&TenantId>,
) -> Result<ReplayMessage, String> {
    let own = whole.message.as_deref().unwrap_or_default();
    let bytes = message.unwrap_or(own.as_bytes());
    let becomes = whole.becomes.as_deref().unwrap_or_default();
    let refusal = |refused: Box<RejectedMessage>| refused.message;
    let is_task = whole.dead.id.kind == DeadKind::Task || whole.dead.from.as_deref() == Some("tasks");
    if is_task {
        let TaskMessage::Delegate(task) = parse_task_message(bytes).map_err(refusal)? else {
            return Err("expected the message of a task, with op delegate".into());
        };
        check_home_shard(store, &task.tenant, whole, within)?;
        let id = task.id.clone().or_else(|| task_id(becomes)).ok_or("expected a task_id")?;
        let task = Task { id: Some(id.clone()), ..*task };
        let message = Submission {
            tenant: task.tenant.clone(),
            turn: has_own_content(&task).then(|| TurnId::from(id.clone())),
            digest: task_digest(&task),
            reply_to: task.reply_to.clone(),
            payload: write_task(&task).into(),
        };
        return Ok(ReplayMessage { to: Inbound::Tasks, name: TurnName::task(&task.tenant, &id), message });
    }
    let turn = parse_turn(bytes).map_err(refusal)?;
    check_home_shard(store, &turn.tenant, whole, within)?;
    let id = turn.id.clone().or_else(|| turn_id(becomes)).ok_or("expected a turn_id")?;
    let name = TurnName { tenant: turn.tenant.clone(), turn: id.clone() };
    let turn = Turn { id: Some(id.clone()), ..turn };
    let digest = content_digest(&turn);
    let payload = write_turn(&turn).into();
    let message = Submission { tenant: turn.tenant, turn: Some(id), digest, reply_to: turn.reply_to, payload };
    Ok(ReplayMessage { to: Inbound::Turns, name, message })
}

fn check_home_shard(
    store: &Store,
    tenant: &TenantId,
    whole: &DeadEntryDetails,
    within: Option<&TenantId>,
) -> Result<(), String> {
    if whole.dead.tenant.as_ref().or(within).is_some_and(|own| own != tenant) {
        return Err(format!("tenant: it does not belong to {tenant}"));
    }
    if !store.is_home_of(tenant) {
        return Err(format!("tenant: {tenant} lives in another shard than this letter; submit the message there"));
    }
    Ok(())
}

fn about(dead: &DeadEntry) -> Vec<(&'static str, AuditValue<'_>)> {
    let name = dead.name.as_deref().map(|name| ("of", AuditValue::Text(name)));
    name.into_iter().chain([("cause", AuditValue::Text(&dead.cause))]).collect()
}

async fn entry(
    store: &Store,
    whole: &DeadEntryDetails,
    action: AuditAction,
    details: &[(&'static str, AuditValue<'_>)],
    operator: Operator<'_>,
) -> Result<AuditAppend, StoreError> {
    let id = whole.dead.id.to_string();
    let verb = if action == AuditAction::Replay { "replayed" } else { "dropped" };
    let act = OperatorAct {
        action,
        entity_type: match whole.dead.id.kind {
            DeadKind::Letter => "dead_letter",
            DeadKind::Call => "call",
            DeadKind::Task => "task",
        },
        entity_id: &id,
        did: &format!("{verb} {id}"),
        tenant: whole.dead.tenant.as_ref(),
        details,
    };
    Ok(store.audit_append(&act, operator, store.now_ms().await?))
}
