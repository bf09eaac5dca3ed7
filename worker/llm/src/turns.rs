//! Submits the calls of a plan as a turn, and reads the results.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;
use tickfleet_client::Reply;
use tickfleet_engine::begin_turn::{BegunTurn, SameTurn, begin_turn};
use tickfleet_model::{Call, Dialect, Priority, Turn, TurnId};
use tickfleet_protocol::bounded_output;
use tickfleet_store::{Store, StoreError};
use tickfleet_tools::{CallContext, ToolFailure};

use crate::history::{CallOutcome, Plan};

/// The wake-up at the end of the turn can be lost, so the task then checks the turn itself.
pub(crate) const RECHECK_AFTER: Duration = Duration::from_secs(15);

pub(crate) enum PlanResults {
    Finished(Vec<CallOutcome>),
    Pending(TurnId),
}

/// Another worker must compute the same ID, so that the calls are not submitted twice.
fn turn_id(context: &CallContext, number: usize) -> Result<TurnId, ToolFailure> {
    let task = context.call.turn.as_str();
    let id = TurnId::new(format!("{task}.step-{number}")).or_else(|_| {
        // The suffix does not fit after a very long ID.
        TurnId::new(format!("step-{number}.{}", &context.idempotency_key[..32.min(context.idempotency_key.len())]))
    });
    id.map_err(|error| ToolFailure::Internal { message: error.to_string() })
}

/// An earlier attempt can have submitted the calls at `since` (ms of shard time) or later. `None` if no earlier attempt
/// can have submitted them.
pub(crate) async fn run_calls(
    store: &Store,
    context: &CallContext,
    plan: &Plan,
    number: usize,
    since: Option<i64>,
    priority: &str,
    result_bytes_max: usize,
) -> Result<PlanResults, ToolFailure> {
    let turn = turn(context, plan, turn_id(context, number)?, priority);
    Ok(match begin_turn(store, &turn, SameTurn::Calls, is_new(store, since)).await.map_err(store_unavailable)? {
        BegunTurn::Ended(reply) => PlanResults::Finished(read(&reply, plan, result_bytes_max)),
        BegunTurn::Out(turn) => PlanResults::Pending(turn),
        BegunTurn::RecordExpired => PlanResults::Finished(all(plan, RECORD_EXPIRED)),
        BegunTurn::Refused(why) => {
            PlanResults::Finished(all(plan, &format!("These calls were not carried out: {why}")))
        }
        BegunTurn::Later(why) => {
            return Err(ToolFailure::Transient { message: why.to_owned(), retry_after: None, not_executed: true });
        }
    })
}

/// The store keeps ended turns for `dedupe_ms`. After that time, a missing record does not prove that the turn is new.
async fn is_new(store: &Store, since: Option<i64>) -> Result<bool, StoreError> {
    let Some(since) = since else { return Ok(true) };
    Ok(store.now_ms().await? - since < store.options().dedupe_ms)
}

const RECORD_EXPIRED: &str = "This call may have run: its result is no longer stored. Check before you \
                         repeat it.";

fn all(plan: &Plan, why: &str) -> Vec<CallOutcome> {
    let one = |tool: &String| CallOutcome { tool: tool.clone(), ok: false, content: why.to_owned() };
    plan.calls.iter().map(|call| one(&call.tool)).collect()
}

fn turn(context: &CallContext, plan: &Plan, id: TurnId, priority: &str) -> Turn {
    let calls = plan.calls.iter().map(|call| Call {
        provider_id: Some(call.id.clone()),
        tool: call.tool.clone(),
        arguments: call.arguments.clone(),
    });
    let priority = Priority::parse(priority).unwrap_or_default();
    Turn {
        id: Some(id),
        tenant: context.tenant.clone(),
        agent: context.agent.clone(),
        priority,
        deadline_ms: Some(context.deadline_ms),
        reply_to: None,
        dialect: Dialect::OpenaiChat,
        task: context.task.as_ref().map(|(task, _)| task.clone()),
        context: context.for_child_work(),
        want_audits: false,
        strict: false,
        allowed_tools: None,
        parallel_reads: true,
        pending_approval: false,
        local_calls: false,
        calls: calls.collect(),
    }
}

#[derive(Deserialize)]
struct ToolMessage {
    content: String,
}

/// A call that is missing from the record gets a failure.
fn read(reply: &str, plan: &Plan, bytes_max: usize) -> Vec<CallOutcome> {
    let Ok(reply) = serde_json::from_str::<Reply>(reply) else { return all(plan, RECORD_EXPIRED) };
    let messages = reply.messages.as_deref().map_or("[]", RawValue::get);
    let messages: Vec<ToolMessage> = serde_json::from_str(messages).unwrap_or_default();
    let mut results = reply.results.into_iter().zip(messages).map(|(result, message)| CallOutcome {
        tool: result.tool,
        ok: result.success,
        content: cut(message.content, bytes_max),
    });
    let one = |call: &crate::history::PlanCall| {
        results.next().unwrap_or_else(|| CallOutcome {
            tool: call.tool.clone(),
            ok: false,
            content: RECORD_EXPIRED.to_owned(),
        })
    };
    plan.calls.iter().map(one).collect()
}

/// Keeps the beginning and the end.
pub(crate) fn cut(text: String, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text;
    }
    let json = serde_json::value::to_raw_value(&text).map(|json| bounded_output(json, bytes_max));
    json.ok().and_then(|json| serde_json::from_str(json.get()).ok()).unwrap_or_default()
}

fn store_unavailable(error: StoreError) -> ToolFailure {
    ToolFailure::Transient { message: error.to_string(), retry_after: None, not_executed: true }
}
