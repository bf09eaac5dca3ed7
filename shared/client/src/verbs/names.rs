//! Rejects names that the fleet does not have, with a hint to the nearest names.
//!
//! The local configuration is authoritative only if it is in force. An operator's machine can have a different
//! configuration, and a verb that is needed in an emergency must not fail because of the difference.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tickfleet_model::policy::{META_TOOLS, Policy};
use tickfleet_model::suggest::{closest, list, nearest};
use tickfleet_model::{AgentId, Limit, Outcome, RejectionCode, TenantId};
use tickfleet_store::StoreError;

use super::VerbError;
use crate::Client;
use crate::audit::AuditQuery;
use crate::dead::DeadFilter;
use crate::operate::TurnFilter;
use crate::turn_status::CAP_NAMES;

/// Prefix of every tool ID that the configuration does not set.
const TOOL_ID: &str = "tool_";

/// A name that the fleet may not have.
#[derive(Debug, Clone, Copy)]
pub enum FleetName<'a> {
    /// A tenant.
    Tenant(&'a TenantId),
    /// An agent of a tenant.
    Agent(&'a TenantId, &'a AgentId),
    /// A tool, by name or id.
    Tool(&'a str),
}

/// The names in a configuration. The methods also read the names that the fleet publishes.
#[derive(Debug, Clone, Default)]
pub struct FleetNames {
    tenants: BTreeSet<TenantId>,
    agents: BTreeSet<AgentId>,
    limits: Arc<Vec<Limit>>,
    tools: ToolNames,
    /// Digest of the policy. If `None`, the configuration counts as in force.
    digest: Option<String>,
}

/// The names in a filter. An unset field matches all.
#[derive(Debug, Clone, Copy, Default)]
pub struct FilteredNames<'a> {
    /// The tenant.
    pub tenant: Option<&'a TenantId>,
    /// The agent.
    pub agent: Option<&'a str>,
    /// The tool, by name or ID.
    pub tool: Option<&'a str>,
    /// The cap or limit for which turns wait.
    pub limit: Option<&'a str>,
    /// The outcome of calls.
    pub outcome: Option<&'a str>,
    /// The cause of dead letters: an outcome or a rejection code.
    pub cause: Option<&'a str>,
}

impl<'a> From<&'a TurnFilter> for FilteredNames<'a> {
    fn from(filter: &'a TurnFilter) -> Self {
        Self {
            tenant: filter.tenant.as_ref(),
            agent: filter.agent.as_ref().map(AgentId::as_str),
            tool: filter.tool.as_deref(),
            limit: filter.waits_for.as_deref(),
            ..Self::default()
        }
    }
}

impl<'a> From<&'a AuditQuery> for FilteredNames<'a> {
    fn from(query: &'a AuditQuery) -> Self {
        Self {
            tenant: query.tenant.as_ref(),
            agent: query.agent.as_deref(),
            tool: query.tool.as_deref(),
            outcome: query.outcome.as_deref(),
            ..Self::default()
        }
    }
}

impl<'a> From<&'a DeadFilter> for FilteredNames<'a> {
    fn from(filter: &'a DeadFilter) -> Self {
        Self {
            tenant: filter.tenant.as_ref(),
            agent: filter.agent.as_ref().map(AgentId::as_str),
            tool: filter.tool.as_deref(),
            cause: filter.cause.as_deref(),
            ..Self::default()
        }
    }
}

pub(super) struct UnknownName {
    pub(super) message: String,
    /// True if the local configuration is in force, or if the fleet publishes complete tool lists. In both cases, the
    /// whole fleet lacks the name.
    pub(super) is_in_force_here: bool,
}

impl FleetNames {
    /// Collects the names of a policy. `tool_ids` maps IDs of tools to names. Without `digest`, the policy counts as in
    /// force.
    #[must_use]
    pub fn new(policy: &Policy, tool_ids: impl IntoIterator<Item = (String, String)>, digest: Option<String>) -> Self {
        let names = policy.permissions.matrix.keys().map(String::as_str).chain(META_TOOLS.iter().copied());
        let mut tools = ToolNames {
            names: names.map(str::to_owned).collect(),
            disabled: policy.permissions.disabled_tools.clone(),
            ..ToolNames::default()
        };
        tools.add(tool_ids);
        let agents = policy.agents.keys().cloned().collect();
        let limits = Arc::clone(&policy.limits);
        Self { tenants: policy.tenants.keys().cloned().collect(), agents, limits, tools, digest }
    }

    pub(super) async fn find_unknown(
        &self,
        client: &Client,
        name: FleetName<'_>,
    ) -> Result<Option<UnknownName>, StoreError> {
        let of = |kind: &str, name: &str, known: &BTreeSet<&str>| {
            if known.contains(name) { None } else { Some(message(kind, name, known)) }
        };
        let found = match name {
            FleetName::Tenant(tenant) | FleetName::Agent(tenant, _) => {
                let tenants = self.tenants(client).await?;
                let tenants: BTreeSet<&str> = tenants.iter().map(TenantId::as_str).collect();
                let agents: BTreeSet<&str> = self.agents.iter().map(AgentId::as_str).collect();
                let agent = match name {
                    FleetName::Agent(_, agent) => of("agent", agent.as_str(), &agents),
                    FleetName::Tenant(_) | FleetName::Tool(_) => None,
                };
                of("tenant", tenant.as_str(), &tenants).or(agent)
            }
            FleetName::Tool(tool) => {
                let tools = self.read_tools(client).await?;
                let known = tools.names.iter().chain(tools.ids.keys()).chain(&tools.disabled);
                let known: BTreeSet<&str> = known.map(String::as_str).collect();
                // The version does not matter for the existence of a tool.
                let name = tool.split_once('@').map_or(tool, |(name, _)| name);
                // The ID of each version of a tool begins with the tool's ID.
                let is_version = name.starts_with(TOOL_ID)
                    && known.iter().any(|known| known.starts_with(TOOL_ID) && name.starts_with(known));
                if is_version { None } else { of("tool", name, &known) }
            }
        };
        let Some(message) = found else { return Ok(None) };
        let mut is_in_force_here = self.is_in_force(client).await?;
        if let (false, FleetName::Agent(tenant, agent)) = (is_in_force_here, name) {
            // Workers publish a tool list for every agent, including agents that the local configuration lacks.
            let store = client.store(tenant);
            if store.tool_list(tenant, agent).await?.is_some() {
                return Ok(None);
            }
            is_in_force_here = store.tool_lists_mark().await?.is_some_and(|mark| mark.left_out == 0);
        }
        Ok(Some(UnknownName { message, is_in_force_here }))
    }

    /// Call this if a filter has no matches: rejects a filter with an unknown name. With matches, an unknown name is
    /// allowed, because it may be a removed agent or tool whose entries and turns are still stored.
    pub async fn check_filter(&self, client: &Client, filter: FilteredNames<'_>) -> Result<(), VerbError> {
        let outcomes: BTreeSet<&str> = Outcome::ALL.into_iter().map(Outcome::as_str).collect();
        let causes: BTreeSet<&str> = outcomes.iter().copied().chain(RejectionCode::WORDS).collect();
        for (kind, given, known) in [("outcome", filter.outcome, &outcomes), ("cause", filter.cause, &causes)] {
            if let Some(given) = given.filter(|given| !known.contains(given)) {
                return Err(VerbError::Unknown(message(kind, given, known)));
            }
        }
        let mut names = Vec::new();
        names.extend(filter.tenant.map(FleetName::Tenant));
        names.extend(filter.tool.map(FleetName::Tool));
        for name in names {
            let unknown = self.find_unknown(client, name).await?.filter(|unknown| unknown.is_in_force_here);
            if let Some(unknown) = unknown {
                return Err(VerbError::Unknown(unknown.message));
            }
        }
        let agents: BTreeSet<&str> = self.agents.iter().map(AgentId::as_str).collect();
        let limits: BTreeSet<&str> = self.limit_names().chain(CAP_NAMES).collect();
        for (kind, given, known) in [("agent", filter.agent, &agents), ("limit", filter.limit, &limits)] {
            if let Some(given) = given.filter(|given| !known.contains(given))
                && self.is_in_force(client).await?
            {
                return Err(VerbError::Unknown(message(kind, given, known)));
            }
        }
        Ok(())
    }

    /// Returns the configured limit.
    pub(super) fn limit(&self, name: &str) -> Option<&Limit> {
        self.limits.iter().find(|limit| limit.name == name)
    }

    pub(super) fn unknown_limit(&self, name: &str) -> VerbError {
        let meant = closest(name, self.limit_names()).map(|name| format!(" Did you mean {name:?}?"));
        let names = list(self.limit_names());
        VerbError::Unknown(format!("unknown limit {name:?}.{} Limits: {names}", meant.unwrap_or_default()))
    }

    fn limit_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.limits.iter().map(|limit| limit.name.as_str())
    }

    /// All tenants: the tenants of the configuration, and the tenants that were declared at run time.
    pub async fn tenants(&self, client: &Client) -> Result<BTreeSet<TenantId>, StoreError> {
        let mut tenants = self.tenants.clone();
        for store in client.stores() {
            tenants.extend(store.run_time_config().await?.tenants.into_keys());
        }
        Ok(tenants)
    }

    /// Returns the name of the tool with this name or ID, because stored data contains names. The ID of one version
    /// selects all versions.
    pub async fn tool_filter(&self, client: &Client, given: Option<&str>) -> Result<Option<String>, StoreError> {
        match given.filter(|tool| !tool.is_empty()) {
            Some(given) => Ok(Some(self.read_tools(client).await?.name(given))),
            None => Ok(None),
        }
    }

    /// Returns the tool's name. The ID of one version is returned unchanged, because it means only that version.
    pub(super) async fn tool_switched(&self, client: &Client, given: &str) -> Result<String, StoreError> {
        Ok(self.read_tools(client).await?.switched(given))
    }

    async fn read_tools(&self, client: &Client) -> Result<ToolNames, StoreError> {
        let mut tools = self.tools.clone();
        for store in client.stores() {
            let published = store.tool_names().await?;
            if !published.is_empty() {
                tools.add(published);
                break;
            }
        }
        Ok(tools)
    }

    async fn is_in_force(&self, client: &Client) -> Result<bool, StoreError> {
        let Some(digest) = &self.digest else { return Ok(true) };
        for store in client.stores() {
            if store.policy_in_force().await?.as_ref() != Some(digest) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

#[derive(Debug, Clone, Default)]
struct ToolNames {
    names: BTreeSet<String>,
    /// An ID's value is the name or `<name>@<version>`.
    ids: BTreeMap<String, String>,
    disabled: BTreeSet<String>,
}

impl ToolNames {
    fn add(&mut self, ids: impl IntoIterator<Item = (String, String)>) {
        for (id, name) in ids {
            self.names.insert(name.split('@').next().unwrap_or_default().to_owned());
            self.ids.insert(id, name);
        }
        for name in &self.names {
            self.ids.entry(format!("{TOOL_ID}{name}")).or_insert_with(|| name.clone());
        }
    }

    fn name(&self, given: &str) -> String {
        let name = if self.names.contains(given) { Some(given) } else { self.ids.get(given).map(String::as_str) };
        // The tool of stored calls may have been removed. If so, derive the name from the default ID.
        let of_default = || given.strip_prefix(TOOL_ID).filter(|name| !name.is_empty());
        name.or_else(of_default).unwrap_or(given).split('@').next().unwrap_or_default().to_owned()
    }

    /// `given` is returned unchanged if it is unknown, the ID of one version, or the ID of a tool with several
    /// versions.
    fn switched(&self, given: &str) -> String {
        let name = self.ids.get(given).filter(|name| !self.names.contains(given) && !name.contains('@'));
        let has_versions = |name: &str| self.ids.values().any(|known| known.starts_with(&format!("{name}@")));
        name.filter(|name| !has_versions(name)).map_or(given, String::as_str).to_owned()
    }
}

fn message(kind: &str, name: &str, known: &BTreeSet<&str>) -> String {
    let near = nearest(name, known.iter().copied().filter(|name| !name.starts_with(TOOL_ID)));
    if near.is_empty() {
        let known = known.iter().copied().filter(|name| !name.starts_with(TOOL_ID));
        return format!("unknown {kind} {name:?}. Known: {}.", list(known));
    }
    format!("unknown {kind} {name:?}. Nearest: {}.", near.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> ToolNames {
        let mut tools = ToolNames::default();
        tools.names.insert("echo".into());
        let ids = [
            ("payments", "pay"),
            ("tool_tool_box", "tool_box"),
            ("tool_find", "find"),
            ("tool_find@2", "find@2"),
            ("desk-7", "assign"),
            ("tool_github_search", "github_search"),
        ];
        tools.add(ids.map(|(id, name)| (id.to_owned(), name.to_owned())));
        tools
    }

    #[test]
    fn a_tool_name_or_id_resolves_to_the_tool_name() {
        for (given, name) in [
            ("pay", "pay"),
            ("payments", "pay"),
            ("desk-7", "assign"),
            ("tool_assign", "assign"),
            ("tool_github_search", "github_search"),
            ("tool_box", "tool_box"),
            ("tool_tool_box", "tool_box"),
            ("tool_echo", "echo"),
            ("tool_find@2", "find"),
            ("tool_gone", "gone"),
            ("gone", "gone"),
            ("tool_", "tool_"),
        ] {
            assert_eq!(tools().name(given), name, "{given}");
        }
    }

    #[test]
    fn a_tool_is_switched_by_name_and_a_single_version_by_id() {
        for (given, spelling) in [
            ("pay", "pay"),
            ("payments", "pay"),
            ("desk-7", "assign"),
            ("tool_box", "tool_box"),
            ("tool_find", "tool_find"),
            ("tool_find@2", "tool_find@2"),
            ("tool_gone", "tool_gone"),
        ] {
            assert_eq!(tools().switched(given), spelling, "{given}");
        }
    }
}
