//! `tickfleet limits`: the limits with their fullest counters, and how one counter is set to zero.
//!
//! [`seen`] reads the counters of all shards under a bound, and [`caps`] those of the caps that everybody has; [`listing`]
//! makes of them what is shown; [`show`] lays it out;
//! [`reset`] is the one thing here that changes anything.

mod caps;
mod listing;
pub(crate) mod reset;
mod seen;
mod show;
mod views;

pub(crate) use reset::{by_environment, reason, who};

use clap::{Args, Subcommand};
use serde_json::Value;
use tickfleet_client::Client;
use tickfleet_gateway::LimitsAsked;
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::Pool;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

/// Show caps and limits with their fullest counters, or set a counter to zero.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  tickfleet limits
  tickfleet limits --limit mails_per_agent --top 50
  tickfleet limits --tenant atlas-ux --agent kelly     those that this agent's calls may meet
  tickfleet limits reset mails_per_agent atlas-ux:kelly --reason 'the import was ours'

What a limit allows is what the configuration here says. Users, sessions and values of arguments are
hashes: tickfleet explain tells which counter a turn waits for. Of a limit with many counters, up to
10000 a shard are looked at."
)]
pub(crate) struct Limits {
    #[command(subcommand)]
    what: Option<What>,
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, Subcommand)]
enum What {
    /// Set a counter to zero. What waits for it is looked at now; who did it and why is in the audit log.
    Reset(reset::Reset),
}

/// What is asked for.
#[derive(Debug, Args)]
struct Which {
    /// One limit, or cap.
    #[arg(long, value_name = "NAME")]
    limit: Option<String>,
    /// Only what calls of this tenant may meet.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only what calls of this agent of the tenant may meet.
    #[arg(long, requires = "tenant")]
    agent: Option<AgentId>,
    /// Counters of each limit, the fullest first; at most 100.
    #[arg(long, value_name = "COUNT", default_value_t = 10, value_parser = clap::value_parser!(u8).range(1..=100))]
    top: u8,
}

/// Shows or resets.
///
/// # Errors
/// A limit, counter, tenant or agent that is not there; Redis.
pub(crate) async fn run(setup: &Setup, args: &Limits, output: &Output) -> Result<(), Failure> {
    if let Some(What::Reset(reset)) = &args.what {
        return reset::run(setup, reset, output).await;
    }
    let listing = listing::of(setup, (&setup.client().await?, &setup.pool()?), &args.which).await?;
    if let Some(hint) = setup.built_in_hint().filter(|_| !output.json) {
        output.note(hint);
    }
    listing.policy.doubts().iter().for_each(|doubt| output.note(doubt));
    output.show(&listing, |listing| show::text(listing, output))
}

/// The same for whoever asks from elsewhere, as data.
///
/// # Errors
/// A limit, tenant or agent that is not there; Redis.
pub(crate) async fn told(setup: &Setup, redis: (&Client, &Pool), asked: &LimitsAsked) -> Result<Value, Failure> {
    let LimitsAsked { limit, tenant, agent, top } = asked.clone();
    let listing = listing::of(setup, redis, &Which { limit, tenant, agent, top }).await?;
    serde_json::to_value(listing).map_err(Failure::failed)
}
