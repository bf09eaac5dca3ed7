//! The progress of turns, streamed to followers. One `poller` in a gateway polls Redis for all followers.
//!
//! START HERE: [`events`].

mod follower;
mod poller;

use std::sync::Arc;

use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::HeaderMap;
use axum::response::Response;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Shared;
use crate::events::{position, respond};
use crate::problem::{Problem, ProblemBody};
use crate::serving::streams::{OpenStream, StreamRequester};
use crate::turns::{lookup_response, named_turn};
use crate::verbs::Verb;

pub(crate) use poller::FollowedTurns;

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(events))
}

/// Stream the progress of a turn as server-sent events, from its current state to its reply.
///
/// With the header `Last-Event-ID`, results that were already sent are not repeated.
#[utoipa::path(get, path = "/v1/turns/{turn_id}/events", tag = "turns", params(("turn_id" = String, Path, description = "Id of the turn"),
        ("last-event-id" = Option<String>, Header, description = "Id of the last received event")),
    responses((status = 200, description = "Events: queued, waiting, dispatched, running, result, ending, reply …", body = String, content_type = "text/event-stream"),
        (status = 404, description = "Unknown, rejected, or ended longer ago than `retention.records`", body = ProblemBody)))]
pub(crate) async fn events(
    State(shared): State<Arc<Shared>>,
    requester: StreamRequester,
    id: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let caller = requester.caller.clone();
    caller.require_permission(Verb::Read)?;
    let name = named_turn(&caller, id)?;
    let skipped = position(&headers)?;
    // A turn that the caller may not see is reported as unknown.
    lookup_response(&name, &shared.waiting.look_up(&name, Some(&caller)).await?)?;
    let open_stream = OpenStream::begin(&shared, requester, Verb::Read)?;
    let seen = shared.followed.follow(&name);
    Ok(respond(open_stream, follower::events(seen, caller, name, skipped), shared.draining.clone()))
}
