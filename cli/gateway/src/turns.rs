use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};
use tickfleet_client::{Reply, ReplyStatus, verbs};
use tickfleet_model::{Context, IdError, TurnId, limits};
use tickfleet_protocol::{parse_turn, trace_id, with_owner};
use tickfleet_store::{CancelResult, TurnName};
use utoipa::{IntoParams, ToSchema};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Shared;
use crate::caller::Caller;
use crate::names;
use crate::owners::may_act_on;
use crate::problem::{Problem, ProblemBody};
use crate::serving::access::TRACEPARENT;
use crate::serving::headers::only;
use crate::verbs::Verb;
use crate::waiting::{TurnLookup, WaitPermit};

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(submit)).routes(routes!(reply)).routes(routes!(cancel))
}

/// Most proxies have a longer timeout.
const WAIT_S_MAX: u64 = 60;
const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// Time to wait for the end.
#[derive(Debug, Clone, Copy, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct WaitQuery {
    /// Seconds to wait for the end. If missing, the response is immediate.
    #[param(minimum = 0, maximum = 60)]
    wait: Option<u64>,
}

impl WaitQuery {
    pub(crate) fn time(self) -> Result<Duration, Problem> {
        match self.wait.unwrap_or_default() {
            seconds if seconds <= WAIT_S_MAX => Ok(Duration::from_secs(seconds)),
            _ => {
                Err(Problem::invalid(format!("wait: at most {WAIT_S_MAX} seconds; repeat the request to wait longer")))
            }
        }
    }
}

/// An accepted or unfinished turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Accepted {
    /// Id of the turn. `GET /v1/turns/{turn_id}?wait=60` returns its reply.
    turn_id: String,
    /// `accepted`, or `under_way` for a request by id.
    state: &'static str,
    /// True if the id was already known; the turn does not run again.
    duplicate: bool,
}

/// Reason of a cancel.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CancelReason {
    /// Reason for the record and the caller, at most 1,000 bytes.
    reason: Option<String>,
}

/// Result of a cancel.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct CancelResponse {
    /// `ok`: canceled. `flagged`: ends when its worker sees the cancel. `ended`: had already ended. `waiting`: ends
    /// when it arrives. `full`: too many cancels wait; this one was not stored. `unknown`: no such turn or task.
    #[schema(value_type = String)]
    result: CancelResult,
}

/// Submit a turn: the tool calls of one model response.
///
/// Send an id (`turn_id`, or the header `Idempotency-Key`) to make the request safe to repeat.
#[utoipa::path(post, path = "/v1/turns", tag = "turns", params(WaitQuery, ("idempotency-key" = Option<String>, Header, description = "Id of the turn, if the body has none: `A-Z a-z 0-9 _ . -`")),
    request_body = crate::shapes::TurnBody,
    responses((status = 200, description = "The reply of the finished turn or task", body = crate::shapes::ReplyBody),
        (status = 202, description = "Accepted, and not finished yet", body = Accepted),
        (status = 400, description = "Invalid body, or a bound is exceeded. If the id is readable, the body is also a reply", body = ProblemBody),
        (status = 409, description = "The id belongs to a turn with different content", body = ProblemBody),
        (status = 422, description = "Rejected at admission. The reply contains `error`", body = crate::shapes::ReplyBody)))]
pub(crate) async fn submit(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    wait: Result<Query<WaitQuery>, QueryRejection>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<Response, Problem> {
    caller.require_permission(Verb::Submit)?;
    let wait = query(wait)?.time()?;
    let body = with_owner(read_body(body)?.to_vec(), Some(caller.tenant()), None);
    let mut turn = parse_turn(&body)?;
    if turn.tenant != *caller.tenant() {
        return Err(Problem::forbidden("the turn names another tenant than the key's; remove the field"));
    }
    caller.require_agent(&turn.agent)?;
    turn.id = chosen_id(&headers, "turn_id", turn.id)?;
    names::chosen("turn_id", turn.id.as_ref())?;
    names::no_inbox(turn.reply_to.as_ref())?;
    names::session(&shared, &caller, &turn.context).await?;
    trace(&headers, &mut turn.context);
    turn.reply_to = Some(shared.waiting.inbox(&turn.tenant));
    let permit = reserve_wait(&shared, &caller, wait)?;
    let submitted = shared.client.submit(turn).await?;
    let name = TurnName { tenant: caller.tenant().clone(), turn: submitted.turn_id };
    let accepted = Accepted { turn_id: name.turn.to_string(), state: "accepted", duplicate: submitted.duplicate };
    if let Some(permit) = permit
        && let TurnLookup::Ended(reply) = shared.waiting.reply(&name, wait, &permit, None).await?
    {
        return Ok(reply_response(&reply));
    }
    Ok((StatusCode::ACCEPTED, Json(accepted)).into_response())
}

pub(crate) fn trace(headers: &HeaderMap, context: &mut Context) {
    let header = only(headers, TRACEPARENT).and_then(|value| value.to_str().ok());
    if context.traceparent.is_none() {
        context.traceparent = header.filter(|text| trace_id(text).is_some()).map(str::to_owned);
    }
}

/// Return the reply to a turn, or to a task by its id.
#[utoipa::path(get, path = "/v1/turns/{turn_id}", tag = "turns", params(("turn_id" = String, Path, description = "Id of the turn or task"), WaitQuery),
    responses((status = 200, description = "The reply of the finished turn or task", body = crate::shapes::ReplyBody),
        (status = 202, description = "Not finished yet", body = Accepted),
        (status = 404, description = "Unknown, not admitted yet, rejected, or ended longer ago than `retention.records`", body = ProblemBody),
        (status = 422, description = "Rejected at admission. The reply contains `error`", body = crate::shapes::ReplyBody)))]
pub(crate) async fn reply(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    wait: Result<Query<WaitQuery>, QueryRejection>,
) -> Result<Response, Problem> {
    caller.require_permission(Verb::Read)?;
    let name = named_turn(&caller, id)?;
    let wait = query(wait)?.time()?;
    let found = match reserve_wait(&shared, &caller, wait)? {
        Some(permit) => shared.waiting.reply(&name, wait, &permit, Some(&caller)).await?,
        None => shared.waiting.look_up(&name, Some(&caller)).await?,
    };
    lookup_response(&name, &found)
}

/// Cancel a turn. Running calls are stopped; a `once` call ends as `outcome_unknown`.
#[utoipa::path(post, path = "/v1/turns/{turn_id}/cancel", tag = "turns", params(("turn_id" = String, Path, description = "Id of the turn")),
    request_body = Option<CancelReason>,
    responses((status = 200, description = "Result of the cancel", body = CancelResponse),
        (status = 404, description = "The key does not cover it, or it is unknown and the key covers only some agents", body = ProblemBody)))]
pub(crate) async fn cancel(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<CancelResponse>, Problem> {
    caller.require_permission(Verb::Cancel)?;
    let name = named_turn(&caller, id)?;
    let reason = reason(&read_body(body)?)?;
    if !may_act_on(&shared, &caller, &name).await? {
        return Err(unknown(&name));
    }
    let result = shared.client.cancel(&name, &reason).await?;
    Ok(Json(CancelResponse { result }))
}

pub(crate) fn reserve_wait(shared: &Shared, caller: &Caller, wait: Duration) -> Result<Option<WaitPermit>, Problem> {
    if wait.is_zero() { Ok(None) } else { shared.waiting.reserve(&caller.holder()).map(Some) }
}

pub(crate) fn lookup_response(name: &TurnName, found: &TurnLookup) -> Result<Response, Problem> {
    match found {
        TurnLookup::Ended(reply) => Ok(reply_response(reply)),
        TurnLookup::Unknown => Err(unknown(name)),
        TurnLookup::UnderWay => {
            let accepted = Accepted { turn_id: name.turn.to_string(), state: "under_way", duplicate: false };
            Ok((StatusCode::ACCEPTED, Json(accepted)).into_response())
        }
        TurnLookup::InInbox => Err(Problem::not_found(format!(
            "{} has ended; Redis memory was full, so its reply went only to its inbox",
            name.turn
        ))),
    }
}

pub(crate) fn unknown(name: &TurnName) -> Problem {
    Problem::not_found(format!("{} is unknown: not admitted yet, rejected, or its record has expired", name.turn))
}

pub(crate) fn reply_response(reply: &Reply) -> Response {
    let status = match reply.status {
        ReplyStatus::Done => StatusCode::OK,
        // This reply does not end the turn, so waiting requests never return it.
        ReplyStatus::PendingApproval => StatusCode::ACCEPTED,
        ReplyStatus::Rejected | ReplyStatus::Conflict => StatusCode::UNPROCESSABLE_ENTITY,
    };
    (status, Json(reply)).into_response()
}

/// 400: the header `Idempotency-Key` is not a valid id, or differs from the body's `field`.
pub(crate) fn chosen_id<T>(headers: &HeaderMap, field: &str, body: Option<T>) -> Result<Option<T>, Problem>
where
    T: FromStr<Err = IdError> + PartialEq,
{
    let Some(value) = headers.get(IDEMPOTENCY_KEY) else { return Ok(body) };
    let text = value.to_str().map_err(|_| Problem::invalid("Idempotency-Key: expected printable ASCII characters"))?;
    let id = text.parse().map_err(|error: IdError| Problem::invalid(format!("Idempotency-Key: {error}")))?;
    if body.is_some_and(|body| body != id) {
        return Err(Problem::invalid(format!(
            "Idempotency-Key: differs from {field} of the body; send one of them or equal values"
        )));
    }
    Ok(Some(id))
}

pub(crate) fn query<T>(query: Result<Query<T>, QueryRejection>) -> Result<T, Problem> {
    query.map(|Query(query)| query).map_err(|rejection| Problem::invalid(rejection.body_text()))
}

pub(crate) fn path(path: Result<Path<String>, PathRejection>) -> Result<String, Problem> {
    path.map(|Path(text)| text).map_err(|rejection| Problem::invalid(rejection.body_text()))
}

/// An empty text counts as absent.
pub(crate) fn optional<T: FromStr<Err = IdError>>(name: &str, text: Option<String>) -> Result<Option<T>, Problem> {
    Ok(verbs::optional(name, text.as_deref())?)
}

pub(crate) fn bounded(name: &str, found: Option<usize>, default: usize, max: usize) -> Result<usize, Problem> {
    let found = found.unwrap_or(default);
    if (1..=max).contains(&found) {
        return Ok(found);
    }
    Err(Problem::invalid(format!("{name}: expected a number from 1 to {max}")))
}

pub(crate) fn read_body(body: Result<Bytes, BytesRejection>) -> Result<Bytes, Problem> {
    body.map_err(|rejection| match rejection.status() {
        StatusCode::PAYLOAD_TOO_LARGE => Problem::too_large(),
        _ => Problem::invalid(rejection.body_text()),
    })
}

pub(crate) fn named_turn(caller: &Caller, id: Result<Path<String>, PathRejection>) -> Result<TurnName, Problem> {
    let turn = TurnId::new(path(id)?).map_err(|error| Problem::invalid(error.to_string()))?;
    Ok(TurnName { tenant: caller.tenant().clone(), turn })
}

pub(crate) fn reason(body: &[u8]) -> Result<String, Problem> {
    if body.iter().all(u8::is_ascii_whitespace) {
        return Ok("canceled through the gateway".into());
    }
    let CancelReason { reason } = serde_json::from_slice::<Option<CancelReason>>(body)
        .map_err(|error| Problem::invalid(format!("expected {{\"reason\": \"…\"}}: {error}")))?
        .unwrap_or_default();
    let reason = reason.unwrap_or_else(|| "canceled through the gateway".into());
    if reason.len() > limits::REASON_BYTES_MAX {
        return Err(Problem::invalid(format!("reason: expected at most {} bytes", limits::REASON_BYTES_MAX)));
    }
    Ok(reason)
}
