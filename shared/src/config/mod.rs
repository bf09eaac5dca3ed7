//! Configuration: one YAML tree and the environment, validated as a whole before anything starts.
//!
//! Built-in defaults lie below the files of a folder, and those below the environment ([`load`]). Values keep
//! their place through all of it, so an error points at file, line and column or names the variable, and
//! [`print()`](print()) tells where each value in force comes from. All errors are reported at once.

mod agents;
mod digest;
mod environment;
mod errors;
mod files;
mod http;
mod policy;
mod print;
mod read_settings;
mod read_tools;
mod reader;
mod redis_url;
mod settings;
pub mod tools;
mod tree;
pub mod units;
mod yaml;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

pub use agents::{EXTERNAL_LEASE_DEFAULT, TASK_ARGUMENTS, TaskHandlerDef};
pub use environment::Environment;
pub use errors::{ConfigError, ConfigErrors, Place};
pub use print::print;
pub use read_tools::default_id;
pub use redis_url::RedisUrl;
pub use settings::*;
pub use tools::ToolsFile;

use crate::model::policy::{DefaultCaps, Permissions, Policy};
use crate::model::retry::Ladder;
use crate::model::{AgentId, AgentPolicy};
use errors::Errors;
use files::Trees;
use policy::Known;

/// What a configuration is made of. Nothing is read from the process' surroundings.
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
    /// Every knob.
    pub settings: Settings,
    /// Agents, tenants, permissions and caps, as one consistent whole.
    pub policy: Policy,
    /// The declared tools; what their texts take from the environment is in them already.
    pub tools: ToolsFile,
    /// What carries out tasks, by agent. An agent that is not here cannot be delegated to.
    pub task_handlers: BTreeMap<AgentId, TaskHandlerDef>,
    /// SHA-256, hex, of what decides about calls: caps, agents, tenants, permissions and tools. Equal on every
    /// process with the same policy, whatever its other settings and the URLs that its tools take from the environment.
    pub digest: String,
    trees: Trees,
}

impl Configuration {
    /// The waits between tries.
    #[must_use]
    pub fn ladder(&self) -> Ladder {
        Ladder::new(self.settings.worker.retry_ladder.clone())
    }
}

/// Loads a configuration: built-in defaults, below the folder's files, below the environment.
///
/// A `tickfleet.yaml` of the folder is laid over the built-in one field by field; each of its other files takes
/// the built-in one's place as a whole. Every file is optional.
///
/// # Errors
/// [`ConfigErrors`] with everything that is wrong: unreadable files, syntax, unknown fields, wrong types and
/// ranges, relations between knobs, and names that nothing has.
pub fn load(sources: &Sources) -> Result<Configuration, ConfigErrors> {
    let errors = Errors::default();
    let trees = files::read(sources, &errors);
    let configuration = trees.and_then(|trees| assemble(trees, sources, &errors));
    errors.unless_any(configuration)
}

/// Reads the five trees. What could not be parsed is read as empty, and not held against what names it.
fn assemble(trees: Trees, sources: &Sources, errors: &Errors) -> Option<Configuration> {
    let settings = trees.settings.as_ref().and_then(|tree| read_settings::settings(tree, errors));
    let agents = trees.agents.as_ref().map(|tree| agents::read(tree, sources, errors));
    let tools = trees.tools.as_ref().map(|tree| read_tools::read(tree, sources, errors));
    let known = Known {
        agents: agents.as_ref().map(|agents| agents.names.clone()),
        roles: agents.as_ref().map(|agents| roles(agents.policies.values())),
        tools: tools.as_ref().map(|tools| tools.names.clone()),
        tools_and_ids: tools.as_ref().map(|tools| tools.names_and_ids.clone()),
    };
    let matrix = trees.permissions.as_ref().map(|tree| policy::permissions(tree, &known, errors));
    let tenants = trees.tenants.as_ref().map(|tree| policy::tenants(tree, &known, errors));
    if let Some(disabled) = trees.disabled_tools(errors) {
        policy::names(&disabled, known.tools_and_ids.as_ref(), "the name or id of a tool");
    }
    let (settings, agents, tools) = (settings?, agents?, tools?);
    let policy = Policy {
        agents: agents.policies,
        tenants: tenants?,
        permissions: Permissions {
            matrix: matrix?,
            disabled_tools: settings.permission.disabled_tools.clone(),
            strict_capabilities: settings.permission.strict_capabilities,
        },
        defaults: default_caps(&settings.caps),
    };
    let digest = digest::digest(&policy, &trees);
    let (tools, task_handlers) = (tools.file, agents.task_handlers);
    Some(Configuration { settings, policy, tools, task_handlers, digest, trees })
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
