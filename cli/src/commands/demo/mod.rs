//! `tickfleet demo`: a simulated working day of 18 agents, without any setup. One second is one hour of the day.
//! [`day`] is the script, and [`stand_in`] has the fake services.

mod calendar;
mod day;
mod kinds;
mod play;
mod played;
mod report;
mod show;
mod stand_in;
mod watched;
mod words;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tickfleet_config::Environment;
use tickfleet_model::AgentId;
use tickfleet_ops::shutdown::Shutdown;

use crate::commands::mcp;
use crate::failure::Failure;
use crate::fleet::extensions::Extensions;
use crate::fleet::modules::pools;
use crate::fleet::{self, ProbeAddress, Roles};
use crate::global::Global;
use crate::output::Output;
use crate::setup::{self, Setup};
use day::Planned;
use kinds::{Kinds, Probed};
use report::Report;
use stand_in::StandIn;
use watched::DemoConsole;

const CAPPED: (&str, u32) = ("dwight", 6);
const FAST_SETTINGS: [(&str, &str); 2] =
    [("TICKFLEET_CAPS_TICK", "1s"), ("TICKFLEET_WORKER_RETRY_DELAYS", "200ms,400ms,800ms")];

const MCP: &str = include_str!("mcp.yaml");
/// Tools that some machines cannot run are added later.
const TOOLS: &str = include_str!("../../../../config/tools.yaml");
const PERMISSIONS: &str = concat!(
    include_str!("../../../../config/permissions.yaml"),
    "\n  # A tool for trying a fleet out, here a workflow that takes too long.\n\
     \x20 sleep: {everyone: true}\n\
     \n  # The team calendar.\n\
     \x20 calendar__list_meetings: {everyone: true}\n\
     \x20 calendar__book_meeting: {agents: [atlas, binky, petra]}\n"
);

/// Play a scripted day of the sample agents on a private fleet and print the results.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
Example: tickfleet demo
The demo starts a scheduler, a worker, and fakes of Telegram, X, a model and an MCP server, and
prints a link to the console. With --stay, the console stays open at the end. The demo needs no
Redis. All traffic stays on this machine, and all data is removed. The demo ignores --config,
REDIS_URL and the environment. Exit code 0 only if every call got exactly one result, no cap was
exceeded, and no message, post or booking was repeated.")]
pub(crate) struct Demo {
    /// Interpreter of the Python tool, with the package tickfleet. Without the package, the demo skips the tool.
    #[arg(long, value_name = "PROGRAM", default_value = "python3")]
    interpreter: String,
    /// Keep the console open until Ctrl-C.
    #[arg(long)]
    stay: bool,
}

/// Returns [`Failure::Reported`] if a check failed.
pub(crate) async fn run(args: &Demo, output: &Output) -> Result<(), Failure> {
    let dir = std::env::temp_dir().join(format!("tickfleet-demo-{}", std::process::id()));
    let probed = Probed::on_this_machine(dir.with_extension("workspaces"), &args.interpreter).await;
    let outcome = play_and_report(args, &dir, &probed, output).await;
    drop(std::fs::remove_dir_all(&dir));
    drop(std::fs::remove_dir_all(probed.workspaces()));
    if outcome?.ok { Ok(()) } else { Err(Failure::Reported) }
}

async fn play_and_report(args: &Demo, dir: &Path, probed: &Probed, output: &Output) -> Result<Report, Failure> {
    let day = probed.playable(day::plan()?);
    let stand_in = StandIn::start(&day).await?;
    let setup = configured(dir, probed, &stand_in).await?;
    let watched = DemoConsole::open(&setup, output).await;
    let played = play_day(&setup, &day, probed, &stand_in, &watched, output).await;
    // The interpreters must stop even if the fleet did not start.
    setup.stop_modules().await;
    let report = played?;
    if output.json {
        output.data(&report)?;
    } else {
        output.print(&show::account(&report, output))?;
        output.print(&show::next())?;
    }
    watched.close(args.stay, output).await?;
    Ok(report)
}

async fn play_day(
    setup: &Setup,
    day: &[Planned],
    probed: &Probed,
    stand_in: &StandIn,
    watched: &DemoConsole,
    output: &Output,
) -> Result<Report, Failure> {
    let kinds = Kinds::of(setup);
    let left_out = probed.left_out();
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let probes = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let fleet = fleet::start(setup, Roles::BOTH, ProbeAddress::On(probes), shutdown.clone()).await?;
    if !output.json {
        let policy = &setup.configuration.policy;
        output.print(&show::opening(day, policy, &kinds, &left_out, &watched.invitation(), output))?;
    }
    let mut running = std::pin::pin!(fleet.wait());
    let played = tokio::select! {
        played = play::day(setup, day, output) => played,
        ended = &mut running => {
            ended?;
            return Err(Failure::failed(anyhow::anyhow!("stopped before the day was over")));
        }
    };
    let report = played.map(|played| Report::new(day, &played, &stand_in.ledger(), &kinds, left_out));
    shutdown.drain();
    running.await?;
    report
}

/// Declares, grants and pins the calendar's tools in the folder `dir`.
async fn configured(dir: &Path, probed: &Probed, stand_in: &StandIn) -> Result<Setup, Failure> {
    let base = stand_in.base_url.as_str();
    let calendar_url = format!("{base}{}", calendar::PATH);
    let model_url = format!("{base}/v1");
    let workspaces = probed.workspaces().to_string_lossy();
    let pairs = [
        ("TELEGRAM_BASE_URL", base),
        ("X_BASE_URL", base),
        ("TICKFLEET_ALLOW_PRIVATE", "127.0.0.1"),
        ("TELEGRAM_BOT_TOKEN", stand_in::BOT_TOKEN),
        ("X_USER_TOKEN", stand_in::X_USER_TOKEN),
        ("X_BEARER_TOKEN", stand_in::X_BEARER_TOKEN),
        ("CALENDAR_URL", &calendar_url),
        ("CALENDAR_TOKEN", calendar::TOKEN),
        ("OPENAI_BASE_URL", &model_url),
        ("OPENAI_MODEL", "scripted"),
        ("TICKFLEET_WORKER_WORKSPACES", &workspaces),
        ("TICKFLEET_AUDIT_ADMISSIONS", "true"),
    ];
    let pairs = pairs.into_iter().chain(FAST_SETTINGS);
    let environment: Environment = pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let global = Global {
        config: Some(dir.to_owned()),
        redis_url: None,
        json: false,
        trial_tools: false,
        extensions: Extensions::default(),
    };
    let sources = setup::sources_in(environment, &global)?;
    write_all(dir, probed).with_context(|| format!("{} cannot be written", dir.display()))?;
    mcp::pin_all(&sources).await?;
    let mut setup = Setup::of(&sources, &global.extensions, Some(&pools(&sources)))?.in_memory(None)?;
    let policy = &mut setup.configuration.policy;
    let capped = Arc::make_mut(&mut policy.agents).get_mut(&AgentId::new(CAPPED.0)?);
    capped.context("the agent with the day cap is not configured")?.max_actions_per_day = Some(CAPPED.1);
    // A midnight during the demo would reset the day cap. Choose a time zone in which midnight is hours away.
    let now_ms = setup.stores()?.first().context("the demo has no shard")?.now_ms().await?;
    let hour = now_ms / 3_600_000 % 24;
    let tenant = setup.configuration.policy.tenants.get_mut(&day::tenant()?);
    let zone = if (6..18).contains(&hour) { "UTC" } else { "Etc/GMT-12" };
    tenant.context("the tenant of the day is not configured")?.time_zone = Some(zone.to_owned());
    Ok(setup)
}

fn write_all(dir: &Path, probed: &Probed) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let (declaration, grant) = probed.configuration(dir)?;
    std::fs::write(dir.join("mcp.yaml"), MCP)?;
    std::fs::write(dir.join("tools.yaml"), format!("{TOOLS}{declaration}"))?;
    std::fs::write(dir.join("permissions.yaml"), format!("{PERMISSIONS}{grant}"))
}
