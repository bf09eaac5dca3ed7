//! Lists dead items. Dead items have no index, because an index would add a write to every call.

use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_model::redaction::REDACTED;
use tickfleet_model::{Outcome, TaskId, TenantId, TurnId, limits};
use tickfleet_protocol::{AuditEntry, TaskMessage, parse_task_message, parse_turn};
use tickfleet_store::{DeadLetter, LogEntry, Store, StoreError, entry_ms};

use super::{DeadEntry, DeadEntryDetails, DeadFilter, DeadId, DeadKind, DeadPosition};
use crate::{Client, Cursor, Page, VerbError};

const PAGE: usize = 500;
/// The entries that are read for one page of the list.
const READ_MAX: usize = 20_000;

#[derive(Default)]
pub(super) struct DeadItems {
    pub(super) dead: Vec<DeadEntry>,
    /// The number of entries read.
    pub(super) read: usize,
    pub(super) next: Option<DeadPosition>,
}

fn again(old: &str, suffix: &str, id: &DeadId) -> String {
    let name = format!("{old}{suffix}");
    // If the old ID is too long for the suffix, the shard and the entry make the new ID unique.
    if name.len() <= limits::ID_BYTES_MAX { name } else { format!("again-{}-{}", id.shard, id.entry) }
}

/// Lists the matching dead items: letters first, then calls and tasks, the newest first within a shard. One page reads
/// at most 20,000 entries, which bounds the cost of a filter without matches.
pub async fn list(client: &Client, filter: &DeadFilter, from: Option<&Cursor>) -> Result<Page<DeadEntry>, VerbError> {
    let mut page = Page::new(client.now_ms().await?);
    let from = Cursor::read(from)?.unwrap_or_default();
    let found = read_page(client.stores(), filter, from).await?;
    page.items = found.dead;
    page.next = found.next.as_ref().map(Cursor::of);
    Ok(page)
}

pub(super) async fn read_page(
    shards: &[Store],
    filter: &DeadFilter,
    from: DeadPosition,
) -> Result<DeadItems, StoreError> {
    let mut page = DeadItems::default();
    let mut at = from;
    while let Some(store) = shards.get(at.shard) {
        let is_wanted = filter.kind.is_none_or(|kind| (kind == DeadKind::Letter) == (at.kind == DeadKind::Letter))
            && filter.tenant.as_ref().is_none_or(|tenant| at.kind == DeadKind::Letter || store.is_home_of(tenant));
        if is_wanted && !read_shard(store, filter, &mut at, &mut page).await? {
            page.next = Some(at);
            return Ok(page);
        }
        at = match (at.kind, at.shard + 1 < shards.len()) {
            (kind, true) => DeadPosition { kind, shard: at.shard + 1, before: None },
            (DeadKind::Letter, false) => DeadPosition { kind: DeadKind::Call, shard: 0, before: None },
            (DeadKind::Call | DeadKind::Task, false) => break,
        };
    }
    Ok(page)
}

async fn read_shard(
    store: &Store,
    filter: &DeadFilter,
    at: &mut DeadPosition,
    page: &mut DeadItems,
) -> Result<bool, StoreError> {
    let from = filter.from_ms.unwrap_or(0).max(0).to_string();
    let end = filter.until_ms.map_or_else(|| "+".to_owned(), |until| until.saturating_sub(1).max(0).to_string());
    let asked = filter.cause.as_deref().and_then(Outcome::parse);
    loop {
        if page.dead.len() >= filter.limit || page.read >= READ_MAX {
            return Ok(false);
        }
        let until = at.before.as_ref().map_or_else(|| end.clone(), |before| format!("({before}"));
        let count = PAGE.min(READ_MAX - page.read);
        let found: Vec<(String, Option<DeadEntry>)> = match at.kind {
            DeadKind::Letter => {
                let letters = store.dead_letters_back(&until, &from, count).await?;
                letters.iter().map(|one| (one.id.clone(), Some(letter(store.shard(), one).dead))).collect()
            }
            DeadKind::Call | DeadKind::Task => {
                let entries = store.log_entries_back(&until, &from, count).await?;
                let failed = |one: &LogEntry| call(store.shard(), one, asked).map(|whole| whole.dead);
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

async fn take(
    store: &Store,
    filter: &DeadFilter,
    found: Vec<(String, Option<DeadEntry>)>,
    at: &mut DeadPosition,
    page: &mut DeadItems,
) -> Result<(), StoreError> {
    let calls: Vec<&str> = match at.kind {
        DeadKind::Letter => Vec::new(),
        DeadKind::Call | DeadKind::Task => {
            found.iter().filter(|(_, dead)| dead.is_some()).map(|(entry, _)| entry.as_str()).collect()
        }
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

pub(super) fn passes(filter: &DeadFilter, dead: &DeadEntry) -> bool {
    let mentions =
        |text: &String| [Some(&dead.cause), dead.error.as_ref()].into_iter().flatten().any(|part| part.contains(text));
    filter.kind.is_none_or(|kind| kind == dead.id.kind)
        && filter.tenant.as_ref().is_none_or(|tenant| dead.tenant.as_ref() == Some(tenant))
        && filter.agent.as_ref().is_none_or(|agent| dead.agent.as_deref() == Some(agent.as_str()))
        && filter.tool.as_ref().is_none_or(|tool| dead.tool.as_ref() == Some(tool))
        && filter.cause.as_ref().is_none_or(|cause| dead.cause == *cause)
        && filter.error.as_ref().is_none_or(mentions)
        && filter.normalized_error.as_ref().is_none_or(|error| dead.normalized_error().as_ref() == Some(error))
        && (!filter.without_error || dead.normalized_error().is_none())
}

/// Finds one item by its ID, including replayed and dropped calls. `None` if the item is no longer stored.
pub async fn find(shards: &[Store], id: &DeadId) -> Result<Option<DeadEntryDetails>, StoreError> {
    let Some(store) = shards.iter().find(|store| store.shard() == id.shard) else { return Ok(None) };
    match id.kind {
        DeadKind::Letter => {
            let found = store.dead_letters_back(&id.entry, &id.entry, 1).await?;
            Ok(found.first().map(|one| letter(id.shard, one)))
        }
        DeadKind::Call | DeadKind::Task => {
            let found = store.log_entries(&id.entry, &id.entry, 1).await?;
            let outcome = |one: &LogEntry| AuditEntry::read(&one.text)?.meta.outcome;
            let whole = found.first().and_then(|one| call(id.shard, one, outcome(one)));
            Ok(whole.filter(|whole| whole.dead.id.kind == id.kind))
        }
    }
}

fn letter(shard: u32, letter: &DeadLetter) -> DeadEntryDetails {
    let id = DeadId { kind: DeadKind::Letter, shard, entry: letter.id.clone() };
    let content: Value = serde_json::from_str(&letter.raw).unwrap_or_default();
    let text = |name: &str| content.get(name).and_then(Value::as_str).map(ToOwned::to_owned);
    let is_task = letter.from == "tasks";
    let own = if is_task { text("task_id") } else { text("turn_id") };
    let minted = format!("{}{}", if is_task { "k" } else { "t" }, letter.entry);
    // No turn uses the ID of a rejected message, so the replay keeps this ID. A poison message crashed its readers, so
    // a turn may use the message's ID, and the replay gets a new ID.
    let becomes = match &own {
        Some(own) if letter.reason != "poison" => own.clone(),
        Some(own) => again(own, ".again", &id),
        None => again(&minted, ".again", &id),
    };
    let needs_message = needs_message(letter, is_task);
    let dead = DeadEntry {
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
    DeadEntryDetails { dead, message: Some(letter.raw.clone()), becomes: Some(becomes) }
}

fn needs_message(letter: &DeadLetter, is_task: bool) -> Option<&'static str> {
    if letter.reason == "poison" || letter.reason == "unreadable" {
        return Some("its message is no longer stored");
    }
    if letter.raw.contains(REDACTED) {
        return Some("its secrets are not stored");
    }
    let is_whole = if is_task {
        matches!(parse_task_message(letter.raw.as_bytes()), Ok(TaskMessage::Delegate(_)))
    } else {
        parse_turn(letter.raw.as_bytes()).is_ok()
    };
    (!is_whole).then_some("its message is invalid or was stored only in part")
}

/// Returns the entry of a failed call, or of a call with the outcome `asked`. Returns `None` for other entries, and for
/// a call without an agent.
pub(super) fn call(shard: u32, entry: &LogEntry, asked: Option<Outcome>) -> Option<DeadEntryDetails> {
    let logged = AuditEntry::read_failed_call(&entry.text)?;
    let tenant = logged.tenant.as_deref().map(TenantId::new).transpose().ok()?;
    let outcome = logged.meta.outcome?;
    if !(outcome.has_failed_running() || asked == Some(outcome)) || outcome.is_success() {
        return None;
    }
    if let Some(target) = &logged.meta.agent {
        return Some(task(shard, entry, &logged, outcome, tenant, target));
    }
    if logged.actor_type != "agent" {
        return None;
    }
    let id = DeadId { kind: DeadKind::Call, shard, entry: entry.id.clone() };
    let position = logged.meta.position();
    let becomes = again(&logged.meta.turn, &format!(".again-{position}"), &id);
    let tool = &*logged.entity_id;
    let arguments = logged.meta.arguments.map(RawValue::get).unwrap_or("null");
    let needs_message = if arguments.contains(REDACTED) || tool.contains(REDACTED) {
        Some("its secrets are not stored")
    } else if !arguments.starts_with('{') || arguments.starts_with(r#"{"truncated":true,"#) {
        Some("its arguments are not a JSON object, or were not stored completely")
    } else {
        None
    };
    let message = message(&logged, tool, arguments, &becomes);
    let dead = DeadEntry {
        id,
        at_ms: entry_ms(&entry.id).unwrap_or(0),
        tenant,
        agent: Some(logged.actor_id.to_string()),
        name: Some(logged.meta.call.to_string()),
        tool: Some(tool.to_owned()),
        from: None,
        cause: outcome.as_str().to_owned(),
        error: logged.meta.error.as_ref().map(ToString::to_string),
        may_have_run: outcome.may_have_run(),
        needs_message,
    };
    Some(DeadEntryDetails { dead, message: Some(message), becomes: Some(becomes) })
}

/// The audit entry lacks the task's grants. Without grants, a replay could do more than the task, so a replay needs a
/// new message.
fn task(
    shard: u32,
    entry: &LogEntry,
    logged: &AuditEntry<'_>,
    outcome: Outcome,
    tenant: Option<TenantId>,
    target: &str,
) -> DeadEntryDetails {
    let id = DeadId { kind: DeadKind::Task, shard, entry: entry.id.clone() };
    let becomes = again(&logged.meta.turn, ".again", &id);
    let content: Value =
        logged.meta.arguments.and_then(|content| serde_json::from_str(content.get()).ok()).unwrap_or_default();
    let mut message = serde_json::Map::new();
    for (name, value) in [("task_id", becomes.as_str()), ("target_agent", target)] {
        message.insert(name.to_owned(), value.into());
    }
    message.insert("tenant".into(), serde_json::to_value(&tenant).unwrap_or_default());
    for (name, from) in [("task_description", "description"), ("input", "input"), ("priority", "priority")] {
        if let Some(value) = content.get(from) {
            message.insert(name.to_owned(), value.clone());
        }
    }
    let dead = DeadEntry {
        id,
        at_ms: entry_ms(&entry.id).unwrap_or(0),
        tenant,
        agent: Some(target.to_owned()),
        name: Some(logged.meta.turn.to_string()),
        tool: None,
        from: None,
        cause: outcome.as_str().to_owned(),
        error: logged.meta.error.as_ref().map(ToString::to_string),
        may_have_run: true,
        needs_message: Some("its grants, context and inbox are not stored"),
    };
    DeadEntryDetails { dead, message: Some(Value::Object(message).to_string()), becomes: Some(becomes) }
}

fn message(logged: &AuditEntry<'_>, tool: &str, arguments: &str, id: &str) -> String {
    let quoted = |text: &str| serde_json::to_string(text).unwrap_or_default();
    format!(
        r#"{{"turn_id":{},"tenant":{},"agent":{},"calls":[{{"name":{},"arguments":{arguments}}}]}}"#,
        quoted(id),
        quoted(logged.tenant()),
        quoted(&logged.actor_id),
        quoted(tool),
    )
}

pub(super) fn turn_id(text: &str) -> Option<TurnId> {
    TurnId::new(text).ok()
}

pub(super) fn task_id(text: &str) -> Option<TaskId> {
    TaskId::new(text).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use tickfleet_model::{AgentId, CallResult, Redactor};
    use tickfleet_protocol::{AuditInput, audit_entry};

    use super::*;

    fn entry(outcome: Outcome) -> LogEntry {
        let (tenant, agent, redactor) =
            (TenantId::new("demo").unwrap(), AgentId::new("atlas").unwrap(), Redactor::default());
        let result: CallResult = serde_json::from_value(serde_json::json!({
            "tool_call_id": null, "call": "job-7/0", "tool": "atlas", "success": false, "outcome": outcome,
            "error": {"code": "unavailable", "message": "the model answered 503"},
            "content_type": "application/json", "duration_ms": 5, "attempts": 3,
        }))
        .unwrap();
        let arguments = r#"{"tenant":"demo","agent":"atlas","description":"count the boards","priority":"high"}"#;
        let text = audit_entry(&AuditInput {
            timestamp_ms: 1_764_130_000_000,
            tenant: &tenant,
            agent: &agent,
            delegated: Some(None),
            turn: "job-7",
            tool_name: None,
            tool_id: None,
            arguments,
            result: &result,
            shadow: &[],
            policy_inputs: "",
            effect: None,
            policy_version: None,
            policy_digest: "",
            redactor: &redactor,
            result_chars_max: 100,
        });
        LogEntry { id: "1764130000000-0".into(), text, admitted: String::new() }
    }

    #[test]
    fn a_failed_task_is_listed_and_replayed_only_with_a_message() {
        let whole = call(0, &entry(Outcome::Transient), None).unwrap();
        let dead = &whole.dead;
        assert_eq!((dead.id.to_string().as_str(), dead.name.as_deref()), ("task-0-1764130000000-0", Some("job-7")));
        assert_eq!((dead.agent.as_deref(), dead.cause.as_str()), (Some("atlas"), "transient"));
        assert!(dead.error.as_ref().unwrap().contains("503") && dead.may_have_run && dead.needs_message.is_some());
        let message = whole.message.unwrap();
        let Ok(TaskMessage::Delegate(task)) = parse_task_message(message.as_bytes()) else { panic!("{message}") };
        assert_eq!(task.id.unwrap().as_str(), "job-7.again");
        assert_eq!((task.target.as_str(), task.description.as_str()), ("atlas", "count the boards"));
        assert_eq!("task-0-1764130000000-0".parse::<DeadId>().unwrap(), dead.id);
        // A replay of a denied or canceled call would end in the same way.
        for outcome in [Outcome::Cancelled, Outcome::Denied] {
            assert!(call(0, &entry(outcome), None).is_none(), "{outcome:?}");
        }
        let filter = DeadFilter { kind: Some(DeadKind::Call), ..DeadFilter::default() };
        assert!(!passes(&filter, dead) && passes(&DeadFilter { kind: Some(DeadKind::Task), ..filter }, dead));
    }
}
