//! Delegated tasks: what carries them out, and the tool that delegates them.

mod delegate;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tickfleet_config::{HttpTaskDef, TASK_ARGUMENTS, TaskHandlerDef};
use tickfleet_model::{AgentId, ToolSpec};

pub use delegate::delegate_task;

use crate::tools::{Environment, Made, RegisteredTool, ToolKinds, TypedTool};

/// Agent → what runs its tasks. A handler is a tool that no model calls: its arguments are the task.
pub type TaskHandlers = BTreeMap<AgentId, Arc<RegisteredTool>>;

/// Binds each agent to its handler: typed ones by name, HTTP ones as declared. Agents of external runtimes are left
/// out, for their tasks never come to a worker.
///
/// # Errors
/// Everything that is wrong, a line each, with the agent it concerns.
pub fn bind(
    defs: &BTreeMap<AgentId, TaskHandlerDef>,
    typed: Vec<TypedTool>,
    kinds: &ToolKinds,
    environment: &Environment,
    timeout_default: Duration,
) -> Result<TaskHandlers, Vec<String>> {
    let parts = typed.into_iter().map(|tool| tool.into_parts(timeout_default, environment));
    let typed: BTreeMap<String, (ToolSpec, _)> = parts.map(|parts| (parts.0.name.clone(), parts)).collect();
    let (mut bound, mut errors) = (TaskHandlers::new(), Vec::new());
    for (agent, def) in defs {
        let made = match def {
            TaskHandlerDef::Typed(name) => match typed.get(name) {
                Some((spec, handler)) => RegisteredTool::new(spec.clone(), handler.clone()).map_err(|e| e.to_string()),
                None => Err(format!("no task handler is called {name:?}; there are {:?}", typed.keys())),
            },
            TaskHandlerDef::Http(http) => http_handler(http, kinds, timeout_default),
            // Whoever leases its tasks carries them out.
            TaskHandlerDef::External { .. } => continue,
        };
        match made {
            Ok(tool) => drop(bound.insert(agent.clone(), Arc::new(tool))),
            Err(error) => errors.push(format!("agent {agent}: {error}")),
        }
    }
    if errors.is_empty() { Ok(bound) } else { Err(errors) }
}

/// A service that is called for each task: once, unless its declaration says that a second request does no harm.
fn http_handler(def: &HttpTaskDef, kinds: &ToolKinds, timeout_default: Duration) -> Result<RegisteredTool, String> {
    let properties = TASK_ARGUMENTS.iter().map(|name| ((*name).to_owned(), serde_json::json!({})));
    let properties: serde_json::Map<_, _> = properties.collect();
    let always = ["task_id", "tenant", "agent", "description", "priority"];
    let input_schema = serde_json::json!({ "type": "object", "properties": properties, "required": always });
    let made = kinds.http.make(&def.http, &input_schema, def.effect).map_err(|e| e.to_string())?;
    let Made { handler, configured } = made;
    let spec = ToolSpec {
        id: "task_http".into(),
        name: tickfleet_engine::delegation::TASK_TOOL.into(),
        display_name: "Task over HTTP".into(),
        description: "Carries out a delegated task by one request.".into(),
        input_schema,
        output_schema: None,
        category: "tasks".into(),
        version: "1.0.0".into(),
        effect: def.effect,
        timeout: def.timeout.unwrap_or(timeout_default),
        required_capabilities: Vec::new(),
        required_features: Vec::new(),
        requires_approval: false,
        configured,
    };
    RegisteredTool::new(spec, handler).map_err(|e| e.to_string())
}
