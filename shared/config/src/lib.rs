//! Configuration: YAML files and the environment, validated as a whole before anything starts.
//!
//! Each value keeps its location. Errors show the file, line and column, or the variable. [`print()`](print()) shows
//! the origin of each value.

mod agents;
mod approval;
mod digest;
mod document;
mod files;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod limits;
mod llm;
mod mask;
pub mod mcp;
mod models;
mod policy;
mod print;
mod prompts;
mod reload;
mod settings;
pub mod tools;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

pub use agents::{EXTERNAL_LEASE_DEFAULT, HttpTaskDef, TASK_ARGUMENTS, TaskHandlerDef};
pub use document::environment::Environment;
pub use document::errors::{ConfigError, ConfigErrors, ConfigLocation, ConfigWarning};
pub use document::units;
pub use limits::known_tools;
pub use llm::LlmDef;
pub use mcp::McpFile;
pub use mcp::lock::{MCP_LOCK_FILE, McpAnnotations, McpChange, McpDefinition, McpPinned, McpPins};
pub use models::{MODEL_TIMEOUT_DEFAULT, ModelApi, ModelDef, Models, Prices, ProviderDef};
pub use print::{PrintedConfig, PrintedSetting, print, printed_parts};
pub use reload::{fingerprint, load_settled, needs_restart};
pub use settings::redis_url::RedisUrl;
pub use settings::*;
pub use tools::http::{SERVICE_URL, is_service_url};
pub use tools::read::default_id;
pub use tools::schema::{SchemaCheck, SchemaProblem, SchemaUse};
pub use tools::{ModulesDef, ToolRuntime, ToolsFile};

use agents::AgentReferences;
use document::errors::Errors;
use files::Trees;
use policy::KnownNames;
use prompts::AgentPrompts;
use tickfleet_model::policy::{DefaultCaps, Permissions, Policy, TRIAL_TOOLS, ToolGrant};
use tickfleet_model::retry::breaker::BreakerSettings;
use tickfleet_model::{AgentId, AgentPolicy};
use tickfleet_protocol::Prompts;

#[derive(Clone, Default)]
pub struct Sources {
    pub dir: Option<PathBuf>,
    pub environment: Environment,
    /// Permissions can name these tools although no file declares them.
    pub built_in_tools: BTreeSet<String>,
    pub built_in_handlers: BTreeSet<String>,
    /// True if another binary may run the fleet, with other tools and task handlers. An unknown name is then not an
    /// error.
    pub allow_unknown_names: bool,
    /// If false, an unknown name may be a tool of a module in `tools.yaml`.
    pub knows_modules: bool,
    pub schema_check: SchemaCheck,
    pub part: Part,
    /// Texts of files that a program wrote, by file name. Files of the folder have precedence.
    pub written: BTreeMap<&'static str, String>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Part {
    #[default]
    Whole,
    Settings,
    /// Reads only the settings of Redis from files. Other settings come from the defaults or the environment.
    Redis,
}

impl Sources {
    fn policy_dir(&self) -> Option<&std::path::Path> {
        self.dir.as_deref().filter(|_| self.part == Part::Whole)
    }
}

impl fmt::Debug for Sources {
    /// Shows only the names of variables, because some values are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("dir", &self.dir)
            .field("environment", &self.environment.keys())
            .field("built_in_tools", &self.built_in_tools)
            .field("built_in_handlers", &self.built_in_handlers)
            .finish()
    }
}

#[derive(Debug, Clone)]
pub struct Configuration {
    pub settings: Settings,
    pub policy: Policy,
    pub tools: ToolsFile,
    pub mcp: McpFile,
    pub models: Models,
    pub task_handlers: BTreeMap<AgentId, TaskHandlerDef>,
    pub prompts: Prompts,
    /// SHA-256 (hex) of caps, agents, tenants, permissions and tools. Tool URLs from the environment do not change it.
    pub digest: String,
    pub warnings: Vec<ConfigWarning>,
    samples: Vec<&'static str>,
    rule_texts: Vec<policy::RuleText>,
    trees: Arc<Trees>,
}

impl Configuration {
    #[must_use]
    pub fn samples(&self) -> &[&'static str] {
        &self.samples
    }

    /// `schemas` returns the input schemas of all versions of a tool. Returns a warning for each argument that no
    /// schema declares but some schema accepts.
    ///
    /// # Errors
    /// An error for each argument that no schema accepts.
    pub fn check_rule_names<'a>(
        &self,
        schemas: impl Fn(&str) -> Vec<&'a serde_json::Value>,
    ) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        let errors = Errors::default();
        self.rule_texts.iter().for_each(|text| text.check(&schemas(text.tool()), &errors));
        let warnings = errors.warnings();
        errors.unless_any(Some(warnings))
    }

    /// With many agents, the source text takes as much memory as the rest. Without it, [`print()`](print()) shows only
    /// settings.
    #[must_use]
    pub fn without_text(mut self) -> Self {
        self.trees = Arc::new(Trees { settings: self.trees.settings.clone(), ..Trees::default() });
        self
    }

    /// `None` if circuit breakers are off.
    #[must_use]
    pub fn breaker_settings(&self) -> Option<BreakerSettings> {
        let worker = &self.settings.worker;
        let settings = BreakerSettings { failures_max: worker.breaker_failures, cooldown: worker.breaker_cooldown };
        (worker.breaker_failures > 0).then_some(settings)
    }
}

/// The folder's `tickfleet.yaml` overrides single settings. Any other file of the folder replaces the built-in file.
/// The environment overrides both. [`Sources::written`] comes between the built-in files and the folder.
pub fn load(sources: &Sources) -> Result<Configuration, ConfigErrors> {
    let errors = Errors::default();
    let read = files::read(sources, &errors);
    let prompts = prompts::read(sources.policy_dir(), &errors);
    let agent_prompts = prompts::of_agents(sources.policy_dir(), &errors);
    let given = prompts.map(|prompts| (prompts, agent_prompts));
    let configuration = read.zip(given).and_then(|(read, prompts)| assemble(read, prompts, sources, &errors));
    errors.unless_any(configuration)
}

/// Loads the MCP servers and pins. Ignores other files, because permissions can name tools that are not pinned yet.
pub fn load_mcp(sources: &Sources) -> Result<(McpFile, McpPins), ConfigErrors> {
    let errors = Errors::default();
    let (servers, lock) = files::read_mcp(sources, &errors);
    let file = servers.map(|tree| mcp::read_unpinned(&tree, &errors));
    let pins = lock.map(|tree| mcp::lock::read(&tree, &Errors::default())).unwrap_or_default();
    errors.unless_any(file.map(|file| (file, pins)))
}

/// Works even if the configuration is invalid, because its errors are logged in this format.
#[must_use]
pub fn wants_json_log(dir: Option<&std::path::Path>, environment: &Environment) -> bool {
    files::wants_json_log(dir, environment)
}

/// Returns the modules by `<section>.<name>`. Empty after an error, which [`load`] reports.
#[must_use]
pub fn load_modules(sources: &Sources) -> BTreeMap<String, ModulesDef> {
    let errors = Errors::default();
    let tree = files::read_tools(sources, &errors);
    let read = tree.map(|tree| tools::read::read(&tree, sources, &errors).file.modules);
    errors.unless_any(read).unwrap_or_default()
}

/// Names are not checked against a file that could not be parsed.
fn assemble(
    (trees, declared): (Trees, String),
    (prompts, agent_prompts): (Prompts, AgentPrompts),
    sources: &Sources,
    errors: &Errors,
) -> Option<Configuration> {
    let settings = trees.settings.as_ref().and_then(|tree| settings::read::settings(tree, errors));
    let mut tools = trees.tools.as_ref().map(|tree| tools::read::read(tree, sources, errors));
    let before = errors.len();
    let servers = servers(&trees, tools.as_mut(), errors);
    let has_all_tools = errors.len() == before && tools.as_ref().is_some_and(|tools| tools.has_all_names);
    let tools = tools.filter(|_| servers.is_some());
    // More tools can be registered later or by another binary, so an unknown name is not an error.
    let registers = settings.as_ref().is_some_and(|settings| settings.worker.allow_dynamic_registration);
    let modules = tools.as_ref().is_some_and(|tools| !tools.file.modules.is_empty() && !sources.knows_modules);
    let more_may_come = registers || modules || sources.allow_unknown_names;
    let known_tools = tools.as_ref().filter(|_| has_all_tools && !more_may_come);
    let names = known_tools.map(|tools| &tools.names);
    tools::reconcile::check(tools.as_ref().map(|it| &it.file), names, trees.tools.as_ref(), errors);
    let models = trees.models.as_ref().map(|tree| models::read(tree, errors));
    let around = AgentReferences { sources, tools: names, models: models.as_ref(), prompts: &agent_prompts };
    let agents = trees.agents.as_ref().map(|tree| agents::read(tree, &around, errors));
    let known = known(agents.as_ref().filter(|agents| agents.has_all_names), known_tools);
    let permitted = trees.permissions.as_ref().map(|tree| policy::permissions(tree, &known, tools.as_ref(), errors));
    let limits = trees.limits.as_ref().map(|tree| limits::read(tree, &known, settings.as_ref(), errors));
    let limits = limits.map(|limits| limits::with_built_in(limits, settings.as_ref()));
    let tenants = trees.tenants.as_ref().map(|tree| policy::tenants(tree, &known, limits.as_deref(), errors));
    if let Some(disabled) = trees.disabled_tools(errors) {
        policy::names(&disabled, known.tools_and_ids.as_ref(), "the name or id of a tool");
    }
    let settings = settings?;
    let agents = agents?;
    let tools = tools?;
    let mut permitted = permitted?;
    let permissions = permissions(&mut permitted, &settings.permission, trees.samples().contains(&"permissions.yaml"));
    let known_tools = limits::known_tools(&tools.file, servers.as_ref()?, &permissions);
    let policy = Policy {
        agents: Arc::new(agents.policies),
        tenants: tenants?,
        permissions,
        defaults: default_caps(&settings.caps),
        limits: Arc::new(limits?),
        known_tools: Arc::new(known_tools),
        ..Policy::default()
    };
    let digest = digest::digest(&policy, &declared);
    let tools = tools.file;
    let task_handlers = agents.task_handlers;
    let mcp = servers?;
    let models = models?;
    let warnings = errors.warnings();
    let samples = trees.samples();
    let trees = Arc::new(trees);
    Some(Configuration {
        settings,
        policy,
        tools,
        mcp,
        models,
        task_handlers,
        prompts,
        digest,
        warnings,
        samples,
        rule_texts: permitted.texts,
        trees,
    })
}

fn known(agents: Option<&agents::Agents>, tools: Option<&tools::read::Tools>) -> KnownNames {
    KnownNames {
        agents: agents.map(|agents| agents.names.clone()),
        roles: agents.map(|agents| roles(agents.policies.values())),
        tools: tools.map(|tools| tools.names.clone()),
        tools_and_ids: tools.map(|tools| tools.names_and_ids.clone()),
    }
}

fn servers(trees: &Trees, tools: Option<&mut tools::read::Tools>, errors: &Errors) -> Option<McpFile> {
    let pins = trees.mcp_lock.as_ref().map(|tree| mcp::lock::read(tree, errors));
    Some(mcp::read(trees.mcp.as_ref()?, &pins?, tools?, errors))
}

fn permissions(permitted: &mut policy::PermissionsFile, settings: &PermissionSettings, is_sample: bool) -> Permissions {
    let mut matrix = std::mem::take(&mut permitted.matrix);
    let approvers = std::mem::take(&mut permitted.approvers);
    if settings.trial_tools && is_sample {
        let everyone = ToolGrant { everyone: true, ..ToolGrant::default() };
        for tool in TRIAL_TOOLS {
            matrix.entry(tool.to_owned()).or_insert_with(|| everyone.clone());
        }
    }
    Permissions {
        matrix,
        disabled_tools: settings.disabled_tools.clone(),
        switched_off: BTreeSet::new(),
        strict_capabilities: settings.strict_capabilities,
        approvers,
    }
}

fn roles<'a>(agents: impl Iterator<Item = &'a AgentPolicy>) -> BTreeSet<String> {
    agents.flat_map(|agent| agent.roles.iter().cloned()).collect()
}

fn default_caps(caps: &CapSettings) -> DefaultCaps {
    DefaultCaps {
        tick_ms: i64::try_from(caps.tick.as_millis()).unwrap_or(i64::MAX),
        calls_per_tick: caps.max_calls_per_tick,
        max_actions_per_day: caps.max_actions_per_day,
        time_zone: caps.time_zone.clone(),
        on_day_cap: caps.on_day_cap,
    }
}
