//! The state of a call that a client follows as a task, read from the turn's record alone.

use chrono::{DateTime, SecondsFormat};
use rmcp::ErrorData;
use rmcp::model::{DetailedTask, JsonObject, Task, TaskPayload, TaskStatus};
use rmcp::service::{RequestContext, RoleServer};
use tickfleet_client::Reply;
use tickfleet_core::turn::state::Finished;
use tickfleet_model::Outcome;
use tickfleet_store::{LiveTurn, TurnName, TurnView};

use super::approval::approval_prompt;
use super::call::{complete, live_words};
use super::{McpServer, Principal, failed, unknown_task};
use crate::owners::agent_of;

const POLL_MS: u64 = 1_000;

impl McpServer {
    pub(super) async fn task(
        &self,
        principal: &Principal,
        task_id: &str,
        context: &RequestContext<RoleServer>,
    ) -> Result<DetailedTask, ErrorData> {
        let name = principal.turn(task_id)?;
        let store = self.client.store(&principal.tenant);
        let retain_ms = store.options().retain_ms;
        let failed = |error: tickfleet_store::StoreError| failed(&error.into());
        // A task of another agent is reported as unknown. The check takes as long as for a task that does not exist.
        let is_own = |view: &TurnView| agent_of(view).as_deref() == Some(principal.agent.as_str());
        let mut view = store.turn_view(&name).await.map_err(failed)?;
        let waits = if is_own(&view) { None } else { self.client.undecided(&name).await.map_err(failed)? };
        let is_queued = waits.is_some_and(|waits| waits.agent.as_ref() == Some(&principal.agent));
        if !is_own(&view) && !is_queued {
            // The scheduler may have admitted the turn between the two reads, so read the record again.
            view = store.turn_view(&name).await.map_err(failed)?;
        }
        match view {
            TurnView::Live(live) if live.turn.head.agent == principal.agent => {
                let mut task = working(&name, &live, retain_ms);
                if let Some(approval) = self.pending_approval(&name, &live).await {
                    let words = self.describe_approval(&approval);
                    if let Some(page) = self.page(context) {
                        task.task.status = TaskStatus::InputRequired;
                        task.payload =
                            TaskPayload::InputRequired { input_requests: approval_prompt(&approval, &words, page) };
                    }
                    task.task.status_message = Some(words);
                }
                Ok(task)
            }
            // A record without a reply names no agent, so only a key for all agents may see the record.
            TurnView::Finished(finished)
                if finished.reply.is_empty()
                    && principal.caller.as_ref().is_some_and(|caller| !caller.can_read_agent(None)) =>
            {
                Err(unknown_task(task_id))
            }
            TurnView::Finished(finished) => ended(&name, principal, &finished, retain_ms),
            TurnView::Unknown if is_queued => {
                let now = instant(store.now_ms().await.map_err(failed)?);
                let task = Task::new(task_id, TaskStatus::Working, now.clone(), now);
                let task = task.with_status_message("waits to be admitted").with_poll_interval_ms(POLL_MS);
                Ok(DetailedTask::new(task, TaskPayload::Working))
            }
            TurnView::Live(_) | TurnView::Unknown => Err(unknown_task(task_id)),
        }
    }
}

fn working(name: &TurnName, live: &LiveTurn, retain_ms: i64) -> DetailedTask {
    let created_ms = live.turn.admitted_ms;
    let mut task = Task::new(name.turn.as_str(), TaskStatus::Working, instant(created_ms), instant(created_ms))
        .with_status_message(live_words(live))
        .with_poll_interval_ms(POLL_MS);
    // The turn ends at its deadline at the latest. Its record is kept for `retain_ms` after the end.
    task.ttl_ms = u64::try_from(live.turn.head.deadline_ms - created_ms + retain_ms).ok();
    DetailedTask::new(task, TaskPayload::Working)
}

fn ended(
    name: &TurnName,
    principal: &Principal,
    finished: &Finished,
    retain_ms: i64,
) -> Result<DetailedTask, ErrorData> {
    let created_ms = finished.admitted_ms;
    let ended_ms = finished.ended_ms;
    let mut task = Task::new(name.turn.as_str(), TaskStatus::Completed, instant(created_ms), instant(ended_ms));
    task.ttl_ms = u64::try_from(ended_ms - created_ms + retain_ms).ok();
    if finished.reply.is_empty() {
        let why =
            ErrorData::internal_error("it has ended; Redis memory was full, so its result went only to an inbox", None);
        return Ok(DetailedTask::new(task, TaskPayload::Failed { error: object(&why) }));
    }
    let Ok(reply) = serde_json::from_str::<Reply>(&finished.reply) else {
        return Err(ErrorData::internal_error("cannot read the record of this task", None));
    };
    if reply.agent != principal.agent.as_str() {
        return Err(unknown_task(name.turn.as_str()));
    }
    if reply.results.iter().any(|result| result.outcome == Outcome::Cancelled) {
        return Ok(DetailedTask::new(task, TaskPayload::Cancelled));
    }
    let payload = match complete(&reply) {
        Ok(result) => TaskPayload::Completed { result: object(&result) },
        Err(error) => TaskPayload::Failed { error: object(&error) },
    };
    Ok(DetailedTask::new(task, payload))
}

fn object<T: serde::Serialize>(value: &T) -> JsonObject {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::Object(object)) => object,
        _ => JsonObject::new(),
    }
}

fn instant(at_ms: i64) -> String {
    DateTime::from_timestamp_millis(at_ms).unwrap_or_default().to_rfc3339_opts(SecondsFormat::Millis, true)
}
