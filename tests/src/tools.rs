//! Parts of the tools of several suites.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use tickfleet_model::{Effect, ToolSpec};
use tickfleet_tools::{CallContext, Handler, RegisteredTool, ToolFailure, ToolOutput};

/// Returns its arguments.
struct Echo;

#[async_trait]
impl Handler for Echo {
    async fn call(&self, _: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput { json: arguments.to_owned(), content_type: "application/json" })
    }
}

pub fn echo(spec: ToolSpec) -> anyhow::Result<RegisteredTool> {
    RegisteredTool::new(spec, Arc::new(Echo)).map_err(|error| anyhow::anyhow!("{error}"))
}

#[derive(Deserialize, JsonSchema)]
pub struct Post {
    /// The text of the post.
    pub content: String,
}

#[derive(Serialize, JsonSchema)]
pub struct Posted {
    pub number: usize,
}

/// A tool of a public data set.
#[must_use]
pub fn spec(name: &str, display_name: &str, description: &str, input_schema: &Value, category: &str) -> ToolSpec {
    ToolSpec {
        id: format!("tool_{name}"),
        name: name.to_owned(),
        display_name: display_name.to_owned(),
        description: description.to_owned(),
        input_schema: input_schema.clone(),
        output_schema: None,
        category: category.to_owned(),
        version: "1.0.0".into(),
        effect: Effect::Read,
        timeout: Duration::from_secs(30),
        required_capabilities: Vec::new(),
        required_features: Vec::new(),
        requires_approval: false,
        approval: None,
        effect_key: None,
        cache: None,
        reconcile: None,
        durable: None,
        configured: true,
    }
}
