//! Checks names in operators' commands. A name that the fleet does not have is rejected, with a hint to the nearest
//! names.
//!
//! The local configuration is authoritative only if it is in force. An operator's machine can have another
//! configuration, and a command in an emergency must not fail because of the difference.

use std::collections::{BTreeMap, BTreeSet};

use tickfleet_client::Client;
use tickfleet_gateway::FleetName;
use tickfleet_model::policy::META_TOOLS;
use tickfleet_model::suggest::{list, nearest};
use tickfleet_model::{TenantId, TurnId};
use tickfleet_store::TurnName;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Prefix of the ID of every tool without a configured ID.
const TOOL_ID: &str = "tool_";

/// Accepts a name that the fleet has. If only the local configuration lacks the name, and that configuration is not in
/// force, prints a note.
///
/// # Errors
/// The name is unknown, or Redis does not respond.
pub(crate) async fn check(setup: &Setup, client: &Client, name: FleetName<'_>, output: &Output) -> Result<(), Failure> {
    match find_unknown(setup, client, name).await? {
        None => Ok(()),
        Some(UnknownName { message, is_in_force_here: true }) => Err(Failure::failed(anyhow::anyhow!(message))),
        Some(UnknownName { message, is_in_force_here: false }) => {
            output.note(&format!("{message} This configuration is not the policy in force."));
            Ok(())
        }
    }
}

pub(crate) struct UnknownName {
    pub(crate) message: String,
    /// True if the local configuration is in force, or if the published tool lists of agents are complete. Then the
    /// fleet does not know the name either.
    pub(crate) is_in_force_here: bool,
}

/// Returns a description of the unknown name, or `None` if the name is known.
///
/// # Errors
/// Redis does not respond.
pub(crate) async fn find_unknown(
    setup: &Setup,
    client: &Client,
    name: FleetName<'_>,
) -> Result<Option<UnknownName>, Failure> {
    let policy = &setup.configuration.policy;
    let of = |kind: &str, name: &str, known: &BTreeSet<&str>| {
        if known.contains(name) { None } else { Some(message(kind, name, known)) }
    };
    let found = match name {
        FleetName::Tenant(tenant) | FleetName::Agent(tenant, _) => {
            let tenants = tenants(setup, client).await?;
            let tenants: BTreeSet<&str> = tenants.iter().map(tickfleet_model::TenantId::as_str).collect();
            let agents: BTreeSet<&str> = policy.agents.keys().map(tickfleet_model::AgentId::as_str).collect();
            let agent = match name {
                FleetName::Agent(_, agent) => of("agent", agent.as_str(), &agents),
                FleetName::Tenant(_) | FleetName::Tool(_) => None,
            };
            of("tenant", tenant.as_str(), &tenants).or(agent)
        }
        FleetName::Tool(tool) => {
            let tools = ToolNames::read(setup, client).await?;
            let ids = tools.ids.keys().map(String::as_str);
            let known: BTreeSet<&str> = tools
                .names
                .iter()
                .map(String::as_str)
                .chain(ids)
                .chain(tools.disabled.iter().map(String::as_str))
                .collect();
            // Whether a tool exists does not depend on the version in the ID.
            let name = tool.split_once('@').map_or(tool, |(name, _)| name);
            // The ID of each version of a tool begins with the ID of the tool.
            let is_version = name.starts_with(TOOL_ID)
                && known.iter().any(|known| known.starts_with(TOOL_ID) && name.starts_with(known));
            if is_version { None } else { of("tool", name, &known) }
        }
    };
    let Some(message) = found else { return Ok(None) };
    let mut is_in_force_here = is_in_force(setup, client).await?;
    if let (false, FleetName::Agent(tenant, agent)) = (is_in_force_here, name) {
        // Workers publish a tool list for every agent of the fleet, including agents that the local configuration
        // lacks.
        let store = client.store(tenant);
        if store.tool_list(tenant, agent).await?.is_some() {
            return Ok(None);
        }
        is_in_force_here = store.tool_lists_mark().await?.is_some_and(|mark| mark.left_out == 0);
    }
    Ok(Some(UnknownName { message, is_in_force_here }))
}

/// All tenants: those of the configuration, and those set at run time.
pub(crate) async fn tenants(setup: &Setup, client: &Client) -> Result<BTreeSet<TenantId>, Failure> {
    let mut tenants: BTreeSet<TenantId> = setup.configuration.policy.tenants.keys().cloned().collect();
    for store in client.stores() {
        tenants.extend(store.run_time_config().await?.declared.into_keys());
    }
    Ok(tenants)
}

/// Parses the name of a turn or task, given as `tenant id` or `tenant:id`.
///
/// # Errors
/// The text has neither form.
pub(crate) fn parse_turn_name(tenant: &str, id: Option<&TurnId>) -> Result<TurnName, Failure> {
    match id {
        Some(turn) => Ok(TurnName { tenant: TenantId::new(tenant)?, turn: turn.clone() }),
        None => TurnName::parse(tenant)
            .ok_or_else(|| Failure::usage("expected tenant and id, or tenant:id, such as demo:t1700000000000-0")),
    }
}

/// Returns the name of the tool with this name or ID, for filters. Stored data and lists contain names. The ID of a
/// version stands for the whole tool.
///
/// # Errors
/// Redis does not respond.
pub(crate) async fn tool_name(setup: &Setup, client: &Client, given: &str) -> Result<String, Failure> {
    Ok(ToolNames::read(setup, client).await?.name(given))
}

/// Same as [`tool_name`], but for an optional argument.
///
/// # Errors
/// Redis does not respond.
pub(crate) async fn resolve_tool_filter(
    setup: &Setup,
    client: &Client,
    given: Option<&str>,
) -> Result<Option<String>, Failure> {
    match given {
        Some(given) => Ok(Some(tool_name(setup, client, given).await?)),
        None => Ok(None),
    }
}

/// Returns the spelling under which a tool is disabled or paused. If the ID of a tool is given, returns the tool's
/// name. The ID of one version is returned unchanged, because it stands only for that version.
///
/// # Errors
/// Redis does not respond.
pub(crate) async fn tool_switched(setup: &Setup, client: &Client, given: &str) -> Result<String, Failure> {
    Ok(ToolNames::read(setup, client).await?.switched(given))
}

/// The tools of the fleet, from the configuration and from the lists that workers publish.
#[derive(Debug, Default)]
struct ToolNames {
    names: BTreeSet<String>,
    /// Maps an ID to the name, or to `<name>@<version>`.
    ids: BTreeMap<String, String>,
    disabled: BTreeSet<String>,
}

impl ToolNames {
    async fn read(setup: &Setup, client: &Client) -> Result<Self, Failure> {
        let mut tools = Self::configured(setup);
        for store in client.stores() {
            let published = store.tool_names().await?;
            if !published.is_empty() {
                tools.add(published);
                break;
            }
        }
        Ok(tools)
    }

    fn configured(setup: &Setup) -> Self {
        let configuration = &setup.configuration;
        let permissions = &configuration.policy.permissions;
        let declared = &configuration.tools.tools;
        let names = permissions.matrix.keys().map(String::as_str).chain(META_TOOLS.iter().copied());
        let mut tools = Self {
            names: names.map(str::to_owned).collect(),
            disabled: permissions.disabled_tools.clone(),
            ..Self::default()
        };
        let of_program = setup.extensions.tools.iter().map(|tool| (tool.spec().id.clone(), tool.spec().name.clone()));
        let of_files = declared
            .iter()
            .map(|(name, tool)| (tool.id.clone().unwrap_or_else(|| tickfleet_config::default_id(name)), name.clone()));
        tools.add(of_program.chain(of_files));
        tools
    }

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
        // The tool may no longer exist although its calls are still stored.
        let of_default = || given.strip_prefix(TOOL_ID).filter(|name| !name.is_empty());
        name.or_else(of_default).unwrap_or(given).split('@').next().unwrap_or_default().to_owned()
    }

    /// Returns the name of the tool with this name or ID. An unknown text, and the ID of one version, are returned
    /// unchanged.
    fn switched(&self, given: &str) -> String {
        let name = self.ids.get(given).filter(|name| !self.names.contains(given) && !name.contains('@'));
        let has_versions = |name: &str| self.ids.values().any(|known| known.starts_with(&format!("{name}@")));
        name.filter(|name| !has_versions(name)).map_or(given, String::as_str).to_owned()
    }
}

async fn is_in_force(setup: &Setup, client: &Client) -> Result<bool, Failure> {
    for store in client.stores() {
        if store.policy_in_force().await?.as_ref() != Some(&setup.configuration.digest) {
            return Ok(false);
        }
    }
    Ok(true)
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
        // IDs as a worker publishes them: from files, from a binary, from an MCP server and from a Python host.
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
    fn a_tool_is_known_by_its_name_and_by_its_id_whoever_declares_it() {
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
    fn a_tool_is_switched_by_its_name_and_one_version_by_its_id() {
        for (given, spelling) in [
            ("pay", "pay"),
            ("payments", "pay"),
            ("desk-7", "assign"),
            ("tool_box", "tool_box"),
            ("tool_find", "tool_find"),
            ("tool_find@2", "tool_find@2"),
            // The text names no known tool, so it is unclear whether it is a name or an ID.
            ("tool_gone", "tool_gone"),
        ] {
            assert_eq!(tools().switched(given), spelling, "{given}");
        }
    }
}
