//! `tickfleet mcp wrap`: runs a fleet in one process in front of one MCP server. MCP clients start this process in
//! place of the server.

mod sources;

use std::fs::{DirBuilder, OpenOptions};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, anyhow};
use clap::Args;
use tickfleet_config::{MCP_LOCK_FILE, McpFile, McpPins};
use tickfleet_gateway::{LocalApprover, PublicUrl, serve_stdio};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_store::ToolLists;

use self::sources::WrapSources;
use super::{ServerCheck, ServerCheckWait, check_servers, chosen, merged, text, write_to};
use crate::commands::dev::socket;
use crate::commands::gateway::console::Console;
use crate::failure::Failure;
use crate::fleet::{self, ProbeAddress, Roles, modules};
use crate::global::{Global, tool_environment};
use crate::output::Output;
use crate::setup::Setup;

/// Long, because `npx` and `uvx` may download the server first.
const PIN_TIMEOUT: Duration = Duration::from_secs(120);
/// Running calls get this long to finish. Clients soon kill a server that does not exit.
const DRAIN: Duration = Duration::from_secs(1);
const PROCESSES_MAX: u32 = 32;
const LINK_FILE: &str = "console.url";

/// Serve the tools of an MCP server with caps, approvals and an audit log, on standard input and output.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples, each for the configuration of an MCP client:
  tickfleet mcp wrap --name files -- npx -y @modelcontextprotocol/server-filesystem@2026.8.31 /srv/shared
  tickfleet mcp wrap --approve 'write_*' --deny move_file --name files -- npx -y …
  tickfleet mcp wrap --header 'Authorization: Bearer ${CRM_TOKEN}' --url https://mcp.crm.example/mcp
  tickfleet mcp wrap --config policy --name files -- npx -y …     with rules and limits of your own

The first start pins the definitions of the tools. To accept later changes, run the same command with --pin.
The server gets the environment of this process. Logs go to standard error.")]
pub(crate) struct Wrap {
    /// Name of the server and of its data folder, 1 to 32 of a-z 0-9 _ -. If missing, derived from the command or URL.
    #[arg(long)]
    name: Option<String>,
    /// Folder of the data, with a folder per name. If missing, tickfleet/wrap in $XDG_DATA_HOME or ~/.local/share.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Ask a person before each call of these tools. * matches any characters. Repeatable.
    #[arg(long, value_name = "TOOL")]
    approve: Vec<String>,
    /// Hide these tools. * matches any characters. Repeatable.
    #[arg(long, value_name = "TOOL")]
    deny: Vec<String>,
    /// Calls per day. If missing, caps.max_actions_per_day.
    #[arg(long, value_name = "CALLS")]
    cap: Option<u32>,
    /// Pin the server's current tools, show what changed, and exit.
    #[arg(long)]
    pin: bool,
    /// URL of a server over streamable HTTP, in place of a command.
    #[arg(long, conflicts_with = "command")]
    url: Option<String>,
    /// Header of each request to the URL, such as 'Authorization: Bearer ${TOKEN}'. ${NAME} reads the environment.
    /// Repeatable.
    #[arg(long, value_name = "NAME: VALUE", requires = "url")]
    header: Vec<String>,
    /// Command that starts the server on standard input and output.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

pub(crate) async fn run(args: &Wrap, global: &Global, output: &Output) -> Result<(), Failure> {
    let mut wrapped = WrapSources::new(args, global)?;
    if args.pin {
        return pin(&wrapped, output).await;
    }
    let pins = pins(&wrapped).await?;
    wrapped.import(args, &pins)?;
    let sources = &wrapped.sources;
    let mut setup = Setup::of(sources, &global.extensions, Some(&modules::pools(sources)))?;
    for def in setup.configuration.mcp.servers.values_mut() {
        wrapped.pass_environment(def);
    }
    let traces = setup.start_log()?;
    let (setup, dir) = with_data(&setup, &wrapped.base)?;
    let outcome = serve(&setup, &dir).await;
    setup.stop_modules().await;
    if let Some(traces) = traces {
        traces.flush().await;
    }
    outcome
}

async fn serve(setup: &Setup, dir: &Path) -> Result<(), Failure> {
    let agent = setup.example_caller().map(|(tenant, agent)| (tenant.clone(), agent.clone()));
    let agent = agent.context("the configuration has no tenant with an agent")?;
    expire_tool_list(setup, &agent).await?;
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let probes = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let fleet = fleet::start(setup, Roles::BOTH, ProbeAddress::On(probes), shutdown.clone()).await?;
    let console = Console::start(setup, 0, &shutdown.draining).await?;
    let link = dir.join(LINK_FILE);
    write_link(&link, &console.link())?;
    let approver = approver(setup, &console, &link)?;
    // The path may be too long for a socket. The fleet then runs without it: the console still shows the audit log.
    let lending = match socket::listen_in(dir) {
        Ok((lender, _)) => Some(tokio::spawn(lender.serve(setup.stores()?))),
        Err(failure) => {
            tracing::warn!(reason = failure.message().unwrap_or_default(), "no socket for other commands");
            None
        }
    };
    let client = setup.client().await?;
    let serving = async {
        let served = serve_stdio(client, agent, approver, shutdown.draining.clone()).await;
        shutdown.drain();
        let shutdown = shutdown.clone();
        tokio::spawn(async move {
            tokio::time::sleep(DRAIN).await;
            shutdown.stop_now();
        });
        served
    };
    let (served, ended) = tokio::join!(serving, fleet.wait());
    console.ended().await;
    if let Some(lending) = lending {
        lending.abort();
        // This task removes the socket when it ends.
        let _ = lending.await;
    }
    // A failed removal is harmless: the file links to a console that has ended.
    let _ = std::fs::remove_file(&link);
    // The log already contains the failure.
    ended.map_err(|_| Failure::Reported)?;
    served.map_err(|error| Failure::failed(anyhow!("no MCP client connected, or it disconnected at once: {error}")))
}

/// Otherwise, a client that is quicker than the worker receives the list of the last run, whose policy may differ.
async fn expire_tool_list(setup: &Setup, (tenant, agent): &(TenantId, AgentId)) -> Result<(), Failure> {
    let lists = ToolLists { agents: vec![(tenant.clone(), agent.clone(), String::new())], ..ToolLists::default() };
    for store in setup.stores()? {
        store.write_tool_lists("", &lists, 1, 1).await?;
    }
    Ok(())
}

/// The user of this machine is the first approver of the policy. `None` if the policy has no approver.
fn approver(setup: &Setup, console: &Console, link: &Path) -> Result<Option<LocalApprover>, Failure> {
    let address = console.for_services().0;
    let url: PublicUrl = format!("http://{address}").parse().map_err(|why: String| Failure::failed(anyhow!(why)))?;
    let first = setup.configuration.policy.permissions.approvers.iter().next();
    Ok(first.map(|(name, roles)| LocalApprover {
        name: name.clone(),
        roles: roles.clone(),
        redactor: setup.report().redactor,
        console: url,
        link: link.to_owned(),
    }))
}

/// Only this user can read the file, because the link contains a key.
fn write_link(path: &Path, link: &str) -> Result<(), Failure> {
    let file = OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| writeln!(file, "{link}"));
    Ok(written.with_context(|| format!("{} cannot be written", path.display()))?)
}

/// A client may start the same command twice, so each process has its own numbered folder of `base`.
fn with_data(setup: &Setup, base: &Path) -> Result<(Setup, PathBuf), Failure> {
    for number in 1..=PROCESSES_MAX {
        let dir = base.join(number.to_string());
        match setup.in_memory(Some(&dir)) {
            Err(failure) if failure.is_data_in_use() => {}
            opened => {
                if number > 1 {
                    let folder = dir.display();
                    tracing::warn!(%folder, "another process serves this server; this one has its own caps and audit log");
                }
                return Ok((opened?, dir));
            }
        }
    }
    Err(Failure::failed(anyhow!(
        "{PROCESSES_MAX} processes use {}: end some, or name another with --data",
        base.display()
    )))
}

/// If nothing is pinned yet, pins the server's current tools.
async fn pins(wrapped: &WrapSources) -> Result<McpPins, Failure> {
    let (file, pins) = wrapped.load()?;
    // If the file with the pins is unreadable, `load` has failed, so the file is never replaced.
    if wrapped.has_own_servers || wrapped.sources.written.contains_key(MCP_LOCK_FILE) {
        return Ok(pins);
    }
    let (pins, checks) = look(wrapped, &file, pins, None).await?;
    match checks.iter().find_map(|check| Some((&check.server, check.error.as_ref()?))) {
        Some((server, error)) => Err(Failure::failed(anyhow!("the MCP server {server}: {error}"))),
        None => {
            write_pins(&wrapped.base, &pins)?;
            Ok(pins)
        }
    }
}

async fn pin(wrapped: &WrapSources, output: &Output) -> Result<(), Failure> {
    if wrapped.has_own_servers {
        return Err(Failure::usage("--pin: the folder has its own mcp.yaml: run `tickfleet mcp pin --config DIR`"));
    }
    let (file, pins) = wrapped.load()?;
    let (pins, checks) = look(wrapped, &file, pins, Some(output)).await?;
    let failed = checks.iter().any(|check| check.error.is_some());
    if !failed {
        write_pins(&wrapped.base, &pins)?;
    }
    output.show(&checks.iter().collect::<Vec<_>>(), |checks| text(checks, !failed, output))?;
    if failed { Err(Failure::Reported) } else { Ok(()) }
}

/// Only this user can access the folder.
fn write_pins(base: &Path, pins: &McpPins) -> Result<(), Failure> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(base);
    created.with_context(|| format!("{} cannot be created", base.display()))?;
    write_to(base, pins)
}

async fn look(
    wrapped: &WrapSources,
    file: &McpFile,
    pins: McpPins,
    output: Option<&Output>,
) -> Result<(McpPins, Vec<ServerCheck>), Failure> {
    let wait = ServerCheckWait { limit: PIN_TIMEOUT, output };
    let checked =
        check_servers(&chosen(file, &[])?, &pins, &tool_environment(&wrapped.sources.environment), wait).await;
    let pins = merged(file, pins, &[], &checked);
    Ok((pins, checked.into_iter().map(|(check, _)| check).collect()))
}
