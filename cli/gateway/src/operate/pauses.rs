use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use serde::{Deserialize, Serialize};
use tickfleet_client::operate::{self, Operator as Actor};
use tickfleet_model::policy::{Pause, Paused, PausedTool};
use tickfleet_model::{AgentId, limits};
use tickfleet_store::PauseResult;
use utoipa::ToSchema;

use super::{Operator, body, optional, require_known, validate_reason};
use crate::Shared;
use crate::operator_backend::FleetName;
use crate::problem::{Problem, ProblemBody};
use crate::turns::read_body;
use crate::verbs::Verb;

/// A pause in force.
#[derive(Debug, Serialize)]
pub(crate) struct ActivePause {
    /// Absent if a tool is paused for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<String>,
    /// Absent if a tenant or agent is paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    /// Absent if a tool or all agents of the tenant are paused.
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<AgentId>,
    #[serde(flatten)]
    pause: Pause,
}

/// The pauses in force.
#[derive(Debug, Serialize)]
pub(crate) struct PausesResponse {
    pauses: Vec<ActivePause>,
    /// The current time (ms of shard time).
    now_ms: i64,
}

/// Tenant, agent or tool to pause or resume.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = Whom)]
pub(crate) struct PauseRequest {
    /// Tenant. If missing, the tenant of the key.
    #[schema(example = "demo")]
    tenant: Option<String>,
    /// Agent. If missing, all agents of the tenant.
    #[schema(example = "kelly")]
    agent: Option<String>,
    /// Tool (name or id). If missing, all tools. Without a tenant, a key of all tenants pauses the tool for every
    /// tenant.
    #[schema(example = "post_to_x")]
    tool: Option<String>,
    /// Reason for the audit log and for `explain`.
    #[schema(example = "she writes to the wrong people")]
    reason: String,
}

/// Result of the change.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Done)]
pub(crate) struct ChangeResult {
    /// False if nothing changed.
    pub(super) changed: bool,
}

/// List paused tenants, agents and tools.
#[utoipa::path(get, path = "/v1/operate/pauses", tag = "operators",
    responses((status = 200, description = "`pauses` with operator, reason and time, and `now_ms`", body = Object),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn list(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
) -> Result<Json<PausesResponse>, Problem> {
    operator.may(Verb::View)?;
    let tenant = operator.restrict_tenant(None)?;
    let mut pauses = Vec::new();
    for store in shared.client.stores() {
        let set = store.run_time_config().await?;
        let visible =
            set.pauses.into_iter().filter(|(target, _)| tenant.as_ref().is_none_or(|own| *own == target.tenant));
        let active = |(target, pause): (Paused, Pause)| ActivePause {
            tenant: Some(target.tenant.to_string()),
            tool: None,
            agent: target.agent,
            pause,
        };
        pauses.extend(visible.map(active));
        // Every key sees tools that are paused for all tenants. Each shard stores such a pause, but the pause is
        // listed only once.
        let is_theirs = |target: &PausedTool| tenant.is_none() || target.tenant.is_none() || target.tenant == tenant;
        for (target, pause) in set.tool_pauses.into_iter().filter(|(target, _)| is_theirs(target)) {
            let is_same = |pause: &ActivePause| pause.tenant.is_none() && pause.tool.as_ref() == Some(&target.tool);
            if target.tenant.is_some() || !pauses.iter().any(is_same) {
                let tenant = target.tenant.map(|tenant| tenant.to_string());
                pauses.push(ActivePause { tenant, tool: Some(target.tool), agent: None, pause });
            }
        }
    }
    Ok(Json(PausesResponse { pauses, now_ms: super::views::now_ms(&shared).await? }))
}

/// Pause a tenant, agent or tool.
///
/// Admitted calls finish, except calls to a paused tool, which wait. New turns wait.
#[utoipa::path(post, path = "/v1/operate/pause", tag = "operators", request_body = PauseRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 400, description = "Invalid tenant, agent or tool, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody),
        (status = 409, description = "Too many pauses. For a tool of all tenants, the message names the shards", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn pause(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    operator.may(Verb::Operate)?;
    let (target, reason) = parse_request(&operator, bytes)?;
    let redactor = shared.backend.redactor();
    let by = Actor { by: operator.by(), reason: &reason, redactor: &redactor };
    target.is_known(&shared).await?;
    let set = match &target {
        PauseTarget::Caller(target) => operate::pause(shared.client.store(&target.tenant), target, by).await?,
        PauseTarget::Tool(tool) => {
            let tool = PausedTool { tool: shared.backend.tool_switched(&tool.tool).await?, ..tool.clone() };
            let set = operate::pause_tool(shared.client.stores(), &tool, by).await?;
            return match set.incomplete_message() {
                Some(where_not) => Err(Problem::conflict(where_not)),
                None => Ok(Json(ChangeResult { changed: set.changed })),
            };
        }
    };
    match set {
        PauseResult::Full => Err(Problem::conflict("too many tenants and agents are paused: resume some first")),
        set => Ok(Json(ChangeResult { changed: set == PauseResult::Ok })),
    }
}

/// Resume a paused tenant or agent within a tick, or a paused tool within a minute.
#[utoipa::path(post, path = "/v1/operate/resume", tag = "operators", request_body = PauseRequest,
    responses((status = 200, description = "The change was applied", body = ChangeResult),
        (status = 400, description = "Invalid tenant, agent or tool, or missing reason", body = ProblemBody),
        (status = 401, description = "Missing or invalid API key or token", body = ProblemBody),
        (status = 403, description = "The key lacks the permission", body = ProblemBody),
        (status = 404, description = "Unknown name. The message suggests similar names", body = ProblemBody),
        (status = 413, description = "The body is too large", body = ProblemBody),
        (status = 503, description = "Redis is unavailable", body = ProblemBody)))]
pub(crate) async fn resume(
    State(shared): State<Arc<Shared>>,
    operator: Operator,
    bytes: Result<Bytes, BytesRejection>,
) -> Result<Json<ChangeResult>, Problem> {
    operator.may(Verb::Operate)?;
    let (target, reason) = parse_request(&operator, bytes)?;
    let redactor = shared.backend.redactor();
    let by = Actor { by: operator.by(), reason: &reason, redactor: &redactor };
    let set = match &target {
        PauseTarget::Caller(target) => operate::resume(shared.client.store(&target.tenant), target, by).await?,
        PauseTarget::Tool(given) => {
            let tool = PausedTool { tool: shared.backend.tool_switched(&given.tool).await?, ..given.clone() };
            match operate::resume_tool(shared.client.stores(), &tool, by).await? {
                // The tool may have been paused under its id, at a time when the id could not be resolved to a name.
                set if set != PauseResult::Ok && tool != *given => {
                    operate::resume_tool(shared.client.stores(), given, by).await?
                }
                set => set,
            }
        }
    };
    // Check the target only now: the configuration may no longer have the paused tenant, agent or tool.
    if set != PauseResult::Ok {
        target.is_known(&shared).await?;
    }
    Ok(Json(ChangeResult { changed: set == PauseResult::Ok }))
}

enum PauseTarget {
    Caller(Paused),
    Tool(PausedTool),
}

impl PauseTarget {
    /// Checks that the fleet has the target.
    ///
    /// # Errors
    /// 404.
    async fn is_known(&self, shared: &Shared) -> Result<(), Problem> {
        match self {
            Self::Caller(Paused { tenant, agent: Some(agent) }) => {
                require_known(shared, FleetName::Agent(tenant, agent)).await
            }
            Self::Caller(Paused { tenant, agent: None }) => require_known(shared, FleetName::Tenant(tenant)).await,
            Self::Tool(PausedTool { tenant, tool }) => {
                require_known(shared, FleetName::Tool(tool)).await?;
                match tenant {
                    Some(tenant) => require_known(shared, FleetName::Tenant(tenant)).await,
                    None => Ok(()),
                }
            }
        }
    }
}

fn parse_request(operator: &Operator, bytes: Result<Bytes, BytesRejection>) -> Result<(PauseTarget, String), Problem> {
    let request: PauseRequest =
        body(&read_body(bytes)?, "{\"tenant\": \"…\", \"agent\": \"…\" or \"tool\": \"…\", \"reason\": \"…\"}")?;
    let tenant = operator.restrict_tenant(request.tenant)?;
    let agent = optional("agent", request.agent)?;
    let reason = validate_reason(&request.reason)?.to_owned();
    if let Some(tool) = request.tool.filter(|tool| !tool.is_empty()) {
        if agent.is_some() || tool.len() > limits::TOOL_NAME_BYTES_MAX || tool.contains(char::is_whitespace) {
            return Err(Problem::invalid("tool: expected a name or id without an agent"));
        }
        return Ok((PauseTarget::Tool(PausedTool { tenant, tool }), reason));
    }
    let tenant = tenant.ok_or_else(|| Problem::invalid("tenant: required, because this key covers all tenants"))?;
    Ok((PauseTarget::Caller(Paused { tenant, agent }), reason))
}
