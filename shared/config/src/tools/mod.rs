//! `tools.yaml`: what a tool declares, how an HTTP tool is called, how a shell tool's command is run, and which Python
//! modules bring tools.

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

use serde::Deserialize;

use tickfleet_model::tool::{ReadCache, Reconcile};
use tickfleet_model::{ApprovalDemand, Durability, Effect, EffectKey};

pub use python::{PythonDef, PythonSandbox};

/// The whole file: `tools:` maps the name that models call to its declaration, `python:` a name to modules that bring
/// tools with definitions of their own.
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

/// One declared tool. Without `http` or `shell` it is declared only, unless the binary registers a typed tool of that name.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ToolDef {
    /// Stable id; default `tool_<name>`.
    pub id: Option<String>,
    /// The name that people read; default the name.
    pub display_name: Option<String>,
    /// The text that says what the tool does and when to use it: models read this.
    pub description: String,
    /// JSON Schema of the arguments.
    pub input_schema: serde_json::Value,
    /// JSON Schema of the output.
    pub output_schema: Option<serde_json::Value>,
    /// For grouping; default `general`.
    pub category: Option<String>,
    /// SemVer; default `1.0.0`.
    pub version: Option<String>,
    /// The effect of running it twice; default `once`.
    #[serde(default)]
    pub effect: Effect,
    /// By what two calls are the same effect, which is not to happen again.
    #[serde(default, skip)]
    pub effect_key: Option<EffectKey>,
    /// For how long its answers are kept for those who ask the same, and who shares them; default not at all.
    #[serde(default, skip)]
    pub cache: Option<ReadCache>,
    /// How the fleet finds out whether a call took effect of which nobody knows.
    #[serde(default, skip)]
    pub reconcile: Option<Reconcile>,
    /// What has to know that a call has begun before it runs; default the fleet's.
    #[serde(default)]
    pub durable: Option<Durability>,
    /// Wall-clock limit of one try, ms; default the fleet's.
    pub timeout_ms: Option<u64>,
    /// Capabilities that the agent needs.
    #[serde(default)]
    pub required_capabilities: BTreeSet<String>,
    /// Plan features that the tenant needs.
    #[serde(default)]
    pub required_features: BTreeSet<String>,
    /// True if a person has to agree to each call.
    #[serde(default)]
    pub requires_approval: bool,
    /// Whose, and how: with it, each call needs one.
    #[serde(default)]
    pub approval: Option<ApprovalDemand>,
    /// The way in which the call is made, for an HTTP tool.
    pub http: Option<HttpDef>,
    /// The command that the call runs, for a shell tool.
    pub shell: Option<ShellDef>,
}

impl ToolDef {
    /// Returns true if the declaration itself says what runs the tool.
    #[must_use]
    pub const fn has_kind(&self) -> bool {
        self.http.is_some() || self.shell.is_some()
    }
}

/// The command of a shell tool, run in a sandbox. Templates: `{{argument}}` is replaced by the argument, within the one
/// element that it stands in; no shell reads the command.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellDef {
    /// How the command is confined.
    pub level: ShellLevel,
    /// The program, and a template for each of its arguments. One whose argument is absent is left out.
    pub command: Vec<String>,
    /// Template of what the command reads from its standard input; default nothing.
    pub stdin: Option<String>,
    /// Further variables of its environment.
    #[serde(default)]
    pub environment: BTreeMap<String, String>,
    /// Paths of the machine that it may use beside its workspace.
    #[serde(default)]
    pub paths: Vec<ShellPath>,
    /// TCP ports that it may connect to, of any host; default none, and then no network at all.
    #[serde(default)]
    pub tcp_ports: BTreeSet<u16>,
    /// Exit codes that mean a failure which may pass.
    #[serde(default)]
    pub transient_exits: BTreeSet<u8>,
    /// Exit codes that mean a refusal for good. With any other, the call succeeds, and its result tells the code.
    #[serde(default)]
    pub permanent_exits: BTreeSet<u8>,
    /// What it may use.
    #[serde(default)]
    pub limits: ShellLimits,
    /// The image of its container, at the level `docker`.
    pub image: Option<String>,
}

/// How a command is confined; `docs/reference/sandbox-levels.md` describes the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShellLevel {
    /// Landlock, seccomp and limits.
    Basic,
    /// With namespaces beside them.
    #[default]
    Strict,
    /// A container.
    Docker,
}

/// A path of the machine that a command may use.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShellPath {
    /// Absolute.
    pub path: String,
    /// True if the command may also write there.
    #[serde(default)]
    pub write: bool,
}

/// What a command may use; where nothing is said, the sandbox' own limits hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ShellLimits {
    /// Time on processors, ms; default 20 s.
    pub cpu_ms: Option<u64>,
    /// From start to end, ms; default 25 s.
    pub wall_ms: Option<u64>,
    /// Memory of all its processes, bytes; default 512 MiB.
    pub memory_bytes: Option<u64>,
    /// Processes and threads at the same time; default 64.
    pub processes: Option<u64>,
    /// Open files of each process; default 256.
    pub open_files: Option<u64>,
    /// Length of each file, bytes; default 64 MiB.
    pub file_bytes: Option<u64>,
    /// All files of the workspace, bytes; default 256 MiB.
    pub workspace_bytes: Option<u64>,
    /// Files in the workspace; default 10,000.
    pub workspace_files: Option<u64>,
    /// Kept of each of standard output and error, bytes; default 256 KiB.
    pub output_bytes: Option<u64>,
}

/// The way in which an HTTP tool is called. Templates: `{{argument}}` is replaced by the argument, encoded for where it
/// lands (URL path segment, query value, header, JSON body); `${SECRET_NAME}` by a secret, never by an argument.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HttpDef {
    /// `GET`, `POST`, `PUT`, `PATCH` or `DELETE`.
    pub method: String,
    /// Scheme, host and an optional path prefix (`https://api.telegram.org`). `${NAME:-default}` reads the environment.
    pub base_url: String,
    /// Path template below the base (`/bot${TELEGRAM_BOT_TOKEN}/sendMessage`).
    pub path: String,
    /// Query parameter → template. A parameter whose argument is absent is left out.
    #[serde(default)]
    pub query: BTreeMap<String, String>,
    /// Header → template.
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    /// Argument → what it is where a call leaves it out. Where that is nothing, the call has to give the argument.
    #[serde(default)]
    pub defaults: BTreeMap<String, String>,
    /// JSON body template. A string that is exactly `{{argument}}` becomes the argument's JSON value; a member
    /// whose argument is absent is left out.
    pub body: Option<serde_json::Value>,
    /// Secrets that templates may name, by reference.
    #[serde(default)]
    pub secrets: BTreeMap<String, SecretRef>,
    /// Statuses after which the request provably did not take effect (beside 429): a `once` tool may retry them.
    #[serde(default)]
    pub not_executed: BTreeSet<u16>,
    /// Rules that say what an answer means, by its status and body; the first rule that fits decides, before the status
    /// does.
    #[serde(default)]
    pub outcomes: Vec<OutcomeRule>,
    /// JSON pointer to what is returned; default the whole body.
    pub result: Option<String>,
    /// Header that carries the idempotency key, where the service knows one.
    pub idempotency_header: Option<String>,
    /// Bytes of a response; default 1 MiB.
    pub response_bytes_max: Option<usize>,
    /// Hosts (names, `host:port`, or CIDR blocks) that may be private addresses.
    #[serde(default)]
    pub allow_private: BTreeSet<String>,
    /// Redirects followed, each checked again; default 0, and always 0 for `once`.
    #[serde(default)]
    pub redirects_max: u8,
    /// The way in which the tool signs in, if its service wants OAuth 2: the access token goes into `Authorization`.
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
    /// A file, read at each use (a mounted Kubernetes secret may change).
    File(String),
}

/// One rule of an HTTP tool's `outcomes`: it fits where its status and what it says of the body fit.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OutcomeRule {
    /// Statuses, 200 to 599; none means any.
    #[serde(default)]
    pub status: BTreeSet<u16>,
    /// JSON pointer into the body.
    pub at: Option<String>,
    /// The value that must be found there, or a list of them.
    pub equals: Option<serde_json::Value>,
    /// True if anything must be found there, false if nothing may: null, `""`, `[]` and `{}` count as nothing. Default
    /// true if `equals` is not given.
    pub present: Option<bool>,
    /// The meaning of the answer.
    pub outcome: AnswerMeaning,
    /// JSON pointer to the message for the model; default where services usually put it.
    pub message: Option<String>,
    /// JSON pointer to the seconds to wait before another try; default the header `Retry-After`.
    pub retry_after: Option<String>,
}

/// The meaning of a service's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerMeaning {
    /// The call is done.
    Ok,
    /// Refused for good.
    Permanent,
    /// It may pass; whether anything took effect is not known.
    Transient,
    /// It may pass, and certainly nothing took effect: a `once` tool may try again.
    NotExecuted,
}

impl AnswerMeaning {
    /// Each meaning with its word.
    pub(crate) const NAMED: [(&'static str, Self); 4] = [
        ("ok", Self::Ok),
        ("permanent", Self::Permanent),
        ("transient", Self::Transient),
        ("not_executed", Self::NotExecuted),
    ];
}

/// OAuth 2 (RFC 6749). `client_id`, `client_secret`, `refresh_token`, `scope` and `params` are templates over secrets.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OAuth2Def {
    /// The way in which a token is asked for.
    pub grant: Grant,
    /// The token service. `${NAME:-default}` reads the environment.
    pub token_url: String,
    /// The client.
    pub client_id: String,
    /// Its password, a reference to a secret; public clients have none.
    pub client_secret: Option<String>,
    /// For the grant `refresh_token`, a reference to a secret.
    pub refresh_token: Option<String>,
    /// The scopes to ask for, separated by blanks.
    pub scope: Option<String>,
    /// Further fields of the request (`audience`, `resource`).
    #[serde(default)]
    pub params: BTreeMap<String, String>,
    /// The place where the client's id and password stand in the request.
    #[serde(default)]
    pub client_auth: ClientAuth,
}

/// An OAuth 2 grant without a person in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Grant {
    /// The client acts for itself (RFC 6749, 4.4).
    ClientCredentials,
    /// A person has agreed once; the refresh token says so (RFC 6749, 6).
    RefreshToken,
}

/// The place where a token request carries the client's id and password.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ClientAuth {
    /// In the header `Authorization`, as RFC 6749 prefers.
    #[default]
    Basic,
    /// In the body.
    Body,
}
