//! Replaying what was put aside, and dropping it.

use serde::Serialize;
use tickfleet_model::{Task, TenantId, Turn, TurnId, content_digest, task_digest};
use tickfleet_protocol::{
    OperatorAct, RejectedMessage, TaskMessage, act_entry, parse_task_message, parse_turn, write_task, write_turn,
};
use tickfleet_store::{HandleResult, Inbound, Store, StoreError, Submission, TurnName};

use super::list::{find, task_id, turn_id};
use super::{DeadId, DeadWhole, Kind};
use crate::has_own_content;
use crate::operate::Operator;

/// How something is replayed.
#[derive(Debug, Clone, Copy)]
pub struct Replay<'a> {
    /// The message that is sent instead, of a turn or (of a letter from `tasks`) a task; none: its own.
    pub message: Option<&'a [u8]>,
    /// Also where it may have taken effect already.
    pub although_it_may_have_run: bool,
    /// Only what is this tenant's: all else is as if it were not there.
    pub within: Option<&'a TenantId>,
    /// Who, and why.
    pub operator: Operator<'a>,
}

/// How something is dropped.
#[derive(Debug, Clone, Copy)]
pub struct Drop<'a> {
    /// Only what is this tenant's: all else is as if it were not there.
    pub within: Option<&'a TenantId>,
    /// Who, and why.
    pub operator: Operator<'a>,
}

/// What came of a replay or a drop, as a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It was done.
    Ok,
    /// Nothing of this id is there, or not any more.
    Gone,
    /// Somebody has replayed or dropped this call before.
    Again,
    /// A turn of its id and content was submitted meanwhile: nothing was sent.
    Duplicate,
    /// Another turn has its id.
    Conflict,
    /// Too much waits for admission; try again later.
    QueueFull,
    /// The inbox of its reply has too many unread ones; they have to be read first.
    InboxFull,
    /// The tenant has as many inboxes as it may have.
    TooManyInboxes,
    /// Redis is nearly full; try again later.
    Pressure,
    /// Too many calls are kept as done with.
    Full,
    /// It can only be replayed with another message.
    NeedsMessage,
    /// It may have taken effect already: this has to be said.
    MayHaveRun,
    /// The message is not valid.
    Invalid,
}

impl From<HandleResult> for Answer {
    fn from(handled: HandleResult) -> Self {
        match handled {
            HandleResult::Ok => Self::Ok,
            HandleResult::Gone => Self::Gone,
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

/// What came of it.
#[derive(Debug, Clone, Serialize)]
pub struct Replayed {
    /// Which.
    pub id: DeadId,
    /// What came of it.
    pub answer: Answer,
    /// The turn or task that was made of it, `tenant:id`.
    #[serde(rename = "as", skip_serializing_if = "Option::is_none")]
    pub becomes: Option<String>,
    /// Why not, where there is more to say than the word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl Replayed {
    fn not(id: &DeadId, answer: Answer, why: Option<String>) -> Self {
        Self { id: id.clone(), answer, becomes: None, why }
    }
}

/// What is sent.
struct Sent {
    to: Inbound,
    name: TurnName,
    message: Submission,
}

/// Replays one. It is sent and done with in one step: whatever happens to whoever asks, nothing is sent twice.
///
/// # Errors
/// [`StoreError`]; the same may be asked again.
pub async fn replay(shards: &[Store], id: &DeadId, wish: &Replay<'_>) -> Result<Replayed, StoreError> {
    let Some((store, whole)) = of(shards, id, wish.within).await? else {
        return Ok(Replayed::not(id, Answer::Gone, None));
    };
    if let (Some(why), None) = (whole.dead.needs_message, wish.message) {
        return Ok(Replayed::not(id, Answer::NeedsMessage, Some(why.into())));
    }
    if whole.dead.may_have_run && !wish.although_it_may_have_run {
        return Ok(Replayed::not(id, Answer::MayHaveRun, None));
    }
    let sent = match sent(store, &whole, wish) {
        Ok(sent) => sent,
        Err(why) => return Ok(Replayed::not(id, Answer::Invalid, Some(why))),
    };
    let becomes = sent.name.to_string();
    let mut details = about(&whole);
    details.push(("replayed_as", becomes.clone()));
    if wish.message.is_some() {
        details.push(("edited", "yes".to_owned()));
    }
    let entry = entry(store, &whole, ("REPLAY", "replayed"), &details, wish.operator).await?;
    let answer: Answer = store.replay(id.aside(), sent.to, &sent.message, &entry).await?.into();
    let becomes = matches!(answer, Answer::Ok | Answer::Duplicate | Answer::Conflict).then_some(becomes);
    Ok(Replayed { id: id.clone(), answer, becomes, why: None })
}

/// Drops one: a letter goes, a call is not listed any more.
///
/// # Errors
/// [`StoreError`].
pub async fn drop_one(shards: &[Store], id: &DeadId, wish: &Drop<'_>) -> Result<Replayed, StoreError> {
    let Some((store, whole)) = of(shards, id, wish.within).await? else {
        return Ok(Replayed::not(id, Answer::Gone, None));
    };
    let entry = entry(store, &whole, ("DROP", "dropped"), &about(&whole), wish.operator).await?;
    Ok(Replayed::not(id, store.drop_dead(id.aside(), &entry).await?.into(), None))
}

/// One with its shard, where it is there and the tenant's.
async fn of<'a>(
    shards: &'a [Store],
    id: &DeadId,
    within: Option<&TenantId>,
) -> Result<Option<(&'a Store, DeadWhole)>, StoreError> {
    let Some(store) = shards.iter().find(|store| store.shard() == id.shard) else { return Ok(None) };
    let found = find(shards, id).await?;
    let is_theirs = |whole: &DeadWhole| within.is_none() || whole.dead.tenant.as_ref() == within;
    Ok(found.filter(is_theirs).map(|whole| (store, whole)))
}

/// The message that is sent, under its id.
fn sent(store: &Store, whole: &DeadWhole, wish: &Replay<'_>) -> Result<Sent, String> {
    let own = whole.message.as_deref().unwrap_or_default();
    let bytes = wish.message.unwrap_or(own.as_bytes());
    let becomes = whole.becomes.as_deref().unwrap_or_default();
    let refusal = |refused: Box<RejectedMessage>| refused.message;
    let is_task = whole.dead.id.kind == Kind::Task || whole.dead.from.as_deref() == Some("tasks");
    if is_task {
        let TaskMessage::Delegate(task) = parse_task_message(bytes).map_err(refusal)? else {
            return Err("expected the message of a task, with op delegate".into());
        };
        at_home(store, &task.tenant, whole, wish)?;
        let id = task.id.clone().or_else(|| task_id(becomes)).ok_or("expected a task_id")?;
        let task = Task { id: Some(id.clone()), ..*task };
        let message = Submission {
            tenant: task.tenant.clone(),
            turn: has_own_content(&task).then(|| TurnId::from(id.clone())),
            digest: task_digest(&task),
            reply_to: task.reply_to.clone(),
            payload: write_task(&task).into(),
        };
        return Ok(Sent { to: Inbound::Tasks, name: TurnName::task(&task.tenant, &id), message });
    }
    let turn = parse_turn(bytes).map_err(refusal)?;
    at_home(store, &turn.tenant, whole, wish)?;
    let id = turn.id.clone().or_else(|| turn_id(becomes)).ok_or("expected a turn_id")?;
    let name = TurnName { tenant: turn.tenant.clone(), turn: id.clone() };
    let turn = Turn { id: Some(id.clone()), ..turn };
    let (digest, payload) = (content_digest(&turn), write_turn(&turn).into());
    let message = Submission { tenant: turn.tenant, turn: Some(id), digest, reply_to: turn.reply_to, payload };
    Ok(Sent { to: Inbound::Turns, name, message })
}

/// Nobody's message becomes another tenant's.
fn at_home(store: &Store, tenant: &TenantId, whole: &DeadWhole, wish: &Replay<'_>) -> Result<(), String> {
    if whole.dead.tenant.as_ref().or(wish.within).is_some_and(|own| own != tenant) {
        return Err(format!("tenant: it does not belong to {tenant}"));
    }
    if !store.is_home_of(tenant) {
        return Err(format!("tenant: {tenant} lives in another shard than this letter; submit the message there"));
    }
    Ok(())
}

fn about(whole: &DeadWhole) -> Vec<(&'static str, String)> {
    let name = whole.dead.name.clone().map(|name| ("of", name));
    name.into_iter().chain([("cause", whole.dead.cause.clone())]).collect()
}

async fn entry(
    store: &Store,
    whole: &DeadWhole,
    (action, verb): (&'static str, &'static str),
    details: &[(&'static str, String)],
    operator: Operator<'_>,
) -> Result<String, StoreError> {
    Ok(act_entry(&OperatorAct {
        timestamp_ms: store.now_ms().await?,
        action,
        entity_type: match whole.dead.id.kind {
            Kind::Letter => "dead_letter",
            Kind::Call => "call",
            Kind::Task => "task",
        },
        entity_id: &whole.dead.id.to_string(),
        verb,
        by: operator.by,
        reason: operator.reason,
        tenant: whole.dead.tenant.as_ref(),
        details,
        redactor: operator.redactor,
    }))
}
