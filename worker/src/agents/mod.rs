//! Delegated tasks: the handlers that carry out tasks, and the tools of agents.

mod cancel;
mod delegate;
mod messages;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::{HttpTaskDef, LlmDef, TASK_ARGUMENTS, TaskHandlerDef};
use tickfleet_model::{AgentId, Effect, ToolSpec};

pub use cancel::cancel_task;
pub use delegate::delegate_task;
pub use messages::{read_messages, send_mcp_message};

use crate::tools::{DeclarationError, DeclaredHandler, Environment, RegisteredTool, ToolKind, ToolKinds, TypedTool};

/// A handler is a tool that no model calls. Its arguments are the task.
pub type TaskHandlers = BTreeMap<AgentId, Arc<RegisteredTool>>;

/// Replaces the model loop in processes without models: simulations, and some tests.
#[derive(Debug, Clone, Copy)]
pub struct NoModels;

impl ToolKind<LlmDef> for NoModels {
    fn make(&self, _: &LlmDef, _: &serde_json::Value, _: Effect) -> Result<DeclaredHandler, DeclarationError> {
        Err(DeclarationError::Machine("no models configured".into()))
    }
}

/// Leaves out agents of external runtimes, because their tasks never reach a worker. The error lists all problems, one
/// per line.
pub fn bind(
    defs: &BTreeMap<AgentId, TaskHandlerDef>,
    typed: Vec<TypedTool>,
    kinds: &ToolKinds,
    llm: &dyn ToolKind<LlmDef>,
    environment: &Environment,
    timeout_default: Duration,
) -> Result<TaskHandlers, Vec<String>> {
    let parts = typed.into_iter().map(|tool| tool.into_parts(timeout_default, environment));
    let typed: BTreeMap<String, (ToolSpec, _)> = parts.map(|parts| (parts.0.name.clone(), parts)).collect();
    let mut bound = TaskHandlers::new();
    let mut errors = Vec::new();
    for (agent, def) in defs {
        let made = match def {
            TaskHandlerDef::Typed(name) => match typed.get(name) {
                Some((spec, handler)) => RegisteredTool::new(spec.clone(), handler.clone()).map_err(|e| e.to_string()),
                None => Err(format!("no task handler is named {name:?}; known handlers: {:?}", typed.keys())),
            },
            TaskHandlerDef::Http(http) => http_handler(http, kinds, timeout_default),
            TaskHandlerDef::Llm(def) => llm_handler(def, llm),
            TaskHandlerDef::External { .. } => continue,
        };
        match made {
            Ok(tool) => drop(bound.insert(agent.clone(), Arc::new(tool))),
            Err(error) => errors.push(format!("agent {agent}: {error}")),
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

/// Sends only one request per task, unless a second request is declared harmless.
fn http_handler(def: &HttpTaskDef, kinds: &ToolKinds, timeout_default: Duration) -> Result<RegisteredTool, String> {
    let input_schema = task_schema();
    let made = kinds.http.make(&def.http, &input_schema, def.effect).map_err(|e| e.to_string())?;
    let description = "Carries out a delegated task by one request.";
    handler(
        "task_http",
        "Task over HTTP",
        description,
        input_schema,
        def.effect,
        def.timeout.unwrap_or(timeout_default),
        made,
    )
}

/// Idempotent, because every step is stored before the next step begins.
fn llm_handler(def: &LlmDef, llm: &dyn ToolKind<LlmDef>) -> Result<RegisteredTool, String> {
    let input_schema = task_schema();
    let made = llm.make(def, &input_schema, Effect::Idempotent).map_err(|e| e.to_string())?;
    let description = "Carries out a delegated task by a model and its tools.";
    handler("task_llm", "Task by a model", description, input_schema, Effect::Idempotent, def.timeout, made)
}

fn task_schema() -> serde_json::Value {
    let properties = TASK_ARGUMENTS.iter().map(|name| ((*name).to_owned(), serde_json::json!({})));
    let properties: serde_json::Map<_, _> = properties.collect();
    let always = ["task_id", "tenant", "agent", "description", "priority"];
    serde_json::json!({ "type": "object", "properties": properties, "required": always })
}

fn handler(
    id: &str,
    display_name: &str,
    description: &str,
    input_schema: serde_json::Value,
    effect: Effect,
    timeout: Duration,
    made: DeclaredHandler,
) -> Result<RegisteredTool, String> {
    let DeclaredHandler { handler, configured } = made;
    let spec = ToolSpec {
        id: id.into(),
        name: tickfleet_engine::delegation::TASK_TOOL.into(),
        display_name: display_name.into(),
        description: description.into(),
        input_schema,
        output_schema: None,
        category: "tasks".into(),
        version: "1.0.0".into(),
        effect,
        timeout,
        required_capabilities: Vec::new(),
        required_features: Vec::new(),
        requires_approval: false,
        approval: None,
        effect_key: None,
        cache: None,
        reconcile: None,
        durable: None,
        configured,
    };
    RegisteredTool::new(spec, handler).map_err(|e| e.to_string())
}
