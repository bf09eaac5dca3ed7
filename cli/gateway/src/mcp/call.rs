//! A tool call, from its parameters to its result.

use std::borrow::Cow;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::rand::{SecureRandom, SystemRandom};
use rmcp::ErrorData;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, CreateTaskResult, ProgressNotificationParam,
};
use rmcp::service::{RequestContext, RoleServer};
use serde_json::{Value, json};
use tickfleet_client::operate::{TurnState, turn_state};
use tickfleet_client::{Approval, Reply, SubmitError};
use tickfleet_model::{Dialect, Outcome, TurnId};
use tickfleet_protocol::{parse_turn, with_owner};
use tickfleet_store::{LiveTurn, Refusal, TurnName, TurnView};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::approval::Question;
use super::{McpServer, Principal, dialect, digits, failed, is_stateless};
use crate::names;
use crate::problem::Problem;
use crate::waiting::TurnLookup;

/// A call that takes longer becomes a task if the client supports tasks. Clients of shorter calls need not poll.
const TASK_AFTER: Duration = Duration::from_secs(2);
/// The longest wait for clients without tasks. Clients and proxies rarely allow more.
const WAIT_MAX: Duration = Duration::from_secs(600);
const SUBMIT_MAX: Duration = Duration::from_secs(10);
const SUBMIT_AGAIN: Duration = Duration::from_millis(500);
const PROGRESS: Duration = Duration::from_secs(5);
const APPROVAL_POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Member of `_meta` that contains an id. A call runs only once, even if a client sends it again with the same id.
const TURN_ID: &str = "tickfleet/turn_id";
/// Member of `_meta` that is rejected: a client that chose the session could avoid facts that block a call.
const SESSION_ID: &str = "tickfleet/session_id";
/// Members of `_meta`, each with the field of the turn that it sets.
pub const META: [(&str, &str); 2] = [(TURN_ID, "turn_id"), ("traceparent", "traceparent")];

impl McpServer {
    pub(super) async fn call(
        &self,
        principal: &Principal,
        request: CallToolRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let began = Instant::now();
        // Reserve first: a call that cannot wait for its result must not be submitted.
        let permit = match self.waiting.reserve(&principal.holder()) {
            Ok(permit) => permit,
            Err(problem) => return Ok(CallToolResponse::Complete(not_accepted(&problem))),
        };
        let local = self.local.as_deref();
        let repeated = local.and_then(|local| local.held(&request));
        let (name, is_duplicate) = match self.submit(principal, request.clone(), repeated, context).await? {
            Ok(submitted) => submitted,
            Err(result) => return Ok(CallToolResponse::Complete(result)),
        };
        let knows_tasks = context.client_capabilities().is_some_and(|can| can.supports_tasks());
        let most = if knows_tasks { TASK_AFTER } else { WAIT_MAX };
        let look = if local.is_some() { APPROVAL_POLL_INTERVAL } else { PROGRESS };
        let mut notified = began;
        let mut asked: Option<Approval> = None;
        let mut dialog: Option<AbortOnDropHandle<bool>> = None;
        loop {
            let left = most.saturating_sub(began.elapsed());
            let found = tokio::select! {
                found = self.waiting.reply(&name, left.min(look), &permit, None) => found,
                () = context.ct.cancelled() => return Err(self.cancelled(&name, context).await),
            };
            let ended = matches!(found, Ok(TurnLookup::Ended(_) | TurnLookup::InInbox));
            if let Some(local) = local.filter(|_| ended || (is_duplicate && matches!(found, Ok(TurnLookup::Unknown)))) {
                local.release(&name.turn);
            }
            match found {
                Ok(TurnLookup::Ended(reply)) => return complete(&reply).map(CallToolResponse::Complete),
                Ok(TurnLookup::InInbox) => return Ok(result_dropped_on_memory_pressure(&name)),
                Ok(TurnLookup::Unknown) if is_duplicate => return self.duplicate_not_found(&name).await,
                Ok(TurnLookup::UnderWay | TurnLookup::Unknown) => {}
                Err(problem) => return Ok(CallToolResponse::Complete(under_way(&name, problem.summary().0))),
            }
            let mut undecided = None;
            if let Some(approval) = self.new_local_approval(&name, asked.as_ref().map(|asked| asked.id.as_str())).await
            {
                asked = Some(approval.clone());
                match self.ask_user(approval, context) {
                    Question::Dialog(asking) => dialog = Some(asking),
                    Question::NoDialog(approval) => undecided = Some(*approval),
                }
            }
            if let Some(answered) = dialog.take_if(|dialog| dialog.is_finished())
                && !answered.await.unwrap_or_default()
            {
                undecided.clone_from(&asked);
            }
            if let (Some(local), Some(approval)) = (local.filter(|_| !knows_tasks), undecided) {
                return Ok(CallToolResponse::Complete(local.hold(&request, &name.turn, &approval)));
            }
            if began.elapsed() >= most || self.draining.is_cancelled() {
                if knows_tasks {
                    let task = self.task(principal, name.turn.as_str(), context).await?;
                    return Ok(CallToolResponse::Task(CreateTaskResult::new(task.task)));
                }
                return Ok(CallToolResponse::Complete(under_way(&name, "it has not ended yet")));
            }
            if notified.elapsed() >= PROGRESS {
                notified = Instant::now();
                self.notify_progress(&name, began, context).await;
            }
        }
    }

    /// The bool is true if the turn was submitted before. The inner error is a message for the model. `repeated` is the
    /// turn of a held call.
    async fn submit(
        &self,
        principal: &Principal,
        request: CallToolRequestParams,
        repeated: Option<TurnId>,
        context: &RequestContext<RoleServer>,
    ) -> Result<Result<(TurnName, bool), CallToolResult>, ErrorData> {
        if context.meta.0.contains_key(SESSION_ID) {
            let message = format!("_meta {SESSION_ID}: not accepted; session facts of MCP calls belong to the agent");
            return Err(ErrorData::invalid_params(message, None));
        }
        let body = body(request, dialect(context), context);
        let body = digits::restored(&body.to_string()).into_owned().into_bytes();
        let body = with_owner(body, Some(&principal.tenant), Some(&principal.agent));
        let mut turn = parse_turn(&body).map_err(|refusal| ErrorData::invalid_params(refusal.message, None))?;
        names::chosen(TURN_ID, turn.id.as_ref())
            .map_err(|problem| ErrorData::invalid_params(problem.summary().0.to_owned(), None))?;
        turn.reply_to = Some(self.waiting.inbox(&principal.tenant));
        // With an id, the call runs once even if the submit is repeated.
        let id = turn.id.take().or(repeated).map_or_else(new_id, Ok)?;
        turn.id = Some(id.clone());
        let began = Instant::now();
        loop {
            match self.client.submit(turn.clone()).await {
                Ok(submitted) => {
                    let name = TurnName { tenant: principal.tenant.clone(), turn: submitted.turn_id };
                    return Ok(Ok((name, submitted.duplicate)));
                }
                Err(SubmitError::Store(error)) if began.elapsed() >= SUBMIT_MAX || self.draining.is_cancelled() => {
                    tracing::warn!(%error, turn = %id, "call not submitted");
                    return Ok(Err(acceptance_unknown(&id, error.refusal())));
                }
                Err(SubmitError::Store(_)) => tokio::time::sleep(SUBMIT_AGAIN).await,
                Err(refused) => return Ok(Err(not_accepted(&refused.into()))),
            }
        }
    }

    async fn duplicate_not_found(&self, name: &TurnName) -> Result<CallToolResponse, ErrorData> {
        let known = self.client.store(&name.tenant).content_of(name).await.map_err(|error| failed(&error.into()))?;
        let turn = &name.turn;
        let message = match known {
            // Redis still has the id of the call, but no longer the result.
            Some(_) => format!(
                "The call was submitted before, as turn {turn}, and has ended; its result has expired. It did not run again."
            ),
            None => format!(
                "The call was submitted before, as turn {turn}, and it is unknown now: it may have been rejected. Do not repeat it under another id. The same call with _meta {{\"{TURN_ID}\": \"{turn}\"}} runs if it has not run, and returns its result."
            ),
        };
        Ok(CallToolResponse::Complete(CallToolResult::error(vec![ContentBlock::text(message)])))
    }

    /// Over HTTP with a revision before 2026-07-28, a broken connection does not cancel a call.
    async fn cancelled(&self, name: &TurnName, context: &RequestContext<RoleServer>) -> ErrorData {
        let is_wanted_no_more = self.only.is_some() || is_stateless(context);
        if is_wanted_no_more && let Err(error) = self.cancel(name).await {
            tracing::warn!(turn = %name, %error, "failed to cancel a call whose client disconnected");
        }
        ErrorData::internal_error(format!("canceled by the client; turn {}", name.turn), None)
    }

    pub(super) async fn cancel(&self, name: &TurnName) -> Result<(), ErrorData> {
        let cancelled = self.client.cancel(name, "canceled by the MCP client").await;
        cancelled.map(drop).map_err(|error| failed(&error.into()))
    }

    async fn notify_progress(&self, name: &TurnName, began: Instant, context: &RequestContext<RoleServer>) {
        let Some(token) = context.meta.get_progress_token() else { return };
        let Ok(TurnView::Live(live)) = self.client.store(&name.tenant).turn_view(name).await else { return };
        // The real progress is unknown. The protocol requires increasing values, so report the elapsed seconds.
        let mut progress = ProgressNotificationParam::new(token, began.elapsed().as_secs_f64());
        let approval = self.pending_approval(name, &live).await;
        let words =
            approval.map_or_else(|| live_words(&live).into_owned(), |approval| self.describe_approval(&approval));
        progress.message = Some(words);
        if let Err(error) = context.peer.notify_progress(progress).await {
            tracing::debug!(%error, "failed to send progress");
        }
    }
}

pub(super) fn live_words(live: &LiveTurn) -> Cow<'static, str> {
    let state = turn_state(live);
    match &live.progress {
        Some(progress) if state == TurnState::Running => {
            format!("{}: {}", state_words(state), progress.in_words()).into()
        }
        _ => state_words(state).into(),
    }
}

const fn state_words(state: TurnState) -> &'static str {
    match state {
        TurnState::Throttled => "waits for a limit, or for the end of a pause",
        TurnState::Ready => "waits for a free worker",
        TurnState::Running => "runs",
        TurnState::Parked => "waits for a retry, an approval, or a call that it made",
        TurnState::Ending => "is being ended",
    }
}

fn body(request: CallToolRequestParams, dialect: Dialect, context: &RequestContext<RoleServer>) -> Value {
    let mut call = json!({"name": request.name});
    if let Some(arguments) = request.arguments {
        call["arguments"] = Value::Object(arguments);
    }
    let mut body = json!({"format": dialect.as_str(), "calls": [call]});
    for (member, field) in META {
        if let Some(value) = context.meta.0.get(member) {
            body[field] = value.clone();
        }
    }
    body
}

pub(super) fn complete(reply: &Reply) -> Result<CallToolResult, ErrorData> {
    if let Some(result) = reply.results.first().filter(|result| result.outcome == Outcome::UnknownTool) {
        let message = result.error.as_ref().map_or_else(|| "no such tool".into(), |error| error.message.clone());
        return Err(ErrorData::invalid_params(message, None));
    }
    let messages = reply.messages.as_ref().map(|messages| messages.get());
    let results =
        messages.and_then(|messages| serde_json::from_str::<Vec<CallToolResult>>(&digits::guarded(messages)).ok());
    if let Some(result) = results.and_then(|results| results.into_iter().next()) {
        return Ok(result);
    }
    // The call has succeeded. If it were reported as failed, the model would repeat it.
    if let Some(result) = reply.results.first().filter(|result| result.outcome == Outcome::Ok) {
        let output = result.output.as_ref().map_or("null", |output| output.get());
        return Ok(CallToolResult::success(vec![ContentBlock::text(output.to_owned())]));
    }
    let why = reply.error.as_ref().map_or("the reply has no result", |error| &error.message);
    Ok(CallToolResult::error(vec![ContentBlock::text(why.to_owned())]))
}

/// The id is not a secret: reading the turn requires a key for the agent.
fn new_id() -> Result<TurnId, ErrorData> {
    let mut bytes = [0_u8; 16];
    let random = SystemRandom::new().fill(&mut bytes).is_ok();
    let id = TurnId::new(format!("m{}", URL_SAFE_NO_PAD.encode(bytes))).ok().filter(|_| random);
    id.ok_or_else(|| failed(&Problem::no_randomness()))
}

fn acceptance_unknown(id: &TurnId, refusal: Option<Refusal>) -> CallToolResult {
    let cause = refusal.map_or_else(
        || "The fleet's Redis did not respond".to_owned(),
        |refusal| {
            let word = refusal.as_str();
            let remedy = refusal.remedy();
            format!("The fleet's Redis rejects commands ({word}; fleet operator: {remedy})")
        },
    );
    let message = format!(
        "{cause}: it is unknown whether the call was accepted, and it may run. Do not repeat it. The same call with _meta {{\"{TURN_ID}\": \"{id}\"}} runs once and returns its result."
    );
    CallToolResult::error(vec![ContentBlock::text(message)])
}

fn not_accepted(problem: &Problem) -> CallToolResult {
    let (message, is_worth_another) = problem.summary();
    let advice = if is_worth_another { " Nothing ran. Retry in a moment." } else { " Nothing ran." };
    CallToolResult::error(vec![ContentBlock::text(format!("{message}.{advice}"))])
}

fn under_way(name: &TurnName, why: &str) -> CallToolResult {
    let message = format!(
        "The call was accepted and runs as turn {}, but {why}. Do not repeat it: it would run twice. The same call with _meta {{\"{TURN_ID}\": \"{}\"}} returns its result.",
        name.turn, name.turn
    );
    CallToolResult::error(vec![ContentBlock::text(message)])
}

fn result_dropped_on_memory_pressure(name: &TurnName) -> CallToolResponse {
    let message = format!(
        "The call has ended as turn {}; Redis memory was full, so its result went only to an inbox. The fleet's operator finds it in the audit log.",
        name.turn
    );
    CallToolResponse::Complete(CallToolResult::error(vec![ContentBlock::text(message)]))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_protocol::messages;

    use super::*;

    #[test]
    fn images_reach_mcp_clients_unchanged() {
        // The base64 text contains a long row of digits, which must not be read as a number.
        let data = "iVBORw0KGgo1234567890123456789012345";
        let output =
            json!([{"type": "text", "text": "a chart"}, {"type": "image", "data": data, "mimeType": "image/png"}]);
        let result = json!({"tool_call_id": null, "call": "t/0", "tool": "draw", "success": true, "outcome": "ok",
            "output": output, "content_type": "application/vnd.tickfleet.content+json", "duration_ms": 1, "attempts": 1});
        let results = vec![serde_json::from_value(result.clone()).unwrap()];
        for dialect in [Dialect::Mcp, Dialect::Mcp2026_07_28] {
            let messages: Value = serde_json::from_str(&messages(dialect, &results).unwrap()).unwrap();
            let reply = json!({"turn_id": "t", "tenant": "acme", "agent": "kelly", "status": "done", "dialect": "mcp",
                "results": [result], "messages": messages});
            let result = complete(&serde_json::from_str::<Reply>(&reply.to_string()).unwrap()).unwrap();
            assert_eq!(serde_json::to_value(&result.content).unwrap(), output);
            assert_eq!((result.is_error, result.structured_content), (Some(false), None));
        }
    }

    #[test]
    fn an_output_with_unusual_values_stays_exact_and_successful() {
        for (output, structured) in [
            (r#"{"total":1e400,"n":5}"#, r#"{"total":1e400,"n":5}"#),
            (r#"{"memo":"caf\ufffd"}"#, "{\"memo\":\"caf\u{fffd}\"}"),
        ] {
            let result = json!({"tool_call_id": null, "call": "t/0", "tool": "pay", "success": true, "outcome": "ok",
                "content_type": "application/json", "duration_ms": 1, "attempts": 1});
            let result = result.to_string().replacen('{', &format!("{{\"output\":{output},"), 1);
            let results = vec![serde_json::from_str(&result).unwrap()];
            for dialect in [Dialect::Mcp, Dialect::Mcp2026_07_28] {
                let messages = messages(dialect, &results).unwrap();
                let reply = format!(
                    r#"{{"turn_id":"t","tenant":"acme","agent":"kelly","status":"done","dialect":"mcp","results":[{result}],"messages":{messages}}}"#
                );
                let result = complete(&serde_json::from_str::<Reply>(&reply).unwrap()).unwrap();
                assert_eq!(result.is_error, Some(false));
                let left = serde_json::to_string(&result.structured_content).unwrap();
                assert_eq!(digits::restored(&left), structured);
            }
        }
    }
}
