//! The definition that a function declares, and the tool made from it.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tickfleet_config::default_id;
use tickfleet_model::{Effect, ToolSpec};

/// One tool, as the host describes it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Definition {
    pub(crate) name: String,
    description: String,
    input_schema: Value,
    output_schema: Option<Value>,
    effect: Effect,
    timeout_ms: Option<u64>,
    category: Option<String>,
    display_name: Option<String>,
    version: Option<String>,
    requires_approval: bool,
    required_capabilities: Vec<String>,
    required_features: Vec<String>,
}

impl Definition {
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }

    /// `configured` is false if a secret of the tool's processes is missing.
    pub(crate) fn spec(&self, timeout: Duration, configured: bool) -> ToolSpec {
        ToolSpec {
            id: default_id(&self.name),
            name: self.name.clone(),
            display_name: self.display_name.clone().unwrap_or_else(|| self.name.clone()),
            description: self.description.clone(),
            input_schema: self.input_schema.clone(),
            output_schema: self.output_schema.clone(),
            category: self.category.clone().unwrap_or_else(|| "general".to_owned()),
            version: self.version.clone().unwrap_or_else(|| "1.0.0".to_owned()),
            effect: self.effect,
            timeout,
            required_capabilities: self.required_capabilities.clone(),
            required_features: self.required_features.clone(),
            requires_approval: self.requires_approval,
            approval: None,
            effect_key: None,
            cache: None,
            reconcile: None,
            durable: None,
            configured,
        }
    }
}

/// Two lists of definitions with the same digest are the same tools for a model.
pub(crate) fn digest(tools: &[Definition]) -> String {
    // Maps of strings and numbers can always be serialized.
    let text = serde_json::to_vec(tools).unwrap_or_default();
    Sha256::digest(text).iter().fold(String::new(), |mut hex, byte| {
        // Writing to a String cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}
