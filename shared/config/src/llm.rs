//! The handler `llm` of an agent.

use std::time::Duration;

use crate::document::reader::Cursor;
use crate::models::{self, Models};
use crate::prompts::AgentPrompts;
use crate::tools::read::TIMEOUT_MS_MAX;
use crate::tools::schema::{SchemaCheck, SchemaUse};

#[derive(Debug, Clone, PartialEq)]
pub struct LlmDef {
    pub system: String,
    pub models: Vec<String>,
    /// The last response is requested without tools.
    pub max_iterations: u32,
    pub temperature: Option<f64>,
    pub tokens_max: u32,
    pub result_bytes_max: usize,
    /// Bytes of results in one request. Older results are cut to one line each.
    pub context_bytes_max: usize,
    /// These models summarize old steps above `context_bytes_max`. Without a model, old results are cut.
    pub compact_with: Vec<String>,
    pub repeats_max: u32,
    /// JSON Schema of the answer; `None` means text.
    pub answer_schema: Option<serde_json::Value>,
    /// For one step, including requests to fallback models.
    pub timeout: Duration,
}

impl LlmDef {
    #[must_use]
    pub fn of_system(system: &str) -> Self {
        Self {
            system: system.to_owned(),
            models: vec!["default".to_owned()],
            max_iterations: 10,
            temperature: None,
            tokens_max: 2_048,
            result_bytes_max: 16_384,
            context_bytes_max: 262_144,
            compact_with: Vec::new(),
            repeats_max: 3,
            answer_schema: None,
            timeout: models::MODEL_TIMEOUT_DEFAULT,
        }
    }
}

pub(super) fn read(
    cursor: &Cursor<'_>,
    prompts: &AgentPrompts,
    known: Option<&Models>,
    check: SchemaCheck,
) -> Option<LlmDef> {
    let mut s = cursor.section();
    let system = s.optional("system").and_then(|c| c.some_text());
    let prompt = s.optional("prompt");
    let names_of = |c: Option<Cursor<'_>>| -> Vec<String> {
        c.map(|c| c.items().iter().filter_map(|item| models::known(item, known)).collect()).unwrap_or_default()
    };
    let defaults = LlmDef::of_system("");
    let mut names = names_of(s.optional("models"));
    if names.is_empty() {
        names.clone_from(&defaults.models);
    }
    let compact_with = names_of(s.optional("compact_with"));
    let number = |c: Option<Cursor<'_>>, max, default: u32| c.and_then(|c| c.integer(1, max)).unwrap_or(default);
    let bytes = |c: Option<Cursor<'_>>, min, max| c.and_then(|c| c.integer::<usize>(min, max));
    let max_iterations = number(s.optional("max_iterations"), 500, defaults.max_iterations);
    let tokens_max = number(s.optional("tokens_max"), 1_000_000, defaults.tokens_max);
    let result_bytes_max = bytes(s.optional("result_bytes_max"), 256, 65_536).unwrap_or(defaults.result_bytes_max);
    let context_bytes_max =
        bytes(s.optional("context_bytes_max"), 1_024, 4_194_304).unwrap_or(defaults.context_bytes_max);
    let repeats_max = number(s.optional("repeats_max"), 100, defaults.repeats_max);
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
        models: names,
        max_iterations,
        temperature,
        tokens_max,
        result_bytes_max,
        context_bytes_max,
        compact_with,
        repeats_max,
        answer_schema,
        timeout: timeout.unwrap_or(defaults.timeout),
    })
}

fn temperature(cursor: &Cursor<'_>) -> Option<f64> {
    let read = cursor.node.to_json().as_f64().filter(|t| (0.0..=2.0).contains(t));
    if read.is_none() {
        cursor.refuse("a number from 0 to 2");
    }
    read
}
