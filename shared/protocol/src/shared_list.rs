//! The form in which Redis stores a list of tools. Readers derive the definitions of each dialect from this form.

use std::time::Duration;

use serde::Deserialize;
use serde_json::{Value, json};
use tickfleet_model::{Dialect, Effect, ToolSpec};

use super::definitions::define;
use super::names::NameMap;

/// The keys in a list, each with the dialect that defines its names. The rules of `openai` are also for Anthropic, and
/// the rules of `mcp` are for all its revisions.
const NAMED: [(&str, Dialect); 3] =
    [("openai", Dialect::OpenaiChat), ("gemini", Dialect::Gemini), ("mcp", Dialect::Mcp)];

#[must_use]
pub fn shared_list(tools: &[&ToolSpec]) -> String {
    let mut definitions = define(Dialect::Raw, tools);
    for (kind, dialect) in NAMED {
        let names = NameMap::of(dialect, tools.iter().map(|tool| &tool.name));
        for (definition, tool) in definitions.as_array_mut().into_iter().flatten().zip(tools) {
            let wire = names.wire(&tool.name);
            if wire != tool.name {
                definition["wire_names"][kind] = json!(wire);
            }
        }
    }
    json!({"tools": definitions, "text": define(Dialect::Text, tools)}).to_string()
}

pub fn define_shared(dialect: Dialect, list: &str) -> serde_json::Result<Value> {
    let list: SharedList = serde_json::from_str(list)?;
    if dialect == Dialect::Text {
        return Ok(list.text.into());
    }
    let tools: Vec<ToolSpec> = list.tools.into_iter().map(ToolSpec::from).collect();
    Ok(define(dialect, &tools.iter().collect::<Vec<_>>()))
}

#[derive(Deserialize)]
struct SharedList {
    tools: Vec<SharedTool>,
    text: String,
}

#[derive(Deserialize)]
struct SharedTool {
    name: String,
    display_name: String,
    description: String,
    input_schema: Value,
    output_schema: Option<Value>,
    category: String,
    version: String,
    effect: Effect,
    requires_approval: bool,
}

impl From<SharedTool> for ToolSpec {
    fn from(tool: SharedTool) -> Self {
        Self {
            id: String::new(),
            name: tool.name,
            display_name: tool.display_name,
            description: tool.description,
            input_schema: tool.input_schema,
            output_schema: tool.output_schema,
            category: tool.category,
            version: tool.version,
            effect: tool.effect,
            effect_key: None,
            cache: None,
            reconcile: None,
            durable: None,
            timeout: Duration::ZERO,
            required_capabilities: Vec::new(),
            required_features: Vec::new(),
            requires_approval: tool.requires_approval,
            approval: None,
            configured: true,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::super::definitions::test_tool;
    use super::*;

    const EXAMPLE: &str = include_str!("../../../tests/conformance/definitions.json");

    fn tools() -> [ToolSpec; 3] {
        let promise = Some(json!({"type": "object", "properties": {"sum": {"type": "number", "multipleOf": 0.01}}}));
        let dotted = ToolSpec { output_schema: promise, effect: Effect::Once, ..test_tool("1math.add") };
        let several = ToolSpec {
            output_schema: Some(json!({"oneOf": [{"type": "object"}]})),
            effect: Effect::Idempotent,
            requires_approval: true,
            ..test_tool(&"n".repeat(130))
        };
        [test_tool("add"), dotted, several]
    }

    #[test]
    fn definitions_from_the_shared_list_match_direct_definitions() {
        let tools = tools();
        let all: Vec<&ToolSpec> = tools.iter().collect();
        for some in [&all[..], &all[..1], &[]] {
            let list = shared_list(some);
            for dialect in Dialect::ALL {
                assert_eq!(define_shared(dialect, &list).unwrap(), define(dialect, some), "{dialect:?}");
            }
        }
        assert!(define_shared(Dialect::Raw, "[]").is_err());
    }

    #[test]
    fn the_example_for_clients_matches_the_definitions() {
        let tools = tools();
        let all: Vec<&ToolSpec> = tools.iter().collect();
        let list: Value = serde_json::from_str(&shared_list(&all)).unwrap();
        let dialects = Dialect::ALL.into_iter().map(|dialect| (dialect.as_str().to_owned(), define(dialect, &all)));
        let expected = json!({"list": list, "dialects": Value::Object(dialects.collect())});
        let example: Value = serde_json::from_str(EXAMPLE).unwrap();
        assert_eq!(example, expected, "tests/conformance/definitions.json should be:\n{expected}");
    }
}
