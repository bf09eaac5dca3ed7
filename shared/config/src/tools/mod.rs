//! `tools.yaml`: the declarations of tools, the requests of HTTP tools, the commands of shell tools, and modules
//! with tools.

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

/// The content of `tools.yaml`. `tools:` maps the name of each tool, as models see it, to the tool's declaration.
/// `python:` and `node:` map a name to modules that define tools themselves.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsFile {
    #[serde(default)]
    pub tools: BTreeMap<String, ToolDef>,
    /// The entries of `python:` and `node:`, by `<section>.<name>`.
    #[serde(default, skip)]
    pub modules: BTreeMap<String, ModulesDef>,
}

/// A declaration without `http`, `shell` or `local` overrides fields of another tool of this name: a typed tool of the
/// binary, or a tool of a module.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolDef {
    /// Stable ID; default `tool_<name>`.
    pub id: Option<String>,
    /// For people; default the name.
    pub display_name: Option<String>,
    /// For models. `None` only if another tool of this name has a description.
    pub description: Option<String>,
    /// JSON Schema of the arguments. `None` only if another tool of this name has the schema.
    pub input_schema: Option<serde_json::Value>,
    pub output_schema: Option<serde_json::Value>,
    pub category: Option<String>,
    /// SemVer; default `1.0.0`.
    pub version: Option<String>,
    /// The effect of running the tool twice. Default: the effect of another tool of this name, or `once`.
    pub effect: Option<Effect>,
    /// Selects the arguments that identify an effect. Calls with equal values of these arguments take effect only once.
    #[serde(default, skip)]
    pub effect_key: Option<EffectKey>,
    #[serde(default, skip)]
    pub cache: Option<ReadCache>,
    /// How the fleet finds out whether a call with unknown outcome took effect.
    #[serde(default, skip)]
    pub reconcile: Option<Reconcile>,
    /// Where the begin must be stored before a call runs. Default: for `once` tools `worker.durable`, else `none`.
    #[serde(default)]
    pub durable: Option<Durability>,
    /// Wall-clock limit of one try (ms); default the fleet's setting.
    pub timeout_ms: Option<u64>,
    #[serde(default)]
    pub required_capabilities: BTreeSet<String>,
    #[serde(default)]
    pub required_features: BTreeSet<String>,
    #[serde(default)]
    pub requires_approval: bool,
    /// If set, each call needs approval.
    #[serde(default)]
    pub approval: Option<ApprovalDemand>,
    pub http: Option<HttpDef>,
    pub shell: Option<ShellDef>,
    pub local: Option<LocalDef>,
}

impl ToolDef {
    /// Returns true if the declaration itself defines how the tool runs.
    #[must_use]
    pub const fn has_kind(&self) -> bool {
        self.http.is_some() || self.shell.is_some() || self.local.is_some()
    }
}

/// The fleet governs the calls, and the caller's process runs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LocalDef {
    /// The process loses a call after this time without a heartbeat (ms).
    #[serde(default = "local_lease_default")]
    pub lease_ms: u64,
}

pub const LOCAL_LEASE_MS_DEFAULT: u64 = 30_000;

const fn local_lease_default() -> u64 {
    LOCAL_LEASE_MS_DEFAULT
}

/// The command of a shell tool, which runs in a sandbox. In templates, `{{argument}}` is replaced by the argument. No
/// shell parses the command, so an argument changes only the element that contains its placeholder.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellDef {
    pub level: ShellLevel,
    /// The program, and a template for each of its arguments. A template that names an absent argument is left out.
    pub command: Vec<String>,
    pub stdin: Option<String>,
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Paths of the machine that the command may use, in addition to its workspace.
    #[serde(default)]
    pub paths: Vec<ShellPath>,
    /// TCP ports that the command may connect to, on any host. Default none: the command has no network.
    #[serde(default)]
    pub tcp_ports: BTreeSet<u16>,
    #[serde(default)]
    pub transient_exits: BTreeSet<u8>,
    /// Exit codes of permanent failures. With any other code, the call succeeds, and its result contains the code.
    #[serde(default)]
    pub permanent_exits: BTreeSet<u8>,
    #[serde(default)]
    pub limits: ShellLimits,
    /// The container image of the level `docker`.
    pub image: Option<String>,
}

/// `docs/reference/sandbox-levels.md` describes the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellLevel {
    /// Landlock, seccomp and limits.
    Basic,
    /// The same as `basic`, and namespaces.
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

/// If a limit is not set, the default of the sandbox applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShellLimits {
    /// Default 20 s.
    pub cpu_ms: Option<u64>,
    /// Default 25 s.
    pub wall_ms: Option<u64>,
    /// Of all processes of the command together; default 512 MiB.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at the same time; default 64.
    pub processes: Option<u64>,
    /// Of each process; default 256.
    pub open_files: Option<u64>,
    /// Of each file; default 64 MiB.
    pub file_bytes: Option<u64>,
    /// Of all files in the workspace; default 256 MiB.
    pub workspace_bytes: Option<u64>,
    /// Default 10,000.
    pub workspace_files: Option<u64>,
    /// Maximum for standard output, and for standard error; default 256 KiB each.
    pub output_bytes: Option<u64>,
}

/// The request of an HTTP tool. In templates, `{{argument}}` is replaced by the argument, encoded for its position
/// (URL path segment, query value, header, JSON body). `${SECRET_NAME}` is replaced by a secret. An argument cannot
/// insert a secret.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpDef {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Scheme, host and an optional path prefix (`https://api.telegram.org`). `${NAME:-default}` reads the environment.
    pub base_url: String,
    /// Path template after the base URL (`/bot${TELEGRAM_BOT_TOKEN}/sendMessage`).
    pub path: String,
    /// Maps a query parameter to its template. A parameter with a template that names an absent argument is left out.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header → template.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Maps an argument to its default value, for calls that omit the argument. If the value is empty, the call must
    /// contain the argument.
    #[serde(default)]
    pub defaults: BTreeMap<String, String>,
    /// JSON body template. A string that is exactly `{{argument}}` becomes the argument's JSON value. If a member
    /// names an absent argument, the member is left out.
    pub body: Option<serde_json::Value>,
    /// Secrets that templates may name. Each secret is given by reference.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretRef>,
    /// Response statuses, in addition to 429, that prove that the request had no effect. After such a status, even a
    /// `once` tool may be retried.
    #[serde(default)]
    pub not_executed: BTreeSet<u16>,
    /// Rules that interpret a response by its status and body. The first rule that matches decides. If no rule
    /// matches, the status decides.
    #[serde(default)]
    pub outcomes: Vec<OutcomeRule>,
    /// JSON pointer to the returned value; default the whole body.
    pub result: Option<String>,
    pub idempotency_header: Option<String>,
    /// Maximum number of response bytes; default 1 MiB.
    pub response_bytes_max: Option<usize>,
    /// Hosts (names, `host:port`, or CIDR blocks) that may have private addresses.
    #[serde(default)]
    pub allow_private: BTreeSet<String>,
    /// Maximum number of redirects. Each target is checked like the first address. Default 0; always 0 for `once`.
    #[serde(default)]
    pub redirects_max: u8,
    /// OAuth 2 sign-in, if the service needs it. The access token is sent in `Authorization`.
    pub oauth2: Option<OAuth2Def>,
}

/// The placeholder for the tenant in the reference to a secret.
pub const TENANT: &str = "{tenant}";

/// The source of a secret. The configuration never contains the value of a secret. [`TENANT`] in a reference is
/// replaced by the calling tenant, encoded so that different tenants have different references.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum SecretRef {
    /// An environment variable of the worker.
    Env(String),
    /// A file, which is read at each use, because a mounted Kubernetes secret can change.
    File(String),
}

/// One rule of an HTTP tool's `outcomes`. A response must match its statuses and its conditions on the body.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRule {
    /// Statuses, 200 to 599; empty matches every status.
    #[serde(default)]
    pub status: BTreeSet<u16>,
    pub at: Option<String>,
    /// The value that must be at `at`, or a list of allowed values.
    pub equals: Option<serde_json::Value>,
    /// True if there must be a value at `at`, false if there must be none. Null, `""`, `[]` and `{}` count as no
    /// value. If `equals` is not given, the default is true.
    pub present: Option<bool>,
    pub outcome: AnswerMeaning,
    /// JSON pointer to the message for the model. By default, the usual members are searched for the message.
    pub message: Option<String>,
    /// JSON pointer to the number of seconds to wait before a retry. Default: the header `Retry-After`.
    pub retry_after: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerMeaning {
    Ok,
    /// The call failed with this outcome, and a retry would fail too.
    Ended(Outcome),
    /// A temporary failure. The call may have taken effect.
    Transient,
    /// A temporary failure that certainly had no effect: `once` tools may retry.
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

/// OAuth 2 (RFC 6749). `client_id`, `client_secret`, `refresh_token`, `scope` and `params` are templates that may name
/// secrets.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuth2Def {
    pub grant: Grant,
    /// The token service. `${NAME:-default}` reads the environment.
    pub token_url: String,
    pub client_id: String,
    /// A reference to a secret. Public clients have none.
    pub client_secret: Option<String>,
    /// A reference to a secret, for the grant `refresh_token`.
    pub refresh_token: Option<String>,
    pub scope: Option<String>,
    /// Additional fields of the request (`audience`, `resource`).
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    #[serde(default)]
    pub client_auth: ClientAuth,
}

/// An OAuth 2 grant that needs no person at run time.
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
    /// The client's ID and secret are sent in the header `Authorization`, as RFC 6749 recommends.
    #[default]
    Basic,
    Body,
}
