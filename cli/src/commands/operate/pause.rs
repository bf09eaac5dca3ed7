//! `tickfleet pause` and `tickfleet resume`: stop and restart the admission of calls of a tenant, of one of its agents,
//! or to one tool.

use clap::Args;
use serde::Serialize;
use tickfleet_client::Client;
use tickfleet_client::operate::{self, Operator};
use tickfleet_gateway::FleetName;
use tickfleet_model::policy::{Pause, Paused, PausedTool};
use tickfleet_model::{AgentId, TenantId, limits};
use tickfleet_store::PauseResult;

use super::name_check;
use crate::commands::limits::{by_environment, reason, who};
use crate::failure::Failure;
use crate::output::time_format::{clock, from_now};
use crate::output::{Output, lines, table};
use crate::setup::Setup;

/// Pause a tenant, agent or tool, or list what is paused.
///
/// Admitted calls finish, except calls to a paused tool, which wait. New turns wait until their deadline or
/// `tickfleet resume`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet pause demo kelly --reason 'she writes to the wrong people'
  tickfleet pause demo --reason 'the contract has ended' --by anna
  tickfleet pause --tool post_to_x --reason 'the service is being moved'
  tickfleet pause demo --tool post_to_x --reason 'their account is locked'
  tickfleet pause                                    list what is paused
  tickfleet resume demo kelly --reason 'fixed'

Calls to a paused tool wait until their deadline; workers apply the pause within a quarter of worker.lease. `tickfleet tools
disable` denies calls instead. Tasks that are delegated to a paused agent start; the calls that it makes for them wait.")]
pub(crate) struct PauseArgs {
    /// Tenant to pause.
    #[arg(value_name = "TENANT", requires = "reason")]
    tenant: Option<TenantId>,
    #[command(flatten)]
    rest: TargetArgs,
    /// Only calls to this tool (name or id), of the tenant or of all tenants.
    #[arg(long, value_name = "NAME", value_parser = tool, conflicts_with = "agent", requires = "reason")]
    tool: Option<String>,
    /// Reason for the audit log and `tickfleet explain`.
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
}

/// Resume a paused tenant, agent or tool.
#[derive(Debug, Args)]
#[command(after_help = "Example: tickfleet resume demo kelly --reason 'fixed'")]
pub(crate) struct ResumeArgs {
    /// Tenant to resume.
    #[arg(value_name = "TENANT", required_unless_present = "tool")]
    tenant: Option<TenantId>,
    #[command(flatten)]
    rest: TargetArgs,
    /// Paused tool (name or id), of the tenant or of all tenants.
    #[arg(long, value_name = "NAME", value_parser = tool, conflicts_with = "agent")]
    tool: Option<String>,
    /// Reason for the audit log.
    #[arg(long, value_parser = reason)]
    reason: String,
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// Agent. If missing, all agents of the tenant.
    #[arg(value_name = "AGENT")]
    agent: Option<AgentId>,
    /// Your name for the audit log. If missing, the variable USER.
    #[arg(long, value_name = "NAME", value_parser = who)]
    by: Option<String>,
}

fn tool(text: &str) -> Result<String, String> {
    let max = limits::TOOL_NAME_BYTES_MAX;
    let fits = (1..=max).contains(&text.len()) && !text.contains(char::is_whitespace);
    if fits {
        Ok(text.to_owned())
    } else {
        Err(format!("expected the name of a tool, at most {max} bytes without blanks"))
    }
}

#[derive(Debug, Serialize)]
struct ActivePause {
    /// `None` for a tool that is paused for all tenants.
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<TenantId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<AgentId>,
    #[serde(flatten)]
    pause: Pause,
}

#[derive(Debug, Serialize)]
struct PauseReport<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    tenant: Option<&'a TenantId>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tool: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a AgentId>,
    /// False if the pause was already as requested.
    changed: bool,
}

/// # Errors
/// The name for the audit log is missing, there are too many pauses, or Redis does not respond.
pub(crate) async fn run(setup: &Setup, args: &PauseArgs, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let Some(reason) = &args.reason else { return list(&client, output).await };
    let by = args.rest.by.clone().map_or_else(by_environment, Ok)?;
    if let Some(tool) = &args.tool {
        name_check::check(setup, &client, FleetName::Tool(tool), output).await?;
        if let Some(tenant) = &args.tenant {
            name_check::check(setup, &client, FleetName::Tenant(tenant), output).await?;
        }
        let tool = name_check::tool_switched(setup, &client, tool).await?;
        return pause_tool(setup, &client, (&tool, args.tenant.as_ref()), (&by, reason), output).await;
    }
    let Some(tenant) = &args.tenant else {
        return Err(Failure::usage("expected a tenant, one of its agents, or --tool"));
    };
    let who = Paused { tenant: tenant.clone(), agent: args.rest.agent.clone() };
    name_check::check(setup, &client, fleet_name(&who), output).await?;
    let report = setup.report();
    let operator = Operator { by: &by, reason, redactor: &report.redactor };
    let set = operate::pause(client.store(tenant), &who, operator).await?;
    if set == PauseResult::Full {
        return Err(Failure::failed(anyhow::anyhow!("too many tenants and agents are paused: resume some first")));
    }
    report_caller(&who, set, output, |name, changed| {
        if changed {
            return format!("calls of {name} are paused; admitted calls finish, new calls wait");
        }
        format!("{name} was paused already")
    })
}

/// # Errors
/// The name for the audit log is missing, or Redis does not respond.
pub(crate) async fn resume(setup: &Setup, args: &ResumeArgs, output: &Output) -> Result<(), Failure> {
    let by = args.rest.by.clone().map_or_else(by_environment, Ok)?;
    let client = setup.client().await?;
    let report = setup.report();
    let operator = Operator { by: &by, reason: &args.reason, redactor: &report.redactor };
    if let Some(tool) = &args.tool {
        let name = name_check::tool_switched(setup, &client, tool).await?;
        let paused = PausedTool { tenant: args.tenant.clone(), tool: name };
        let mut set = operate::resume_tool(client.stores(), &paused, operator).await?;
        // If a configuration does not know a tool's ID, the tool is paused under the ID. Therefore also try the ID.
        if set != PauseResult::Ok && paused.tool != *tool {
            let by_id = PausedTool { tool: tool.clone(), ..paused.clone() };
            set = operate::resume_tool(client.stores(), &by_id, operator).await?;
        }
        if set != PauseResult::Ok {
            name_check::check(setup, &client, FleetName::Tool(tool), output).await?;
        }
        return report_tool(&paused, set == PauseResult::Ok, output, |changed| match changed {
            true => format!("calls to {tool} run again; waiting calls start within a minute"),
            false => format!("{tool} was not paused; tickfleet pause lists all pauses"),
        });
    }
    let Some(tenant) = &args.tenant else {
        return Err(Failure::usage("expected a tenant, one of its agents, or --tool"));
    };
    let who = Paused { tenant: tenant.clone(), agent: args.rest.agent.clone() };
    let set = operate::resume(client.store(&who.tenant), &who, operator).await?;
    // Check the name only if nothing changed, because a paused name can be missing from the configuration.
    if set != PauseResult::Ok {
        name_check::check(setup, &client, fleet_name(&who), output).await?;
    }
    report_caller(&who, set, output, |name, changed| {
        if changed {
            return format!("calls of {name} run again, the first within a tick");
        }
        format!("{name} was not paused; tickfleet pause lists all pauses")
    })
}

async fn pause_tool(
    setup: &Setup,
    client: &Client,
    (tool, tenant): (&str, Option<&TenantId>),
    (by, reason): (&str, &str),
    output: &Output,
) -> Result<(), Failure> {
    let report = setup.report();
    let operator = Operator { by, reason, redactor: &report.redactor };
    let paused = PausedTool { tenant: tenant.cloned(), tool: tool.to_owned() };
    let set = operate::pause_tool(client.stores(), &paused, operator).await?;
    if let Some(where_not) = set.incomplete_message() {
        return Err(Failure::failed(anyhow::anyhow!(where_not)));
    }
    report_tool(&paused, set.changed, output, |changed| match changed {
        true => format!("calls to {tool} wait as soon as each worker receives the pause"),
        false => format!("{tool} was paused already"),
    })
}

fn report_tool(
    paused: &PausedTool,
    changed: bool,
    output: &Output,
    words: impl FnOnce(bool) -> String,
) -> Result<(), Failure> {
    let done = PauseReport { tenant: paused.tenant.as_ref(), tool: Some(&paused.tool), agent: None, changed };
    output.show(&done, |_| words(changed))
}

fn report_caller(
    who: &Paused,
    set: PauseResult,
    output: &Output,
    words: impl FnOnce(&str, bool) -> String,
) -> Result<(), Failure> {
    let changed = set == PauseResult::Ok;
    let done = PauseReport { tenant: Some(&who.tenant), tool: None, agent: who.agent.as_ref(), changed };
    output.show(&done, |_| words(&name(&who.tenant, who.agent.as_ref()), changed))
}

fn name(tenant: &TenantId, agent: Option<&AgentId>) -> String {
    agent.map_or_else(|| format!("tenant {tenant}"), |agent| format!("agent {agent} of {tenant}"))
}

fn fleet_name(who: &Paused) -> FleetName<'_> {
    who.agent.as_ref().map_or(FleetName::Tenant(&who.tenant), |agent| FleetName::Agent(&who.tenant, agent))
}

async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let mut pauses = Vec::new();
    let mut now_ms = 0;
    for store in client.stores() {
        now_ms = store.now_ms().await?;
        let set = store.run_time_config().await?;
        let pause_held = set.pauses.into_iter();
        pauses.extend(pause_held.map(|(who, pause)| ActivePause {
            tenant: Some(who.tenant),
            tool: None,
            agent: who.agent,
            pause,
        }));
        for (PausedTool { tenant, tool }, pause) in set.tool_pauses {
            // A pause for all tenants is stored in every shard, so list it only once.
            let is_known = tenant.is_none()
                && pauses
                    .iter()
                    .any(|pause_held| pause_held.tenant.is_none() && pause_held.tool.as_ref() == Some(&tool));
            if !is_known {
                pauses.push(ActivePause { tenant, tool: Some(tool), agent: None, pause });
            }
        }
    }
    output.show(&pauses, |pauses| {
        if pauses.is_empty() {
            return "No pauses.".into();
        }
        let mut rows = table(&["TENANT", "AGENT", "TOOL", "SINCE", "BY", "WHY"]);
        for pause_held in pauses {
            let since =
                format!("{} ({})", clock(pause_held.pause.since_ms), from_now(pause_held.pause.since_ms, now_ms));
            let agent = pause_held.agent.as_ref().map_or("all", AgentId::as_str);
            let Pause { by, reason, .. } = &pause_held.pause;
            let tenant = pause_held.tenant.as_ref().map_or("all", TenantId::as_str);
            rows.add_row([
                tenant,
                agent,
                pause_held.tool.as_deref().unwrap_or("all"),
                since.as_str(),
                by.as_str(),
                reason.as_str(),
            ]);
        }
        lines(rows)
    })
}
