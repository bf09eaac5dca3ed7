use serde::{Deserialize, Serialize};
use tickfleet_core::settings::SettingResult;
use tickfleet_model::policy::{Pause, Paused, PausedTool};
use tickfleet_model::{TenantId, limits};

use super::{FleetName, VerbContext, VerbError, optional, or_default, restrict_tenant};
use crate::Client;
use crate::operate::{self, Operator};

/// Tenant, agent or tool to pause or resume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PauseRequest {
    /// Tenant. If missing, the tenant of the key.
    #[cfg_attr(feature = "openapi", schema(example = "demo"))]
    pub tenant: Option<String>,
    /// Agent. If missing, all agents of the tenant.
    #[cfg_attr(feature = "openapi", schema(example = "kelly"))]
    pub agent: Option<String>,
    /// Tool (name or id). If missing, all tools. Without a tenant, a key of all tenants pauses the tool for every
    /// tenant.
    #[cfg_attr(feature = "openapi", schema(example = "post_to_x"))]
    pub tool: Option<String>,
    /// Reason for the audit log and for `explain`. Optional for a resume.
    #[serde(default, deserialize_with = "or_default")]
    #[cfg_attr(feature = "openapi", schema(example = "she writes to the wrong people"))]
    pub reason: String,
}

/// A tenant, agent or tool that is or was paused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum PauseTarget {
    /// A tenant, or one of its agents.
    Caller(Paused),
    /// A tool, of one tenant or of all tenants.
    Tool(PausedTool),
}

/// The result of a pause or resume.
#[derive(Debug, Serialize)]
pub struct PauseReport {
    /// The target.
    #[serde(flatten)]
    pub target: PauseTarget,
    /// False if the target was already in the requested state.
    pub changed: bool,
}

/// A pause in force.
#[derive(Debug, Serialize)]
pub struct ActivePause {
    /// The target.
    #[serde(flatten)]
    pub target: PauseTarget,
    /// Who paused the target, why, and since when.
    #[serde(flatten)]
    pub pause: Pause,
}

/// The pauses in force.
#[derive(Debug, Serialize)]
pub struct ActivePauses {
    /// The pauses, shard by shard.
    pub pauses: Vec<ActivePause>,
    /// The current time (ms of shard time).
    pub now_ms: i64,
}

impl PauseRequest {
    /// Pauses the target. Admitted calls finish, except calls to a paused tool, which wait.
    ///
    /// # Errors
    /// Every [`VerbError`]. [`VerbError::Conflict`]: there are too many pauses.
    pub async fn pause(&self, context: &VerbContext<'_>) -> Result<PauseReport, VerbError> {
        let target = self.target(context)?;
        let operator = context.operator(&self.reason);
        target.check_name(context).await?;
        let changed = match &target {
            PauseTarget::Caller(who) => operate::pause(context.client.store(&who.tenant), who, operator).await?,
            PauseTarget::Tool(given) => {
                let tool = switched(context, given).await?;
                let set = operate::pause_tool(context.client.stores(), &tool, operator).await?;
                return match set.incomplete_message() {
                    Some(where_not) => Err(VerbError::Conflict(where_not)),
                    None => Ok(PauseReport { target: PauseTarget::Tool(tool), changed: set.changed }),
                };
            }
        };
        match changed {
            SettingResult::Full => {
                Err(VerbError::Conflict("too many tenants and agents are paused: resume some first".into()))
            }
            SettingResult::Done { .. } => Ok(PauseReport { target, changed: true }),
            SettingResult::Unchanged { .. } => Ok(PauseReport { target, changed: false }),
        }
    }

    /// Resumes the target.
    pub async fn resume(&self, context: &VerbContext<'_>) -> Result<PauseReport, VerbError> {
        let given = self.target(context)?;
        let (target, changed) = given.resume(context, context.operator(&self.reason)).await?;
        // Check the name only if nothing changed: a paused name can be resumed after its removal from the
        // configuration.
        if !changed {
            given.check_name(context).await?;
        }
        Ok(PauseReport { target, changed })
    }

    fn target(&self, context: &VerbContext<'_>) -> Result<PauseTarget, VerbError> {
        let invalid = |message: &str| Err(VerbError::Invalid(message.into()));
        let tenant = restrict_tenant(context.tenant.as_ref(), self.tenant.as_deref())?;
        let agent = optional("agent", self.agent.as_deref())?;
        if let Some(tool) = self.tool.clone().filter(|tool| !tool.is_empty()) {
            if agent.is_some() || tool.len() > limits::TOOL_NAME_BYTES_MAX || tool.contains(char::is_whitespace) {
                return invalid("tool: expected a name or id without an agent");
            }
            return Ok(PauseTarget::Tool(PausedTool { tenant, tool }));
        }
        match tenant {
            Some(tenant) => Ok(PauseTarget::Caller(Paused { tenant, agent })),
            None => invalid("tenant: required, because this key covers all tenants"),
        }
    }
}

impl PauseTarget {
    /// `None` if a tool is paused for all tenants.
    #[must_use]
    pub const fn tenant(&self) -> Option<&TenantId> {
        match self {
            Self::Caller(who) => Some(&who.tenant),
            Self::Tool(tool) => tool.tenant.as_ref(),
        }
    }

    async fn check_name(&self, context: &VerbContext<'_>) -> Result<(), VerbError> {
        let tenant = match self {
            Self::Caller(Paused { tenant, agent: Some(agent) }) => {
                return context.check_name(FleetName::Agent(tenant, agent)).await;
            }
            Self::Caller(Paused { tenant, agent: None }) => Some(tenant),
            Self::Tool(PausedTool { tenant, tool }) => {
                context.check_name(FleetName::Tool(tool)).await?;
                tenant.as_ref()
            }
        };
        match tenant {
            Some(tenant) => context.check_name(FleetName::Tenant(tenant)).await,
            None => Ok(()),
        }
    }

    async fn resume(&self, context: &VerbContext<'_>, operator: Operator<'_>) -> Result<(Self, bool), VerbError> {
        let given = match self {
            Self::Caller(who) => {
                return Ok((self.clone(), operate::resume(context.client.store(&who.tenant), who, operator).await?));
            }
            Self::Tool(given) => given,
        };
        let stores = context.client.stores();
        let tool = switched(context, given).await?;
        let mut changed = operate::resume_tool(stores, &tool, operator).await?;
        // The tool may have been paused under its ID, when the ID could not be resolved to a name.
        if !changed && tool != *given {
            changed = operate::resume_tool(stores, given, operator).await?;
        }
        Ok((Self::Tool(tool), changed))
    }
}

async fn switched(context: &VerbContext<'_>, given: &PausedTool) -> Result<PausedTool, VerbError> {
    let tool = context.names.tool_switched(&context.client, &given.tool).await?;
    Ok(PausedTool { tool, tenant: given.tenant.clone() })
}

impl ActivePauses {
    /// Lists the pauses in force that affect `tenant`, or all pauses.
    pub async fn list(client: &Client, tenant: Option<&TenantId>) -> Result<Self, VerbError> {
        let mut pauses: Vec<ActivePause> = Vec::new();
        let is_theirs = |of: Option<&TenantId>| tenant.is_none() || of.is_none() || of == tenant;
        for store in client.stores() {
            let set = store.run_time_config().await?;
            let callers = set.pauses.into_iter().map(|(who, pause)| (PauseTarget::Caller(who), pause));
            let tools = set.tool_pauses.into_iter().map(|(tool, pause)| (PauseTarget::Tool(tool), pause));
            for (target, pause) in callers.chain(tools) {
                // A pause for all tenants is stored in each shard, but listed only once.
                let is_listed =
                    target.tenant().is_none() && pauses.iter().any(|pause: &ActivePause| pause.target == target);
                if is_theirs(target.tenant()) && !is_listed {
                    pauses.push(ActivePause { target, pause });
                }
            }
        }
        Ok(Self { pauses, now_ms: client.now_ms().await? })
    }
}
