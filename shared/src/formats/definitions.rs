//! Tool definitions as each dialect wants them.

use serde_json::{Value, json};

use super::names::NameMap;
use crate::model::{Dialect, ToolSpec};

/// The definitions of `tools` for a request in `dialect`: a JSON array for its `tools` field.
///
/// Names that the dialect does not allow are mangled by a [`NameMap`] of these tools. Whoever resolves a call
/// must build the map from a list that gives these tools the same wire names: the whole registry does, as
/// only a clash of digests could differ.
#[must_use]
pub fn define(dialect: Dialect, tools: &[&ToolSpec]) -> Value {
    let names = NameMap::new(tools.iter().map(|tool| &tool.name));
    let define = |tool: &&ToolSpec| match dialect {
        Dialect::Raw => raw(tool),
        Dialect::OpenaiChat => json!({
            "type": "function",
            "function": {
                "name": names.wire(&tool.name),
                "description": tool.description,
                "parameters": tool.input_schema,
            },
        }),
        Dialect::Anthropic => json!({
            "name": names.wire(&tool.name),
            "description": tool.description,
            "input_schema": tool.input_schema,
        }),
    };
    Value::Array(tools.iter().map(define).collect())
}

/// What a program wants to know of a tool; names as they are.
fn raw(tool: &ToolSpec) -> Value {
    let mut definition = json!({
        "name": tool.name,
        "display_name": tool.display_name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "category": tool.category,
        "version": tool.version,
        "effect": tool.effect,
        "requires_approval": tool.requires_approval,
    });
    if let (Some(object), Some(schema)) = (definition.as_object_mut(), &tool.output_schema) {
        object.insert("output_schema".into(), schema.clone());
    }
    definition
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use std::time::Duration;

    use super::*;
    use crate::model::Effect;

    fn tool(name: &str) -> ToolSpec {
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
            timeout: Duration::from_secs(30),
            required_capabilities: vec!["secret_plan".into()],
            required_features: vec![],
            requires_approval: false,
            configured: true,
        }
    }

    #[test]
    fn each_dialect_gets_its_own_shape_with_legal_names() {
        let (dotted, long) = (tool("math.add"), tool(&"n".repeat(80)));
        let tools = [&dotted, &long];
        let openai = define(Dialect::OpenaiChat, &tools);
        assert_eq!(openai[0]["type"], "function");
        assert_eq!(openai[0]["function"]["name"], "math_x2E_add");
        assert_eq!(openai[0]["function"]["parameters"], dotted.input_schema);
        assert_eq!(openai[1]["function"]["name"].as_str().unwrap().len(), 64);
        let anthropic = define(Dialect::Anthropic, &tools);
        let expected = json!({"name": "math_x2E_add", "description": "Adds.", "input_schema": dotted.input_schema});
        assert_eq!(anthropic[0], expected);
        assert_eq!(define(Dialect::Raw, &tools)[0]["name"], "math.add");
        assert!(!define(Dialect::Raw, &tools).to_string().contains("secret_plan"), "permissions are not for models");
    }
}
