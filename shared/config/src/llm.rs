//! The handler `llm` of an agent: the model loop that the workers run for its tasks.

use std::time::Duration;

use crate::document::reader::Cursor;
use crate::models::{self, Models};
use crate::prompts::AgentPrompts;
use crate::tools::read::TIMEOUT_MS_MAX;
use crate::tools::schema::{SchemaCheck, SchemaUse};

/// How an agent's tasks are carried out by a model.
#[derive(Debug, Clone, PartialEq)]
pub struct LlmDef {
    /// What the model is told that it is.
    pub system: String,
    /// The names of the models, in the order in which they are asked.
    pub models: Vec<String>,
    /// The model's answers to one task at most, the last without tools.
    pub max_iterations: u32,
    /// The sampling temperature; the provider's own where none.
    pub temperature: Option<f64>,
    /// The tokens of one answer at most.
    pub tokens_max: u32,
    /// The bytes of one result that the model reads at most.
    pub result_bytes_max: usize,
    /// The bytes of results in one request at most: older ones are told in a line each.
    pub context_bytes_max: usize,
    /// The times that the same calls with the same results are let pass.
    pub repeats_max: u32,
    /// The form that the answer must have, a JSON Schema; words where none.
    pub answer_schema: Option<serde_json::Value>,
    /// Limit of one step, a request to a model with its fallbacks.
    pub timeout: Duration,
}

/// Reads the section `llm` of a task handler. `prompts` are those of agents by name, `models` those of `models.yaml`.
pub(super) fn read(
    cursor: &Cursor<'_>,
    prompts: &AgentPrompts,
    known: Option<&Models>,
    check: SchemaCheck,
) -> Option<LlmDef> {
    let mut s = cursor.section();
    let system = s.optional("system").and_then(|c| c.some_text());
    let prompt = s.optional("prompt");
    let names = s.optional("models").map(|c| c.items());
    let names = names.map(|items| items.iter().filter_map(|item| models::known(item, known)).collect::<Vec<_>>());
    let number =
        |c: Option<Cursor<'_>>, min, max, default: usize| c.and_then(|c| c.integer(min, max)).unwrap_or(default);
    let max_iterations = number(s.optional("max_iterations"), 1, 500, 10);
    let tokens_max = number(s.optional("tokens_max"), 1, 1_000_000, 2_048);
    let result_bytes_max = number(s.optional("result_bytes_max"), 256, 65_536, 16_384);
    let context_bytes_max = number(s.optional("context_bytes_max"), 1_024, 4_194_304, 262_144);
    let repeats_max = number(s.optional("repeats_max"), 1, 100, 3);
    let temperature = s.optional("temperature").and_then(|c| temperature(&c));
    let timeout = s.optional("timeout_ms").and_then(|c| c.integer(1, TIMEOUT_MS_MAX)).map(Duration::from_millis);
    let answer_schema = s.optional("answer_schema").map(|c| check.read(&c, SchemaUse::Output));
    s.close();
    if system.is_some() == prompt.is_some() {
        cursor.refuse("exactly one of prompt (a file of the folder prompts) and system (the text itself)");
    }
    let system = system.or_else(|| prompt.and_then(|c| prompts.text(&c)))?;
    Some(LlmDef {
        system,
        models: names.filter(|names| !names.is_empty()).unwrap_or_else(|| vec!["default".to_owned()]),
        max_iterations: u32::try_from(max_iterations).unwrap_or(u32::MAX),
        temperature,
        tokens_max: u32::try_from(tokens_max).unwrap_or(u32::MAX),
        result_bytes_max,
        context_bytes_max,
        repeats_max: u32::try_from(repeats_max).unwrap_or(u32::MAX),
        answer_schema,
        timeout: timeout.unwrap_or(models::MODEL_TIMEOUT_DEFAULT),
    })
}

fn temperature(cursor: &Cursor<'_>) -> Option<f64> {
    let read = cursor.node.to_json().as_f64().filter(|t| (0.0..=2.0).contains(t));
    if read.is_none() {
        cursor.refuse("a number from 0 to 2");
    }
    read
}
