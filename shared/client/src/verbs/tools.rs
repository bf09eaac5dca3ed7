use serde::{Deserialize, Serialize};

use super::{FleetName, VerbContext, VerbError, or_default};
use crate::Client;
use crate::operate::{SWITCHED_BYTES_MAX, is_switchable_name, switch_tool, switched_off};

/// Tool to switch.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SwitchToolRequest {
    /// Name, or id of a version.
    #[cfg_attr(feature = "openapi", schema(example = "post_to_x"))]
    pub tool: String,
    /// Reason for the audit log. Optional to enable.
    #[serde(default, deserialize_with = "or_default")]
    #[cfg_attr(feature = "openapi", schema(example = "it posts twice"))]
    pub reason: String,
}

/// A disabled tool.
#[derive(Debug, Serialize)]
pub struct DisabledTool {
    /// The tool's name or id.
    pub tool: String,
    /// The shards in which the tool is disabled; absent if it is disabled in all shards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only_in: Option<Vec<u32>>,
}

/// The tools that were disabled at run time.
#[derive(Debug, Serialize)]
pub struct DisabledTools {
    /// The tools, by name.
    pub disabled: Vec<DisabledTool>,
}

impl SwitchToolRequest {
    /// Enables or disables the tool in every shard. Returns false if nothing changed.
    pub async fn switch(&self, context: &VerbContext<'_>, on: bool) -> Result<bool, VerbError> {
        let Self { tool, reason } = self;
        if !is_switchable_name(tool) {
            return Err(VerbError::Invalid(format!(
                "tool: expected its name or id, at most {SWITCHED_BYTES_MAX} of A-Z a-z 0-9 _ . - @"
            )));
        }
        if !on {
            context.check_name(FleetName::Tool(tool)).await?;
        }
        let operator = context.operator(reason);
        let name = context.names.tool_switched(&context.client, tool).await?;
        let mut changed = switch_tool(context.client.stores(), &name, on, operator).await?;
        // The tool may have been disabled under its ID, when the ID could not be resolved to a name.
        if on && !changed && name != *tool {
            changed = switch_tool(context.client.stores(), tool, on, operator).await?;
        }
        // Check the name only if nothing changed: a disabled tool can be enabled after its removal from the
        // configuration.
        if on && !changed {
            context.check_name(FleetName::Tool(tool)).await?;
        }
        Ok(changed)
    }
}

impl DisabledTools {
    /// Lists the tools that were disabled at run time.
    pub async fn list(client: &Client) -> Result<Self, VerbError> {
        let shards = client.stores().len();
        let tool = |(tool, of): (String, Vec<u32>)| DisabledTool { tool, only_in: (of.len() < shards).then_some(of) };
        Ok(Self { disabled: switched_off(client.stores()).await?.into_iter().map(tool).collect() })
    }
}
