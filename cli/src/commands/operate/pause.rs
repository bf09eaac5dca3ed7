//! `tickfleet pause` and `tickfleet resume`: stop and restart the admission of calls of a tenant or agent, or to a
//! tool.

use clap::Args;
use tickfleet_client::verbs::{ActivePause, ActivePauses, PauseRequest, PauseTarget, VerbContext};
use tickfleet_model::policy::Paused;
use tickfleet_model::{AgentId, TenantId, limits};

use crate::commands::limits::reason;
use crate::commands::operate::audit_note::By;
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
  tickfleet resume demo kelly

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
#[command(after_help = "\
Examples:
  tickfleet resume demo kelly
  tickfleet resume --tool post_to_x --reason 'the service has moved'")]
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
    reason: Option<String>,
}

#[derive(Debug, Args)]
struct TargetArgs {
    /// Agent. If missing, all agents of the tenant.
    #[arg(value_name = "AGENT")]
    agent: Option<AgentId>,
    #[command(flatten)]
    by: By,
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

pub(crate) async fn run(setup: &Setup, args: &PauseArgs, output: &Output) -> Result<(), Failure> {
    let Some(reason) = &args.reason else { return list(setup, output).await };
    let (request, context) =
        args.rest.request(setup, (args.tenant.as_ref(), args.tool.as_ref()), reason, output).await?;
    let report = request.pause(&context).await?;
    let changed = report.changed;
    output.show(&report, |report| match (&report.target, changed) {
        (PauseTarget::Tool(paused), true) => {
            format!("calls to {} wait as soon as each worker receives the pause", paused.tool)
        }
        (PauseTarget::Tool(paused), false) => format!("{} was paused already", paused.tool),
        (PauseTarget::Caller(who), true) => {
            format!("calls of {} are paused; admitted calls finish, new calls wait", name(who))
        }
        (PauseTarget::Caller(who), false) => format!("{} was paused already", name(who)),
    })
}

pub(crate) async fn resume(setup: &Setup, args: &ResumeArgs, output: &Output) -> Result<(), Failure> {
    let target = (args.tenant.as_ref(), args.tool.as_ref());
    let (request, context) =
        args.rest.request(setup, target, args.reason.as_deref().unwrap_or_default(), output).await?;
    let report = request.resume(&context).await?;
    output.show(&report, |report| {
        let target = match &report.target {
            // Show the operator's own word for the tool, a name or an id.
            PauseTarget::Tool(paused) => request.tool.clone().unwrap_or_else(|| paused.tool.clone()),
            PauseTarget::Caller(who) => name(who),
        };
        match (&report.target, report.changed) {
            (_, false) => format!("{target} was not paused; tickfleet pause lists all pauses"),
            (PauseTarget::Tool(_), true) => format!("calls to {target} run again; waiting calls start within a minute"),
            (PauseTarget::Caller(_), true) => format!("calls of {target} run again, the first within a tick"),
        }
    })
}

impl TargetArgs {
    async fn request<'a>(
        &self,
        setup: &Setup,
        (tenant, tool): (Option<&TenantId>, Option<&String>),
        reason: &str,
        output: &'a Output,
    ) -> Result<(PauseRequest, VerbContext<'a>), Failure> {
        let by = self.by.name()?;
        let context = setup.operator(by, output).await?;
        if tenant.is_none() && tool.is_none() {
            return Err(Failure::usage("expected a tenant, one of its agents, or --tool"));
        }
        let request = PauseRequest {
            tenant: tenant.map(ToString::to_string),
            agent: self.agent.as_ref().map(ToString::to_string),
            tool: tool.cloned(),
            reason: reason.to_owned(),
        };
        Ok((request, context))
    }
}

fn name(who: &Paused) -> String {
    match &who.agent {
        Some(agent) => format!("agent {agent} of {}", who.tenant),
        None => format!("tenant {}", who.tenant),
    }
}

async fn list(setup: &Setup, output: &Output) -> Result<(), Failure> {
    let ActivePauses { pauses, now_ms } = ActivePauses::list(&setup.client().await?, None).await?;
    output.show(&pauses, |pauses| {
        if pauses.is_empty() {
            return "No pauses.".into();
        }
        let mut rows = table(&["TENANT", "AGENT", "TOOL", "SINCE", "BY", "REASON"]);
        for ActivePause { target, pause } in pauses {
            let (agent, tool) = match target {
                PauseTarget::Caller(who) => (who.agent.as_ref().map_or("all", AgentId::as_str), "all"),
                PauseTarget::Tool(paused) => ("all", paused.tool.as_str()),
            };
            let since = format!("{} ({})", clock(pause.since_ms), from_now(pause.since_ms, now_ms));
            let tenant = target.tenant().map_or("all", TenantId::as_str);
            rows.add_row([tenant, agent, tool, &since, &pause.by, &pause.reason]);
        }
        lines(rows)
    })
}
