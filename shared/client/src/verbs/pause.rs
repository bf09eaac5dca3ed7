use std::fmt;

use serde::{Deserialize, Serialize};
use tickfleet_core::settings::{ChangeSetting, Origin, Setting, SettingResult};
use tickfleet_model::policy::{Pause, Paused, PausedTool};
use tickfleet_model::{TenantId, limits};
use tickfleet_store::{Store, StoreError};

use super::{
    ChangeReport, FleetName, OperatorVerb, Reason, UNKNOWN_NAME, VerbContext, VerbError, optional, restrict_tenant,
};
use crate::Client;
use crate::operate::{Change, Operator, entry, remove};

/// Pause a tenant, agent or tool.
///
/// Admitted calls finish, except calls to a paused tool, which wait. New turns wait until their deadline or a resume.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct PauseRequest {
    /// Tenant. With a tool, all tenants if missing. A key of one tenant implies it.
    #[cfg_attr(feature = "openapi", schema(example = "demo"))]
    pub tenant: Option<String>,
    /// Agent. If missing, all agents of the tenant.
    #[cfg_attr(feature = "openapi", schema(example = "kelly"))]
    pub agent: Option<String>,
    /// Only calls to this tool (name or id), of the tenant or of all tenants.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    #[cfg_attr(feature = "openapi", schema(example = "post_to_x"))]
    pub tool: Option<String>,
    /// Reason for the audit log and for `explain`.
    #[cfg_attr(feature = "cli", arg(long))]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "she writes to the wrong people"))]
    pub reason: Reason,
}

/// Resume a paused tenant, agent or tool.
///
/// Waiting calls run again under their caps: those of a tenant or agent within a tick, those of a tool within a minute.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ResumeRequest {
    /// Tenant, as it was paused.
    #[cfg_attr(feature = "openapi", schema(example = "demo"))]
    pub tenant: Option<String>,
    /// Agent, as it was paused.
    #[cfg_attr(feature = "openapi", schema(example = "kelly"))]
    pub agent: Option<String>,
    /// Tool (name or id), as it was paused.
    #[cfg_attr(feature = "cli", arg(long, value_name = "NAME"))]
    #[cfg_attr(feature = "openapi", schema(example = "post_to_x"))]
    pub tool: Option<String>,
    /// Reason for the audit log.
    #[serde(default, deserialize_with = "Reason::optional")]
    #[cfg_attr(feature = "cli", arg(long))]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Reason>,
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

impl OperatorVerb for PauseRequest {
    const NAME: &'static str = "pause";
    const ERRORS: &'static [(u16, &'static str)] =
        &[UNKNOWN_NAME, (409, "Too many pauses. For a tool of all tenants, the message names the shards")];
    type Report = ChangeReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<ChangeReport, VerbError> {
        let target = PauseTarget::read(context, [&self.tenant, &self.agent, &self.tool])?;
        let operator = context.operator(&self.reason);
        target.check_name(context).await?;
        let changed = match &target {
            PauseTarget::Caller(who) => match pause(context.client.store(&who.tenant), who, operator).await? {
                SettingResult::Full => {
                    let message = "too many tenants and agents are paused: resume some first";
                    return Err(VerbError::Conflict(message.into()));
                }
                SettingResult::Done { .. } => true,
                SettingResult::Unchanged { .. } => false,
            },
            PauseTarget::Tool(given) => {
                let tool = switched(context, given).await?;
                let set = pause_tool(context.client.stores(), &tool, operator).await?;
                if let Some(where_not) = set.incomplete_message() {
                    return Err(VerbError::Conflict(where_not));
                }
                set.changed
            }
        };
        let message = match (&target, changed) {
            (_, false) => format!("{target} was paused already"),
            (PauseTarget::Tool(_), true) => format!("calls to {target} wait as soon as each worker receives the pause"),
            (PauseTarget::Caller(_), true) => {
                format!("calls of {target} are paused; admitted calls finish, new calls wait")
            }
        };
        Ok(ChangeReport { changed, message })
    }
}

impl OperatorVerb for ResumeRequest {
    const NAME: &'static str = "resume";
    const ERRORS: &'static [(u16, &'static str)] = &[UNKNOWN_NAME];
    type Report = ChangeReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<ChangeReport, VerbError> {
        let target = PauseTarget::read(context, [&self.tenant, &self.agent, &self.tool])?;
        let changed = target.resume(context, context.operator(&self.reason)).await?;
        // Check the name only if nothing changed: a paused name can be resumed after its removal from the
        // configuration.
        if !changed {
            target.check_name(context).await?;
        }
        let message = match (&target, changed) {
            (_, false) => format!("{target} was not paused"),
            (PauseTarget::Tool(_), true) => format!("calls to {target} run again; waiting calls start within a minute"),
            (PauseTarget::Caller(_), true) => format!("calls of {target} run again, the first within a tick"),
        };
        Ok(ChangeReport { changed, message })
    }
}

impl fmt::Display for PauseTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caller(Paused { tenant, agent: Some(agent) }) => write!(f, "agent {agent} of {tenant}"),
            Self::Caller(Paused { tenant, agent: None }) => write!(f, "tenant {tenant}"),
            Self::Tool(PausedTool { tenant: Some(tenant), tool }) => write!(f, "{tool} of {tenant}"),
            Self::Tool(PausedTool { tenant: None, tool }) => f.write_str(tool),
        }
    }
}

impl PauseTarget {
    fn read(context: &VerbContext<'_>, [tenant, agent, tool]: [&Option<String>; 3]) -> Result<Self, VerbError> {
        let invalid = |message: &str| Err(VerbError::Invalid(message.into()));
        let tenant = restrict_tenant(context.tenant.as_ref(), tenant.as_deref())?;
        let agent = optional("agent", agent.as_deref())?;
        if let Some(tool) = tool.clone().filter(|tool| !tool.is_empty()) {
            if agent.is_some() || tool.len() > limits::TOOL_NAME_BYTES_MAX || tool.contains(char::is_whitespace) {
                return invalid("tool: expected a name or id without an agent");
            }
            return Ok(Self::Tool(PausedTool { tenant, tool }));
        }
        match tenant {
            Some(tenant) => Ok(Self::Caller(Paused { tenant, agent })),
            None => invalid("tenant: required without a tool, except with a key of one tenant"),
        }
    }

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

    async fn resume(&self, context: &VerbContext<'_>, operator: Operator<'_>) -> Result<bool, VerbError> {
        let given = match self {
            Self::Caller(who) => return Ok(resume(context.client.store(&who.tenant), who, operator).await?),
            Self::Tool(given) => given,
        };
        let stores = context.client.stores();
        let tool = switched(context, given).await?;
        if resume_tool(stores, &tool, operator).await? {
            return Ok(true);
        }
        // The tool may have been paused under its ID, when the ID could not be resolved to a name.
        Ok(tool != *given && resume_tool(stores, given, operator).await?)
    }
}

async fn switched(context: &VerbContext<'_>, given: &PausedTool) -> Result<PausedTool, VerbError> {
    let tool = context.names.tool_switched(&context.client, &given.tool).await?;
    Ok(PausedTool { tool, tenant: given.tenant.clone() })
}

/// Pauses the calls of a tenant, or of one of its agents. After the response, none of these calls is admitted.
async fn pause(store: &Store, who: &Paused, operator: Operator<'_>) -> Result<SettingResult, StoreError> {
    let since_ms = store.now_ms().await?;
    let entry = entry(store, &Setting::Pause(who.clone()), Change::Set(&[]), operator, since_ms);
    let change = ChangeSetting::pause(who.clone(), &operator.note(since_ms), Origin::Operator(entry));
    Ok(store.decide(change).await?.result)
}

/// Resumes the calls of a tenant, or of one of its agents. Returns false if they were not paused.
async fn resume(store: &Store, who: &Paused, operator: Operator<'_>) -> Result<bool, StoreError> {
    remove(store, Setting::Pause(who.clone()), operator).await
}

/// The result of pausing a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolPaused {
    /// True if this call paused the tool in at least one shard.
    pub changed: bool,
    /// The shards that have reached their maximum number of pauses. In these shards, the tool is not paused.
    pub full: Vec<u32>,
    /// The number of shards in which the tool is paused after this call.
    pub paused: usize,
}

impl ToolPaused {
    /// Returns a message about the shards that could not pause the tool. `None` if all shards could.
    #[must_use]
    pub fn incomplete_message(&self) -> Option<String> {
        let full: Vec<String> = self.full.iter().map(ToString::to_string).collect();
        let rest = if self.paused == 0 { "nothing was paused" } else { "it is paused in the others" };
        (!full.is_empty())
            .then(|| format!("too many are paused in shard {}: resume some first; {rest}", full.join(", ")))
    }
}

/// Pauses a tool, in its tenant's shard or in all shards. Workers read the pause with their next heartbeat. If one shard has too many pauses, the other shards still
/// pause the tool. After an error, the call can be repeated.
pub async fn pause_tool(shards: &[Store], tool: &PausedTool, operator: Operator<'_>) -> Result<ToolPaused, StoreError> {
    let setting = Setting::ToolPause(tool.clone());
    let mut set = ToolPaused::default();
    for store in of_tool(shards, tool) {
        let since_ms = store.now_ms().await?;
        let entry = entry(store, &setting, Change::Set(&[]), operator, since_ms);
        let change = ChangeSetting::pause_tool(tool.clone(), &operator.note(since_ms), Origin::Operator(entry));
        match store.decide(change).await?.result {
            SettingResult::Full => {
                set.full.push(store.shard());
                continue;
            }
            SettingResult::Done { .. } => set.changed = true,
            SettingResult::Unchanged { .. } => {}
        }
        set.paused += 1;
    }
    Ok(set)
}

/// Resumes the calls of a tool. Returns false if the tool was not paused.
/// After an error, the call can be repeated.
pub async fn resume_tool(shards: &[Store], tool: &PausedTool, operator: Operator<'_>) -> Result<bool, StoreError> {
    let mut changed = false;
    for store in of_tool(shards, tool) {
        changed |= remove(store, Setting::ToolPause(tool.clone()), operator).await?;
    }
    Ok(changed)
}

fn of_tool<'a>(shards: &'a [Store], tool: &'a PausedTool) -> impl Iterator<Item = &'a Store> {
    shards.iter().filter(|store| tool.tenant.as_ref().is_none_or(|tenant| store.is_home_of(tenant)))
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
