use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tickfleet_core::settings::{ChangeSetting, Origin, Setting, SettingResult};
use tickfleet_model::limits;
use tickfleet_model::suggest::list;
use tickfleet_store::{Store, StoreError};

use super::{ChangeReport, FleetName, OperatorVerb, PARTIAL_CHANGE, Reason, UNKNOWN_NAME, VerbContext, VerbError};
use crate::Client;
use crate::operate::{Change, Operator, entry, remove};

/// Disable a tool for every agent at run time.
///
/// Calls of any tenant to this tool end as denied until it is enabled again. Running calls finish. Workers apply the
/// change within a quarter of `worker.lease`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DisableToolRequest {
    /// Name, or id of a version.
    #[cfg_attr(feature = "openapi", schema(example = "post_to_x"))]
    pub tool: String,
    /// Reason for the audit log.
    #[cfg_attr(feature = "cli", arg(long))]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "it posts twice"))]
    pub reason: Reason,
}

/// Enable a tool that was disabled at run time.
///
/// The configuration decides again who may call it.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "cli", derive(clap::Args))]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EnableToolRequest {
    /// Name, or id of a version.
    #[cfg_attr(feature = "openapi", schema(example = "post_to_x"))]
    pub tool: String,
    /// Reason for the audit log.
    #[serde(default, deserialize_with = "Reason::optional")]
    #[cfg_attr(feature = "cli", arg(long))]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub reason: Option<Reason>,
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

impl OperatorVerb for DisableToolRequest {
    const NAME: &'static str = "tools/disable";
    const IS_OF_FLEET: bool = true;
    const NEEDS_NAME: bool = false;
    const ERRORS: &'static [(u16, &'static str)] = &[UNKNOWN_NAME, PARTIAL_CHANGE];
    type Report = ChangeReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<ChangeReport, VerbError> {
        let tool = &self.tool;
        check_form(tool)?;
        context.check_name(FleetName::Tool(tool)).await?;
        let name = context.names.tool_switched(&context.client, tool).await?;
        let changed = switch_tool(context.client.stores(), &name, false, context.operator(&self.reason)).await?;
        let message = if changed {
            format!("{tool} is disabled for all agents within a quarter of worker.lease")
        } else {
            format!("{tool} was disabled already")
        };
        Ok(ChangeReport { changed, message })
    }
}

impl OperatorVerb for EnableToolRequest {
    const NAME: &'static str = "tools/enable";
    const IS_OF_FLEET: bool = true;
    const NEEDS_NAME: bool = false;
    const ERRORS: &'static [(u16, &'static str)] = &[UNKNOWN_NAME, PARTIAL_CHANGE];
    type Report = ChangeReport;

    async fn run(&self, context: &VerbContext<'_>) -> Result<ChangeReport, VerbError> {
        let tool = &self.tool;
        check_form(tool)?;
        let stores = context.client.stores();
        let operator = context.operator(&self.reason);
        let name = context.names.tool_switched(&context.client, tool).await?;
        let mut changed = switch_tool(stores, &name, true, operator).await?;
        // The tool may have been disabled under its ID, when the ID could not be resolved to a name.
        if !changed && name != *tool {
            changed = switch_tool(stores, tool, true, operator).await?;
        }
        // Check the name only if nothing changed: a disabled tool can be enabled after its removal from the
        // configuration.
        if !changed {
            context.check_name(FleetName::Tool(tool)).await?;
            let off = switched_off(stores).await?;
            let off = list(off.keys().map(String::as_str));
            return Ok(ChangeReport {
                changed,
                message: format!("{tool} was not disabled at run time. Disabled: {off}"),
            });
        }
        let message = format!("{tool} is enabled again, as configured, within a quarter of worker.lease");
        Ok(ChangeReport { changed, message })
    }
}

/// The ID of a tool version contains an `@`.
fn check_form(tool: &str) -> Result<(), VerbError> {
    let max = 2 * limits::NAME_BYTES_MAX;
    let sound = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '@');
    if (1..=max).contains(&tool.len()) && tool.chars().all(sound) {
        return Ok(());
    }
    Err(VerbError::Invalid(format!("tool: expected its name or id, at most {max} of A-Z a-z 0-9 _ . - @")))
}

/// Disables or enables a tool for all agents in all shards. Returns false if nothing changed.
/// After an error, the call can be repeated.
pub async fn switch_tool(shards: &[Store], tool: &str, on: bool, operator: Operator<'_>) -> Result<bool, StoreError> {
    let setting = Setting::ToolOff(tool.to_owned());
    let mut changed = false;
    for store in shards {
        if on {
            changed |= remove(store, setting.clone(), operator).await?;
            continue;
        }
        let entry = entry(store, &setting, Change::Set(&[]), operator, store.now_ms().await?);
        match store.decide(ChangeSetting::switch_off(tool.to_owned(), Origin::Operator(entry))).await?.result {
            SettingResult::Done { .. } => changed = true,
            SettingResult::Unchanged { .. } => {}
            SettingResult::Full => {
                return Err(StoreError::Undecided("too many tools are disabled at run time".to_owned()));
            }
        }
    }
    Ok(changed)
}

/// Returns the tools that are disabled for all agents, by name or ID, each with the shards in which it is disabled. An
/// interrupted change leaves a tool disabled in only some shards.
async fn switched_off(shards: &[Store]) -> Result<BTreeMap<String, Vec<u32>>, StoreError> {
    let mut off: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for store in shards {
        for tool in store.run_time_config().await?.tools_off {
            off.entry(tool).or_default().push(store.shard());
        }
    }
    Ok(off)
}

impl DisabledTools {
    /// Lists the tools that were disabled at run time.
    pub async fn list(client: &Client) -> Result<Self, VerbError> {
        let shards = client.stores().len();
        let tool = |(tool, of): (String, Vec<u32>)| DisabledTool { tool, only_in: (of.len() < shards).then_some(of) };
        Ok(Self { disabled: switched_off(client.stores()).await?.into_iter().map(tool).collect() })
    }
}
