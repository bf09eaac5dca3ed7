//! `tickfleet pause` and `tickfleet resume`: calls of a tenant, or of one of its agents, do not go out for a while.

use clap::Args;
use serde::Serialize;
use tickfleet_client::Client;
use tickfleet_client::operate::{self, Operator};
use tickfleet_model::policy::{Pause, Paused};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::PauseSet;

use crate::commands::limits::{by_environment, reason, who};
use crate::failure::Failure;
use crate::output::time_format::{clock, from_now};
use crate::output::{Output, lines, table};
use crate::setup::Setup;

/// Let no call of a tenant, or of one of its agents, go out any more, at once and in the whole fleet. What was admitted
/// goes on to its end; what is submitted waits on its agent's lane, with its deadline, until tickfleet resume. Without a
/// tenant: show who is paused.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet pause demo kelly --reason 'she writes to the wrong people'
  tickfleet pause demo --reason 'the contract has ended' --by anna
  tickfleet pause                                    who is paused
  tickfleet resume demo kelly --reason 'mended'

Tools are taken away with tickfleet tools disable: their calls are denied, and do not wait. Tasks that are delegated to a
paused agent are begun; the calls that it makes for them wait.")]
pub(crate) struct PauseArgs {
    /// Whose calls.
    #[arg(value_name = "TENANT", requires = "reason")]
    tenant: Option<TenantId>,
    #[command(flatten)]
    rest: Rest,
    /// Why, for the audit log and for whoever asks why a turn waits.
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
}

/// Let calls of a paused tenant or agent go out again.
#[derive(Debug, Args)]
#[command(after_help = "Example: tickfleet resume demo kelly --reason 'mended'")]
pub(crate) struct ResumeArgs {
    /// Whose calls.
    #[arg(value_name = "TENANT")]
    tenant: TenantId,
    #[command(flatten)]
    rest: Rest,
    /// Why, for the audit log.
    #[arg(long, value_parser = reason)]
    reason: String,
}

#[derive(Debug, Args)]
struct Rest {
    /// The agent; none: all agents of the tenant.
    #[arg(value_name = "AGENT")]
    agent: Option<AgentId>,
    /// Who, for the audit log. Without it, what the variable USER says.
    #[arg(long, value_name = "NAME", value_parser = who)]
    by: Option<String>,
}

/// A pause that holds.
#[derive(Debug, Serialize)]
struct Holds {
    tenant: TenantId,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<AgentId>,
    #[serde(flatten)]
    pause: Pause,
}

/// What was done.
#[derive(Debug, Serialize)]
struct Done<'a> {
    tenant: &'a TenantId,
    #[serde(skip_serializing_if = "Option::is_none")]
    agent: Option<&'a AgentId>,
    /// False where it was so already.
    changed: bool,
}

/// Pauses, or shows who is paused.
///
/// # Errors
/// Nobody says who it is; too many are paused; Redis.
pub(crate) async fn run(setup: &Setup, args: &PauseArgs, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let (Some(tenant), Some(reason)) = (&args.tenant, &args.reason) else { return list(&client, output).await };
    let by = args.rest.by.clone().map_or_else(by_environment, Ok)?;
    let who = Paused { tenant: tenant.clone(), agent: args.rest.agent.clone() };
    warn_of_unknown(setup, &who, output);
    let report = setup.report();
    let operator = Operator { by: &by, reason, redactor: &report.redactor };
    let set = operate::pause(client.store(tenant), &who, operator).await?;
    if set == PauseSet::Full {
        return Err(Failure::failed(anyhow::anyhow!("too many tenants and agents are paused: resume some first")));
    }
    done(&who, set, output, |name, changed| {
        if changed {
            return format!("no call of {name} goes out any more; what was admitted goes on, and what comes waits");
        }
        format!("{name} was paused already")
    })
}

/// Resumes.
///
/// # Errors
/// Nobody says who it is; Redis.
pub(crate) async fn resume(setup: &Setup, args: &ResumeArgs, output: &Output) -> Result<(), Failure> {
    let by = args.rest.by.clone().map_or_else(by_environment, Ok)?;
    let who = Paused { tenant: args.tenant.clone(), agent: args.rest.agent.clone() };
    let (client, report) = (setup.client().await?, setup.report());
    let operator = Operator { by: &by, reason: &args.reason, redactor: &report.redactor };
    let set = operate::resume(client.store(&who.tenant), &who, operator).await?;
    done(&who, set, output, |name, changed| {
        if changed {
            return format!("calls of {name} go out again, the next within a tick");
        }
        format!("{name} was not paused; tickfleet pause shows who is")
    })
}

fn done(who: &Paused, set: PauseSet, output: &Output, words: impl FnOnce(&str, bool) -> String) -> Result<(), Failure> {
    let changed = set == PauseSet::Ok;
    let done = Done { tenant: &who.tenant, agent: who.agent.as_ref(), changed };
    output.show(&done, |_| words(&name(&who.tenant, who.agent.as_ref()), changed))
}

fn name(tenant: &TenantId, agent: Option<&AgentId>) -> String {
    agent.map_or_else(|| format!("tenant {tenant}"), |agent| format!("agent {agent} of {tenant}"))
}

/// A pause of nobody is taken: whoever it is may be declared later.
fn warn_of_unknown(setup: &Setup, who: &Paused, output: &Output) {
    let policy = &setup.configuration.policy;
    let is_unknown = who.agent.as_ref().is_some_and(|agent| !policy.agents.contains_key(agent));
    if is_unknown || !policy.tenants.contains_key(&who.tenant) {
        output.note(&format!("the configuration here knows no {}", name(&who.tenant, who.agent.as_ref())));
    }
}

async fn list(client: &Client, output: &Output) -> Result<(), Failure> {
    let mut pauses = Vec::new();
    let mut now_ms = 0;
    for store in client.stores() {
        now_ms = store.now_ms().await?;
        let held = store.at_run_time().await?.pauses.into_iter();
        pauses.extend(held.map(|(who, pause)| Holds { tenant: who.tenant, agent: who.agent, pause }));
    }
    output.show(&pauses, |pauses| {
        if pauses.is_empty() {
            return "Nobody is paused.".into();
        }
        let mut rows = table(&["TENANT", "AGENT", "SINCE", "BY", "WHY"]);
        for held in pauses {
            let since = format!("{} ({})", clock(held.pause.since_ms), from_now(held.pause.since_ms, now_ms));
            let agent = held.agent.as_ref().map_or("all", AgentId::as_str);
            let Pause { by, reason, .. } = &held.pause;
            rows.add_row([held.tenant.as_str(), agent, since.as_str(), by.as_str(), reason.as_str()]);
        }
        lines(rows)
    })
}
