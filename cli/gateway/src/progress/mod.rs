//! Turns as they go on, for those who follow them: what each waits for, who carries it out, which calls have ended, and its
//! reply.
//!
//! START HERE: [`events`] answers whoever follows a turn; `look` is the one task of a gateway that looks at Redis for all of
//! them, `told` what one of them is told of what was seen.

mod look;
mod told;

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;

use crate::Shared;
use crate::events::{position, respond};
use crate::problem::{Problem, ProblemBody};
use crate::serving::listening::{Listener, Listening};
use crate::turns::{named, told};
use crate::verbs::Verb;

pub(crate) use look::Followed;

/// Stream the progress of a turn as server-sent events, from its current state to its reply.
///
/// With the header `Last-Event-ID`, results that were already sent are not repeated.
#[utoipa::path(get, path = "/v1/turns/{turn_id}/events", tag = "turns", params(("turn_id" = String, Path, description = "Id of the turn"),
        ("last-event-id" = Option<String>, Header, description = "Id of the last received event")),
    responses((status = 200, description = "Events: queued, waiting, dispatched, running, result, ending, reply …", body = String, content_type = "text/event-stream"),
        (status = 400, description = "Invalid id", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown, rejected, or ended longer ago than `retention.records`", body = ProblemBody),
        (status = 429, description = "Too many streams are open, or the key exceeds its rate", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    listener: Listener,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let caller = listener.caller.clone();
    caller.may(Verb::Read)?;
    let (name, heard) = (named(&caller, id)?, position(&headers)?);
    // What the caller may not see is not there, as when it asks for the reply.
    told(&name, &shared.waiting.look(&name, Some(&caller)).await?)?;
    let listening = Listening::begin(&shared, listener, Verb::Read)?;
    let seen = shared.followed.follow(&name);
    Ok(respond(listening, told::events(seen, caller, name, heard), shared.draining.clone()))
}
