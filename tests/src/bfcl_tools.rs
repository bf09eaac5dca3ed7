//! The leaderboard's tools on a fleet. Each tool returns its arguments.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use tickfleet_model::{Effect, ToolSpec};
use tickfleet_tools::{CallContext, Handler, RegisteredTool, ToolFailure, ToolOutput};

use crate::bfcl::Tool;

struct Echo;

#[async_trait]
impl Handler for Echo {
    async fn call(&self, _: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        Ok(ToolOutput { json: arguments.to_owned(), content_type: "application/json" })
    }
}

pub fn registered(tool: &Tool) -> RegisteredTool {
    let spec = ToolSpec {
        id: format!("tool_{}", tool.name),
        name: tool.name.clone(),
        display_name: tool.original.clone(),
        description: tool.description.clone(),
        input_schema: tool.schema.clone(),
        output_schema: None,
        category: "leaderboard".into(),
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
    };
    RegisteredTool::new(spec, Arc::new(Echo)).unwrap()
}
