//! The types of the settings. `config/tickfleet.yaml` has the defaults.

pub(crate) mod read;
pub(crate) mod redis_url;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::settings::redis_url::RedisUrl;
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{DayCapAction, Durability, Priorities};

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    pub redis: RedisSettings,
    pub caps: CapSettings,
    pub worker: WorkerSettings,
    pub scheduler: SchedulerSettings,
    pub retention: RetentionSettings,
    pub queues: QueueSettings,
    pub audit: AuditSettings,
    pub seal: SealSettings,
    pub fairness: FairnessSettings,
    /// The loop breaker for agents that run outside the fleet.
    pub loops: LoopSettings,
    pub permission: PermissionSettings,
    pub http: HttpSettings,
    pub log: LogSettings,
    pub tracing: TracingSettings,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// The URL, including the file that the setting `tls_ca` names. Printing masks the password.
    pub url: RedisUrl,
    /// First part of every key.
    pub namespace: String,
    pub shards: u32,
    /// Pooled connections, for occasional commands.
    pub pool_size: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapSettings {
    pub tick: Duration,
    /// Per agent.
    pub max_calls_per_tick: u32,
    /// Per agent.
    pub max_actions_per_day: u32,
    /// IANA time zone in which days begin; validated.
    pub time_zone: String,
    pub on_day_cap: DayCapAction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Maximum number of slices that run at the same time.
    pub slots: usize,
    /// Time without a heartbeat after which a worker counts as dead.
    pub lease: Duration,
    /// Time that running calls have after SIGTERM. The default is longer than the default of `tool_timeout`.
    pub drain: Duration,
    /// The priorities of the `ready` streams that the process leases from.
    pub priorities: Priorities,
    /// Wall-clock limit of one try, unless the tool sets its own limit.
    pub tool_timeout: Duration,
    pub retry_ladder: RetryDelays,
    pub allow_dynamic_registration: bool,
    /// Folder of the workspaces of shell and file tools; empty means a folder in the machine's temporary folder.
    pub workspaces: String,
    pub workspace_ttl: Duration,
    /// Where the begin of a `once` call must be stored before the call runs. A tool can set another value.
    pub durable: Durability,
    /// Longest wait for the confirmation.
    pub durable_wait: Duration,
    /// For one call's output in a result.
    pub output_bytes_max: u64,
    /// Number of failures in a row that open the circuit breaker of a tool in a worker; 0 disables circuit breakers.
    pub breaker_failures: u32,
    /// Time that a circuit breaker stays open before it lets a trial call through.
    pub breaker_cooldown: Duration,
    pub without_sandbox: WithoutSandbox,
}

/// Reaction of a worker whose machine does not support the sandbox of a tool. The tool never runs without its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutSandbox {
    /// The worker does not start, and does not apply a configuration with such a tool.
    #[default]
    RefuseStart,
    /// The worker starts. If it receives a call of the tool, the call ends as `not_configured`.
    RefuseCalls,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// Maximum number of entries that are admitted at once.
    pub batch: usize,
    /// Interval of checks for due throttle queues and retries.
    pub tick_poll: Duration,
    /// Interval of cleanup (memory, audit, dead entries, old budgets), and of the check of some turns.
    pub collect_every: Duration,
    /// Interval of checks for dead workers.
    pub reap_every: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionSettings {
    /// For finished turns and tasks.
    pub records: Duration,
    /// How long producers' IDs are kept after their turns and tasks have ended, to reject duplicates; at least
    /// `records`.
    pub dedupe_for: Duration,
    pub replies: Duration,
    pub audit: Duration,
    /// Per shard.
    pub audit_bytes_max: u64,
    pub dead: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSettings {
    /// Turns that wait for admission, per shard.
    pub turns_max: u64,
    /// Bytes of turns that wait for admission, per shard.
    pub turns_bytes_max: u64,
    /// Unfinished turns and tasks of one tenant.
    pub tenant_turns_max: u64,
    /// Bytes of the unfinished turns and tasks of one tenant.
    pub tenant_bytes_max: u64,
    /// Slices of one tenant that are on queues or with workers.
    pub tenant_ready_max: u64,
    pub inbox_unread_max: u64,
    pub inboxes_max: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSettings {
    pub log_tool_calls: bool,
    /// Argument names whose values are redacted in addition to the built-in names.
    pub redact_keys: BTreeSet<String>,
    pub result_chars: usize,
    /// True if each entry records how its call was admitted.
    pub admissions: bool,
    /// True if each entry records the other inputs to the decision about its call.
    pub policy_inputs: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealSettings {
    /// Location of the secret key that signs seals; `None` disables sealing.
    pub key: Option<SealKey>,
    /// Name of the key, which seals contain.
    pub key_id: String,
    /// Interval at which new entries are sealed.
    pub every: Duration,
    pub anchor: AnchorPlace,
    /// Location of the URL of the Redis server whose stream stores copies of seals; `None` means the fleet's own Redis.
    pub anchor_redis: Option<SealKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealKey {
    Env(String),
    File(String),
}

/// Where copies of seals are stored outside the audit log.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AnchorPlace {
    #[default]
    None,
    /// In the log of the process, one line for each seal.
    Log,
    /// In this file, one line for each seal.
    File(String),
    /// In the stream with this name in another Redis. `None` means the shard's own stream in the fleet's Redis.
    Stream(Option<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairnessSettings {
    /// True if tenants share slots by weight while slots are scarce.
    pub tenants: bool,
    /// Maximum percentage of the slots that calls of one tool may use; 100 disables the limit.
    pub tool_slots_percent: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopSettings {
    /// Number of equal calls in a row after which the agent receives a warning; 0 disables the loop breaker.
    pub warn_after: u32,
    /// Number of further equal calls after which the call is denied.
    pub deny_after: u32,
    pub deny_for: Duration,
    /// Longest time between two equal calls of the same streak.
    pub reset_after: Duration,
    /// Tools that may be called repeatedly.
    pub except: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionSettings {
    pub strict_capabilities: bool,
    /// Names or IDs of tools that no agent may call. Each of these tools must exist.
    pub disabled_tools: BTreeSet<String>,
    /// True if the built-in permissions let every agent call the trial tools.
    pub trial_tools: bool,
    /// True if the built-in sample business provides the files that are missing from the folder.
    pub samples: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// Where health and metrics are served.
    pub address: SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    pub format: LogFormat,
    /// A log level, or filter directives for each module.
    pub level: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingSettings {
    /// Base URL of an OTLP/HTTP collector; empty disables the export of spans.
    pub otlp_endpoint: String,
    /// Number of traces per million that are sampled, for traces that begin in this process.
    pub sample_ppm: u32,
    pub service_name: String,
    /// True if calls and model requests are also recorded with OpenTelemetry's semantic conventions.
    pub gen_ai: bool,
    /// True if the spans of `gen_ai` contain arguments and results.
    pub gen_ai_content: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Pretty,
    /// One JSON object per line, for log collectors.
    Json,
}
