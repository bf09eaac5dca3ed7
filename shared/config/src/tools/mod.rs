//! `tools.yaml`: tools, and modules that define tools.

pub(crate) mod cache;
pub(crate) mod effect_key;
pub(crate) mod http;
pub(crate) mod modules;
pub(crate) mod read;
pub(crate) mod reconcile;
pub(crate) mod schema;
pub(crate) mod shell;
pub(crate) mod templates;

use std::collections::{BTreeMap, BTreeSet};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use tickfleet_model::tool::{ReadCache, Reconcile};
use tickfleet_model::{ApprovalDemand, Durability, Effect, EffectKey, Outcome};

pub use modules::{ModulesDef, ModulesSandbox, NODE_CODE, ToolRuntime};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsFile {
    #[serde(default)]
    pub tools: BTreeMap<String, ToolDef>,
    /// By `<section>.<name>`.
    #[serde(default, skip)]
    pub modules: BTreeMap<String, ModulesDef>,
}

#[derive(Debug, Clone, Deserialize)]
pub struct ToolDef {
    /// Default `tool_<name>`.
    pub id: Option<String>,
    /// Default: the name.
    pub display_name: Option<String>,
    /// `None` only if another tool of this name has a description.
    pub description: Option<String>,
    /// `None` only if another tool of this name has a schema.
    pub input_schema: Option<serde_json::Value>,
    pub output_schema: Option<serde_json::Value>,
    pub category: Option<String>,
    /// SemVer; default `1.0.0`.
    pub version: Option<String>,
    /// Default: the effect of another tool of this name, or `once`.
    pub effect: Option<Effect>,
    /// Calls with equal values of these arguments take effect only once.
    #[serde(default, skip)]
    pub effect_key: Option<EffectKey>,
    #[serde(default, skip)]
    pub cache: Option<ReadCache>,
    #[serde(default, skip)]
    pub reconcile: Option<Reconcile>,
    /// Default: the fleet's setting for `once` tools, `none` for others.
    #[serde(default)]
    pub durable: Option<Durability>,
    /// For one try. Default: the fleet's setting.
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub required_capabilities: BTreeSet<String>,
    #[serde(default)]
    pub required_features: BTreeSet<String>,
    #[serde(default)]
    pub requires_approval: bool,
    #[serde(default)]
    pub approval: Option<ApprovalDemand>,
    /// `None` if the declaration overrides fields of another tool of this name.
    #[serde(flatten, deserialize_with = "runner")]
    pub runner: Option<ToolRunner>,
}

/// What runs the calls. Each kind of declared tool is a variant. Approvals are bound to the whole variant.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ToolRunner {
    Http(HttpDef),
    Shell(ShellDef),
    Local(LocalDef),
}

/// Takes all fields that [`ToolDef`] does not name, and so rejects unknown fields.
fn runner<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ToolRunner>, D::Error> {
    let fields = serde_json::Map::deserialize(deserializer)?;
    let runner = (!fields.is_empty()).then(|| serde_json::from_value(fields.into())).transpose();
    runner.map_err(D::Error::custom)
}

/// The caller's process runs the calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalDef {
    /// Longest time without a heartbeat.
    #[serde(default = "local_lease_default")]
    pub lease_ms: u64,
}

pub const LOCAL_LEASE_MS_DEFAULT: u64 = 30_000;

const fn local_lease_default() -> u64 {
    LOCAL_LEASE_MS_DEFAULT
}

/// No shell parses the command, so an argument changes only one element.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellDef {
    pub level: ShellLevel,
    /// The program and its argument templates. A template with an absent argument is left out.
    pub command: Vec<String>,
    pub stdin: Option<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    #[serde(default)]
    pub paths: Vec<ShellPath>,
    /// On any host. By default, the command has no network.
    #[serde(default)]
    pub tcp_ports: BTreeSet<u16>,
    #[serde(default)]
    pub transient_exits: BTreeSet<u8>,
    /// With an exit code in neither list, the call succeeds.
    #[serde(default)]
    pub permanent_exits: BTreeSet<u8>,
    #[serde(default)]
    pub limits: ShellLimits,
    pub image: Option<String>,
}

/// `docs/reference/sandbox-levels.md` describes the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellLevel {
    Basic,
    #[default]
    Strict,
    Docker,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellPath {
    pub path: String,
    #[serde(default)]
    pub write: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShellLimits {
    /// Default 20 s.
    pub cpu_ms: Option<u64>,
    /// Default 25 s.
    pub wall_ms: Option<u64>,
    /// For all processes together; default 512 MiB.
    pub memory_bytes: Option<u64>,
    /// Processes and threads; default 64.
    pub processes: Option<u64>,
    /// For each process; default 256.
    pub open_files: Option<u64>,
    /// For each file; default 64 MiB.
    pub file_bytes: Option<u64>,
    /// Default 256 MiB.
    pub workspace_bytes: Option<u64>,
    /// Default 10,000.
    pub workspace_files: Option<u64>,
    /// Default 256 KiB for each of standard output and standard error.
    pub output_bytes: Option<u64>,
}

/// An argument is encoded for its position: URL path segment, query value, header or JSON body. An argument cannot
/// insert a secret.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpDef {
    pub method: String,
    /// `${NAME:-default}` reads the environment.
    pub base_url: String,
    /// `/bot${TELEGRAM_BOT_TOKEN}/sendMessage`
    pub path: String,
    /// A parameter with an absent argument is left out.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// If the default of an argument is empty, the call must contain the argument.
    #[serde(default)]
    pub defaults: BTreeMap<String, String>,
    /// A string that is exactly `{{argument}}` becomes the argument's JSON value. A member with an absent argument is
    /// left out.
    pub body: Option<serde_json::Value>,
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretRef>,
    /// After these statuses, and after 429, the request certainly had no effect. Even a `once` tool may be retried.
    #[serde(default)]
    pub not_executed: BTreeSet<u16>,
    /// The first match decides. Without a match, the status decides.
    #[serde(default)]
    pub outcomes: Vec<OutcomeRule>,
    /// JSON pointer; default: the whole body.
    pub result: Option<String>,
    pub idempotency_header: Option<String>,
    /// Default 1 MiB.
    pub response_bytes_max: Option<usize>,
    /// Hosts, `host:port` or CIDR blocks that may have private addresses.
    #[serde(default)]
    pub allow_private: BTreeSet<String>,
    /// Default 0; always 0 for `once`.
    #[serde(default)]
    pub redirects_max: u8,
    pub oauth2: Option<OAuth2Def>,
}

pub const TENANT: &str = "{tenant}";

/// [`TENANT`] becomes the calling tenant, encoded so that no two tenants have equal references.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum SecretRef {
    Env(String),
    /// Read at each use, because a mounted Kubernetes secret can change.
    File(String),
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRule {
    /// From 200 to 599; empty matches every status.
    #[serde(default)]
    pub status: BTreeSet<u16>,
    pub at: Option<String>,
    pub equals: Option<serde_json::Value>,
    /// Null, `""`, `[]` and `{}` count as no value. Default: true without `equals`.
    pub present: Option<bool>,
    pub outcome: AnswerMeaning,
    /// JSON pointer. Default: the usual members.
    pub message: Option<String>,
    /// JSON pointer to seconds. Default: the header `Retry-After`.
    pub retry_after: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerMeaning {
    Ok,
    /// A retry would fail, too.
    Ended(Outcome),
    /// The call may have taken effect.
    Transient,
    /// The call certainly had no effect: `once` tools may retry.
    NotExecuted,
}

impl AnswerMeaning {
    pub(crate) const NAMED: [(&'static str, Self); 4] = [
        ("ok", Self::Ok),
        ("permanent", Self::Ended(Outcome::Permanent)),
        ("transient", Self::Transient),
        ("not_executed", Self::NotExecuted),
    ];
}

impl<'de> Deserialize<'de> for AnswerMeaning {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        let named = Self::NAMED.into_iter().find(|(name, _)| *name == word);
        named.map(|(_, meaning)| meaning).ok_or_else(|| D::Error::custom(format!("unknown outcome {word:?}")))
    }
}

/// OAuth 2 (RFC 6749). `client_id`, `client_secret`, `refresh_token`, `scope` and `params` are templates.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuth2Def {
    pub grant: Grant,
    /// `${NAME:-default}` reads the environment.
    pub token_url: String,
    pub client_id: String,
    /// A reference to a secret. Public clients have none.
    pub client_secret: Option<String>,
    /// A reference to a secret.
    pub refresh_token: Option<String>,
    pub scope: Option<String>,
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    #[serde(default)]
    pub client_auth: ClientAuth,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The client acts on its own behalf (RFC 6749, 4.4).
    ClientCredentials,
    /// A person has consented once; the refresh token proves the consent (RFC 6749, 6).
    RefreshToken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    #[default]
    Basic,
    Body,
}
