//! `tickfleet approvals`: lists the calls that wait for approval, and approves or denies them.

pub(crate) mod narrowing;
mod notify;
pub(crate) mod text;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use tickfleet_client::approvals::{ApprovalFilter, approval_page};
use tickfleet_client::verbs::{ApproveRequest, Approver, DenyRequest, FilteredNames, Reason, rejected_decision};
use tickfleet_client::{Client, Cursor, Page};
use tickfleet_model::suggest::{closest, list as listed_names};
use tickfleet_model::{AgentId, TenantId, TurnId};

use crate::commands::operate::audit_note::{age, by_environment, who};
use crate::commands::operate::parse_turn_name;
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;
use narrowing::ArgumentChange;

const LISTED: u16 = 50;

/// List calls that wait for approval; show, approve or deny one.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet approvals list
  tickfleet approvals list --tool pay_invoice --older-than 10m
  tickfleet approvals show demo:apr-3f2a91c04b77d1e0
  tickfleet approvals approve demo:apr-3f2a91c04b77d1e0 --by ann --reason 'agreed with Ben'
  tickfleet approvals approve demo:apr-3f2a91c04b77d1e0 --by ann --set amount=400
  tickfleet approvals deny demo:apr-3f2a91c04b77d1e0 --by ann --reason 'not this month'

permissions.yaml lists the approvers. The command does not authenticate --by: everyone who can run it with a
Redis user of an operator can name any approver.")]
pub(crate) struct Approvals {
    #[command(subcommand)]
    command: ApprovalsCommand,
}

impl Approvals {
    pub(crate) const fn notifies(&self) -> bool {
        matches!(self.command, ApprovalsCommand::Notify(_))
    }
}

#[derive(Debug, Subcommand)]
enum ApprovalsCommand {
    /// List the calls that wait, the first to expire first.
    List(ListArgs),
    /// Show one approval: the call with all arguments, the required approvers and their decisions.
    Show(ApprovalArgs),
    /// Approve a call.
    Approve(ApproveArgs),
    /// Deny a call. The call ends, and its agent receives the reason.
    Deny(DenyArgs),
    /// Send a webhook for every requested and decided approval, until SIGTERM.
    Notify(notify::Notify),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only calls of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only calls of this agent.
    #[arg(long)]
    agent: Option<AgentId>,
    /// Only calls of this tool (name or id).
    #[arg(long)]
    tool: Option<String>,
    /// Only calls that have waited at least this long, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = age)]
    older_than: Option<Duration>,
    /// Approvals to list, 1 to 500.
    #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Position of the next page, as the previous page prints it.
    #[arg(long, value_name = "PLACE")]
    from: Option<Cursor>,
}

#[derive(Debug, Args)]
struct ApprovalArgs {
    /// The tenant, or tenant:id.
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// The approval's id.
    #[arg(value_name = "ID")]
    id: Option<TurnId>,
}

impl ApprovalArgs {
    fn name(&self) -> Result<String, Failure> {
        Ok(parse_turn_name(&self.tenant, self.id.as_ref())?.to_string())
    }
}

#[derive(Debug, Args)]
struct ApproveArgs {
    #[command(flatten)]
    approval_args: ApprovalArgs,
    /// Your name among the approvers of permissions.yaml. If missing, the variable USER.
    #[arg(long, value_name = "NAME", value_parser = who)]
    by: Option<String>,
    /// Reason for the audit log.
    #[arg(long)]
    reason: Option<Reason>,
    /// Lower value of an argument that can be changed: amount=400, or a JSON pointer such as /lines/0=400. Repeatable.
    #[arg(long = "set", value_name = "ARGUMENT=VALUE", value_parser = ArgumentChange::parse)]
    set: Vec<ArgumentChange>,
    /// Approve the arguments as another approver changed them.
    #[arg(long)]
    narrowed: bool,
}

#[derive(Debug, Args)]
struct DenyArgs {
    #[command(flatten)]
    approval_args: ApprovalArgs,
    /// Your name among the approvers of permissions.yaml. If missing, the variable USER.
    #[arg(long, value_name = "NAME", value_parser = who)]
    by: Option<String>,
    #[command(flatten)]
    request: DenyRequest,
}

pub(crate) async fn run(setup: &Setup, args: &Approvals, output: &Output) -> Result<(), Failure> {
    // `notify` waits if Redis is unreachable. The other commands fail.
    if let ApprovalsCommand::Notify(args) = &args.command {
        return notify::run(setup, args).await;
    }
    match &args.command {
        ApprovalsCommand::List(args) => list(setup, &setup.client().await?, args, output).await,
        ApprovalsCommand::Show(approval_args) => {
            let context = setup.operator(String::new(), output).await?;
            let approval = context.find_approval(&approval_args.name()?).await?;
            let now_ms = context.client.store(&approval.tenant).now_ms().await?;
            output.show(&approval, |approval| text::story(approval, now_ms, output))
        }
        decision @ ApprovalsCommand::Approve(args) => {
            decide(setup, &args.approval_args, args.by.as_ref(), decision, output).await
        }
        decision @ ApprovalsCommand::Deny(args) => {
            decide(setup, &args.approval_args, args.by.as_ref(), decision, output).await
        }
        ApprovalsCommand::Notify(_) => Ok(()),
    }
}

async fn list(setup: &Setup, client: &Client, args: &ListArgs, output: &Output) -> Result<(), Failure> {
    let tenants = match &args.tenant {
        Some(tenant) => BTreeSet::from([tenant.clone()]),
        None => setup.names().tenants(client).await?,
    };
    let filter = ApprovalFilter {
        agent: args.agent.clone(),
        tool: setup.names().tool_filter(client, args.tool.as_deref()).await?,
        older_than: args.older_than,
        limit: args.limit.into(),
    };
    let tenants = Vec::from_iter(tenants);
    let page = approval_page(client, &tenants, &filter, args.from.as_ref()).await?;
    if page.items.is_empty() && args.from.is_none() {
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        let names = FilteredNames {
            tenant: args.tenant.as_ref(),
            agent,
            tool: filter.tool.as_deref(),
            ..FilteredNames::default()
        };
        setup.names().check_filter(client, names).await?;
    }
    let redactor = setup.report().redactor;
    let items = page.items.into_iter().map(|found| found.without_secrets(&redactor)).collect();
    output.show(&Page { items, ..page }, |page| {
        let mut text = text::listed(&page.items, page.now_ms);
        if let Some(next) = &page.next {
            text += &format!("\nThere may be more: continue with --from {next}.");
        }
        text
    })
}

async fn decide(
    setup: &Setup,
    approval_args: &ApprovalArgs,
    by: Option<&String>,
    decision: &ApprovalsCommand,
    output: &Output,
) -> Result<(), Failure> {
    let by = by.cloned().map_or_else(by_environment, Ok)?;
    let approvers = &setup.configuration.policy.permissions.approvers;
    let Some(roles) = approvers.get(&by) else { return Err(no_approver(&by, approvers.keys().map(String::as_str))) };
    let context = setup.operator(by.clone(), output).await?;
    let approval = context.find_approval(&approval_args.name()?).await?;
    let approver = Approver { name: &by, roles };
    let counted = match decision {
        ApprovalsCommand::Deny(args) => args.request.run(&context, &approval, approver).await?,
        ApprovalsCommand::Approve(args) => {
            let set = narrowing::values(&args.set, &approval).map_err(Failure::failed)?;
            let checked = narrowing::check(&context.client, &approval, &set).await;
            checked.map_err(|error| rejected_decision(&approval, error))?;
            let accepts = args.narrowed || !set.is_empty();
            let narrowed = approval.narrowed.clone().filter(|_| accepts);
            let request = ApproveRequest { reason: args.reason.clone(), set, narrowed };
            request.run(&context, &approval, approver).await?
        }
        _ => return Ok(()),
    };
    output.show(&counted, |counted| {
        text::decided(approval.tenant.as_str(), (&approval.id, &approval.call), &counted.state, counted.missing)
    })
}

fn no_approver<'a>(by: &str, names: impl Iterator<Item = &'a str> + Clone) -> Failure {
    if names.clone().next().is_none() {
        return Failure::failed(anyhow::anyhow!(
            "no approvers configured: add them under approvers in permissions.yaml"
        ));
    }
    let meant = closest(by, names.clone()).map(|name| format!(" Did you mean {name:?}?")).unwrap_or_default();
    Failure::failed(anyhow::anyhow!("{by:?} is not an approver.{meant} Approvers: {}", listed_names(names)))
}
