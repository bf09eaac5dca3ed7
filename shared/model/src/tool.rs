//! The declaration of a tool. Running it is the worker's business.

mod durable;
pub(crate) mod effect_key;
mod known;
mod read_cache;
mod reconcile;
pub mod version;

pub use durable::Durability;
pub use effect_key::{EFFECT_WINDOW_MS_DEFAULT, EFFECT_WINDOW_MS_MAX, EffectKey, EffectNote};
pub(crate) use effect_key::{at, canonical, said};
pub use known::KnownTools;
pub use read_cache::{CACHE_TTL_MS_MAX, CachePer, Question, ReadCache};
pub use reconcile::{
    RECONCILE_GRACE_MS_DEFAULT, RECONCILE_GRACE_MS_MAX, RECONCILE_TRIES_DEFAULT, RECONCILE_TRIES_MAX, Reconcile,
    ReconcileArgument, Verdict as ReconcileVerdict,
};

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::approval::ApprovalDemand;

/// A tool's stable id (`tool_send_telegram`), beside the name that models call it by.
pub type ToolId = String;

/// The effect of running a tool twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    /// Nothing: it only looks.
    Read,
    /// The same as running it once.
    Idempotent,
    /// The effect again: a second message, a second post. What is not declared is this.
    #[default]
    Once,
}

/// A tool as the registry knows it, whichever way it is run.
#[derive(Debug, Clone, Serialize)]
pub struct ToolSpec {
    /// Stable id, unique.
    pub id: ToolId,
    /// The name that models call, unique.
    pub name: String,
    /// The name that people read.
    pub display_name: String,
    /// The text that says what the tool does and when to use it: models read this.
    pub description: String,
    /// JSON Schema of the arguments; an object schema.
    pub input_schema: serde_json::Value,
    /// JSON Schema of the output, where the tool promises one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<serde_json::Value>,
    /// For grouping in lists (`messaging`, `social`).
    pub category: String,
    /// SemVer of the tool.
    pub version: String,
    /// The effect of running it twice.
    pub effect: Effect,
    /// Of a tool whose effect is `once`: by what two calls are the same effect, which is not to happen again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect_key: Option<EffectKey>,
    /// Of a tool whose effect is `read`: its answers are kept for a while for those who ask the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<ReadCache>,
    /// Of a tool whose effect is `once`: how the fleet finds out whether a call took effect of which nobody knows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<Reconcile>,
    /// Of a tool whose effect is `once`: what has to know that a call has begun before it runs. None: as the fleet says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable: Option<Durability>,
    /// Wall-clock limit of one try.
    #[serde(with = "duration_ms")]
    pub timeout: Duration,
    /// Capabilities that the agent needs, all of them.
    pub required_capabilities: Vec<String>,
    /// Plan features that the tenant needs, all of them.
    pub required_features: Vec<String>,
    /// True if a person has to agree to each call.
    pub requires_approval: bool,
    /// Whose, and how, where the tool says more about it. Left out of digests where it says nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalDemand>,
    /// False while the tool is declared but nothing can run it: it answers that it is not configured.
    pub configured: bool,
}

/// What a limit may ask about a tool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolTraits {
    /// The effect of running it twice.
    pub effect: Effect,
    /// Its category.
    pub category: String,
}

mod duration_ms {
    use std::time::Duration;

    use serde::Serializer;

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }
}
