//! The declaration of a tool.

mod durable;
pub(crate) mod effect_key;
mod known;
mod read_cache;
mod reconcile;
pub mod version;

pub use durable::Durability;
pub use effect_key::{EFFECT_WINDOW_MS_DEFAULT, EFFECT_WINDOW_MS_MAX, EffectKey, EffectNote};
pub(crate) use effect_key::{at, canonical, canonical_argument};
pub use known::KnownTools;
pub use read_cache::{CACHE_TTL_MS_MAX, CacheInputs, CachePer, ReadCache};
pub use reconcile::{
    RECONCILE_GRACE_MS_DEFAULT, RECONCILE_GRACE_MS_MAX, RECONCILE_TRIES_DEFAULT, RECONCILE_TRIES_MAX, Reconcile,
    ReconcileArgument, ReconcileVerdict,
};

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::approval::ApprovalDemand;

/// Stable, for example `tool_send_telegram`.
pub type ToolId = String;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, Default)]
#[serde(rename_all = "lowercase")]
pub enum Effect {
    Read,
    /// Running the tool twice has the same effect as running it once.
    Idempotent,
    /// Running the tool twice has the effect twice, for example a second message.
    #[default]
    Once,
}

impl Effect {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Idempotent => "idempotent",
            Self::Once => "once",
        }
    }
}

#[derive(Debug, Clone, Serialize)]
pub struct ToolSpec {
    pub id: ToolId,
    /// The name that models use, unique.
    pub name: String,
    pub display_name: String,
    pub description: String,
    pub input_schema: serde_json::Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<serde_json::Value>,
    /// Groups tools in lists (`messaging`, `social`).
    pub category: String,
    /// SemVer.
    pub version: String,
    pub effect: Effect,
    /// Only for the effect `once`: calls with equal keys have the effect only once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effect_key: Option<EffectKey>,
    /// Only for the effect `read`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache: Option<ReadCache>,
    /// Only for the effect `once`: finds out whether a call with an unknown outcome took effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reconcile: Option<Reconcile>,
    /// `None` means the fleet's setting for the effect `once`, and [`Durability::None`] for any other effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub durable: Option<Durability>,
    /// Of one attempt.
    #[serde(with = "duration_ms")]
    pub timeout: Duration,
    pub required_capabilities: Vec<String>,
    pub required_features: Vec<String>,
    pub requires_approval: bool,
    /// Every call needs this approval. If `None`, digests omit the field.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub approval: Option<ApprovalDemand>,
    /// False if the tool is declared but cannot run. Calls of the tool then fail.
    pub configured: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ToolTraits {
    /// `None` if the declaration only overrides fields of a tool that declares its own effect.
    pub effect: Option<Effect>,
    pub category: String,
}

mod duration_ms {
    use std::time::Duration;

    use serde::Serializer;

    pub(super) fn serialize<S: Serializer>(value: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_u64(u64::try_from(value.as_millis()).unwrap_or(u64::MAX))
    }
}
