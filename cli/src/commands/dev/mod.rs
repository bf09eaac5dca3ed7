//! `tickfleet dev`: a whole fleet in one process, with nothing to set up.

pub(crate) mod socket;

use std::fs::DirBuilder;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;
use tickfleet_ops::redis_server::{Listen, PrivateRedis, ServerOptions};
use tickfleet_ops::shutdown::Shutdown;

use self::socket::DIR;
use crate::commands::gateway::console::{Console, PORT};
use crate::failure::Failure;
use crate::fleet::python;
use crate::fleet::{self, Answer, Fleet, Roles};
use crate::global::Global;
use crate::output::Output;
use crate::output::invoked::{program, quoted};
use crate::setup::{self, Setup};

/// A private Redis (or the one that REDIS_URL names, or none), a scheduler and a worker.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet dev
  tickfleet dev --port            for clients that need host and port instead of a socket
  tickfleet dev --console         with the console, and a link to it with a key
  tickfleet dev --memory          without Redis, for clients of the HTTP API
  tickfleet dev --data state      the same, with all data kept in a folder

The output shows how to submit a first turn from another terminal. Ctrl-C drains and stops the fleet.
The private Redis keeps its data in --dir, so unfinished work continues at the next start.
If --redis-url or the variable REDIS_URL is set, the fleet uses that Redis instead of a private one.
With --memory or --data there is no Redis: only this process is the fleet, and clients use its HTTP API. Other commands of
tickfleet, and a fleet of several processes, need a Redis.")]
pub(crate) struct Dev {
    /// Folder of the private Redis: socket, append-only file, log.
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
    /// Let the private Redis listen on this port of 127.0.0.1, 6379 if none is given, instead of on a socket. Every user of
    /// this machine can reach the port.
    #[arg(long, num_args = 0..=1, default_missing_value = "6379", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Keep the fleet's data in the memory of this process, without Redis. It ends with the process. The console and the
    /// HTTP API are served, too.
    #[arg(long, conflicts_with = "port")]
    memory: bool,
    /// As --memory, and keep the data in this folder: the next start continues with it.
    #[arg(long, value_name = "DIR", conflicts_with = "port")]
    data: Option<PathBuf>,
    /// Serve the console and the HTTP API on this port of 127.0.0.1, 8080 if none is given. 0 picks a free port.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "8080")]
    console: Option<u16>,
}

/// The setting that makes the trial tools everybody's, as a variable.
const TRIAL_TOOLS: &str = "TICKFLEET_PERMISSION_TRIAL_TOOLS";

/// The configuration; where its permissions are the built-in ones, every agent has the trial tools: there has to be
/// something to call.
///
/// # Errors
/// Everything that is wrong with it.
pub(crate) fn setup(global: &Global) -> Result<Setup, Failure> {
    let mut sources = setup::sources(global)?;
    sources.environment.entry(TRIAL_TOOLS.to_owned()).or_insert_with(|| "true".to_owned());
    let python = python::python(&sources);
    Setup::of(&sources, &global.extensions, Some(&python))
}

/// Returns true if every agent has the trial tools.
fn has_trial_tools(setup: &Setup) -> bool {
    setup.settings().permission.trial_tools && setup.configuration.samples().contains(&"permissions.yaml")
}

/// Runs until a signal.
///
/// # Errors
/// The failure that keeps it from starting; [`Failure::RedisTold`] if the Redis that was chosen cannot be reached.
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
    if args.memory || args.data.is_some() {
        let setup = setup.in_memory(args.data.as_deref())?;
        let console = Some(args.console.unwrap_or(PORT));
        return serve(&setup, None, console, shutdown, output).await;
    }
    if setup.url_chosen && args.port.is_some() {
        return Err(Failure::usage(
            "--port applies to a private Redis, but REDIS_URL (or --redis-url) names another: use one of them",
        ));
    }
    if setup.url_chosen {
        setup.pool()?.time_ms().await.map_err(|error| chosen_is_away(error.into()))?;
        return serve(setup, None, args.console, shutdown, output).await;
    }
    keep_out_of_git(&args.dir);
    let listen = args.port.map_or(Listen::Socket, Listen::Loopback);
    let options = ServerOptions { listen, appendonly: true, ..ServerOptions::new(&args.dir) };
    let mut redis = PrivateRedis::start(options).await.map_err(Failure::failed)?;
    let outcome = serve(&setup.at(redis.url()), Some(&redis), args.console, shutdown, output).await;
    // However it went, Redis saves before it ends. Where we do not come here at all, its watchdog ends it.
    redis.stop().await.map_err(Failure::failed)?;
    outcome
}

/// A Redis that was chosen in another terminal, and long ago, is easily forgotten.
fn chosen_is_away(failure: Failure) -> Failure {
    match failure {
        Failure::Redis(message) => Failure::RedisTold(format!(
            "{message}\nREDIS_URL (or --redis-url) names this Redis. Unset it to let dev start a private one."
        )),
        other => other,
    }
}

/// Keeps the private Redis' files out of git. A folder that is there already is left as it is: it may hold other
/// things. Without the file, everything works as well.
fn keep_out_of_git(dir: &Path) {
    if !dir.exists() && DirBuilder::new().recursive(true).mode(0o700).create(dir).is_ok() {
        let _ = std::fs::write(dir.join(".gitignore"), "*\n");
    }
}

async fn serve(
    setup: &Setup,
    redis: Option<&PrivateRedis>,
    console: Option<u16>,
    shutdown: Shutdown,
    output: &Output,
) -> Result<(), Failure> {
    let mut address = setup.settings().http.address;
    if address.ip().is_unspecified() {
        // On a developer's machine nobody else has to see it.
        address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
    }
    let draining = shutdown.draining.clone();
    let fleet = fleet::start(setup, Roles::BOTH, Answer::OnOrFree(address), shutdown).await?;
    let console = match console {
        Some(port) => Some(Console::start(setup, port, &draining).await?),
        None => None,
    };
    // SIGHUP still ends it: it is what a terminal says that is being closed.
    fleet.follow_configuration(setup, None);
    output.print(&welcome(setup, redis, &fleet, console.as_ref()))?;
    // The log has told why it failed.
    fleet.wait().await.map_err(|_| Failure::Told)?;
    if let Some(console) = console {
        console.ended().await;
    }
    Ok(())
}

/// Returns the welcome: what runs, and what to do next.
fn welcome(setup: &Setup, redis: Option<&PrivateRedis>, fleet: &Fleet, console: Option<&Console>) -> String {
    let place = match redis {
        Some(redis) => format!("a private Redis in {}", redis.dir().display()),
        None => format!("Redis at {}", setup.shown_url()),
    };
    let slots = setup.settings().worker.slots;
    if let Some(console) = console.filter(|_| setup.is_in_memory()) {
        return welcome_in_memory(setup, slots, fleet, console);
    }
    let url = redis.map(|redis| format!("  export REDIS_URL='{}'\n", redis.url())).unwrap_or_default();
    // What is asked there is asked of the same policy.
    let trial = if has_trial_tools(setup) { format!("  export {TRIAL_TOOLS}=true\n") } else { String::new() };
    let export = format!("{url}{trial}");
    let by_hand = redis.and_then(redis_cli).unwrap_or_default();
    let console = console.map(|console| format!("Console: {}\n", console.link())).unwrap_or_default();
    format!(
        "Tickfleet runs: {place}, one scheduler, one worker with {slots} slots.\n\
         Health and metrics: http://{}/metrics\n{console}\n\
         In another terminal:\n{export}{}{by_hand}\n\
         Ctrl-C drains and stops.\n",
        fleet.health,
        next_steps(setup)
    )
}

/// Returns the welcome of a fleet without Redis, which other processes reach over HTTP alone.
fn welcome_in_memory(setup: &Setup, slots: usize, fleet: &Fleet, console: &Console) -> String {
    let (address, key) = console.for_services();
    let call = if has_trial_tools(setup) {
        r#"{"name": "echo", "arguments": {"text": "hi"}}"#
    } else {
        r#"{"name": "list_tools", "arguments": {}}"#
    };
    let turn = setup.somebody().map(|(_, agent)| {
        format!(
            "  curl -s -H \"Authorization: Bearer $FLEET_KEY\" \"$FLEET_URL/v1/turns?wait=30\" \\\n    \
             -d '{{\"agent\": \"{agent}\", \"calls\": [{call}]}}'\n"
        )
    });
    format!(
        "Tickfleet runs: without Redis, one scheduler, one worker with {slots} slots.\n\
         Health and metrics: http://{}/metrics\nConsole: {}\n\n\
         In another terminal:\n  export FLEET_URL=http://{address}\n  export FLEET_KEY={key}\n{}\n\
         Ctrl-C drains and stops.\n",
        fleet.health,
        console.link(),
        turn.unwrap_or_default()
    )
}

/// Returns how redis-cli reaches the private Redis: client libraries take the URL of a socket, and it does not.
fn redis_cli(redis: &PrivateRedis) -> Option<String> {
    Some(format!("  redis-cli -s {}\n", quoted(&redis.socket()?.display().to_string())))
}

/// Commands that work with this configuration.
fn next_steps(setup: &Setup) -> String {
    let program = program();
    let dir = setup.sources().dir.as_deref();
    let config = dir.map(|dir| format!(" --config {}", quoted(&dir.display().to_string()))).unwrap_or_default();
    // Every agent may call `list_tools`.
    let call = if has_trial_tools(setup) { "'echo {\"text\":\"hi\"}'" } else { "list_tools" };
    let who = setup.somebody().map(|(tenant, agent)| format!(" --tenant {tenant} --agent {agent}"));
    let turn = who.as_ref().map(|who| format!("  {program} submit{who} --call {call} --wait{config}\n"));
    let who = who.unwrap_or_default();
    format!("{}  {program} tools{who}{config}\n  {program} doctor{config}\n", turn.unwrap_or_default())
}
