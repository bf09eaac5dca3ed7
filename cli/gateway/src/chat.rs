//! Conversations with an agent: a message becomes a task, and the task's events are streamed.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{Path, State};
use axum::response::Response;
use futures::StreamExt;
use futures::stream;
use ring::rand::{SecureRandom as _, SystemRandom};
use serde::{Deserialize, Serialize};
use tickfleet_client::session::SessionExchange;
use tickfleet_client::{Exchange, Session, SessionId};
use tickfleet_model::hex;
use tickfleet_model::{AgentId, Context};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Shared;
use crate::caller::Caller;
use crate::events::{event, named, respond};
use crate::problem::{Problem, ProblemBody};
use crate::serving::streams::{OpenStream, StreamRequester};
use crate::turns::{path, read_body};
use crate::verbs::Verb;

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(say)).routes(routes!(history))
}

/// A message to an agent.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ChatMessage {
    /// Text of the message.
    message: String,
    /// Conversation to continue, 1 to 64 letters, digits and `_ -`. If missing, a new one.
    session_id: Option<String>,
}

#[derive(Serialize)]
struct SessionEvent<'a> {
    session_id: &'a str,
    task_id: &'a str,
}

/// Send a message to an agent.
///
/// The response is a stream of server-sent events: `session` with the ids of conversation and task, events of the
/// task, and finally `answer` or `failed`.
#[utoipa::path(post, path = "/v1/agents/{agent}/chat", tag = "agents", params(("agent" = String, Path, description = "Agent")),
    request_body = ChatMessage,
    responses((status = 200, description = "Events: session, accepted, plan, result, waiting, answer, failed …", body = String, content_type = "text/event-stream"),
        (status = 409, description = "The conversation belongs to another agent", body = ProblemBody)))]
pub(crate) async fn say(
    State(shared): State<Arc<Shared>>,
    requester: StreamRequester,
    agent: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    let caller = requester.caller.clone();
    caller.require_permission(Verb::Submit)?;
    let agent = AgentId::new(path(agent)?).map_err(|error| Problem::invalid(error.to_string()))?;
    caller.require_agent(&agent)?;
    let message: ChatMessage =
        serde_json::from_slice(&read_body(body)?).map_err(|error| Problem::invalid(error.to_string()))?;
    let id = message
        .session_id
        .map_or_else(new_session, |id| SessionId::new(id).map_err(|error| Problem::invalid(error.to_string())))?;
    let session = Session::open(&shared.client, caller.tenant().clone(), agent, id, Context::default());
    // Open the stream first: if the answer cannot be streamed, the message must not be sent.
    let open_stream = OpenStream::begin(&shared, requester, Verb::Submit)?;
    let exchange = session.send(&message.message).await?;
    let session_event = SessionEvent { session_id: session.id().as_str(), task_id: exchange.task().as_str() };
    let first = named("session", &session_event);
    let events = stream::iter([first]).chain(stream::unfold(Some(exchange), next));
    Ok(respond(open_stream, events, shared.draining.clone()))
}

/// Return the messages of a conversation, the oldest first: the last 50 exchanges, for 7 days.
#[utoipa::path(get, path = "/v1/agents/{agent}/chat/{session_id}", tag = "agents", params(("agent" = String, Path, description = "Agent"),
        ("session_id" = String, Path, description = "Conversation")),
    responses((status = 200, description = "Exchanges with `number`, `user` and `agent`. Empty if none is kept", body = Vec<Object>),
        (status = 409, description = "The conversation belongs to another agent", body = ProblemBody)))]
pub(crate) async fn history(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    named: Result<Path<(String, String)>, PathRejection>,
) -> Result<Json<Vec<SessionExchange>>, Problem> {
    caller.require_permission(Verb::Read)?;
    let Path((agent, id)) = named.map_err(|rejection| Problem::invalid(rejection.body_text()))?;
    let agent = AgentId::new(agent).map_err(|error| Problem::invalid(error.to_string()))?;
    caller.require_agent(&agent)?;
    let id = SessionId::new(id).map_err(|error| Problem::invalid(error.to_string()))?;
    let session = Session::open(&shared.client, caller.tenant().clone(), agent, id, Context::default());
    Ok(Json(session.history().await?))
}

async fn next(exchange: Option<Exchange>) -> Option<(axum::response::sse::Event, Option<Exchange>)> {
    let mut exchange = exchange?;
    match exchange.next().await {
        Ok(Some(progress)) => Some((event(Ok(progress)), Some(exchange))),
        Ok(None) => None,
        Err(error) => Some((event(Err(error)), None)),
    }
}

/// The id is random, so other callers cannot guess it.
fn new_session() -> Result<SessionId, Problem> {
    let mut bytes = [0_u8; 16];
    SystemRandom::new().fill(&mut bytes).map_err(|_| Problem::no_randomness())?;
    SessionId::new(format!("s-{}", hex(&bytes))).map_err(|error| Problem::invalid(error.to_string()))
}
