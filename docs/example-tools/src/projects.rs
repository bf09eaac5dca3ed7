//! Five tools that read project data. The data is JSON files in `data/<tenant>/projects/<project>`, which other
//! programs write.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tickfleet::{CallContext, Effect, ToolError, TypedTool};

use crate::folder::{Folder, on_disk};

const BYTES_MAX: u64 = 256 * 1024;
const RUNS_SEEN_MAX: usize = 10_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Project {
    /// The project's name.
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,63}$"))]
    project_id: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Newest {
    /// The project's name.
    #[schemars(regex(pattern = "^[a-z0-9][a-z0-9-]{0,63}$"))]
    project_id: String,
    /// The number of newest items to return, 1 to 50. Default: 20.
    #[serde(default)]
    #[schemars(range(min = 1, max = 50))]
    limit: Option<usize>,
}

#[derive(Serialize, JsonSchema)]
struct Document {
    /// The project's name.
    project_id: String,
    /// The content of the file; null if the file does not exist.
    data: Value,
}

#[derive(Serialize, JsonSchema)]
struct List {
    /// The project's name.
    project_id: String,
    /// The newest items, oldest first.
    items: Vec<Value>,
    /// The number of all items.
    total: usize,
}

pub fn all() -> [TypedTool; 5] {
    [
        document("get_workflow_state", "workflow_state.json", "Tells how far the workflow of a project is."),
        document("get_problem_spec", "problem_spec.json", "Gives what a project is to solve, as it was agreed upon."),
        document("get_world_model", "world_model.json", "Gives what a project takes for true of its surroundings."),
        list_runs(),
        get_chat_history(),
    ]
}

/// Null if the file does not exist.
fn read(context: &CallContext, project: &str, path: &str) -> Result<Value, ToolError> {
    let folder = Folder::of(context, Some(&format!("projects/{project}")), false)?;
    match folder.read(path, BYTES_MAX)? {
        Some(text) => {
            serde_json::from_str(&text).map_err(|_| ToolError::Permanent(format!("{path} does not contain JSON.")))
        }
        None => Ok(Value::Null),
    }
}

fn document(name: &str, file: &'static str, description: &str) -> TypedTool {
    TypedTool::new(name, description, Effect::Read, move |context: CallContext, asked: Project| {
        on_disk(move || {
            let data = read(&context, &asked.project_id, file)?;
            Ok(Document { data, project_id: asked.project_id })
        })
    })
    .category("examples")
}

fn list_runs() -> TypedTool {
    let description = "Lists the newest runs of a project.";
    TypedTool::new("list_runs", description, Effect::Read, |context: CallContext, asked: Newest| {
        on_disk(move || {
            let folder = Folder::of(&context, Some(&format!("projects/{}/runs", asked.project_id)), false)?;
            let names = folder.names(".json", RUNS_SEEN_MAX)?;
            let newest = names.len().saturating_sub(asked.limit.unwrap_or(20).min(50));
            let run = |name: &String| read(&context, &asked.project_id, &format!("runs/{name}"));
            let items = names.iter().skip(newest).map(run).collect::<Result<_, _>>()?;
            Ok(List { items, total: names.len(), project_id: asked.project_id })
        })
    })
    .category("examples")
}

fn get_chat_history() -> TypedTool {
    let description = "Gives the newest messages of a project's conversation.";
    TypedTool::new("get_chat_history", description, Effect::Read, |context: CallContext, asked: Newest| {
        on_disk(move || {
            let all = match read(&context, &asked.project_id, "chat_history.json")? {
                Value::Array(all) => all,
                _ => Vec::new(),
            };
            let newest = all.len().saturating_sub(asked.limit.unwrap_or(20).min(50));
            Ok(List { total: all.len(), items: all.into_iter().skip(newest).collect(), project_id: asked.project_id })
        })
    })
    .category("examples")
}
