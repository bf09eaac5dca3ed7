//! `tickfleet limits`: shows the limits with their fullest counters, and resets a counter.

mod caps;
mod counters;
mod listing;
mod show;
mod views;

use clap::{Args, Subcommand};
use serde_json::Value;
use tickfleet_client::Client;
use tickfleet_client::verbs::ResetLimitRequest;
use tickfleet_gateway::LimitFilter;
use tickfleet_model::{AgentId, TenantId};

use crate::commands::operate::verb::{self, VerbArgs};
use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Show caps and limits with their fullest counters, or reset a counter.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  tickfleet limits
  tickfleet limits --limit mails_per_agent --top 50
  tickfleet limits --tenant atlas-ux --agent kelly     only limits for this agent's calls
  tickfleet limits reset mails_per_agent atlas-ux:kelly --reason 'the import was ours'

Maximums come from the local configuration. Users, sessions and argument values are shown as hashes;
`tickfleet explain` names the counter that a turn waits for. At most 10,000 counters of a limit are read
per shard."
)]
pub(crate) struct Limits {
    #[command(subcommand)]
    command: Option<LimitsCommand>,
    #[command(flatten)]
    filter: LimitsFilter,
}

#[derive(Debug, Subcommand)]
enum LimitsCommand {
    #[command(after_help = "\
Examples:
  tickfleet limits reset mails_per_agent atlas-ux:kelly --reason 'the import was ours'
  tickfleet limits reset writes_of_the_fleet --reason 'agreed with Ben' --by anna")]
    Reset(VerbArgs<ResetLimitRequest>),
}

/// Filter of the list.
#[derive(Debug, Args)]
struct LimitsFilter {
    /// One limit, or `cap`.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Only limits for calls of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only limits for calls of this agent.
    #[arg(long, requires = "tenant")]
    agent: Option<AgentId>,
    /// Counters to show per limit, the fullest first, at most 100.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    top: u8,
}

pub(crate) async fn run(setup: &Setup, args: &Limits, output: &Output) -> Result<(), Failure> {
    if let Some(LimitsCommand::Reset(reset)) = &args.command {
        return verb::run(setup, reset, output).await;
    }
    let listing = listing::of(setup, &setup.client().await?, &args.filter).await?;
    if let Some(hint) = setup.built_in_hint().filter(|_| !output.json) {
        output.note(hint);
    }
    listing.policy.mismatch_warnings().iter().for_each(|doubt| output.note(doubt));
    output.show(&listing, |listing| show::text(listing, output))
}

pub(crate) async fn as_json(setup: &Setup, client: &Client, filter: &LimitFilter) -> Result<Value, Failure> {
    let LimitFilter { limit, tenant, agent, top } = filter.clone();
    let listing = listing::of(setup, client, &LimitsFilter { limit, tenant, agent, top }).await?;
    serde_json::to_value(listing).map_err(Failure::failed)
}
