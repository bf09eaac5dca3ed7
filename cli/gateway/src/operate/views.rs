//! What operators look at: the fleet as a whole, the story of one turn, limits, the configuration.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use utoipa::IntoParams;

use super::{Operator, optional, within};
use crate::Shared;
use crate::desk::LimitsAsked;
use crate::problem::{Problem, ProblemBody};
use crate::turns::query;
use crate::verbs::Verb;

/// Counters of each limit that are shown where nobody says how many, and at most.
const TOP: (usize, usize) = (5, 100);

/// Now, by the clock of the first shard.
pub(super) async fn now_ms(shared: &Shared) -> Result<i64, Problem> {
    match shared.client.stores().first() {
        Some(store) => Ok(store.now_ms().await?),
        None => Ok(0),
    }
}

/// The fleet as it is now, as `tickfleet top --json` has it. For keys of all tenants.
#[utoipa::path(get, path = "/v1/operate/overview", tag = "operators",
    responses((status = 200, description = "Backlog by state with the oldest, rates, slots, processes, agents that wait, tools by outcome, warnings", body = Object),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn overview(State(shared): State<Arc<Shared>>, operator: Operator) -> Result<Json<Value>, Problem> {
    operator.may(Verb::View)?;
    operator.sees_all()?;
    Ok(Json(shared.desk.overview().await?))
}

/// The configuration as the gateway reads it: each setting with where it comes from, and the files that decide about calls
/// (agents, tools, permissions with their rules, limits …), with secrets masked. For keys of all tenants.
#[utoipa::path(get, path = "/v1/operate/config", tag = "operators",
    responses((status = 200, description = "`digest` of the policy, that `in_force` at each shard, `settings`, `files`, `warnings`; `problem` where the files cannot be read now", body = Object),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn configuration(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<Value>, Problem> {
    operator.may(Verb::View)?;
    operator.sees_all()?;
    Ok(Json(shared.desk.configuration().await?))
}

/// What is to be explained.
#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Asked {
    /// `tenant:turn`, `tenant:turn/position`, or the id of a task; without a tenant it is looked for at all of the key.
    id: String,
}

/// The whole story of a turn, call or task: what decided, where it waits, why, how it ended.
#[utoipa::path(get, path = "/v1/operate/explain", tag = "operators", params(Asked),
    responses((status = 200, description = "`story` as `tickfleet explain --json` has it, and `lines`: the same in words", body = Object),
        (status = 400, description = "That is no name", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 404, description = "Never submitted, or it ended longer ago than records are kept", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn explain(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Box<RawValue>>, Problem> {
    operator.may(Verb::View)?;
    let Asked { id } = query(asked)?;
    let (tenant, id) = operator.parted(id.trim())?;
    Ok(Json(shared.desk.explain(tenant.as_ref(), id).await?))
}

/// Which limits are wanted.
#[derive(Debug, Default, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct Wanted {
    /// One limit or cap.
    limit: Option<String>,
    /// Only what calls of this tenant may meet.
    tenant: Option<String>,
    /// Only what calls of this agent of the tenant may meet.
    agent: Option<String>,
    /// Counters of each, the fullest first, from 1 to 100; 5 unless said otherwise.
    #[param(minimum = 1, maximum = 100)]
    top: Option<usize>,
}

/// Limits and caps in force with their fullest counters, and how many turns wait for each.
#[utoipa::path(get, path = "/v1/operate/limits", tag = "operators", params(Wanted),
    responses((status = 200, description = "`caps` and `limits`, as `tickfleet limits --json` has them", body = Object),
        (status = 400, description = "That cannot be asked", body = ProblemBody),
        (status = 401, description = "No key, or one that is not good", body = ProblemBody),
        (status = 403, description = "The key is not for this", body = ProblemBody),
        (status = 404, description = "There is no such limit, tenant or agent", body = ProblemBody),
        (status = 503, description = "Redis is away", body = ProblemBody)))]
pub(crate) async fn limits(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    wanted: Result<Query<Wanted>, QueryRejection>,
) -> Result<Json<Value>, Problem> {
    operator.may(Verb::View)?;
    let wanted = query(wanted)?;
    let asked = LimitsAsked {
        limit: wanted.limit.filter(|limit| !limit.is_empty()),
        tenant: operator.within(wanted.tenant)?,
        agent: optional("agent", wanted.agent)?,
        top: within("top", wanted.top, TOP.0, TOP.1)?.try_into().unwrap_or(u8::MAX),
    };
    if asked.agent.is_some() && asked.tenant.is_none() {
        return Err(Problem::invalid("agent: say whose, with tenant"));
    }
    Ok(Json(shared.desk.limits(&asked).await?))
}
