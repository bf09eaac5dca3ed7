//! Names that operators give to commands: what the fleet has is taken, and what it does not have is refused, with the nearest
//! names.
//!
//! The configuration here counts only if it is the one in force: an operator's machine may have another one, and an emergency
//! must not fail for that.

use std::collections::BTreeSet;

use tickfleet_client::Client;
use tickfleet_gateway::Named;
use tickfleet_model::policy::META_TOOLS;
use tickfleet_model::suggest::{list, nearest};
use tickfleet_model::{TenantId, TurnId};
use tickfleet_store::TurnName;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// What every id of a tool begins with that has no id of its own.
const TOOL_ID: &str = "tool_";

/// Lets a name pass that the fleet has. One that only the configuration here does not have is noted.
///
/// # Errors
/// Nothing of that name is there; Redis.
pub(crate) async fn check(setup: &Setup, client: &Client, named: Named<'_>, output: &Output) -> Result<(), Failure> {
    match unknown(setup, client, named).await? {
        None => Ok(()),
        Some(Unknown { message, is_sure: true }) => Err(Failure::failed(anyhow::anyhow!(message))),
        Some(Unknown { message, is_sure: false }) => {
            output.note(&format!("{message} The configuration here is not the one in force."));
            Ok(())
        }
    }
}

/// A name that the configuration here does not have.
pub(crate) struct Unknown {
    /// Which, with the nearest names.
    pub(crate) message: String,
    /// True if the configuration here is the fleet's.
    pub(crate) is_sure: bool,
}

/// What is unknown of a name; none where there is nothing.
///
/// # Errors
/// Redis.
pub(crate) async fn unknown(setup: &Setup, client: &Client, named: Named<'_>) -> Result<Option<Unknown>, Failure> {
    let policy = &setup.configuration.policy;
    let of = |kind: &str, name: &str, known: &BTreeSet<&str>| {
        if known.contains(name) { None } else { Some(message(kind, name, known)) }
    };
    let found = match named {
        Named::Tenant(tenant) | Named::Agent(tenant, _) => {
            let tenants = tenants(setup, client).await?;
            let tenants: BTreeSet<&str> = tenants.iter().map(tickfleet_model::TenantId::as_str).collect();
            let agents: BTreeSet<&str> = policy.agents.keys().map(tickfleet_model::AgentId::as_str).collect();
            let agent = match named {
                Named::Agent(_, agent) => of("agent", agent.as_str(), &agents),
                Named::Tenant(_) | Named::Tool(_) => None,
            };
            of("tenant", tenant.as_str(), &tenants).or(agent)
        }
        Named::Tool(tool) => {
            let known = tools(setup);
            let known: BTreeSet<&str> = known.iter().map(String::as_str).collect();
            // Of an id, the version says nothing about whether there is such a tool.
            let name = tool.split_once('@').map_or(tool, |(name, _)| name);
            // Versions of a tool have ids of their own, which begin with the tool's.
            let is_version = name.starts_with(TOOL_ID)
                && known.iter().any(|known| known.starts_with(TOOL_ID) && name.starts_with(known));
            if is_version { None } else { of("tool", name, &known) }
        }
    };
    let Some(message) = found else { return Ok(None) };
    let mut is_sure = is_in_force(setup, client).await?;
    if let (false, Named::Agent(tenant, agent)) = (is_sure, named) {
        // Workers list the tools of every agent that the fleet has, whatever is configured here.
        let store = client.store(tenant);
        if store.tool_list(tenant, agent).await?.is_some() {
            return Ok(None);
        }
        is_sure = store.tool_lists_mark().await?.is_some_and(|mark| mark.left_out == 0);
    }
    Ok(Some(Unknown { message, is_sure }))
}

/// All tenants that the configuration knows, or that were set at run time.
pub(crate) async fn tenants(setup: &Setup, client: &Client) -> Result<BTreeSet<TenantId>, Failure> {
    let mut tenants: BTreeSet<TenantId> = setup.configuration.policy.tenants.keys().cloned().collect();
    for store in client.stores() {
        tenants.extend(store.at_run_time().await?.declared.into_keys());
    }
    Ok(tenants)
}

/// The turn or task that `tenant id` or `tenant:id` names.
///
/// # Errors
/// It names none.
pub(crate) fn named(tenant: &str, id: Option<&TurnId>) -> Result<TurnName, Failure> {
    match id {
        Some(turn) => Ok(TurnName { tenant: TenantId::new(tenant)?, turn: turn.clone() }),
        None => TurnName::parse(tenant)
            .ok_or_else(|| Failure::usage("expected tenant and id, or tenant:id, as demo:t1700000000000-0")),
    }
}

/// The names and ids of the tools that the fleet may call.
fn tools(setup: &Setup) -> BTreeSet<String> {
    let configuration = &setup.configuration;
    let permissions = &configuration.policy.permissions;
    let names = permissions.matrix.keys().chain(&permissions.disabled_tools).chain(configuration.tools.tools.keys());
    let names = names.map(String::as_str).chain(META_TOOLS.iter().copied());
    let own = setup.extensions.tools.iter().map(|tool| tool.spec().name.clone());
    let names: BTreeSet<String> = names.map(str::to_owned).chain(own).collect();
    let ids: Vec<String> = names.iter().map(|name| format!("{TOOL_ID}{name}")).collect();
    let declared = configuration.tools.tools.values().filter_map(|tool| tool.id.clone());
    names.into_iter().chain(ids).chain(declared).collect()
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
        return format!("there is no {kind} {name:?}. There are: {}.", list(known));
    }
    format!("there is no {kind} {name:?}. The nearest: {}.", near.join(", "))
}
