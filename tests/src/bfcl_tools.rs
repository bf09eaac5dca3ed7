//! The leaderboard's tools on a fleet. Each tool returns its arguments. Some are slow, fail once, or have an effect.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tickfleet_config::tools::ToolDef;
use tickfleet_model::{Effect, ToolSpec};
use tickfleet_tools::{CallContext, Handler, RegisteredTool, ToolFailure, ToolOutput};

use crate::bfcl::Tool;

/// Depends only on the tool's name, so that all processes agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ToolBehavior {
    Prompt,
    /// In ms. Long enough that a kill can hit the running call.
    Slow(u64),
    /// Fails at the first attempt, so that a kill can hit the call while it waits for its retry.
    Flaky,
    Once,
}

impl ToolBehavior {
    pub fn of(name: &str) -> Self {
        // FNV-1a; any stable hash would do.
        let hash =
            name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
        match hash >> 32 & 7 {
            0 | 1 => Self::Once,
            2 => Self::Slow(50 + hash % 250),
            3 => Self::Flaky,
            _ => Self::Prompt,
        }
    }

    pub const fn effect(self) -> Effect {
        match self {
            Self::Prompt | Self::Slow(_) => Effect::Read,
            Self::Flaky => Effect::Idempotent,
            Self::Once => Effect::Once,
        }
    }
}

#[async_trait]
impl Handler for ToolBehavior {
    async fn call(&self, context: &CallContext, arguments: &RawValue) -> Result<ToolOutput, ToolFailure> {
        match self {
            // Simulates a slow service.
            Self::Slow(ms) => tokio::time::sleep(Duration::from_millis(*ms)).await,
            Self::Flaky if context.attempt == 1 => {
                let message = "The first try fails.".to_owned();
                return Err(ToolFailure::Transient { message, retry_after: None, not_executed: false });
            }
            Self::Prompt | Self::Flaky | Self::Once => {}
        }
        Ok(ToolOutput { json: arguments.to_owned(), content_type: "application/json" })
    }
}

pub fn registered(tool: &Tool, manner: ToolBehavior) -> RegisteredTool {
    let spec = ToolSpec {
        id: format!("tool_{}", tool.name),
        name: tool.name.clone(),
        display_name: tool.original.clone(),
        description: tool.description.clone(),
        input_schema: tool.schema.clone(),
        output_schema: None,
        category: "leaderboard".into(),
        version: "1.0.0".into(),
        effect: manner.effect(),
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
    RegisteredTool::new(spec, Arc::new(manner)).unwrap()
}

/// `address` is the ledger's `host:port`.
pub fn entered_in_ledger(tool: &Tool, address: &str) -> ToolDef {
    let names = tool.schema["properties"].as_object().into_iter().flat_map(|p| p.keys());
    let body: serde_json::Map<String, Value> = names.map(|n| (n.clone(), format!("{{{{{n}}}}}").into())).collect();
    serde_json::from_value(json!({
        "description": tool.description,
        "input_schema": tool.schema,
        "effect": "once",
        "timeout_ms": 10_000,
        "http": {
            "method": "POST",
            "base_url": format!("http://{address}"),
            "path": "/ledger",
            "body": body,
            "idempotency_header": "Idempotency-Key",
            "allow_private": [address],
        },
    }))
    .unwrap()
}
