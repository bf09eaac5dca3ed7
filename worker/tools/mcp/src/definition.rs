//! A tool as the protocol carries it, to a tool as it is pinned.

use rmcp::model::Tool;
use serde_json::Value;
use tickfleet_config::{McpAnnotations, McpDefinition};
use tickfleet_model::limits;

use super::outcome;

/// Returns what of a tool counts. Icons and metadata are for programs that show tools to people.
pub(super) fn of(tool: &Tool) -> McpDefinition {
    let annotations = tool.annotations.clone().unwrap_or_default();
    McpDefinition {
        name: tool.name.to_string(),
        title: tool.title.clone(),
        description: tool.description.as_deref().map(str::to_owned),
        input_schema: Value::Object((*tool.input_schema).clone()),
        output_schema: tool.output_schema.as_ref().map(|schema| Value::Object((**schema).clone())),
        annotations: McpAnnotations {
            title: annotations.title,
            read_only_hint: annotations.read_only_hint,
            destructive_hint: annotations.destructive_hint,
            idempotent_hint: annotations.idempotent_hint,
            open_world_hint: annotations.open_world_hint,
        },
    }
}

/// Why the file of pins cannot hold a definition, if it cannot.
pub(super) fn unpinnable(definition: &McpDefinition) -> Option<String> {
    let schemas = [Some(&definition.input_schema), definition.output_schema.as_ref()];
    if schemas.iter().flatten().any(|schema| outcome::depth(schema) > limits::MCP_SCHEMA_DEPTH_MAX) {
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

/// Returns true if a definition is larger than a model should read.
pub(super) fn too_large(definition: &McpDefinition) -> bool {
    let schemas = [Some(&definition.input_schema), definition.output_schema.as_ref()];
    let bytes: usize = schemas.into_iter().flatten().map(|schema| schema.to_string().len()).sum();
    bytes + definition.description.as_deref().map_or(0, str::len) > limits::MCP_DEFINITION_BYTES_MAX
}
