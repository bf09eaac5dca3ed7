//! The configuration of `tickfleet mcp wrap`: one tenant with one agent. Files of `--config` replace the files that are
//! written here.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Context;
use reqwest::Url;
use ring::digest::{SHA256, digest};
use serde_json::{Value, json};
use tickfleet_config::mcp::{McpServerDef, McpTransport};
use tickfleet_config::tools::SecretRef;
use tickfleet_config::{Environment, MCP_LOCK_FILE, McpFile, McpPins, Sources};
use tickfleet_engine::delegation::TASK_TOOL;
use tickfleet_model::hex;
use tickfleet_model::limit::fits;
use tickfleet_model::policy::{META_TOOLS, TEAM_TOOLS};
use tickfleet_model::{Redactor, suggest};

use super::Wrap;
use crate::failure::Failure;
use crate::global::{self, Global};
use crate::setup;

const TENANT: &str = "local";
const AGENT: &str = "me";
const APPROVER: &str = "person";
/// A call may take as long as MCP clients wait. `TIMEOUT_MAX_MS` applies to calls that report progress.
const TIMEOUT_MS: u32 = 540_000;
const TIMEOUT_MAX_MS: u32 = 3_600_000;
/// This fleet ignores these variables, because it needs no Redis. The wrapped server may use them.
const OF_REDIS: [&str; 3] = ["REDIS_URL", "TICKFLEET_REDIS_URL", "REDIS_URL_FILE"];
/// Variables with this prefix pass texts to the configuration unchanged.
const PASSED: &str = "WRAPPED_";

pub(super) struct WrapSources {
    pub(super) sources: Sources,
    pub(super) base: PathBuf,
    /// True if the folder of `--config` has an `mcp.yaml`. The pins are then in that folder too.
    pub(super) has_own_servers: bool,
    environment: Environment,
}

impl WrapSources {
    /// Returns [`Failure::Usage`] if arguments are missing, invalid or contradict the folder of `--config`.
    pub(super) fn new(args: &Wrap, global: &Global) -> Result<Self, Failure> {
        if global.redis_url.is_some() {
            return Err(Failure::usage("--redis-url: mcp wrap keeps its data in --data, without Redis"));
        }
        let folder_has = |file: &str| global.config.as_ref().is_some_and(|dir| dir.join(file).exists());
        let has_own_servers = folder_has("mcp.yaml");
        let has_server = args.url.is_some() || !args.command.is_empty();
        match (has_own_servers, has_server) {
            (false, false) => {
                return Err(Failure::usage(
                    "no server: add -- and its command, such as -- npx -y PACKAGE, or --url URL",
                ));
            }
            (true, true) => {
                return Err(Failure::usage("the folder has its own mcp.yaml: leave out the command and --url"));
            }
            _ => {}
        }
        for (is_given, flag, file) in [
            (!args.approve.is_empty(), "--approve", "permissions.yaml"),
            (!args.deny.is_empty(), "--deny", "mcp.yaml"),
            (args.cap.is_some(), "--cap", "agents.yaml"),
        ] {
            if is_given && folder_has(file) {
                return Err(Failure::usage(format!("{flag}: the folder has its own {file}; change that file instead")));
            }
        }
        let environment = global::environment();
        let name = name(args, global)?;
        let data = args.data.clone().map_or_else(|| data_home(&environment), Ok)?;
        let base = data.join(&name);
        let own = environment.iter().filter(|(name, _)| !OF_REDIS.contains(&name.as_str()));
        let own = own.map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut sources = setup::sources_in(own, global)?;
        if !has_own_servers {
            // This fleet has no sample tools, so the server's tools may have the names of sample tools.
            sources.built_in_tools.retain(|tool| is_reserved(tool));
            let server = server(args, &mut sources.environment)?;
            let servers = json!({"servers": {name: server}});
            sources.written.insert("mcp.yaml", servers.to_string());
            if let Some(pinned) = read(&base.join(MCP_LOCK_FILE))? {
                sources.written.insert(MCP_LOCK_FILE, pinned);
            }
        }
        let settings = json!({
            "permission": {"samples": false, "disabled_tools": META_TOOLS},
            "log": {"level": "warn"},
            // After a restart, a call of a `once` tool waits for one lease, so the lease is short.
            "worker": {"lease": "3s"},
        });
        sources.written.insert("tickfleet.yaml", settings.to_string());
        sources.written.insert("tenants.yaml", json!({"tenants": {TENANT: {}}}).to_string());
        let caps = args.cap.map_or_else(|| json!({}), |cap| json!({"max_actions_per_day": cap}));
        sources.written.insert("agents.yaml", json!({"agents": {AGENT: caps}}).to_string());
        Ok(Self { sources, base, has_own_servers, environment })
    }

    pub(super) fn load(&self) -> Result<(McpFile, McpPins), Failure> {
        let (mut file, pins) = tickfleet_config::load_mcp(&self.sources).map_err(Failure::failed)?;
        file.servers.values_mut().for_each(|def| self.pass_environment(def));
        Ok((file, pins))
    }

    /// Fails if a pattern of the command line matches no tool.
    pub(super) fn import(&mut self, args: &Wrap, pins: &McpPins) -> Result<(), Failure> {
        let names = || pins.servers.values().flat_map(|server| &server.tools).map(|tool| tool.name.as_str());
        for (flag, patterns) in [("--approve", &args.approve), ("--deny", &args.deny)] {
            if let Some(pattern) = patterns.iter().find(|pattern| !names().any(|name| fits(pattern, name))) {
                let known = suggest::list(names());
                return Err(Failure::usage(format!(
                    "{flag} {pattern:?}: the server has no such tool; it has: {known}"
                )));
            }
        }
        let is_one_of = |patterns: &[String], name: &str| patterns.iter().any(|pattern| fits(pattern, name));
        if !self.has_own_servers {
            let exclude: Vec<&str> = names().filter(|name| is_one_of(&args.deny, name) || !is_usable(name)).collect();
            let has_clash = names().any(is_reserved);
            let written = self.sources.written.get("mcp.yaml").map_or("{}", String::as_str);
            let mut servers: Value = serde_json::from_str(written).map_err(Failure::failed)?;
            for server in servers["servers"].as_object_mut().into_iter().flat_map(|servers| servers.values_mut()) {
                server["exclude"] = json!(exclude);
                if has_clash && let Some(server) = server.as_object_mut() {
                    server.remove("prefix");
                }
            }
            self.sources.written.insert("mcp.yaml", servers.to_string());
            // Pins from a file keep their text, so that their digests are checked.
            self.sources.written.entry(MCP_LOCK_FILE).or_insert_with(|| pins.to_yaml());
        }
        // Rows of permissions can name only imported tools, so the tools are imported first, without rows.
        let without_rows = Sources { allow_unknown_names: true, ..self.sources.clone() };
        let imported = tickfleet_config::load(&without_rows).map_err(Failure::failed)?.mcp;
        let mut rows: BTreeMap<String, Value> = BTreeMap::new();
        for def in imported.servers.values() {
            for tool in &def.tools {
                let ask = json!([{"name": "approve", "require": "false", "otherwise": "ask"}]);
                let rules = if is_one_of(&args.approve, &tool.name) { ask } else { json!([]) };
                rows.insert(def.tool_name(&tool.name), json!({"everyone": true, "rules": rules}));
            }
        }
        let permissions = json!({"permissions": rows, "approvers": {APPROVER: {}}});
        self.sources.written.insert("permissions.yaml", permissions.to_string());
        Ok(())
    }

    /// The server gets the environment that it would have without this process. Variables that look like secrets or
    /// templates become secrets of the connection. The environment differs between clients, so it is not part of the
    /// policy.
    pub(super) fn pass_environment(&self, def: &mut McpServerDef) {
        let McpTransport::Stdio { env, .. } = &mut def.connection.transport else { return };
        if self.has_own_servers {
            return;
        }
        let redactor = Redactor::new::<&str>([]);
        for (name, value) in self.environment.iter().filter(|(name, _)| !name.starts_with("TICKFLEET_")) {
            let is_secret = !value.is_empty() && (redactor.is_secret_key(name) || value.contains("${"));
            env.insert(name.clone(), if is_secret { format!("${{{name}}}") } else { value.clone() });
            if is_secret {
                def.connection.secrets.insert(name.clone(), SecretRef::Env(name.clone()));
            }
        }
    }
}

/// Every worker has these tools, regardless of the permissions.
fn is_reserved(tool: &str) -> bool {
    let knowledge = tickfleet_tools_knowledge::tools::NAMES;
    TASK_TOOL == tool || META_TOOLS.contains(&tool) || TEAM_TOOLS.contains(&tool) || knowledge.contains(&tool)
}

fn is_usable(tool: &str) -> bool {
    let is_odd = |c: char| !(c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'));
    tool.len() <= tickfleet_model::limits::NAME_BYTES_MAX && !tool.contains(is_odd)
}

/// The default name is unique to the command, URL or folder.
fn name(args: &Wrap, global: &Global) -> Result<String, Failure> {
    if let Some(name) = &args.name {
        let is_odd = |c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '_' | '-'));
        if name.is_empty() || name.len() > 32 || name.contains(is_odd) {
            return Err(Failure::usage(format!("--name {name:?}: expected 1 to 32 characters of a-z 0-9 _ -")));
        }
        return Ok(name.clone());
    }
    let folder = global.config.as_ref().map(|dir| dir.display().to_string());
    let program = args.command.first().and_then(|program| program.rsplit('/').next());
    let kind = args.url.as_ref().map(|_| "http").or(program).unwrap_or("folder");
    let server = args.url.iter().chain(&args.command).chain(folder.iter().filter(|_| args.command.is_empty()));
    let server: Vec<&str> = server.map(String::as_str).collect();
    let hash = digest(&SHA256, server.join("\0").as_bytes());
    let hash = hex(hash.as_ref().get(..4).unwrap_or_default());
    let kind = kind.chars().filter(char::is_ascii_alphanumeric).take(20).collect::<String>().to_ascii_lowercase();
    Ok(format!("{kind}-{hash}"))
}

fn data_home(environment: &Environment) -> Result<PathBuf, Failure> {
    let given = |name: &str| environment.get(name).map(Path::new).filter(|path| path.is_absolute());
    let home = given("XDG_DATA_HOME").map(Path::to_owned).or_else(|| Some(given("HOME")?.join(".local/share")));
    let home = home.map(|home| home.join("tickfleet/wrap"));
    home.ok_or_else(|| Failure::usage("HOME and XDG_DATA_HOME are not set: name the folder of the data with --data"))
}

fn server(args: &Wrap, environment: &mut Environment) -> Result<Value, Failure> {
    let mut passed = 0;
    // The configuration replaces references in these texts, but the client means the texts literally.
    let mut verbatim = |text: &str| {
        if !text.contains("${") {
            return text.to_owned();
        }
        passed += 1;
        environment.insert(format!("{PASSED}{passed}"), text.to_owned());
        format!("${{{PASSED}{passed}:-}}")
    };
    let mut server = match (&args.url, args.command.split_first()) {
        (Some(url), _) => {
            let parsed = Url::parse(url).map_err(|error| Failure::usage(format!("--url {url:?}: {error}")))?;
            let host = parsed.host_str().map(|host| host.trim_matches(['[', ']']).to_owned());
            let headers = headers(&args.header)?;
            let secrets = secrets(&headers);
            let url = verbatim(url);
            json!({"url": url, "headers": headers, "secrets": secrets, "allow_private": host.into_iter().collect::<Vec<_>>()})
        }
        (None, Some((program, arguments))) => {
            let program = verbatim(program);
            json!({"command": program, "args": arguments.iter().map(|text| verbatim(text)).collect::<Vec<_>>()})
        }
        (None, None) => json!({}),
    };
    // The client knows the tools by their own names, so add no prefix.
    server["prefix"] = json!("");
    server["timeout_ms"] = json!(TIMEOUT_MS);
    server["timeout_max_ms"] = json!(TIMEOUT_MAX_MS);
    Ok(server)
}

fn headers(given: &[String]) -> Result<BTreeMap<&str, &str>, Failure> {
    let named = given.iter().map(|header| {
        let expected = || Failure::usage(format!("--header {header:?}: expected NAME: VALUE"));
        let (name, value) = header.split_once(':').ok_or_else(expected)?;
        Ok((name.trim(), value.trim()))
    });
    named.collect()
}

fn secrets<'a>(headers: &BTreeMap<&'a str, &'a str>) -> BTreeMap<&'a str, Value> {
    let parts = headers.values().flat_map(|value| value.split("${").skip(1));
    let variables = parts.filter_map(|rest| Some(rest.split_once('}')?.0));
    variables.map(|variable| (variable, json!({"env": variable}))).collect()
}

fn read(path: &Path) -> Result<Option<String>, Failure> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display()))?,
    }
}
