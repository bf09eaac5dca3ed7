//! Listing what was put aside. There is no index, for it would cost every call a write: dead letters are few, and the audit
//! log is read from its newest entry on, as many entries as a page may read.

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_model::redaction::REDACTED;
use tickfleet_model::{Outcome, TaskId, TenantId, TurnId, limits};
use tickfleet_protocol::{TaskMessage, called_tool, parse_task_message, parse_turn};
use tickfleet_store::{DeadLetter, LogEntry, Store, StoreError};

use super::{Dead, DeadAt, DeadFilter, DeadId, DeadPage, DeadWhole, Kind};

/// Entries that are read at once.
const PAGE: usize = 500;
/// Entries that one page of the list reads at most.
const READ_MAX: usize = 20_000;
/// The outcomes of calls that failed although they were let run: what refuses a call before it runs says so to its agent,
/// and would refuse it again.
const FAILED: [Outcome; 4] = [Outcome::Transient, Outcome::OutcomeUnknown, Outcome::Internal, Outcome::Permanent];

/// The id that a replay gives where the message has none of its own: the old one's name with this behind it.
fn again(old: &str, suffix: &str, id: &DeadId) -> String {
    let name = format!("{old}{suffix}");
    // A name that is as long as names may be has no room; the place that it stands at is a name, too.
    if name.len() <= limits::ID_BYTES_MAX { name } else { format!("again-{}-{}", id.shard, id.entry) }
}

/// A page of what was put aside and passes the filter: letters first, then calls, of each shard the newest first. At most
/// 20,000 entries are read a page, so that a filter that nothing passes costs no more.
///
/// # Errors
/// [`StoreError`].
pub async fn list(shards: &[Store], filter: &DeadFilter, from: DeadAt) -> Result<DeadPage, StoreError> {
    let mut page = DeadPage::default();
    let mut at = from;
    while let Some(store) = shards.get(at.shard) {
        let is_wanted = filter.kind.is_none_or(|kind| kind == at.kind)
            && filter.tenant.as_ref().is_none_or(|tenant| at.kind == Kind::Letter || store.is_home_of(tenant));
        if is_wanted && !read_shard(store, filter, &mut at, &mut page).await? {
            page.next = Some(at);
            return Ok(page);
        }
        at = match (at.kind, at.shard + 1 < shards.len()) {
            (kind, true) => DeadAt { kind, shard: at.shard + 1, before: None },
            (Kind::Letter, false) => DeadAt { kind: Kind::Call, shard: 0, before: None },
            (Kind::Call, false) => break,
        };
    }
    Ok(page)
}

/// Reads on in one shard; answers whether all of its time was read.
async fn read_shard(
    store: &Store,
    filter: &DeadFilter,
    at: &mut DeadAt,
    page: &mut DeadPage,
) -> Result<bool, StoreError> {
    let from = filter.from_ms.unwrap_or(0).max(0).to_string();
    let end = filter.until_ms.map_or_else(|| "+".to_owned(), |until| (until - 1).max(0).to_string());
    loop {
        if page.dead.len() >= filter.limit || page.read >= READ_MAX {
            return Ok(false);
        }
        let until = at.before.as_ref().map_or_else(|| end.clone(), |before| format!("({before}"));
        let count = PAGE.min(READ_MAX - page.read);
        let found: Vec<(String, Option<Dead>)> = match at.kind {
            Kind::Letter => {
                let letters = store.dead_letters_back(&until, &from, count).await?;
                letters.iter().map(|one| (one.id.clone(), Some(letter(store.shard(), one).dead))).collect()
            }
            Kind::Call => {
                let entries = store.log_entries_back(&until, &from, count).await?;
                let failed = |one: &LogEntry| call(store.shard(), one, filter.cause.as_deref()).map(|whole| whole.dead);
                entries.iter().map(|one| (one.id.clone(), failed(one))).collect()
            }
        };
        let is_last = found.len() < count;
        take(store, filter, found, at, page).await?;
        if page.dead.len() >= filter.limit {
            return Ok(false);
        }
        if is_last {
            return Ok(true);
        }
    }
}

/// Takes those that pass the filter, up to the page's end.
async fn take(
    store: &Store,
    filter: &DeadFilter,
    found: Vec<(String, Option<Dead>)>,
    at: &mut DeadAt,
    page: &mut DeadPage,
) -> Result<(), StoreError> {
    let calls: Vec<&str> = match at.kind {
        Kind::Letter => Vec::new(),
        Kind::Call => found.iter().filter(|(_, dead)| dead.is_some()).map(|(entry, _)| entry.as_str()).collect(),
    };
    let handled = store.are_handled(&calls).await?;
    let done: Vec<String> =
        calls.iter().zip(handled).filter(|(_, done)| *done).map(|(at, _)| (*at).to_owned()).collect();
    for (entry, dead) in found {
        page.read += 1;
        let is_done = done.contains(&entry);
        at.before = Some(entry);
        page.dead.extend(dead.filter(|dead| !is_done && passes(filter, dead)));
        if page.dead.len() >= filter.limit {
            break;
        }
    }
    Ok(())
}

fn passes(filter: &DeadFilter, dead: &Dead) -> bool {
    let told =
        |text: &String| [Some(&dead.cause), dead.error.as_ref()].into_iter().flatten().any(|told| told.contains(text));
    filter.tenant.as_ref().is_none_or(|tenant| dead.tenant.as_ref() == Some(tenant))
        && filter.agent.as_ref().is_none_or(|agent| dead.agent.as_deref() == Some(agent.as_str()))
        && filter.tool.as_ref().is_none_or(|tool| dead.tool.as_ref() == Some(tool))
        && filter.cause.as_ref().is_none_or(|cause| dead.cause == *cause)
        && filter.error.as_ref().is_none_or(told)
}

/// One by its id; none where it is not there any more. A call that somebody is done with is found all the same.
///
/// # Errors
/// [`StoreError`].
pub async fn find(shards: &[Store], id: &DeadId) -> Result<Option<DeadWhole>, StoreError> {
    let Some(store) = shards.iter().find(|store| store.shard() == id.shard) else { return Ok(None) };
    match id.kind {
        Kind::Letter => {
            let found = store.dead_letters_back(&id.entry, &id.entry, 1).await?;
            Ok(found.first().map(|one| letter(id.shard, one)))
        }
        Kind::Call => {
            let found = store.log_entries(&id.entry, &id.entry, 1).await?;
            let outcome = |one: &LogEntry| Some(serde_json::from_str::<Logged<'_>>(&one.text).ok()?.meta.outcome);
            Ok(found.first().and_then(|one| call(id.shard, one, outcome(one).as_deref())))
        }
    }
}

/// A letter as it is shown, and what would be sent of it.
fn letter(shard: u32, letter: &DeadLetter) -> DeadWhole {
    let id = DeadId { kind: Kind::Letter, shard, entry: letter.id.clone() };
    let said: Value = serde_json::from_str(&letter.raw).unwrap_or_default();
    let text = |name: &str| said.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
    let is_task = letter.from == "tasks";
    let own = if is_task { text("task_id") } else { text("turn_id") };
    let minted = format!("{}{}", if is_task { "k" } else { "t" }, letter.entry);
    // Of a message that killed its readers, the id may have been taken: it is not free like that of a refused one.
    let becomes = match &own {
        Some(own) if letter.reason != "poison" => own.clone(),
        Some(own) => again(own, ".again", &id),
        None => again(&minted, ".again", &id),
    };
    let needs_message = needs_message(letter, is_task);
    let dead = Dead {
        id,
        at_ms: letter.at_ms,
        tenant: TenantId::new(&letter.tenant).ok(),
        agent: text("agent").or_else(|| text("target_agent")),
        name: own,
        tool: None,
        from: Some(letter.from.clone()),
        cause: letter.reason.clone(),
        error: Some(letter.raw.clone()).filter(|raw| !raw.is_empty()),
        may_have_run: false,
        needs_message,
    };
    DeadWhole { dead, message: Some(letter.raw.clone()), becomes: Some(becomes) }
}

/// Why a letter cannot be sent as it lies there.
fn needs_message(letter: &DeadLetter, is_task: bool) -> Option<&'static str> {
    if letter.reason == "poison" || letter.reason == "unreadable" {
        return Some("its message was not kept");
    }
    if letter.raw.contains(REDACTED) {
        return Some("its secrets were not kept");
    }
    let is_whole = if is_task {
        matches!(parse_task_message(letter.raw.as_bytes()), Ok(TaskMessage::Delegate(_)))
    } else {
        parse_turn(letter.raw.as_bytes()).is_ok()
    };
    (!is_whole).then_some("its message is not valid, or only its beginning was kept")
}

/// What an entry of the audit log says of a call.
#[derive(Deserialize)]
struct Logged<'a> {
    action: String,
    entity_id: String,
    actor_type: String,
    actor_id: String,
    tenant: Option<TenantId>,
    message: String,
    #[serde(borrow)]
    meta: LoggedMeta<'a>,
}

#[derive(Deserialize)]
struct LoggedMeta<'a> {
    outcome: String,
    call: String,
    turn: String,
    agent: Option<String>,
    #[serde(borrow)]
    arguments: Option<&'a RawValue>,
    error: Option<LoggedError>,
}

#[derive(Deserialize)]
struct LoggedError {
    code: String,
    message: String,
    details: Option<Value>,
}

/// A call that failed, as it is shown, and the turn that a replay makes of it. None for what is no such call: of other
/// outcomes than those that are listed where nobody asks for one.
fn call(shard: u32, entry: &LogEntry, asked: Option<&str>) -> Option<DeadWhole> {
    // Most entries are of calls that went well: these are told apart by a look at their beginning.
    let (head, _) = entry.text.split_once(r#""action":"TOOL_CALL""#)?;
    if !head.contains(r#""level":"error""#) {
        return None;
    }
    let logged: Logged<'_> = serde_json::from_str(&entry.text).ok()?;
    let outcome = Outcome::ALL.into_iter().find(|known| known.as_str() == logged.meta.outcome)?;
    // Tasks are delegated anew by whoever wants them; `meta.agent` tells theirs.
    let is_call = logged.action == "TOOL_CALL" && logged.actor_type == "agent" && logged.meta.agent.is_none();
    if !is_call || !(FAILED.contains(&outcome) || asked == Some(outcome.as_str())) || outcome.is_success() {
        return None;
    }
    let id = DeadId { kind: Kind::Call, shard, entry: entry.id.clone() };
    let position = logged.meta.call.rsplit('/').next().unwrap_or_default();
    let becomes = again(&logged.meta.turn, &format!(".again-{position}"), &id);
    let tool = called_tool(&logged.actor_id, &logged.message, &logged.meta.outcome).unwrap_or(&logged.entity_id);
    let error = logged.meta.error.as_ref().map(|error| {
        let details = error.details.as_ref().map(|details| format!(" {details}")).unwrap_or_default();
        format!("{}: {}{details}", error.code, error.message)
    });
    let arguments = logged.meta.arguments.map(RawValue::get).unwrap_or("null");
    let needs_message = if arguments.contains(REDACTED) || tool.contains(REDACTED) {
        Some("its secrets were not kept")
    } else if !arguments.starts_with('{') || arguments.starts_with(r#"{"truncated":true,"#) {
        Some("its arguments are no JSON object, or were not kept as a whole")
    } else {
        None
    };
    let message = message(&logged, tool, arguments, &becomes);
    let dead = Dead {
        id,
        at_ms: entry.id.split('-').next().and_then(|ms| ms.parse().ok()).unwrap_or(0),
        tenant: logged.tenant.clone(),
        agent: Some(logged.actor_id.clone()),
        name: Some(logged.meta.call.clone()),
        tool: Some(tool.to_owned()),
        from: None,
        cause: logged.meta.outcome.clone(),
        error,
        may_have_run: matches!(outcome, Outcome::OutcomeUnknown | Outcome::Internal),
        needs_message,
    };
    Some(DeadWhole { dead, message: Some(message), becomes: Some(becomes) })
}

/// The turn of the one call.
fn message(logged: &Logged<'_>, tool: &str, arguments: &str, id: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    let tenant = logged.tenant.as_ref().map(TenantId::as_str).unwrap_or_default();
    format!(
        r#"{{"turn_id":{},"tenant":{},"agent":{},"calls":[{{"name":{},"arguments":{arguments}}}]}}"#,
        quoted(id),
        quoted(tenant),
        quoted(&logged.actor_id),
        quoted(tool),
    )
}

/// The id as one of a turn, or of a task.
pub(super) fn turn_id(text: &str) -> Option<TurnId> {
    TurnId::new(text).ok()
}

/// As [`turn_id`].
pub(super) fn task_id(text: &str) -> Option<TaskId> {
    TaskId::new(text).ok()
}
