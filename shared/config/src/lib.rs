//! Configuration: YAML files and the environment, validated as a whole before anything starts.
//!
//! The files of a folder override the built-in defaults, and the environment overrides the files ([`load`]). Each value
//! keeps the location where it was written. So an error shows the file, line and column, or the variable, and
//! [`print()`](print()) shows the origin of each value. All errors are reported at once.

mod agents;
mod approval;
mod digest;
mod document;
mod files;
#[doc(hidden)]
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

/// The inputs of [`load`], which reads no global state of the process.
#[derive(Clone, Default)]
pub struct Sources {
    /// `None` uses the built-in configuration.
    pub dir: Option<PathBuf>,
    pub environment: Environment,
    /// Tools that the binary itself registers. Permissions can name these tools although no file declares them.
    pub built_in_tools: BTreeSet<String>,
    pub built_in_handlers: BTreeSet<String>,
    /// True if another binary may run the fleet and register further tools and task handlers. If so, an unknown name is
    /// not an error.
    pub others_carry_out: bool,
    /// True if [`Self::built_in_tools`] contains the tools of the modules in `tools.yaml`. If false, an unknown name
    /// may be a tool of such a module.
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
    /// Only `tickfleet.yaml`: no agents, tools, permissions or tenants.
    Settings,
    /// Only the section `redis` of `tickfleet.yaml`. All other settings come from the defaults or the environment.
    Redis,
}

impl Sources {
    fn policy_dir(&self) -> Option<&std::path::Path> {
        self.dir.as_deref().filter(|_| self.part == Part::Whole)
    }
}

impl fmt::Debug for Sources {
    /// Shows the variables without their values: some values are secrets.
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
    /// The declared tools, with values from the environment already replaced.
    pub tools: ToolsFile,
    pub mcp: McpFile,
    pub models: Models,
    /// Tasks can be delegated only to these agents.
    pub task_handlers: BTreeMap<AgentId, TaskHandlerDef>,
    pub prompts: Prompts,
    /// SHA-256 (hex) of everything that affects decisions about calls: caps, agents, tenants, permissions and tools.
    /// Processes with the same policy have equal digests, even if other settings, or tool URLs from the environment,
    /// differ.
    pub digest: String,
    pub warnings: Vec<ConfigWarning>,
    samples: Vec<&'static str>,
    rule_texts: Vec<policy::RuleText>,
    trees: Arc<Trees>,
}

impl Configuration {
    /// Returns the files of the built-in sample business that are in use because the folder lacks them.
    #[must_use]
    pub fn samples(&self) -> &[&'static str] {
        &self.samples
    }

    /// Checks the arguments that rules name against the input schemas of their tools. `schemas` returns the known
    /// schemas of all versions of a tool, because many schemas are known only to the code that builds the tools.
    /// Returns a warning for each name that no schema declares but some schema accepts.
    ///
    /// # Errors
    /// An error for each name that no call can have, because the schemas accept only the arguments that they declare.
    pub fn check_rule_names<'a>(
        &self,
        schemas: impl Fn(&str) -> Vec<&'a serde_json::Value>,
    ) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        let errors = Errors::default();
        self.rule_texts.iter().for_each(|text| text.check(&schemas(text.tool()), &errors));
        let warnings = errors.warnings();
        errors.unless_any(Some(warnings))
    }

    /// Drops the source text of all files except the settings; afterwards [`print()`](print()) shows only the settings.
    /// A long-running process does not need the source text. With many agents, the text takes as much memory as the
    /// rest of the configuration.
    #[must_use]
    pub fn without_text(mut self) -> Self {
        self.trees = Arc::new(Trees { settings: self.trees.settings.clone(), ..Trees::default() });
        self
    }

    /// Returns the settings of circuit breakers, or `None` if they are off.
    #[must_use]
    pub fn breaker_settings(&self) -> Option<BreakerSettings> {
        let worker = &self.settings.worker;
        let settings = BreakerSettings { failures_max: worker.breaker_failures, cooldown: worker.breaker_cooldown };
        (worker.breaker_failures > 0).then_some(settings)
    }
}

/// Loads a configuration. The folder's files override the built-in defaults, and the environment overrides both.
///
/// A `tickfleet.yaml` of the folder overrides the built-in settings one by one. Each other file, and each file of the
/// folder `prompts`, replaces the built-in file as a whole. Every file is optional. [`Sources::written`] is a layer
/// between the built-in files and the folder.
///
/// # Errors
/// [`ConfigErrors`] with all errors: unreadable files, syntax, unknown fields, wrong types and ranges, relations
/// between settings, and unknown names.
pub fn load(sources: &Sources) -> Result<Configuration, ConfigErrors> {
    let errors = Errors::default();
    let read = files::read(sources, &errors);
    let prompts = prompts::read(sources.policy_dir(), &errors);
    let agent_prompts = prompts::of_agents(sources.policy_dir(), &errors);
    let given = prompts.map(|prompts| (prompts, agent_prompts));
    let configuration = read.zip(given).and_then(|(read, prompts)| assemble(read, prompts, sources, &errors));
    errors.unless_any(configuration)
}

/// Loads the MCP servers of a configuration, without tools, and their current pins. Errors in other files are ignored,
/// because permissions can name tools that are not pinned yet.
///
/// # Errors
/// [`ConfigErrors`] with all errors of `mcp.yaml`.
pub fn load_mcp(sources: &Sources) -> Result<(McpFile, McpPins), ConfigErrors> {
    let errors = Errors::default();
    let (servers, lock) = files::read_mcp(sources, &errors);
    let file = servers.map(|tree| mcp::read_unpinned(&tree, &errors));
    let pins = lock.map(|tree| mcp::lock::read(&tree, &Errors::default())).unwrap_or_default();
    errors.unless_any(file.map(|file| (file, pins)))
}

/// Returns true if the log format is JSON: by the variable `TICKFLEET_LOG_FORMAT`, otherwise by `log.format` of the
/// folder `dir`. Works even if the configuration is invalid, because configuration errors are logged in this format.
#[must_use]
pub fn wants_json_log(dir: Option<&std::path::Path>, environment: &Environment) -> bool {
    files::wants_json_log(dir, environment)
}

/// Loads the modules with tools in `tools.yaml`, by `<section>.<name>`, even if the rest of the configuration is
/// invalid ([`load`] reports errors). The result is empty if the modules cannot be read.
#[must_use]
pub fn load_modules(sources: &Sources) -> BTreeMap<String, ModulesDef> {
    let errors = Errors::default();
    let tree = files::read_tools(sources, &errors);
    let read = tree.map(|tree| tools::read::read(&tree, sources, &errors).file.modules);
    errors.unless_any(read).unwrap_or_default()
}

/// Builds the configuration from the parsed files. If a file could not be parsed, does not check names against that
/// file.
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
    // If further tools can be registered later or by another binary, an unknown name is not an error.
    let registers = settings.as_ref().is_some_and(|settings| settings.worker.allow_dynamic_registration);
    let modules = tools.as_ref().is_some_and(|tools| !tools.file.modules.is_empty() && !sources.knows_modules);
    let more_may_come = registers || modules || sources.others_carry_out;
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
        // The run-time part of the policy is still empty.
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

/// Reads the MCP servers. Returns `None` if `mcp.yaml`, the pins or the tools could not be read. In that case, names of
/// MCP tools cannot be checked.
fn servers(trees: &Trees, tools: Option<&mut tools::read::Tools>, errors: &Errors) -> Option<McpFile> {
    let pins = trees.mcp_lock.as_ref().map(|tree| mcp::lock::read(tree, errors));
    Some(mcp::read(trees.mcp.as_ref()?, &pins?, tools?, errors))
}

/// Builds the permissions. Adds rows for trial tools only if the matrix is from the sample business.
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
