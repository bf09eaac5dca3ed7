//! Tool definitions in any dialect.

use serde_json::Value;

use super::super::names::{NameMap, NameRules};
use super::super::strict::NotStrict;
use tickfleet_model::ToolSpec;

#[derive(Debug, Clone, PartialEq)]
pub struct Definitions {
    /// For [`Dialect::Text`](tickfleet_model::Dialect::Text), a string for the prompt. For all other dialects, a JSON
    /// array.
    pub tools: Value,
    pub not_strict: Vec<(String, NotStrict)>,
}

impl Definitions {
    pub(super) fn of_each(
        rules: Option<NameRules>,
        tools: &[&ToolSpec],
        mut define: impl FnMut(&str, &ToolSpec) -> Value,
    ) -> Self {
        let names = NameMap::within(rules, tools.iter().map(|tool| &tool.name));
        let tools = tools.iter().map(|tool| define(&names.wire(&tool.name), tool)).collect();
        Self { tools: Value::Array(tools), not_strict: Vec::new() }
    }
}
