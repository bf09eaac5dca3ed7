//! Checks whether a tool definition can be pinned.

use serde_json::Value;
use tickfleet_config::McpDefinition;
use tickfleet_model::limits;

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

pub(super) fn unpinnable(definition: &McpDefinition) -> Option<String> {
    let schemas = [Some(&definition.input_schema), definition.output_schema.as_ref()];
    if schemas.iter().flatten().any(|schema| depth(schema) > limits::MCP_SCHEMA_DEPTH_MAX) {
        return Some(format!("a schema of it nests deeper than {} levels", limits::MCP_SCHEMA_DEPTH_MAX));
    }
    let long = schemas.iter().flatten().any(|schema| has_long_key(schema));
    long.then(|| format!("a name in its schema has more than {} bytes", limits::MCP_SCHEMA_KEY_BYTES_MAX))
}

fn has_long_key(value: &Value) -> bool {
    match value {
        Value::Array(items) => items.iter().any(has_long_key),
        Value::Object(members) => {
            members.iter().any(|(key, value)| key.len() > limits::MCP_SCHEMA_KEY_BYTES_MAX || has_long_key(value))
        }
        _ => false,
    }
}

pub(super) fn too_large(definition: &McpDefinition) -> bool {
    let schemas = [Some(&definition.input_schema), definition.output_schema.as_ref()];
    let bytes: usize = schemas.into_iter().flatten().map(|schema| schema.to_string().len()).sum();
    bytes + definition.description.as_deref().map_or(0, str::len) > limits::MCP_DEFINITION_BYTES_MAX
}
