//! AgentDojo's tools and tasks. A task is a user's request, or an instruction that an attacker injects.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tickfleet_model::{Effect, ToolSpec};
use tickfleet_tools::RegisteredTool;

use crate::fetched::FetchedData;
use crate::tools;

pub const DATA: FetchedData = FetchedData {
    script: "agentdojo.py",
    folder: "agentdojo-0.1.35",
    what: "the PyPI package agentdojo 0.1.35 and four that it needs (7 MB)",
    skip_variable: "TICKFLEET_SKIP_AGENTDOJO",
};

/// Tools with the same name in two suites are different tools.
#[derive(Debug, Clone, Deserialize)]
pub struct Tool {
    /// `banking`, `slack`, `travel` or `workspace`.
    pub suite: String,
    name: String,
    description: String,
    input_schema: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Call {
    pub tool: String,
    pub arguments: Value,
}

#[derive(Debug, Clone, Deserialize)]
pub struct Task {
    pub suite: String,
    /// Such as `user_task_3`; unique in its suite.
    pub task: String,
    kind: String,
    pub calls: Vec<Call>,
}

impl Task {
    #[must_use]
    pub fn is_legitimate(&self) -> bool {
        self.kind == "user"
    }

    #[must_use]
    pub fn agent(&self) -> String {
        format!("{}.{}", self.suite, self.task)
    }

    #[must_use]
    pub fn needs(&self) -> BTreeSet<String> {
        self.calls.iter().map(|call| fleet_name(&self.suite, &call.tool)).collect()
    }

    #[must_use]
    pub fn turn_calls(&self) -> Vec<Value> {
        let call =
            |call: &Call| serde_json::json!({"name": fleet_name(&self.suite, &call.tool), "arguments": call.arguments});
        self.calls.iter().map(call).collect()
    }
}

#[derive(Debug)]
pub struct AgentDojo {
    pub tools: Vec<Tool>,
    pub tasks: Vec<Task>,
}

pub fn load(dir: &Path) -> Result<AgentDojo> {
    Ok(AgentDojo { tools: lines(&dir.join("tools.jsonl"))?, tasks: lines(&dir.join("tasks.jsonl"))? })
}

fn lines<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let rows = text.split('\n').filter(|line| !line.is_empty());
    rows.map(|line| serde_json::from_str(line).with_context(|| path.display().to_string())).collect()
}

fn fleet_name(suite: &str, tool: &str) -> String {
    format!("{suite}.{tool}")
}

impl AgentDojo {
    #[must_use]
    pub fn grants(&self) -> BTreeMap<String, BTreeSet<String>> {
        let mut grants: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for task in self.tasks.iter().filter(|task| task.is_legitimate()) {
            for tool in task.needs() {
                grants.entry(tool).or_default().insert(task.agent());
            }
        }
        grants
    }

    /// Returns the tools for a fleet. Each tool returns its arguments.
    pub fn registered(&self) -> Result<Vec<RegisteredTool>> {
        let make = |tool: &Tool| {
            let name = fleet_name(&tool.suite, &tool.name);
            let spec = tools::spec(&name, &tool.name, &tool.description, &tool.input_schema, &tool.suite);
            tools::echo(ToolSpec { effect: Effect::Idempotent, ..spec })
        };
        self.tools.iter().map(make).collect()
    }
}
