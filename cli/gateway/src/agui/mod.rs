//! Conversations for front ends that speak AG-UI, the Agent-User Interaction Protocol of CopilotKit and others.
//!
//! START HERE: [`run`].

mod conversion;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;
use tickfleet_client::verbs::or_default;
use tickfleet_client::{Session, SessionId};
use tickfleet_model::{AgentId, Context};
use tokio_util::sync::CancellationToken;
use utoipa::ToSchema;

use crate::Shared;
use crate::events::respond;
use crate::problem::{Problem, ProblemBody};
use crate::serving::streams::{OpenStream, StreamRequester};
use crate::turns::{path, read_body};
use crate::verbs::Verb;
use conversion::{RunIds, events};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(run))
}

/// The response repeats the run id, so the length of the id is limited.
const RUN_ID_CHARS_MAX: usize = 256;

/// Input of a run (`RunAgentInput`). `tools`, `context`, `state` and other members are accepted and ignored: the
/// agent has its own tools and history.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RunInput {
    /// Conversation, 1 to 64 letters, digits and `_ -`.
    #[schema(example = "8f14e45f-ceea-467f-9575-6e1d2d2a7c55")]
    thread_id: String,
    /// Run, 1 to 256 characters.
    run_id: String,
    /// Messages so far. The last one is the user's new message; earlier ones are ignored.
    messages: Vec<Message>,
}

/// A message. Only the last one is read.
#[derive(Debug, Deserialize, ToSchema)]
pub(crate) struct Message {
    /// `user` for the last message.
    #[serde(default, deserialize_with = "or_default")]
    role: String,
    /// Text, or parts of type `text`.
    #[serde(default)]
    content: Value,
}

impl RunInput {
    fn last_user_text(&self) -> Result<String, Problem> {
        let last = self.messages.last().filter(|message| message.role == "user");
        let last = last.ok_or_else(|| {
            Problem::invalid(
                "messages: expected a user message at the end; results of front-end tools are not supported",
            )
        })?;
        let only_text =
            || Problem::invalid("messages: the last message must be a text or have only parts of type text");
        match &last.content {
            Value::String(text) => Ok(text.clone()),
            Value::Array(parts) => {
                let text = |part: &Value| (part["type"] == "text").then(|| part["text"].as_str().map(str::to_owned))?;
                parts.iter().map(text).collect::<Option<Vec<_>>>().map(|texts| texts.join("\n")).ok_or_else(only_text)
            }
            _ => Err(only_text()),
        }
    }
}

/// Run an agent for a front end that speaks AG-UI.
///
/// The response is a stream of AG-UI events: RUN_STARTED, messages, tool calls with results, waits, and finally
/// RUN_FINISHED or RUN_ERROR.
#[utoipa::path(post, path = "/v1/agents/{agent}/ag-ui", tag = "agents", params(("agent" = String, Path, description = "Agent")),
    request_body = RunInput,
    responses((status = 200, description = "Events: RUN_STARTED, TEXT_MESSAGE_START, TOOL_CALL_START, RUN_FINISHED …", body = String, content_type = "text/event-stream"),
        (status = 409, description = "The thread belongs to another agent", body = ProblemBody)))]
pub(crate) async fn run(
    State(shared): State<Arc<Shared>>,
    requester: StreamRequester,
    agent: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let caller = requester.caller.clone();
    caller.require_permission(Verb::Submit)?;
    let agent = AgentId::new(path(agent)?).map_err(|error| Problem::invalid(error.to_string()))?;
    caller.require_agent(&agent)?;
    let input: RunInput =
        serde_json::from_slice(&read_body(body)?).map_err(|error| Problem::invalid(error.to_string()))?;
    if !(1..=RUN_ID_CHARS_MAX).contains(&input.run_id.chars().count()) {
        return Err(Problem::invalid(format!("runId: expected 1 to {RUN_ID_CHARS_MAX} characters")));
    }
    let id = SessionId::new(&*input.thread_id).map_err(|error| Problem::invalid(format!("threadId: {error}")))?;
    let session = Session::open(&shared.client, caller.tenant().clone(), agent, id, Context::default());
    let text = input.last_user_text()?;
    let open_stream = OpenStream::begin(&shared, requester, Verb::Submit)?;
    let exchange = session.send(&text).await?;
    let run = RunIds { thread: input.thread_id, id: input.run_id };
    // The protocol requires an end event. `events` sends it when the process drains, so this token is never canceled.
    Ok(respond(open_stream, events(run, exchange, shared.draining.clone()), CancellationToken::new()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    fn last_user_text(messages: &Value) -> Result<String, String> {
        let input =
            json!({"threadId": "t", "runId": "r", "messages": messages, "tools": [], "state": {}, "context": []});
        let input: RunInput = serde_json::from_value(input).unwrap();
        input.last_user_text().map_err(|problem| problem.summary().0.to_owned())
    }

    #[test]
    fn the_user_input_is_the_text_of_the_last_message() {
        let before = json!({"id": "1", "role": "assistant", "toolCalls": []});
        assert_eq!(last_user_text(&json!([before, {"id": "2", "role": "user", "content": "hi"}])).unwrap(), "hi");
        let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
        assert_eq!(last_user_text(&json!([{"id": "2", "role": "user", "content": parts}])).unwrap(), "a\nb");
        let picture = json!([{"type": "text", "text": "a"}, {"type": "image", "source": {}}]);
        assert!(
            last_user_text(&json!([{"id": "2", "role": "user", "content": picture}]))
                .unwrap_err()
                .contains("type text")
        );
        assert!(last_user_text(&json!([{"id": "2", "role": "user"}])).unwrap_err().contains("type text"));
        assert!(last_user_text(&json!([before])).unwrap_err().contains("a user message at the end"));
        assert!(last_user_text(&json!([])).unwrap_err().contains("a user message at the end"));
    }
}
