//! MCP servers for tests: public reference servers, installed into cargo's target folder, and our own server.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tickfleet_config::mcp::{McpConnection, McpFile, McpServerDef, McpTransport};
use tickfleet_tools::{Environment, RegisteredTool};
use tickfleet_tools_mcp::{Servers, list_tools};

use crate::fetched::npm::{self, Node};
use crate::fleet::Fleet;

/// If this environment variable is `1`, tests that need the reference servers pass without running.
pub const SKIP_VARIABLE: &str = "TICKFLEET_SKIP_MCP";
const NPM: [&str; 3] = [
    "@modelcontextprotocol/server-everything@2026.8.31",
    "@modelcontextprotocol/server-filesystem@2026.8.31",
    "@modelcontextprotocol/server-memory@2026.8.31",
];
const PYPI: [&str; 2] = ["mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19"];
const HINT: &str =
    "The MCP reference servers need package registries, through npm and pip; TICKFLEET_SKIP_MCP=1 does without.";
/// Long, because `node` and `python3` start slowly on a busy machine.
const LOOK_LIMIT: Duration = Duration::from_secs(120);
const TIMEOUT: Duration = Duration::from_secs(20);

pub struct ReferenceServers {
    dir: PathBuf,
    node: Node,
}

impl ReferenceServers {
    #[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them")]
    pub fn unless_skipped() -> Result<Option<Self>> {
        if env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1") {
            eprintln!("{SKIP_VARIABLE}=1: not running against the MCP reference servers");
            return Ok(None);
        }
        let dir = crate::fetched::target_dir().join("mcp-servers");
        fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
        let dir = dir.canonicalize()?;
        // The system releases the lock even if this process dies.
        let lock = File::create(dir.join("lock"))?;
        lock.lock()?;
        let node = Node::find(SKIP_VARIABLE)?;
        let wanted = [&NPM[..], &PYPI[..]].concat().join(" ");
        if fs::read_to_string(dir.join("installed")).is_ok_and(|have| have == wanted) {
            return Ok(Some(Self { dir, node }));
        }
        let npm = dir.join("npm");
        let pip = dir.join("pip");
        node.install(&npm, &NPM, HINT)?;
        let pip_install = ["-m", "pip", "install", "--quiet", "--upgrade", "--target"];
        npm::install(Command::new("python3").args(pip_install).arg(pip).args(PYPI), HINT)?;
        fs::write(dir.join("installed"), wanted)?;
        Ok(Some(Self { dir, node }))
    }

    /// `package` is the name of the package without its scope.
    pub fn npm(&self, package: &str, args: &[&str]) -> McpServerDef {
        let script = format!("{}/npm/node_modules/@modelcontextprotocol/{package}/dist/index.js", self.dir.display());
        stdio(&self.node.node, &[&[script.as_str()], args].concat(), &[])
    }

    /// In a copy of the package, `to` replaces `from` in `file`, so that definitions differ from the pinned ones.
    pub fn npm_drifted(&self, package: &str, args: &[&str], file: &str, from: &str, to: &str) -> Result<McpServerDef> {
        let packages = self.dir.join("npm/node_modules/@modelcontextprotocol");
        let name = format!("{package}-drifted");
        let copy = packages.join(&name);
        if copy.exists() {
            fs::remove_dir_all(&copy)?;
        }
        copy_folder(&packages.join(package), &copy)?;
        let file = copy.join(file);
        let text = fs::read_to_string(&file).with_context(|| format!("reading {}", file.display()))?;
        ensure!(text.contains(from), "{} has no {from:?}", file.display());
        fs::write(file, text.replace(from, to))?;
        Ok(self.npm(&name, args))
    }

    pub fn pypi(&self, module: &str, args: &[&str]) -> McpServerDef {
        let path = self.dir.join("pip").display().to_string();
        stdio("python3", &[&["-m", module], args].concat(), &[("PYTHONPATH", &path)])
    }
}

/// The copy must be next to the original, so that the copy finds the same dependencies.
fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_folder(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}

pub struct Notes(tempfile::TempDir);

impl Notes {
    pub fn new() -> Result<Self> {
        Ok(Self(tempfile::tempdir()?))
    }

    pub fn server(&self) -> McpServerDef {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("data/mcp_server.py");
        stdio("python3", &[&script.display().to_string(), &self.0.path().display().to_string()], &[])
    }

    pub fn lines(&self, file: &str) -> Vec<String> {
        let text = fs::read_to_string(self.0.path().join(file)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub fn describe_look(&self, text: &str) -> Result<()> {
        Ok(fs::write(self.0.path().join("definition"), text)?)
    }

    pub fn describe_look_as_before(&self) -> Result<()> {
        Ok(fs::remove_file(self.0.path().join("definition"))?)
    }
}

pub fn stdio(command: &str, args: &[&str], env: &[(&str, &str)]) -> McpServerDef {
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    server(McpTransport::Stdio { command: command.to_owned(), args, env, cwd: None })
}

pub fn http(url: &str) -> McpServerDef {
    let allow_private = BTreeSet::from(["127.0.0.1".to_owned()]);
    server(McpTransport::Http { url: url.to_owned(), headers: BTreeMap::new(), allow_private })
}

fn server(transport: McpTransport) -> McpServerDef {
    McpServerDef {
        connection: McpConnection { transport, secrets: BTreeMap::new() },
        prefix: String::new(),
        trust_annotations: true,
        effects: BTreeMap::new(),
        effect_keys: BTreeMap::new(),
        timeout: Some(TIMEOUT),
        timeout_max: None,
        category: None,
        required_capabilities: BTreeSet::new(),
        required_features: BTreeSet::new(),
        requires_approval: false,
        tools: Vec::new(),
        server_version: None,
    }
}

#[allow(clippy::disallowed_methods, reason = "the machine's PATH, as a worker's own environment has it")]
pub fn environment() -> Environment {
    let path = env::var("PATH").unwrap_or_default();
    Environment::of([("PATH", path.as_str()), ("TOKEN", "s3cret-value")])
}

/// Also prefixes the tools with the server's name.
pub async fn pinned(name: &str, mut def: McpServerDef) -> Result<McpServerDef> {
    tickfleet_outbound::install_crypto_provider();
    let offer =
        list_tools(name, &def, &environment(), LOOK_LIMIT).await.map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
    ensure!(offer.refused.is_empty(), "{name}: {:?}", offer.refused);
    (def.tools, def.server_version) = (offer.tools, offer.version);
    def.prefix = format!("{name}__");
    Ok(def)
}

/// Waits up to two minutes, because a server may have to restart first.
pub async fn reply_of(fleet: &mut Fleet) -> Value {
    // Each blocking read must be shorter than the response timeout of a connection, so this reads several times.
    for _ in 0..12 {
        if let Some(reply) = fleet.try_reply(Duration::from_secs(10)).await {
            return reply;
        }
    }
    panic!("no reply within two minutes; Redis holds:\n{}", fleet.everything().await);
}

pub fn imported(servers: Vec<(&str, McpServerDef)>) -> (Servers, Vec<RegisteredTool>) {
    let file = McpFile { servers: servers.into_iter().map(|(name, def)| (name.to_owned(), def)).collect() };
    let connections = Servers::new(environment());
    let tools = connections.tools(&file, TIMEOUT).unwrap_or_else(|errors| panic!("{errors:?}"));
    (connections, tools)
}
