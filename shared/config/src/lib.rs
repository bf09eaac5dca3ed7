//! Configuration: one YAML tree and the environment, validated as a whole before anything starts.
//!
//! Built-in defaults lie below the files of a folder, and those below the environment ([`load`]). Values keep
//! their place through all of it, so an error points at file, line and column or names the variable, and
//! [`print()`](print()) tells where each value in force comes from. All errors are reported at once.

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
pub use document::errors::{ConfigError, ConfigErrors, ConfigWarning, Place};
pub use document::units;
pub use limits::known_tools;
pub use llm::LlmDef;
pub use mcp::McpFile;
pub use mcp::lock::{MCP_LOCK_FILE, McpAnnotations, McpChange, McpDefinition, McpPinned, McpPins};
pub use models::{MODEL_TIMEOUT_DEFAULT, ModelApi, ModelDef, Models, Prices, ProviderDef};
pub use print::{Shown, ShownSetting, print, shown};
pub use reload::{fingerprint, load_settled, needs_restart};
pub use settings::redis_url::RedisUrl;
pub use settings::*;
pub use tools::http::{SERVICE_URL, is_service_url};
pub use tools::read::default_id;
pub use tools::schema::{SchemaCheck, SchemaProblem, SchemaUse};
pub use tools::{PythonDef, ToolsFile};

use agents::Surroundings;
use document::errors::Errors;
use files::Trees;
use policy::Known;
use prompts::AgentPrompts;
use tickfleet_model::policy::{DefaultCaps, Permissions, Policy, TRIAL_TOOLS, ToolGrant};
use tickfleet_model::retry::Ladder;
use tickfleet_model::retry::breaker::Endurance;
use tickfleet_model::{AgentId, AgentPolicy};
use tickfleet_protocol::Prompts;

/// The sources of a configuration. Nothing is read from the process' surroundings.
#[derive(Clone, Default)]
pub struct Sources {
    /// The folder with the operator's files; none takes the built-in configuration as it is.
    pub dir: Option<PathBuf>,
    /// The environment variables of the process.
    pub environment: Environment,
    /// Tools that the binary registers itself: permissions may name them without a declaration.
    pub built_in_tools: BTreeSet<String>,
    /// Task handlers that the binary registers itself: agents may be bound to them.
    pub built_in_handlers: BTreeSet<String>,
    /// True if names of tools and task handlers that nobody here has may be those of the program that runs the fleet: a
    /// command beside it need not know them.
    pub others_carry_out: bool,
    /// True if [`Self::built_in_tools`] has the tools of the Python modules that `tools.yaml` names. Where it is false and
    /// there are such modules, a name that nothing has may be one of theirs.
    pub knows_python: bool,
    /// The check of the schemas of declared tools.
    pub schema_check: SchemaCheck,
    /// How much of the folder is read.
    pub part: Part,
}

/// How much of a folder is read.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Part {
    /// Every file.
    #[default]
    Whole,
    /// `tickfleet.yaml`. There are no agents, tools, permissions and tenants.
    Settings,
    /// The section `redis` of `tickfleet.yaml`. All other settings are the defaults, or from the environment.
    Redis,
}

impl Sources {
    /// The folder of the files that are read as a whole; none where only settings are.
    fn policy_dir(&self) -> Option<&std::path::Path> {
        self.dir.as_deref().filter(|_| self.part == Part::Whole)
    }
}

impl fmt::Debug for Sources {
    /// Names the variables without their values: some are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sources")
            .field("dir", &self.dir)
            .field("environment", &self.environment.keys())
            .field("built_in_tools", &self.built_in_tools)
            .field("built_in_handlers", &self.built_in_handlers)
            .finish()
    }
}

/// A configuration that passed every check.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// Every setting.
    pub settings: Settings,
    /// Agents, tenants, permissions and caps, as one consistent whole.
    pub policy: Policy,
    /// The declared tools; what their texts take from the environment is in them already.
    pub tools: ToolsFile,
    /// The MCP servers with the tools that are imported from them.
    pub mcp: McpFile,
    /// The models that agents are run on.
    pub models: Models,
    /// The handlers of tasks, by agent. An agent that is not here cannot be delegated to.
    pub task_handlers: BTreeMap<AgentId, TaskHandlerDef>,
    /// The texts that tell models without function calling of their tools.
    pub prompts: Prompts,
    /// SHA-256, hex, of what decides about calls: caps, agents, tenants, permissions and tools. Equal on every
    /// process with the same policy, whatever its other settings and the URLs that its tools take from the environment.
    pub digest: String,
    /// Warnings: what works and should be looked at, by file and line.
    pub warnings: Vec<ConfigWarning>,
    samples: Vec<&'static str>,
    rule_texts: Vec<policy::RuleText>,
    /// Copies share them.
    trees: Arc<Trees>,
}

impl Configuration {
    /// The files with agents, tools, permissions and tenants that the folder does not have: those of the built-in
    /// sample business are in use.
    #[must_use]
    pub fn samples(&self) -> &[&'static str] {
        &self.samples
    }

    /// Holds the arguments that rules name against the input schemas of their tools. `schemas` answers those of all
    /// versions of a tool, as far as it is known: of many, only whoever makes the tools has them. Answers the names that a
    /// schema does not declare, though it would take them.
    ///
    /// # Errors
    /// The names that no call can have: their schema takes none but those that it declares.
    pub fn check_rule_names<'a>(
        &self,
        schemas: impl Fn(&str) -> Vec<&'a serde_json::Value>,
    ) -> Result<Vec<ConfigWarning>, ConfigErrors> {
        let errors = Errors::default();
        self.rule_texts.iter().for_each(|text| text.check(&schemas(text.tool()), &errors));
        let warnings = errors.warnings();
        errors.unless_any(Some(warnings))
    }

    /// Forgets the text that it was read from, but for the settings': [`print()`](print()) shows no more of it. Whoever
    /// runs for long needs no more, and with many agents it takes as much memory as all the rest.
    #[must_use]
    pub fn without_text(mut self) -> Self {
        self.trees = Arc::new(Trees { settings: self.trees.settings.clone(), ..Trees::default() });
        self
    }

    /// The waits between tries.
    #[must_use]
    pub fn ladder(&self) -> Ladder {
        Ladder::new(self.settings.worker.retry_ladder.clone())
    }

    /// When a tool that fails is not called for a while; none where every call is sent.
    #[must_use]
    pub fn endurance(&self) -> Option<Endurance> {
        let worker = &self.settings.worker;
        let endurance = Endurance { failures_max: worker.breaker_failures, rest: worker.breaker_rest };
        (worker.breaker_failures > 0).then_some(endurance)
    }
}

/// Loads a configuration: built-in defaults, below the folder's files, below the environment.
///
/// A `tickfleet.yaml` of the folder is laid over the built-in one field by field; each of its other files takes
/// the built-in one's place as a whole, and so does each file of its folder `prompts`. Every file is optional.
///
/// # Errors
/// [`ConfigErrors`] with everything that is wrong: unreadable files, syntax, unknown fields, wrong types and
/// ranges, relations between settings, and names that nothing has.
pub fn load(sources: &Sources) -> Result<Configuration, ConfigErrors> {
    let errors = Errors::default();
    let read = files::read(sources, &errors);
    let prompts = prompts::read(sources.policy_dir(), &errors);
    let agent_prompts = prompts::of_agents(sources.policy_dir(), &errors);
    let given = prompts.map(|prompts| (prompts, agent_prompts));
    let configuration = read.zip(given).and_then(|(read, prompts)| assemble(read, prompts, sources, &errors));
    errors.unless_any(configuration)
}

/// Loads the MCP servers of a configuration, without tools, and what is pinned of them so far. Whatever else may be
/// wrong with the configuration: permissions may name tools that are only about to be pinned.
///
/// # Errors
/// [`ConfigErrors`] with everything that is wrong in `mcp.yaml`.
pub fn load_mcp(sources: &Sources) -> Result<(McpFile, McpPins), ConfigErrors> {
    let errors = Errors::default();
    let (servers, lock) = files::read_mcp(sources, &errors);
    let file = servers.map(|tree| mcp::read_unpinned(&tree, &errors));
    let pins = lock.map(|tree| mcp::lock::read(&tree, &Errors::default())).unwrap_or_default();
    errors.unless_any(file.map(|file| (file, pins)))
}

/// Returns true if the log is to be JSON: by the variable `TICKFLEET_LOG_FORMAT`, otherwise by `log.format` of the folder
/// `dir`. Whatever else may be wrong with the configuration: how its errors are written depends on this.
#[must_use]
pub fn wants_json_log(dir: Option<&std::path::Path>, environment: &Environment) -> bool {
    files::wants_json_log(dir, environment)
}

/// Loads the Python modules that `tools.yaml` names, whatever else may be wrong with the configuration: [`load`] tells.
/// None are there where they could not be read.
#[must_use]
pub fn load_python(sources: &Sources) -> BTreeMap<String, PythonDef> {
    let errors = Errors::default();
    let tree = files::read_tools(sources, &errors);
    let read = tree.map(|tree| tools::read::read(&tree, sources, &errors).file.python);
    errors.unless_any(read).unwrap_or_default()
}

/// Reads the trees. What could not be parsed is read as empty, and not held against what names it.
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
    // Where tools may be registered while a worker runs, a name that nothing has yet is not a mistake.
    let registers = settings.as_ref().is_some_and(|settings| settings.worker.allow_dynamic_registration);
    let python = tools.as_ref().is_some_and(|tools| !tools.file.python.is_empty() && !sources.knows_python);
    let more_may_come = registers || python || sources.others_carry_out;
    let known_tools = tools.as_ref().filter(|_| has_all_tools && !more_may_come);
    let names = known_tools.map(|tools| &tools.names);
    tools::reconcile::check(tools.as_ref().map(|it| &it.file), names, trees.tools.as_ref(), errors);
    let models = trees.models.as_ref().map(|tree| models::read(tree, errors));
    let around = Surroundings { sources, tools: names, models: models.as_ref(), prompts: &agent_prompts };
    let agents = trees.agents.as_ref().map(|tree| agents::read(tree, &around, errors));
    let known = known(agents.as_ref().filter(|agents| agents.has_all_names), known_tools);
    let permitted = trees.permissions.as_ref().map(|tree| policy::permissions(tree, &known, tools.as_ref(), errors));
    let limits = trees.limits.as_ref().map(|tree| limits::read(tree, &known, settings.as_ref(), errors));
    let limits = limits.map(|limits| limits::with_built_in(limits, settings.as_ref()));
    let tenants = trees.tenants.as_ref().map(|tree| policy::tenants(tree, &known, limits.as_deref(), errors));
    if let Some(disabled) = trees.disabled_tools(errors) {
        policy::names(&disabled, known.tools_and_ids.as_ref(), "the name or id of a tool");
    }
    let (settings, agents, tools, mut permitted) = (settings?, agents?, tools?, permitted?);
    let permissions = permissions(&mut permitted, &settings.permission, trees.samples().contains(&"permissions.yaml"));
    let known_tools = limits::known_tools(&tools.file, servers.as_ref()?, &permissions);
    let policy = Policy {
        agents: Arc::new(agents.policies),
        tenants: tenants?,
        permissions,
        defaults: default_caps(&settings.caps),
        limits: Arc::new(limits?),
        known_tools: Arc::new(known_tools),
        // What is set at run time is nothing yet.
        ..Policy::default()
    };
    let digest = digest::digest(&policy, &declared);
    let (tools, task_handlers, mcp, models) = (tools.file, agents.task_handlers, servers?, models?);
    let (warnings, samples, trees) = (errors.warnings(), trees.samples(), Arc::new(trees));
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

/// The names that other files may use.
fn known(agents: Option<&agents::Agents>, tools: Option<&tools::read::Tools>) -> Known {
    Known {
        agents: agents.map(|agents| agents.names.clone()),
        roles: agents.map(|agents| roles(agents.policies.values())),
        tools: tools.map(|tools| tools.names.clone()),
        tools_and_ids: tools.map(|tools| tools.names_and_ids.clone()),
    }
}

/// The MCP servers; none where tools are not known, which cannot be held against what names them.
fn servers(trees: &Trees, tools: Option<&mut tools::read::Tools>, errors: &Errors) -> Option<McpFile> {
    let pins = trees.mcp_lock.as_ref().map(|tree| mcp::lock::read(tree, errors));
    Some(mcp::read(trees.mcp.as_ref()?, &pins?, tools?, errors))
}

/// The permissions of a matrix; trial tools have rows in the sample business alone.
fn permissions(permitted: &mut policy::Permitted, settings: &PermissionSettings, is_sample: bool) -> Permissions {
    let (mut matrix, approvers) = (std::mem::take(&mut permitted.matrix), std::mem::take(&mut permitted.approvers));
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
