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

/// Returns true if a schema of a definition nests deeper than the file of pins can hold.
pub(super) fn too_deep(definition: &McpDefinition) -> bool {
    let schemas = [Some(&definition.input_schema), definition.output_schema.as_ref()];
    schemas.into_iter().flatten().any(|schema| outcome::depth(schema) > limits::MCP_SCHEMA_DEPTH_MAX)
}

/// Returns true if a definition is larger than a model should read.
pub(super) fn too_large(definition: &McpDefinition) -> bool {
    let schemas = [Some(&definition.input_schema), definition.output_schema.as_ref()];
    let bytes: usize = schemas.into_iter().flatten().map(|schema| schema.to_string().len()).sum();
    bytes + definition.description.as_deref().map_or(0, str::len) > limits::MCP_DEFINITION_BYTES_MAX
}
