//! `tickfleet mcp`: checks MCP servers, pins their tool definitions, and serves tools to MCP clients on this machine.

pub(crate) mod serve;
mod wrap;

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde::Serialize;
use tickfleet_config::mcp::{McpServerDef, McpTransport};
use tickfleet_config::{MCP_LOCK_FILE, McpChange, McpDefinition, McpFile, McpPinned, McpPins, Sources};
use tickfleet_tools::Environment;
use tickfleet_tools_mcp::{LIST_TIMEOUT, ServerTools, list_tools};

use crate::failure::Failure;
use crate::global::{Global, tool_environment};
use crate::output::results;
use crate::output::{Output, StatusColor, short};
use crate::setup;

const NOTE_AFTER: Duration = Duration::from_secs(3);
const REACHED_BY_CHARS: usize = 120;
/// Bounds each side of a change: its lines, and the characters of each line.
const CHANGED_LINES: usize = 20;
const CHANGED_CHARS: usize = 400;

/// Pin or check the tools of MCP servers, or serve tools over MCP.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet mcp pin --config conf             every server of conf/mcp.yaml, into conf/mcp.lock.yaml
  tickfleet mcp pin files --config conf       one server
  tickfleet mcp check --config conf           compare only; exit code 1 if anything differs
  tickfleet mcp pin --timeout 2m --config conf    for a server that npx downloads first
  tickfleet mcp serve --agent kelly           for the configuration of an MCP client
  tickfleet mcp wrap -- npx -y PACKAGE        the same for one MCP server, without a fleet

The command starts or connects to each server, lists its tools and disconnects; it calls no tool.
Review the pinned descriptions, because models read them.")]
pub(crate) struct Mcp {
    #[command(subcommand)]
    pub(crate) command: McpCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum McpCommand {
    /// Write the current tool definitions of the servers to mcp.lock.yaml.
    Pin(ServerArgs),
    /// Compare the current tool definitions with mcp.lock.yaml.
    Check(ServerArgs),
    /// Serve the tools of one agent on standard input and output.
    Serve(serve::Serve),
    Wrap(Box<wrap::Wrap>),
}

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Only these servers.
    servers: Vec<String>,
    /// Time limit to start a server and list its tools: seconds (30) or a duration (2m).
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = results::parse_wait)]
    timeout: Duration,
}

#[derive(Debug, Serialize)]
pub(crate) struct ServerCheck {
    server: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    offered: usize,
    differences: Vec<Difference>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Difference {
    tool: String,
    /// `new`, `changed`, `gone` or `refused`.
    kind: &'static str,
    /// The changed parts of the definition, or the reason for the refusal.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    details: Vec<String>,
    /// Removed lines begin with `-`, new lines with `+`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    lines: Vec<String>,
    /// `None` for a tool that is gone or refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<tickfleet_model::Effect>,
    #[serde(skip)]
    is_pinned: bool,
}

pub(crate) async fn run(args: &Mcp, global: &Global, output: &Output) -> Result<(), Failure> {
    if let McpCommand::Wrap(args) = &args.command {
        return wrap::run(args, global, output).await;
    }
    let sources = setup::sources(global)?;
    let (file, pins) = tickfleet_config::load_mcp(&sources).map_err(Failure::failed)?;
    let (McpCommand::Pin(server_args) | McpCommand::Check(server_args)) = &args.command else { return Ok(()) };
    let chosen = chosen(&file, &server_args.servers)?;
    let wait = ServerCheckWait { limit: server_args.timeout, output: Some(output) };
    let checked_servers = check_servers(&chosen, &pins, &tool_environment(&sources.environment), wait).await;
    let failed = checked_servers.iter().any(|(found, _)| found.error.is_some());
    let differs = checked_servers.iter().any(|(found, _)| !found.is_as_pinned());
    let checks: Vec<&ServerCheck> = checked_servers.iter().map(|(found, _)| found).collect();
    let written = match &args.command {
        McpCommand::Pin(_) if !failed && !checked_servers.is_empty() => {
            write(&sources, &merged(&file, pins, &server_args.servers, &checked_servers))?;
            true
        }
        _ => false,
    };
    output.show(&checks, |checks| text(checks, written, output))?;
    let checked = matches!(args.command, McpCommand::Check(_));
    if failed || (checked && differs) { Err(Failure::Reported) } else { Ok(()) }
}

pub(crate) async fn pin_all(sources: &Sources) -> Result<(), Failure> {
    let (file, pins) = tickfleet_config::load_mcp(sources).map_err(Failure::failed)?;
    let checked_servers =
        check_servers(&chosen(&file, &[])?, &pins, &tool_environment(&sources.environment), ServerCheckWait::QUIET)
            .await;
    if let Some((server, error)) =
        checked_servers.iter().find_map(|(found, _)| Some((&found.server, found.error.as_ref()?)))
    {
        return Err(Failure::failed(anyhow::anyhow!("the MCP server {server}: {error}")));
    }
    write(sources, &merged(&file, pins, &[], &checked_servers))
}

pub(crate) async fn check_all_servers(
    file: &McpFile,
    environment: &Environment,
) -> Vec<(String, Result<String, String>)> {
    let servers: Vec<(&str, &McpServerDef)> = file.servers.iter().map(|(name, def)| (name.as_str(), def)).collect();
    let imported = |def: &McpServerDef| McpPinned { version: None, tools: def.tools.clone() };
    let pins = McpPins { servers: file.servers.iter().map(|(name, def)| (name.clone(), imported(def))).collect() };
    let checked_servers = check_servers(&servers, &pins, environment, ServerCheckWait::QUIET).await.into_iter();
    let verdict = |(found, _): (ServerCheck, Option<ServerTools>)| (found.server.clone(), found.of_imported());
    checked_servers.map(verdict).collect()
}

fn chosen<'a>(file: &'a McpFile, names: &[String]) -> Result<Vec<(&'a str, &'a McpServerDef)>, Failure> {
    if let Some(unknown) = names.iter().find(|name| !file.servers.contains_key(*name)) {
        let known: Vec<&str> = file.servers.keys().map(String::as_str).collect();
        return Err(Failure::usage(format!("mcp.yaml has no server {unknown:?}; it has: {}", known.join(", "))));
    }
    let wanted = |name: &str| names.is_empty() || names.iter().any(|chosen| chosen == name);
    Ok(file.servers.iter().map(|(name, def)| (name.as_str(), def)).filter(|(name, _)| wanted(name)).collect())
}

#[derive(Clone, Copy)]
struct ServerCheckWait<'a> {
    limit: Duration,
    output: Option<&'a Output>,
}

impl ServerCheckWait<'_> {
    const QUIET: Self = Self { limit: LIST_TIMEOUT, output: None };

    async fn list_tools_of(
        self,
        name: &str,
        def: &McpServerDef,
        environment: &Environment,
    ) -> Result<ServerTools, String> {
        let mut looking = std::pin::pin!(list_tools(name, def, environment, self.limit));
        tokio::select! {
            offer = &mut looking => return offer,
            () = tokio::time::sleep(NOTE_AFTER) => {}
        }
        if let Some(output) = self.output {
            let server = reached_by(def);
            let seconds = self.limit.as_secs();
            output.note(&format!(
                "waiting for the server {name} ({server}) to list its tools, up to {seconds} s (--timeout)"
            ));
        }
        looking.await
    }
}

/// Keeps the placeholders of secrets.
fn reached_by(def: &McpServerDef) -> String {
    match &def.connection.transport {
        McpTransport::Stdio { command, args, .. } => {
            short(&[std::slice::from_ref(command), args.as_slice()].concat().join(" "), REACHED_BY_CHARS)
        }
        McpTransport::Http { url, .. } => short(url, REACHED_BY_CHARS),
    }
}

async fn check_servers(
    servers: &[(&str, &McpServerDef)],
    pins: &McpPins,
    environment: &Environment,
    wait: ServerCheckWait<'_>,
) -> Vec<(ServerCheck, Option<ServerTools>)> {
    let each = servers.iter().map(|(name, def)| async move {
        let pinned = pins.servers.get(*name);
        match wait.list_tools_of(name, def, environment).await {
            Ok(offer) => (compared(name, def, pinned, &offer), Some(offer)),
            Err(error) => {
                let server = (*name).to_owned();
                let error = Some(error);
                (ServerCheck { server, version: None, offered: 0, differences: Vec::new(), error }, None)
            }
        }
    });
    futures::future::join_all(each).await
}

/// A text from a server must not forge lines of output.
fn on_one_line(text: &str) -> String {
    text.replace('\n', "\\n")
}

fn compared(name: &str, def: &McpServerDef, pinned: Option<&McpPinned>, offer: &ServerTools) -> ServerCheck {
    let pinned: &[McpDefinition] = pinned.map_or(&[], |pinned| &pinned.tools);
    let before = |tool: &McpDefinition| pinned.iter().find(|before| before.name == tool.name);
    let differs = |tool: &McpDefinition| {
        let (kind, changes) = match before(tool) {
            None => ("new", Vec::new()),
            Some(before) if before.digest() == tool.digest() => return None,
            Some(before) => ("changed", before.changes(tool)),
        };
        let details = changes.iter().map(|change| change.part.to_owned()).collect();
        let lines = changes.iter().flat_map(changed_lines).collect();
        let effect = Some(def.effect(tool));
        let is_pinned = before(tool).is_some();
        Some(Difference { tool: tool.name.clone(), kind, details, lines, effect, is_pinned })
    };
    let mut differences: Vec<Difference> = offer.tools.iter().filter_map(differs).collect();
    let refused: BTreeSet<&str> = offer.refused.iter().map(|(tool, _)| tool.as_str()).collect();
    let live = |name: &str| offer.tools.iter().any(|tool| tool.name == name) || refused.contains(name);
    let gone = pinned.iter().filter(|tool| !live(&tool.name));
    differences.extend(gone.map(|tool| Difference {
        tool: tool.name.clone(),
        kind: "gone",
        details: Vec::new(),
        lines: Vec::new(),
        effect: None,
        is_pinned: true,
    }));
    differences.extend(offer.refused.iter().map(|(tool, why)| Difference {
        tool: on_one_line(tool),
        kind: "refused",
        details: vec![on_one_line(why)],
        lines: Vec::new(),
        effect: None,
        is_pinned: pinned.iter().any(|pinned| pinned.name == *tool),
    }));
    ServerCheck {
        server: name.to_owned(),
        version: offer.version.as_deref().map(on_one_line),
        offered: offer.tools.len(),
        differences,
        error: None,
    }
}

/// Leaves out the lines that both versions have at the beginning and at the end. Cuts long texts.
fn changed_lines(change: &McpChange) -> Vec<String> {
    let before: Vec<&str> = change.before.lines().collect();
    let now: Vec<&str> = change.now.lines().collect();
    let same = |(one, two): &(&&str, &&str)| one == two;
    let head = before.iter().zip(&now).take_while(same).count();
    let tail = before[head..].iter().rev().zip(now[head..].iter().rev()).take_while(same).count();
    let side = |sign: char, lines: &[&str]| {
        let mut shown: Vec<String> =
            lines.iter().take(CHANGED_LINES).map(|line| format!("{sign} {}", short(line, CHANGED_CHARS))).collect();
        if lines.len() > CHANGED_LINES {
            shown.push(format!("{sign} … and {} more lines", lines.len() - CHANGED_LINES));
        }
        shown
    };
    let mut lines = vec![format!("{}:", change.part)];
    lines.extend(side('-', &before[head..before.len() - tail]));
    lines.extend(side('+', &now[head..now.len() - tail]));
    lines
}

impl ServerCheck {
    /// A refused tool without a pin does not count: it is not imported anyway.
    fn is_as_pinned(&self) -> bool {
        let differs = |difference: &Difference| difference.kind != "refused" || difference.is_pinned;
        self.error.is_none() && !self.differences.iter().any(differs)
    }

    /// Ignores new tools, because they are not imported. The returned text names the tools that cannot be imported.
    fn of_imported(mut self) -> Result<String, String> {
        let is_left_out = |difference: &&Difference| difference.kind == "refused" && !difference.is_pinned;
        let left_out: Vec<String> = self.differences.iter().filter(is_left_out).map(Difference::named).collect();
        self.differences.retain(|difference| difference.is_pinned);
        let verdict = self.verdict()?;
        Ok(if left_out.is_empty() { verdict } else { format!("{verdict}; left out: {}", left_out.join(", ")) })
    }

    fn verdict(&self) -> Result<String, String> {
        let names: Vec<String> = self.differences.iter().map(Difference::named).collect();
        match &self.error {
            Some(error) => Err(error.clone()),
            None if names.is_empty() => Ok("its imported tools match the pinned definitions".to_owned()),
            None => Err(format!("different from pinned: {}", names.join(", "))),
        }
    }
}

/// Servers that were not checked keep their pins. Pins of servers that are no longer configured are removed.
fn merged(
    file: &McpFile,
    pins: McpPins,
    only: &[String],
    checked_servers: &[(ServerCheck, Option<ServerTools>)],
) -> McpPins {
    let mut servers = pins.servers;
    servers.retain(|name, _| file.servers.contains_key(name) && (only.is_empty() || !only.contains(name)));
    for (found, offer) in checked_servers {
        if let Some(offer) = offer {
            let pinned = McpPinned { version: offer.version.clone(), tools: offer.tools.clone() };
            servers.insert(found.server.clone(), pinned);
        }
    }
    McpPins { servers }
}

fn write(sources: &Sources, pins: &McpPins) -> Result<(), Failure> {
    let dir = sources.dir.as_deref();
    write_to(
        dir.ok_or_else(|| Failure::usage(format!("--config: name the folder that contains {MCP_LOCK_FILE}")))?,
        pins,
    )
}

/// A reader sees either the old file or the new one.
fn write_to(dir: &Path, pins: &McpPins) -> Result<(), Failure> {
    let path = dir.join(MCP_LOCK_FILE);
    let beside = dir.join(format!(".{MCP_LOCK_FILE}.new"));
    let written = std::fs::File::create(&beside).and_then(|mut file| {
        file.write_all(pins.to_yaml().as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)
    });
    written.map_err(|error| Failure::failed(anyhow::anyhow!("{} cannot be written: {error}", path.display())))
}

fn text(checks: &[&ServerCheck], written: bool, output: &Output) -> String {
    if checks.is_empty() {
        return "mcp.yaml has no servers.".to_owned();
    }
    let mut text = String::new();
    for found in checks {
        let version = found.version.as_deref().map(|version| format!(" {version}")).unwrap_or_default();
        match &found.error {
            Some(error) => {
                text.push_str(&format!("{}: {} {error}\n", found.server, output.paint(StatusColor::Bad, "failed:")))
            }
            None => {
                let state = match (written, found.is_as_pinned()) {
                    (true, _) => output.paint(StatusColor::Good, "pinned"),
                    (false, true) => output.paint(StatusColor::Good, "as pinned"),
                    (false, false) => output.paint(StatusColor::Bad, "different from pinned"),
                };
                text.push_str(&format!("{}{version}: {} tools, {state}\n", found.server, found.offered));
            }
        }
        for difference in &found.differences {
            text.push_str(&format!("  {:8} {}{}\n", difference.kind, difference.tool, difference.rest()));
            difference.lines.iter().for_each(|line| text.push_str(&format!("    {line}\n")));
        }
    }
    if checks.iter().any(|found| found.error.is_some()) {
        text.push_str("Nothing was written.\n");
    }
    text
}

impl Difference {
    fn named(&self) -> String {
        let detail = if self.kind == "refused" { self.details.join(", ") } else { self.kind.to_owned() };
        format!("{} ({detail})", self.tool)
    }

    fn rest(&self) -> String {
        let details = if self.details.is_empty() { String::new() } else { format!(": {}", self.details.join(", ")) };
        let effect = self.effect.map(|effect| format!(" ({})", effect.as_str())).unwrap_or_default();
        format!("{effect}{details}")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::*;

    fn tool(name: &str) -> McpDefinition {
        let input_schema = json!({"type": "object"});
        let title = None;
        let description = None;
        let output_schema = None;
        let annotations = tickfleet_config::McpAnnotations::default();
        McpDefinition { name: name.to_owned(), title, description, input_schema, output_schema, annotations }
    }

    #[test]
    fn an_unreadable_pinned_tool_differs_and_an_unpinned_one_is_listed() {
        let folder = tempfile::tempdir().unwrap();
        let file = "servers: {s: {url: \"https://mcp.example.com\"}}";
        std::fs::write(folder.path().join("mcp.yaml"), file).unwrap();
        let sources = Sources { dir: Some(folder.path().to_owned()), ..Sources::default() };
        let def = tickfleet_config::load_mcp(&sources).unwrap().0.servers.remove("s").unwrap();
        let found = |pinned: &[&str]| {
            let pinned = McpPinned { version: None, tools: pinned.iter().map(|name| tool(name)).collect() };
            let refused = vec![("odd".to_owned(), "it has no inputSchema".to_owned())];
            compared("s", &def, Some(&pinned), &ServerTools { version: None, tools: vec![tool("fine")], refused })
        };
        assert!(found(&["fine"]).is_as_pinned());
        let said = found(&["fine"]).of_imported().unwrap();
        assert_eq!(said, "its imported tools match the pinned definitions; left out: odd (it has no inputSchema)");
        assert!(!found(&["fine", "odd"]).is_as_pinned());
        let said = found(&["fine", "odd"]).of_imported().unwrap_err();
        assert_eq!(said, "different from pinned: odd (it has no inputSchema)");

        let forged = "1\n  new      pay (read)";
        let refused = vec![(forged.to_owned(), forged.to_owned())];
        let offer = ServerTools { version: Some(forged.to_owned()), tools: Vec::new(), refused };
        let found = compared("s", &def, None, &offer);
        let differs = &found.differences[0];
        for text in [found.version.as_deref().unwrap(), &differs.tool, &differs.details[0]] {
            assert_eq!(text, "1\\n  new      pay (read)");
        }
    }
}
