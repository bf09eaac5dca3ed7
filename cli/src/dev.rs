//! `tickfleet dev`: a whole fleet in one process, with nothing to set up.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use shared::ops::redis_server::{PrivateRedis, ServerOptions};
use shared::ops::shutdown::Shutdown;

use crate::failure::Failure;
use crate::fleet::{self, Answer, Fleet, Roles};
use crate::output::Output;
use crate::setup::Setup;

/// A private Redis (or the one that REDIS_URL names), a scheduler and a worker.
#[derive(Debug, Args)]
#[command(after_help = "\
Example: tickfleet dev
What it prints shows how to submit a first turn from another terminal. Ctrl-C drains and stops;
what is unfinished goes on at the next start, because the private Redis keeps its data in --dir.")]
pub(crate) struct Dev {
    /// Folder of the private Redis: socket, append-only file, log.
    #[arg(long, value_name = "DIR", default_value = ".tickfleet")]
    dir: PathBuf,
}

/// Runs until a signal.
///
/// # Errors
/// What keeps it from starting; [`Failure::Redis`] where the Redis that was chosen cannot be reached.
pub(crate) async fn run(setup: &Setup, args: &Dev, output: &Output) -> Result<(), Failure> {
    let traces = setup.start_log()?;
    let outcome = run_on(setup, args, output).await;
    if let Some(traces) = traces {
        traces.flush().await;
    }
    outcome
}

/// Runs on the Redis that was chosen, or on a private one.
async fn run_on(setup: &Setup, args: &Dev, output: &Output) -> Result<(), Failure> {
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    if setup.url_chosen {
        setup.pool()?.time_ms().await?;
        return serve(setup, None, shutdown, output).await;
    }
    let options = ServerOptions { appendonly: true, ..ServerOptions::new(&args.dir) };
    let mut redis = PrivateRedis::start(options).await.map_err(Failure::failed)?;
    let outcome = serve(&setup.at(redis.url()), Some(&redis), shutdown, output).await;
    // However it went, Redis saves before it ends. Where we do not come here at all, its watchdog ends it.
    redis.stop().await.map_err(Failure::failed)?;
    outcome
}

async fn serve(
    setup: &Setup,
    redis: Option<&PrivateRedis>,
    shutdown: Shutdown,
    output: &Output,
) -> Result<(), Failure> {
    let mut address = setup.settings().http.address;
    if address.ip().is_unspecified() {
        // On a developer's machine nobody else has to see it.
        address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
    }
    let fleet = fleet::start(setup, Roles::BOTH, Answer::OnOrFree(address), shutdown).await?;
    // SIGHUP still ends it: it is what a terminal says that is being closed.
    fleet.follow_configuration(setup, None);
    output.print(&welcome(setup, redis, &fleet))?;
    // The log has told why it failed.
    fleet.wait().await.map_err(|_| Failure::Told)
}

/// What runs, and what to do next.
fn welcome(setup: &Setup, redis: Option<&PrivateRedis>, fleet: &Fleet) -> String {
    let place = match redis {
        Some(redis) => format!("a private Redis in {}", redis.dir().display()),
        None => format!("Redis at {}", setup.shown_url()),
    };
    let slots = setup.settings().worker.slots;
    let export = redis.map(|redis| format!("  export REDIS_URL='{}'\n", redis.url())).unwrap_or_default();
    format!(
        "Tickfleet runs: {place}, one scheduler, one worker with {slots} slots.\n\
         Health and metrics: http://{}/metrics\n\n\
         In another terminal:\n{export}\
         \x20 tickfleet submit --tenant demo --agent kelly --call 'echo {{\"text\":\"hi\"}}' --wait\n\
         \x20 tickfleet tools --tenant demo --agent kelly\n\
         \x20 tickfleet doctor\n\n\
         Ctrl-C drains and stops.\n",
        fleet.health
    )
}
