use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_config::mcp::{McpConnection, McpFile, McpServerDef};
use tickfleet_config::{McpDefinition, default_id};
use tickfleet_model::ToolSpec;
use tickfleet_ops::metrics::McpServer;
use tickfleet_tools::{Environment, RegisteredTool, RegistryError};

use super::server::Server;
use super::tool::McpTool;

/// The limit of a whole call to a tool that keeps reporting progress.
const TIMEOUT_MAX_DEFAULT: Duration = Duration::from_secs(300);
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The server's name, its connection and the pins.
type Key = (String, McpConnection, Vec<String>);

/// Registries built from the same configuration share their connections.
pub struct Servers {
    environment: Environment,
    known: Mutex<KnownServers>,
}

#[derive(Default)]
struct KnownServers {
    eager: bool,
    servers: BTreeMap<Key, Weak<Server>>,
}

impl fmt::Debug for Servers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Servers(..)")
    }
}

impl Servers {
    #[must_use]
    pub fn new(environment: Environment) -> Self {
        Self { environment, known: Mutex::default() }
    }

    /// Does not connect. `timeout_default` is the longest silence during a call, if the configuration sets no timeout.
    pub fn tools(&self, file: &McpFile, timeout_default: Duration) -> Result<Vec<RegisteredTool>, Vec<RegistryError>> {
        let mut tools = Vec::new();
        let mut errors = Vec::new();
        for (name, def) in &file.servers {
            let server = self.server(name, def);
            let configured = !def.connection.secrets.values().any(|secret| self.environment.lacks(secret));
            for tool in &def.tools {
                let timeout = def.timeout.unwrap_or(timeout_default);
                let spec = spec(def, tool, timeout, configured);
                let handler = McpTool::new(Arc::clone(&server), tool, def.effect(tool), timeout);
                match registered(spec, Arc::new(handler)) {
                    Ok(tool) => tools.push(tool),
                    Err(error) => errors.push(error),
                }
            }
        }
        if errors.is_empty() { Ok(tools) } else { Err(errors) }
    }

    fn server(&self, name: &str, def: &McpServerDef) -> Arc<Server> {
        let digests = def.tools.iter().map(McpDefinition::digest).collect();
        let key = (name.to_owned(), def.connection.clone(), digests);
        let mut known = self.known.lock();
        if let Some(server) = known.servers.get(&key).and_then(Weak::upgrade) {
            return server;
        }
        known.servers.retain(|_, server| server.strong_count() > 0);
        let server = Arc::new(Server::new(name, def, self.environment.clone()));
        known.servers.insert(key, Arc::downgrade(&server));
        if known.eager {
            server.start();
        }
        server
    }

    /// During a reload, a server may have two connections. The server is up if one of them is up.
    #[must_use]
    pub fn state(&self) -> Vec<McpServer> {
        let known = self.known.lock();
        let mut by_name: BTreeMap<String, McpServer> = BTreeMap::new();
        for server in known.servers.values().filter_map(Weak::upgrade) {
            let now = server.now();
            let best = by_name.entry(now.name.clone()).or_insert_with(|| now.clone());
            if now.up && !best.up {
                *best = now;
            }
        }
        by_name.into_values().collect()
    }

    /// Servers that are added later connect when their tools are built. Requires a running runtime.
    pub fn start(&self) {
        let mut known = self.known.lock();
        known.eager = true;
        known.servers.values().filter_map(Weak::upgrade).for_each(|server| server.start());
    }

    /// Waits at most 5 s for the child processes. Afterwards, no server is connected again.
    pub async fn stop(&self) {
        let servers: Vec<Arc<Server>> = {
            let known = self.known.lock();
            known.servers.values().filter_map(Weak::upgrade).collect()
        };
        servers.iter().for_each(|server| server.stop());
        let ended = futures::future::join_all(servers.iter().map(|server| server.ended()));
        if tokio::time::timeout(STOP_TIMEOUT, ended).await.is_err() {
            tracing::warn!("MCP server did not exit in time; it is killed with this process");
        }
    }
}

/// If the output schema cannot be checked, the tool is registered without an output schema.
fn registered(spec: ToolSpec, handler: Arc<McpTool>) -> Result<RegisteredTool, RegistryError> {
    match RegisteredTool::new(spec.clone(), Arc::clone(&handler) as _) {
        Err(error) if error.is_output_schema => {
            tracing::warn!(%error, "results of an MCP tool are not validated");
            RegisteredTool::new(ToolSpec { output_schema: None, ..spec }, handler)
        }
        made => made,
    }
}

fn spec(def: &McpServerDef, tool: &McpDefinition, timeout: Duration, configured: bool) -> ToolSpec {
    let name = def.tool_name(&tool.name);
    let title = tool.title.clone().or_else(|| tool.annotations.title.clone());
    ToolSpec {
        id: default_id(&name),
        display_name: title.unwrap_or_else(|| name.clone()),
        description: tool.description.clone().unwrap_or_default(),
        input_schema: tool.input_schema.clone(),
        output_schema: tool.output_schema.clone(),
        category: def.category.clone().unwrap_or_else(|| "mcp".to_owned()),
        version: def.server_version.clone().filter(|v| is_semver(v)).unwrap_or_else(|| "1.0.0".to_owned()),
        effect: def.effect(tool),
        timeout: def.timeout_max.unwrap_or(TIMEOUT_MAX_DEFAULT).max(timeout),
        required_capabilities: def.required_capabilities.iter().cloned().collect(),
        required_features: def.required_features.iter().cloned().collect(),
        requires_approval: def.requires_approval,
        approval: None,
        effect_key: def.effect_keys.get(&tool.name).cloned(),
        reconcile: None,
        cache: None,
        durable: None,
        configured,
        name,
    }
}

fn is_semver(version: &str) -> bool {
    let numbers: Vec<&str> = version.split(['-', '+']).next().unwrap_or_default().split('.').collect();
    numbers.len() == 3 && numbers.iter().all(|number| number.parse::<u32>().is_ok())
}
