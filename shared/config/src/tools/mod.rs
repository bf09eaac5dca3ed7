//! `tools.yaml`: the declarations of tools, the requests of HTTP tools, the commands of shell tools, and Python
//! modules with tools.

pub(crate) mod cache;
pub(crate) mod effect_key;
pub(crate) mod http;
pub(crate) mod python;
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

pub use python::{PythonDef, PythonSandbox};

/// The whole file. `tools:` maps the name that models use to the declaration. `python:` maps a name to modules that
/// define tools themselves.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolsFile {
    /// Name → declaration.
    #[serde(default)]
    pub tools: BTreeMap<String, ToolDef>,
    /// Name → Python modules and the processes that run them.
    #[serde(default, skip)]
    pub python: BTreeMap<String, PythonDef>,
}

/// One declared tool. Without `http` or `shell` it is only declared, unless the binary registers a typed tool with
/// this name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolDef {
    /// Stable ID; default `tool_<name>`.
    pub id: Option<String>,
    /// The name for people; default the name.
    pub display_name: Option<String>,
    /// The text that tells models what the tool does and when to use it.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: serde_json::Value,
    /// JSON Schema of the output.
    pub output_schema: Option<serde_json::Value>,
    /// Category in lists; default `general`.
    pub category: Option<String>,
    /// SemVer; default `1.0.0`.
    pub version: Option<String>,
    /// The effect of running it twice; default `once`.
    #[serde(default)]
    pub effect: Effect,
    /// The key that identifies calls with the same effect, so that the effect happens once.
    #[serde(default, skip)]
    pub effect_key: Option<EffectKey>,
    /// How long its results are cached, and who shares them; default no cache.
    #[serde(default, skip)]
    pub cache: Option<ReadCache>,
    /// How the fleet finds out whether a call with unknown outcome took effect.
    #[serde(default, skip)]
    pub reconcile: Option<Reconcile>,
    /// Where the intent record must be stored before a call runs; default the fleet's setting.
    #[serde(default)]
    pub durable: Option<Durability>,
    /// Wall-clock limit of one try, ms; default the fleet's setting.
    pub timeout_ms: Option<u64>,
    /// Capabilities that the agent needs.
    #[serde(default)]
    pub required_capabilities: BTreeSet<String>,
    /// Plan features that the tenant needs.
    #[serde(default)]
    pub required_features: BTreeSet<String>,
    /// True if a person must approve each call.
    #[serde(default)]
    pub requires_approval: bool,
    /// The approvers and their number. If set, each call needs approval.
    #[serde(default)]
    pub approval: Option<ApprovalDemand>,
    /// The request of an HTTP tool.
    pub http: Option<HttpDef>,
    /// The command of a shell tool.
    pub shell: Option<ShellDef>,
}

impl ToolDef {
    /// Returns true if the declaration itself defines how the tool runs.
    #[must_use]
    pub const fn has_kind(&self) -> bool {
        self.http.is_some() || self.shell.is_some()
    }
}

/// The command of a shell tool, which runs in a sandbox. In templates, `{{argument}}` is replaced by the argument. It
/// stays within its element of the command, because no shell parses the command.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellDef {
    /// The level of the sandbox.
    pub level: ShellLevel,
    /// The program, and a template for each argument. If a template names an absent argument, it is left out.
    pub command: Vec<String>,
    /// Template of the command's standard input; default empty.
    pub stdin: Option<String>,
    /// Additional environment variables.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Paths of the machine that it may use, in addition to its workspace.
    #[serde(default)]
    pub paths: Vec<ShellPath>,
    /// TCP ports that it may connect to, on any host. By default none, and no network at all.
    #[serde(default)]
    pub tcp_ports: BTreeSet<u16>,
    /// Exit codes of temporary failures.
    #[serde(default)]
    pub transient_exits: BTreeSet<u8>,
    /// Exit codes of permanent failures. With any other code, the call succeeds, and its result contains the code.
    #[serde(default)]
    pub permanent_exits: BTreeSet<u8>,
    /// Resource limits.
    #[serde(default)]
    pub limits: ShellLimits,
    /// The container image of the level `docker`.
    pub image: Option<String>,
}

/// The level of the sandbox; `docs/reference/sandbox-levels.md` describes the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellLevel {
    /// Landlock, seccomp and limits.
    Basic,
    /// Also namespaces.
    #[default]
    Strict,
    /// A container.
    Docker,
}

/// A path of the machine that a command may use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellPath {
    /// An absolute path.
    pub path: String,
    /// True if the command may also write there.
    #[serde(default)]
    pub write: bool,
}

/// Resource limits of a command. Without a value, the default of the sandbox applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShellLimits {
    /// CPU time, ms; default 20 s.
    pub cpu_ms: Option<u64>,
    /// Wall-clock time, ms; default 25 s.
    pub wall_ms: Option<u64>,
    /// Memory of all its processes, bytes; default 512 MiB.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at the same time; default 64.
    pub processes: Option<u64>,
    /// Open files of each process; default 256.
    pub open_files: Option<u64>,
    /// Size of each file, bytes; default 64 MiB.
    pub file_bytes: Option<u64>,
    /// Size of all files of the workspace, bytes; default 256 MiB.
    pub workspace_bytes: Option<u64>,
    /// Files in the workspace; default 10,000.
    pub workspace_files: Option<u64>,
    /// Stored bytes of standard output and standard error, each; default 256 KiB.
    pub output_bytes: Option<u64>,
}

/// The request of an HTTP tool. In templates, `{{argument}}` is replaced by the argument, encoded for its position
/// (URL path segment, query value, header, JSON body). `${SECRET_NAME}` is replaced by a secret, never by an argument.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpDef {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Scheme, host and an optional path prefix (`https://api.telegram.org`). `${NAME:-default}` reads the environment.
    pub base_url: String,
    /// Path template after the base URL (`/bot${TELEGRAM_BOT_TOKEN}/sendMessage`).
    pub path: String,
    /// Query parameter → template. If a template names an absent argument, the parameter is left out.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header → template.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Argument → its value if a call omits it. If this value is empty, the call must contain the argument.
    #[serde(default)]
    pub defaults: BTreeMap<String, String>,
    /// JSON body template. A string that is exactly `{{argument}}` becomes the argument's JSON value. If a member
    /// names an absent argument, it is left out.
    pub body: Option<serde_json::Value>,
    /// Secrets that templates may name, by reference.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretRef>,
    /// Statuses after which the request certainly had no effect (in addition to 429). `once` tools may retry after
    /// them.
    #[serde(default)]
    pub not_executed: BTreeSet<u16>,
    /// Rules that interpret a response by its status and body. The first matching rule decides, before the status
    /// itself does.
    #[serde(default)]
    pub outcomes: Vec<OutcomeRule>,
    /// JSON pointer to the returned value; default the whole body.
    pub result: Option<String>,
    /// Header for the idempotency key, if the service supports one.
    pub idempotency_header: Option<String>,
    /// Maximum number of response bytes; default 1 MiB.
    pub response_bytes_max: Option<usize>,
    /// Hosts (names, `host:port`, or CIDR blocks) that may have private addresses.
    #[serde(default)]
    pub allow_private: BTreeSet<String>,
    /// Maximum number of redirects, each checked again; default 0, and always 0 for `once`.
    #[serde(default)]
    pub redirects_max: u8,
    /// OAuth 2 sign-in, if the service needs it. The access token is sent in `Authorization`.
    pub oauth2: Option<OAuth2Def>,
}

/// The placeholder for the tenant in a secret's reference.
pub const TENANT: &str = "{tenant}";

/// The source of a secret. Its value never appears in configuration. [`TENANT`] in a reference is replaced by the
/// calling tenant, encoded so that no two tenants share a name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "lowercase")]
pub enum SecretRef {
    /// An environment variable of the worker.
    Env(String),
    /// A file, read at each use, since a mounted Kubernetes secret may change.
    File(String),
}

/// One rule of an HTTP tool's `outcomes`. It matches if its status and its conditions on the body match.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRule {
    /// Statuses, 200 to 599; empty matches any.
    #[serde(default)]
    pub status: BTreeSet<u16>,
    /// JSON pointer into the body.
    pub at: Option<String>,
    /// The value that must be there, or a list of allowed values.
    pub equals: Option<serde_json::Value>,
    /// True if a value must be there, false if none may be. Null, `""`, `[]` and `{}` count as no value. Default true
    /// if `equals` is not given.
    pub present: Option<bool>,
    /// The meaning of the response.
    pub outcome: AnswerMeaning,
    /// JSON pointer to the message for the model; by default, usual places are searched.
    pub message: Option<String>,
    /// JSON pointer to the seconds to wait before a retry; default the header `Retry-After`.
    pub retry_after: Option<String>,
}

/// The meaning of a service's response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerMeaning {
    /// The call succeeded.
    Ok,
    /// The call failed with this outcome, and a retry would change nothing.
    Ended(Outcome),
    /// A temporary failure. The call may have taken effect.
    Transient,
    /// A temporary failure, and the call certainly had no effect: `once` tools may retry.
    NotExecuted,
}

impl AnswerMeaning {
    /// The words of the configuration.
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
    /// How a token is requested.
    pub grant: Grant,
    /// The token service. `${NAME:-default}` reads the environment.
    pub token_url: String,
    /// The client's ID.
    pub client_id: String,
    /// The client's password, a reference to a secret. Public clients have no password.
    pub client_secret: Option<String>,
    /// The refresh token of the grant `refresh_token`, a reference to a secret.
    pub refresh_token: Option<String>,
    /// The requested scopes, separated by spaces.
    pub scope: Option<String>,
    /// Additional fields of the request (`audience`, `resource`).
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    /// Where the request contains the client's ID and password.
    #[serde(default)]
    pub client_auth: ClientAuth,
}

/// An OAuth 2 grant that needs no person at run time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The client acts on its own behalf (RFC 6749, 4.4).
    ClientCredentials,
    /// A person has consented once, which the refresh token proves (RFC 6749, 6).
    RefreshToken,
}

/// Where a token request contains the client's ID and password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// In the header `Authorization`, as RFC 6749 recommends.
    #[default]
    Basic,
    /// In the body.
    Body,
}
