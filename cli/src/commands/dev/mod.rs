//! `tickfleet dev`: a whole fleet in one process, without any setup.

pub(crate) mod here;
pub(crate) mod socket;

use std::fs::DirBuilder;
use std::io::IsTerminal;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use clap::Args;
use tickfleet_ops::redis_server::{Listen, PrivateRedis, ServerOptions};
use tickfleet_ops::shutdown::Shutdown;

use self::here::{DevHere, GRANT_TRIAL_TOOLS};
use self::socket::DIR;
use crate::commands::gateway::console::{Console, PORT};
use crate::failure::Failure;
use crate::fleet::modules;
use crate::fleet::{self, Fleet, ProbeAddress, Roles};
use crate::global::Global;
use crate::output::Output;
use crate::output::invoked::{program, quoted};
use crate::setup::{self, Setup};

/// A whole fleet in one process: a scheduler, a worker, the HTTP API and the console, without Redis.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet dev
  tickfleet dev --data state      keep the data in a folder: the next start continues with it
  tickfleet dev --redis           on a private Redis, for clients that speak Redis
  tickfleet dev --port            the same on port 6379, for clients that need host and port instead of a socket

The output shows how to submit a first turn from another terminal. Ctrl-C drains and stops the fleet.
Without --data, --redis or --port, the data ends with the process.
If --redis-url or the variable REDIS_URL is set, the fleet uses that Redis. A fleet of several machines needs Redis.")]
pub(crate) struct Dev {
    /// Folder of the socket for other commands, and of the private Redis: append-only file, log.
    #[arg(long, value_name = "DIR", default_value = DIR)]
    dir: PathBuf,
    /// Keep the data in this folder.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["redis", "port"])]
    data: Option<PathBuf>,
    /// Run on a private Redis, which keeps its data in --dir.
    #[arg(long)]
    redis: bool,
    /// As --redis, and listen on this port of 127.0.0.1, 6379 if none is given, instead of on a socket. Every user of
    /// this machine can reach the port.
    #[arg(long, num_args = 0..=1, default_missing_value = "6379", value_parser = clap::value_parser!(u16).range(1..))]
    port: Option<u16>,
    /// Serve the console and the HTTP API on this port of 127.0.0.1, 8080 if none is given. 0 picks a free port.
    /// Without Redis, this is the default, on 8080 or a free port.
    #[arg(long, value_name = "PORT", num_args = 0..=1, default_missing_value = "8080")]
    console: Option<u16>,
    /// Do not open the console in a browser. By default, it opens if the output is a terminal.
    #[arg(long)]
    no_open: bool,
}

/// With the built-in permissions, every agent gets the trial tools, so that there are tools to call.
pub(crate) fn setup(global: &Global) -> Result<Setup, Failure> {
    let mut sources = setup::sources(global)?;
    sources.environment.entry(GRANT_TRIAL_TOOLS.to_owned()).or_insert_with(|| "true".to_owned());
    let pools = modules::pools(&sources);
    Setup::of(&sources, &global.extensions, Some(&pools))
}

fn has_trial_tools(setup: &Setup) -> bool {
    setup.settings().permission.trial_tools && setup.configuration.samples().contains(&"permissions.yaml")
}

pub(crate) async fn run(setup: &Setup, args: &Dev, output: &Output) -> Result<(), Failure> {
    let traces = setup.start_log()?;
    let outcome = run_on(setup, args, output).await;
    if let Some(traces) = traces {
        traces.flush().await;
    }
    outcome
}

async fn run_on(setup: &Setup, args: &Dev, output: &Output) -> Result<(), Failure> {
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    if setup.url_chosen {
        if args.redis || args.port.is_some() || args.data.is_some() {
            return Err(Failure::usage(
                "--redis, --port and --data choose a store, but REDIS_URL (or --redis-url) names one: use one of them",
            ));
        }
        if setup.is_dev_socket() {
            return Err(Failure::usage("REDIS_URL (or --redis-url) names another tickfleet dev: unset it"));
        }
        setup.pool()?.time_ms().await.map_err(|error| with_redis_url_hint(error.into()))?;
        let place = format!("Redis at {}", setup.shown_url());
        return serve(
            setup,
            &DataLocation { place, ..DataLocation::default() },
            console_on(args.console),
            shutdown,
            output,
        )
        .await;
    }
    make_private(&args.dir);
    if !args.redis && args.port.is_none() {
        let setup = setup.in_memory(args.data.as_deref())?;
        let (lender, url) = socket::listen_in(&args.dir)?;
        let lending = tokio::spawn(lender.serve(setup.stores()?));
        let kept = args.data.as_ref().map(|data| format!("data in {}", data.display()));
        let place = DataLocation {
            place: kept.unwrap_or_else(|| "in memory".into()),
            here: Some((args.dir.clone(), url)),
            opens: !args.no_open && std::io::stdout().is_terminal(),
            ..DataLocation::default()
        };
        let console = console_on(args.console).or(Some((PORT, true)));
        let outcome = serve(&setup, &place, console, shutdown, output).await;
        lending.abort();
        // This task removes the socket when it ends.
        let _ = lending.await;
        return outcome;
    }
    let listen = args.port.map_or(Listen::Socket, Listen::Loopback);
    let options = ServerOptions { listen, appendonly: true, ..ServerOptions::new(&args.dir) };
    let mut redis = PrivateRedis::start(options).await.map_err(Failure::failed)?;
    let place = DataLocation {
        place: format!("a private Redis in {}", redis.dir().display()),
        here: Some((args.dir.clone(), redis.url())),
        redis_cli: redis_cli(&redis),
        opens: !args.no_open && std::io::stdout().is_terminal(),
    };
    let outcome = serve(&setup.at(redis.url()), &place, console_on(args.console), shutdown, output).await;
    // Let Redis save its data, even if serving failed. If this process dies earlier, Redis' watchdog stops Redis.
    redis.stop().await.map_err(Failure::failed)?;
    outcome
}

/// With the flag `false`, the console must use exactly this port.
fn console_on(port: Option<u16>) -> Option<(u16, bool)> {
    port.map(|port| (port, false))
}

#[derive(Default)]
struct DataLocation {
    place: String,
    /// The folder of the socket, and the URL for other commands; `None` if these commands already have the URL.
    here: Option<(PathBuf, String)>,
    redis_cli: Option<String>,
    opens: bool,
}

fn with_redis_url_hint(failure: Failure) -> Failure {
    match failure {
        Failure::Redis(message) => Failure::RedisReported(format!(
            "{message}\nREDIS_URL (or --redis-url) names this Redis. Unset it to let dev start a private one."
        )),
        other => other,
    }
}

/// Creates the folder, with a `.gitignore`. An existing folder may contain other files, so it is not changed.
/// Errors are ignored: `.gitignore` is optional, and the next step fails if the folder is missing.
fn make_private(dir: &Path) {
    if !dir.exists() && DirBuilder::new().recursive(true).mode(0o700).create(dir).is_ok() {
        let _ = std::fs::write(dir.join(".gitignore"), "*\n");
    }
}

/// `console` has a port and a flag. If the flag is true, the console can use another port.
async fn serve(
    setup: &Setup,
    place: &DataLocation,
    console: Option<(u16, bool)>,
    shutdown: Shutdown,
    output: &Output,
) -> Result<(), Failure> {
    let mut address = setup.settings().http.address;
    if address.ip().is_unspecified() {
        // Other machines need no access to a developer's machine, so listen only locally.
        address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), address.port());
    }
    let draining = shutdown.draining.clone();
    let fleet = fleet::start(setup, Roles::BOTH, ProbeAddress::Preferred(address), shutdown).await?;
    let console = match console {
        Some((port, any)) => Some(match Console::start(setup, port, &draining).await {
            Err(_) if any => Console::start(setup, 0, &draining).await?,
            started => started?,
        }),
        None => None,
    };
    // A terminal sends SIGHUP when it closes, and the process must then end instead of reloading.
    fleet.follow_configuration(setup, None);
    let mut announced = Vec::new();
    if let Some((dir, url)) = &place.here {
        announced.push(announcement(setup, url, console.as_ref()).announce(dir)?);
    }
    output.print(&welcome(setup, place, &fleet, console.as_ref()))?;
    if let (true, Some(console), Some((dir, _))) = (place.opens, &console, &place.here) {
        announced.push(here::open_console(dir, &console.link())?);
    }
    // The log already contains the failure.
    fleet.wait().await.map_err(|_| Failure::Reported)?;
    if let Some(console) = console {
        console.ended().await;
    }
    Ok(())
}

fn announcement(setup: &Setup, url: &str, console: Option<&Console>) -> DevHere {
    let http = console.map(Console::for_services);
    DevHere {
        redis_url: url.to_owned(),
        config: setup.folder().and_then(|dir| dir.canonicalize().ok()),
        trial_tools: has_trial_tools(setup),
        fleet_url: http.map(|(address, _)| format!("http://{address}")),
        fleet_key: http.map(|(_, key)| key.to_owned()),
    }
}

fn welcome(setup: &Setup, place: &DataLocation, fleet: &Fleet, console: Option<&Console>) -> String {
    let slots = setup.settings().worker.slots;
    let by_hand = place.redis_cli.clone().unwrap_or_default();
    let link = console.map(|console| format!("Console: {}\n", console.link())).unwrap_or_default();
    let over_http = console.map(|console| over_http(setup, console)).unwrap_or_default();
    let exports = exports(setup, place);
    // Commands find a fleet in the default folder without these variables.
    let is_found = place.here.as_ref().is_some_and(|(dir, _)| dir == Path::new(DIR));
    let commands = next_steps(setup);
    let elsewhere = match is_found {
        true => {
            format!("In another terminal, in this folder:\n{commands}{by_hand}\nIn other folders, first:\n{exports}")
        }
        false => format!("In another terminal:\n{exports}{commands}{by_hand}"),
    };
    format!(
        "Tickfleet runs: {}, one scheduler, one worker with {slots} slots.\n\
         Health and metrics: http://{}/metrics\n{link}\n{elsewhere}\n\
         {over_http}Ctrl-C drains and stops.\n",
        place.place, fleet.health,
    )
}

/// Commands in other folders need these variables to find this fleet and use the same policy.
fn exports(setup: &Setup, place: &DataLocation) -> String {
    let url = place.here.as_ref().map(|(_, url)| format!("  export REDIS_URL='{url}'\n")).unwrap_or_default();
    let trial = if has_trial_tools(setup) { format!("  export {GRANT_TRIAL_TOOLS}=true\n") } else { String::new() };
    let folder = setup.folder().and_then(|dir| dir.canonicalize().ok());
    let config = folder.map(|dir| format!("  export TICKFLEET_CONFIG={}\n", quoted(&dir.display().to_string())));
    format!("{url}{trial}{}", config.unwrap_or_default())
}

fn over_http(setup: &Setup, console: &Console) -> String {
    let (address, key) = console.for_services();
    let call = if has_trial_tools(setup) {
        r#"{"name": "echo", "arguments": {"text": "hi"}}"#
    } else {
        r#"{"name": "list_tools", "arguments": {}}"#
    };
    let turn = setup.example_caller().map(|(_, agent)| {
        format!(
            "  curl -s -H \"Authorization: Bearer $FLEET_KEY\" \"$FLEET_URL/v1/turns?wait=30\" \\\n    \
             -d '{{\"agent\": \"{agent}\", \"calls\": [{call}]}}'\n"
        )
    });
    format!("Over HTTP:\n  export FLEET_URL=http://{address}\n  export FLEET_KEY={key}\n{}\n", turn.unwrap_or_default())
}

/// Client libraries accept the socket's URL, but `redis-cli` does not. `None` if Redis listens on a port.
fn redis_cli(redis: &PrivateRedis) -> Option<String> {
    Some(format!("  redis-cli -s {}\n", quoted(&redis.socket()?.display().to_string())))
}

fn next_steps(setup: &Setup) -> String {
    let program = program();
    // Every agent can call `list_tools`, even without the trial tools.
    let call = if has_trial_tools(setup) { "'echo {\"text\":\"hi\"}'" } else { "list_tools" };
    let who = setup.example_caller().map(|(tenant, agent)| format!(" --tenant {tenant} --agent {agent}"));
    let turn = who.as_ref().map(|who| format!("  {program} submit{who} --call {call} --wait\n"));
    let who = who.unwrap_or_default();
    format!("{}  {program} tools{who}\n  {program} doctor\n", turn.unwrap_or_default())
}
