//! Calls of local tools: the client claims a call, runs its own function, and reports the result.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tickfleet_client::Reply;
use tickfleet_core::EntryId;
use tickfleet_core::task::external::{RenewTaskLease, RenewTaskLeaseResult};
use tickfleet_model::ConsumerId;
use tickfleet_model::retry::DoublingDelay;
use tickfleet_protocol::{TaskMessage, parse_task_message, with_owner, with_turn};
use tickfleet_store::{Concluded, StoreError, TurnName};
use tokio::time::{Instant, sleep};
use utoipa::ToSchema;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::Shared;
use crate::caller::Caller;
use crate::owners::may_act_on;
use crate::problem::{Problem, ProblemBody};
use crate::turns::{WaitQuery, named_turn, query, read_body, reserve_wait, unknown};
use crate::verbs::Verb;
use crate::waiting::TurnLookup;

pub(crate) fn routes() -> OpenApiRouter<Arc<Shared>> {
    OpenApiRouter::new().routes(routes!(claim)).routes(routes!(conclude))
}

/// The first and the longest interval between two checks for an offered call.
const LOOKS: DoublingDelay = DoublingDelay::new(Duration::from_millis(10), Duration::from_millis(500));

/// The process that claims.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ClaimBody {
    /// Name of the process, unique to this execution of the call: `A-Z a-z 0-9 _ . -`, at most 64 bytes. A repeated
    /// claim of the same process returns the same call.
    claimant: String,
}

/// A claimed call, or the state of the turn.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ClaimResponse {
    /// `claimed`: run the function, then conclude. `ended`: the turn has ended, and `reply` has its results.
    /// `waiting`: claim again; the turn waits for a limit, an approval or a worker, or another process has its call.
    state: &'static str,
    /// Identifies the claim in `conclude`.
    #[serde(skip_serializing_if = "Option::is_none")]
    lease: Option<String>,
    /// The call: `call`, `tool`, `arguments` (as approvers may have changed them), `idempotency_key`, `attempt`,
    /// `lease_ms` and `deadline`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    call: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<crate::shapes::ReplyBody>)]
    reply: Option<Arc<Reply>>,
}

/// A report about a claimed call.
#[derive(Debug, ToSchema)]
#[allow(dead_code, reason = "documents the body, which the protocol's parser reads")]
pub(crate) struct ConclusionBody {
    /// `heartbeat`: the function still runs; send it at least every third of `lease_ms`. `finish`: the function
    /// returned `output`. `fail`: it failed with `error`.
    op: String,
    /// The lease of the claim.
    lease: String,
    /// Any JSON. Required by `finish`.
    #[schema(value_type = Option<Object>)]
    output: Option<Box<RawValue>>,
    /// `message` for the model, and optionally `code`. Required by `fail`.
    #[schema(value_type = Option<Object>)]
    error: Option<Box<RawValue>>,
    /// True if a retry makes sense. A `once` call is retried only with `not_executed`.
    retryable: Option<bool>,
    /// True if the failed function certainly had no effect.
    not_executed: Option<bool>,
    /// True if the function may have had an effect.
    unknown: Option<bool>,
}

/// Checks for `op` first, because the protocol's parser would read a message without `op` as a delegation.
#[derive(Deserialize)]
struct HasOp {
    op: Option<String>,
}

/// Result of a report.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct ConcludeResponse {
    /// `ok`: accepted. `over`: the turn was canceled or has expired, so a heartbeat does not extend the lease.
    /// `stale`: the process has lost the call, or has concluded it before.
    result: &'static str,
}

/// Claim a call of a local tool, which then runs in the client.
///
/// The turn needs `local_calls: true`. If the turn has ended, the response has its reply.
#[utoipa::path(post, path = "/v1/turns/{turn_id}/claim", tag = "turns", params(("turn_id" = String, Path, description = "Id of the turn"), WaitQuery),
    request_body = ClaimBody,
    responses((status = 200, description = "The claimed call, or the state of the turn", body = ClaimResponse),
        (status = 404, description = "Unknown, not admitted yet, or not covered by the key", body = ProblemBody)))]
pub(crate) async fn claim(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    wait: Result<Query<WaitQuery>, QueryRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ClaimResponse>, Problem> {
    caller.require_permission(Verb::Submit)?;
    let name = named_turn(&caller, id)?;
    let wait = query(wait)?.time()?;
    let claim: ClaimBody = serde_json::from_slice(&read_body(body)?)
        .map_err(|error| Problem::invalid(format!("body: {error}; expected {{\"claimant\": \"…\"}}")))?;
    let claimant = ConsumerId::new(&claim.claimant).map_err(|error| Problem::invalid(format!("claimant: {error}")))?;
    let _permit = reserve_wait(&shared, &caller, wait)?;
    let until = Instant::now() + wait;
    let mut looks = LOOKS;
    loop {
        let found = look(&shared, &caller, &name, &claimant).await?;
        let left = until.saturating_duration_since(Instant::now());
        match found {
            Some(response) if response.state != "waiting" || left.is_zero() => return Ok(Json(response)),
            None if left.is_zero() => return Err(unknown(&name)),
            _ => sleep(looks.next_wait().min(left)).await,
        }
    }
}

async fn look(
    shared: &Shared,
    caller: &Caller,
    name: &TurnName,
    claimant: &ConsumerId,
) -> Result<Option<ClaimResponse>, Problem> {
    let of = |state| ClaimResponse { state, lease: None, call: None, reply: None };
    if may_act_on(shared, caller, name).await?
        && let Some(claimed) = shared.client.store(&name.tenant).claim_local(name, claimant.as_str()).await?
    {
        let call = serde_json::from_slice(&claimed.message).ok();
        return Ok(Some(ClaimResponse { lease: Some(claimed.lease), call, ..of("claimed") }));
    }
    Ok(match shared.waiting.look_up(name, Some(caller)).await? {
        TurnLookup::Ended(reply) => Some(ClaimResponse { reply: Some(reply), ..of("ended") }),
        TurnLookup::UnderWay => Some(of("waiting")),
        TurnLookup::InInbox | TurnLookup::Unknown => None,
    })
}

/// Report about a claimed call: a heartbeat, or the end of the function.
#[utoipa::path(post, path = "/v1/turns/{turn_id}/conclude", tag = "turns", params(("turn_id" = String, Path, description = "Id of the turn")),
    request_body = ConclusionBody,
    responses((status = 200, description = "Result of the report", body = ConcludeResponse),
        (status = 404, description = "Unknown, or not covered by the key", body = ProblemBody)))]
pub(crate) async fn conclude(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    id: Result<Path<String>, PathRejection>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<ConcludeResponse>, Problem> {
    caller.require_permission(Verb::Submit)?;
    let name = named_turn(&caller, id)?;
    if !may_act_on(&shared, &caller, &name).await? {
        return Err(unknown(&name));
    }
    let body = read_body(body)?;
    let has_op = serde_json::from_slice::<HasOp>(&body).is_ok_and(|body| body.op.is_some());
    if !has_op {
        return Err(Problem::invalid("op: found nothing; expected heartbeat, finish or fail"));
    }
    let body = with_owner(body.to_vec(), Some(caller.tenant()), None);
    let store = shared.client.store(&name.tenant);
    let result = match parse_task_message(&with_turn(body, &name.turn))? {
        TaskMessage::Renew(claimed) if claimed.turn == name.turn && claimed.tenant == name.tenant => {
            let renew = RenewTaskLease { name, entry: EntryId::new(claimed.lease) };
            match store.decide(renew).await.map_err(StoreError::from)?.result {
                RenewTaskLeaseResult::Renewed => "ok",
                RenewTaskLeaseResult::Over => "over",
                RenewTaskLeaseResult::Stale => "stale",
            }
        }
        TaskMessage::Conclude { claimed, conclusion } if claimed.turn == name.turn && claimed.tenant == name.tenant => {
            match store.conclude(&name, &claimed.lease, conclusion).await? {
                Concluded::Accepted => "ok",
                Concluded::Stale => "stale",
            }
        }
        _ => return Err(Problem::invalid("op: expected heartbeat, finish or fail, without another turn's id")),
    };
    Ok(Json(ConcludeResponse { result }))
}
