//! `agents.yaml`: the agents and their task handlers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::Sources;
use crate::document::errors::Errors;
use crate::document::reader::{Cursor, Section};
use crate::document::tree::Node;
use crate::llm::{self, LlmDef};
use crate::models::Models;
use crate::prompts::AgentPrompts;
use crate::tools::HttpDef;
use crate::tools::http;
use crate::tools::read::{EFFECTS, TIMEOUT_MS_MAX};
use crate::tools::templates::Arguments;
use tickfleet_model::version::Selector;
use tickfleet_model::{AgentId, AgentPolicy, Effect, limits, suggest};

/// Longer than a worker's lease, because external runtimes send fewer heartbeats.
pub const EXTERNAL_LEASE_DEFAULT: Duration = Duration::from_secs(60);

/// Templates of an HTTP task handler can use these arguments, as `{{description}}`.
pub const TASK_ARGUMENTS: [&str; 8] =
    ["task_id", "tenant", "agent", "description", "input", "priority", "deadline", "delegator"];

/// A URL path may contain only these arguments, because every task has them.
const TASK_ARGUMENTS_ALWAYS: [&str; 5] = ["task_id", "tenant", "agent", "description", "priority"];

/// No task can be delegated to an agent without a handler.
#[derive(Debug, Clone)]
pub enum TaskHandlerDef {
    Typed(String),
    Http(Box<HttpTaskDef>),
    Llm(Box<LlmDef>),
    External {
        /// Time without a heartbeat after which another runtime may lease the task.
        lease: Duration,
    },
}

impl TaskHandlerDef {
    /// The lease of tasks that wait in a queue of their agent, until another runtime takes them. `None` if a worker
    /// carries out the tasks.
    #[must_use]
    pub const fn external_lease(&self) -> Option<Duration> {
        match self {
            Self::External { lease } => Some(*lease),
            Self::Typed(_) | Self::Http(_) | Self::Llm(_) => None,
        }
    }

    /// True if tasks of this handler use tokens and money of models.
    #[must_use]
    pub const fn uses_models(&self) -> bool {
        match self {
            Self::Llm(_) => true,
            Self::Typed(_) | Self::Http(_) | Self::External { .. } => false,
        }
    }
}

#[derive(Debug, Clone)]
pub struct HttpTaskDef {
    pub http: HttpDef,
    /// Default `once`.
    pub effect: Effect,
    /// Default: the fleet's tool timeout.
    pub timeout: Option<Duration>,
}

#[derive(Debug, Default)]
pub(super) struct Agents {
    pub(super) policies: BTreeMap<AgentId, AgentPolicy>,
    pub(super) task_handlers: BTreeMap<AgentId, TaskHandlerDef>,
    /// Includes agents with errors, so that other files may name these agents.
    pub(super) names: BTreeSet<String>,
    pub(super) has_all_names: bool,
}

#[derive(Clone, Copy)]
pub(super) struct AgentReferences<'a> {
    pub(super) sources: &'a Sources,
    pub(super) tools: Option<&'a BTreeSet<String>>,
    pub(super) models: Option<&'a Models>,
    pub(super) prompts: &'a AgentPrompts,
}

pub(super) fn read(tree: &Node, known: &AgentReferences<'_>, errors: &Errors) -> Agents {
    let mut agents = Agents::default();
    let before = errors.len();
    let mut root = Section::open(tree, "", errors);
    let members = root.required("agents").map(|c| c.members()).unwrap_or_default();
    root.close();
    agents.has_all_names = errors.len() == before;
    for (name, place, cursor) in members {
        agents.names.insert(name.to_owned());
        let id = AgentId::new(name).map_err(|error| {
            errors.push(place, &cursor.path, format!("the agent name {name:?}"), format!("a name: {error}"));
        });
        let (policy, handler) = agent(&cursor, known);
        if let Ok(id) = id {
            agents.task_handlers.extend(handler.map(|handler| (id.clone(), handler)));
            agents.policies.insert(id, policy);
        }
    }
    agents
}

fn agent(cursor: &Cursor<'_>, known: &AgentReferences<'_>) -> (AgentPolicy, Option<TaskHandlerDef>) {
    let mut s = cursor.section();
    let policy = AgentPolicy {
        roles: s.optional("roles").map(|c| c.words()).unwrap_or_default(),
        capabilities: s.optional("capabilities").map(|c| c.words()).unwrap_or_default(),
        tool_versions: s.optional("tool_versions").map(|c| tool_versions(&c, known.tools)).unwrap_or_default(),
        calls_per_tick: s.optional("calls_per_tick").and_then(|c| c.integer(1, limits::BATCH_CALLS_MAX as i128)),
        max_actions_per_day: s.optional("max_actions_per_day").and_then(|c| c.integer(0, u32::MAX.into())),
    };
    let handler = s.optional("task_handler").and_then(|c| task_handler(&c, known));
    s.close();
    (policy, handler)
}

fn tool_versions(cursor: &Cursor<'_>, tools: Option<&BTreeSet<String>>) -> BTreeMap<String, String> {
    let mut read = BTreeMap::new();
    for (tool, place, selector) in cursor.members() {
        if tools.is_some_and(|tools| !tools.contains(tool)) {
            let found = format!("the unknown tool `{tool}`");
            let expected = "a tool of tools.yaml or a built-in one";
            cursor.errors.push(place, &selector.path, found, expected);
        }
        let Some(text) = selector.text() else { continue };
        if Selector::parse(text).is_none() {
            selector.refuse("latest, or a quoted range of versions such as \"1\", \"1.2\" or \">=1, <3\"");
        }
        read.insert(tool.to_owned(), text.to_owned());
    }
    read
}

/// Fields beside the kind.
#[derive(Clone, Copy)]
pub(crate) struct HttpOptions {
    effect: Effect,
    timeout: Option<Duration>,
}

pub(crate) type ReadHandler = fn(&Cursor<'_>, &AgentReferences<'_>, HttpOptions) -> Option<TaskHandlerDef>;
pub(crate) const HANDLERS: [(&str, ReadHandler); 4] = [
    ("typed", |c, known, _| typed(c, known.sources)),
    (HTTP, |c, _, options| http_handler(c, options)),
    ("llm", |c, known, _| llm_handler(c, known)),
    ("external", |c, _, _| Some(external(c))),
];
const HTTP: &str = "http";

fn task_handler(cursor: &Cursor<'_>, known: &AgentReferences<'_>) -> Option<TaskHandlerDef> {
    let mut s = cursor.section();
    let handlers = HANDLERS.map(|(kind, read)| s.optional(kind).map(|c| (kind, c, read)));
    let handlers: Vec<_> = handlers.into_iter().flatten().collect();
    let effect = s.optional("effect");
    let timeout = s.optional("timeout_ms");
    let beside: Vec<_> = [&effect, &timeout].into_iter().flatten().collect();
    if handlers.iter().all(|(kind, ..)| *kind != HTTP) {
        beside.iter().for_each(|field| field.refuse("nothing here: only http handlers take it"));
    }
    let before = cursor.errors.len();
    s.close();
    let has_unknown_field = cursor.errors.len() > before;
    if handlers.len() > 1 || handlers.is_empty() && !has_unknown_field {
        cursor.refuse(format!("exactly one of {}", HANDLERS.map(|(kind, _)| kind).join(", ")));
    }
    let effect = effect.and_then(|c| c.choice(&EFFECTS)).unwrap_or_default();
    let timeout = timeout.and_then(|c| c.integer(1, TIMEOUT_MS_MAX)).map(Duration::from_millis);
    let options = HttpOptions { effect, timeout };
    let read: Vec<_> = handlers.iter().filter_map(|(_, c, read)| read(c, known, options)).collect();
    read.into_iter().next_back()
}

fn http_handler(cursor: &Cursor<'_>, HttpOptions { effect, timeout }: HttpOptions) -> Option<TaskHandlerDef> {
    let arguments = Arguments::of_task(&TASK_ARGUMENTS, &TASK_ARGUMENTS_ALWAYS);
    let http = http::read(cursor, &arguments, effect == Effect::Once)?;
    Some(TaskHandlerDef::Http(Box::new(HttpTaskDef { http, effect, timeout })))
}

fn llm_handler(cursor: &Cursor<'_>, known: &AgentReferences<'_>) -> Option<TaskHandlerDef> {
    let def = llm::read(cursor, known.prompts, known.models, known.sources.schema_check)?;
    Some(TaskHandlerDef::Llm(Box::new(def)))
}

fn typed(cursor: &Cursor<'_>, sources: &Sources) -> Option<TaskHandlerDef> {
    let name = cursor.text()?;
    let known = || sources.built_in_handlers.iter().map(String::as_str);
    if !sources.built_in_handlers.contains(name) && !sources.allow_unknown_names {
        let expected = format!("a task handler of this binary: {}", suggest::list(known()));
        cursor.refuse_with(expected, suggest::closest(name, known()));
        return None;
    }
    Some(TaskHandlerDef::Typed(name.to_owned()))
}

fn external(cursor: &Cursor<'_>) -> TaskHandlerDef {
    let mut s = cursor.section();
    let lease = s.optional("lease_ms").and_then(|c| c.integer(limits::LEASE_MS_MIN.into(), 3_600_000));
    s.close();
    TaskHandlerDef::External { lease: lease.map_or(EXTERNAL_LEASE_DEFAULT, Duration::from_millis) }
}
