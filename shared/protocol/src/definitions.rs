//! Renders tool definitions in the format of each dialect.

use serde_json::Value;

pub use super::dialects::Definitions;
use super::dialects::rules;
use tickfleet_model::{Dialect, ToolSpec};

/// A JSON array for the request's field `tools`. For [`Dialect::Text`], a string with the built-in prompts; for other
/// prompts, use [`Prompts::describe`](super::Prompts::describe).
///
/// To resolve a call, use a [`NameMap`](super::NameMap) in which these tools have the same wire names.
#[must_use]
pub fn define(dialect: Dialect, tools: &[&ToolSpec]) -> Value {
    rules(dialect).define(tools, false).tools
}

/// Uses the strict form if the strict subset can express the tool's schema. Only the two dialects of OpenAI have a
/// strict mode. A turn with calls from strict definitions should set `strict`.
#[must_use]
pub fn define_strict(dialect: Dialect, tools: &[&ToolSpec]) -> Definitions {
    rules(dialect).define(tools, true)
}

#[cfg(test)]
pub(super) fn test_tool(name: &str) -> ToolSpec {
    use serde_json::json;
    use tickfleet_model::Effect;

    ToolSpec {
        id: format!("tool_{name}"),
        name: name.into(),
        display_name: name.into(),
        description: "Adds.".into(),
        input_schema: json!({"type": "object", "properties": {"a": {"type": "integer"}}}),
        output_schema: None,
        category: "general".into(),
        version: "1.0.0".into(),
        effect: Effect::Read,
        timeout: std::time::Duration::from_secs(30),
        required_capabilities: vec!["secret_plan".into()],
        required_features: vec![],
        requires_approval: false,
        approval: None,
        effect_key: None,
        cache: None,
        reconcile: None,
        durable: None,
        configured: true,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::test_tool as tool;
    use super::*;

    #[test]
    fn each_dialect_gets_its_own_shape_with_legal_names() {
        let dotted = tool("math.add");
        let long = tool(&"n".repeat(80));
        let tools = [&dotted, &long];
        let openai = define(Dialect::OpenaiChat, &tools);
        assert_eq!(openai[0]["type"], "function");
        assert_eq!(openai[0]["function"]["name"], "math_x2E_add");
        assert_eq!(openai[0]["function"]["parameters"], dotted.input_schema);
        assert_eq!(openai[1]["function"]["name"].as_str().unwrap().len(), 64);
        let responses = define(Dialect::OpenaiResponses, &tools);
        let expected = json!({"type": "function", "name": "math_x2E_add", "description": "Adds.",
            "parameters": dotted.input_schema, "strict": false});
        assert_eq!(responses[0], expected);
        let anthropic = define(Dialect::Anthropic, &tools);
        let expected = json!({"name": "math_x2E_add", "description": "Adds.", "input_schema": dotted.input_schema});
        assert_eq!(anthropic[0], expected);
        let mcp = define(Dialect::Mcp, &tools);
        let expected = json!({"name": "math.add", "title": "math.add", "description": "Adds.",
            "inputSchema": dotted.input_schema, "annotations": {"readOnlyHint": true, "idempotentHint": true}});
        assert_eq!(mcp[0], expected);
        assert_eq!(define(Dialect::Raw, &tools)[0]["name"], "math.add");
        assert!(define(Dialect::Text, &tools).as_str().unwrap().contains("math.add: Adds."));
        for dialect in Dialect::ALL {
            let shown = define(dialect, &tools).to_string();
            assert!(!shown.contains("secret_plan"), "permissions are not for models: {dialect:?}");
        }
    }

    #[test]
    fn a_schema_that_cannot_be_strict_stays_unchanged_with_a_reason() {
        let fine = tool("fine");
        let mut free = tool("free");
        free.input_schema = json!({"type": "object", "properties": {"any": {"type": "object"}}});
        for dialect in [Dialect::OpenaiChat, Dialect::OpenaiResponses] {
            let Definitions { tools, not_strict } = define_strict(dialect, &[&fine, &free]);
            let function = |at: usize| tools[at].get("function").unwrap_or(&tools[at]).clone();
            assert_eq!(function(0)["strict"], true);
            assert_eq!(function(0)["parameters"]["required"], json!(["a"]));
            assert!(function(1)["strict"] != json!(true));
            assert_eq!(function(1)["parameters"], free.input_schema);
            assert_eq!(not_strict[0].0, "free");
            assert!(not_strict[0].1.to_string().contains("any"), "{not_strict:?}");
        }
        assert_eq!(define_strict(Dialect::Anthropic, &[&free]).tools, define(Dialect::Anthropic, &[&free]));
    }
}
