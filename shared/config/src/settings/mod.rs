//! The types of the settings. All defaults come from `config/tickfleet.yaml`, and the comments here repeat them.

pub(crate) mod read;
pub(crate) mod redis_url;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::settings::redis_url::RedisUrl;
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
    /// The URL of Redis. Printing masks its password. The URL includes the file that the setting `tls_ca` names.
    /// Default `redis://127.0.0.1:6379/0`.
    pub url: RedisUrl,
    /// First part of every key. Default `tickfleet`.
    pub namespace: String,
    /// Number of shards. Default 1.
    pub shards: u32,
    /// Number of pooled connections, for occasional commands. Default 4.
    pub pool_size: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapSettings {
    /// Length of a tick. Default 5 s.
    pub tick: Duration,
    /// Calls per agent and tick. Default 10.
    pub max_calls_per_tick: u32,
    /// Calls per agent and day. Default 1,000.
    pub max_actions_per_day: u32,
    /// IANA time zone in which days begin; validated. Default `UTC`.
    pub time_zone: String,
    /// The action at the day cap. Default reject.
    pub on_day_cap: DayCapAction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Maximum number of slices that run at the same time. Default 32.
    pub slots: usize,
    /// Time without a heartbeat after which a worker counts as dead. Default 10 s.
    pub lease: Duration,
    /// Time that running calls have after SIGTERM. Default 45 s, which is more than the default of `tool_timeout`.
    pub drain: Duration,
    /// The priorities of the `ready` streams that the process leases from. Default all.
    pub priorities: Priorities,
    /// Wall-clock limit of one try, unless the tool sets its own limit. Default 30 s.
    pub tool_timeout: Duration,
    /// Waits before retries. Default 1 s, 3 s, 9 s.
    pub retry_ladder: Vec<Duration>,
    /// True if tools may be registered at run time. Default false.
    pub allow_dynamic_registration: bool,
    /// Folder of the workspaces of shell and file tools; empty means a folder in the machine's temporary folder.
    /// Default empty.
    pub workspaces: String,
    /// Time that a workspace is kept after its last use. Default 24 h.
    pub workspace_ttl: Duration,
    /// Where the intent record of a `once` call must be stored before the call runs. A tool can set another value.
    /// Default none.
    pub durable: Durability,
    /// Longest wait for the confirmation that the intent record is stored. Default 1 s.
    pub durable_wait: Duration,
    /// Maximum bytes of one call's output in a result. Default 64 KiB.
    pub output_bytes_max: u64,
    /// Number of failures in a row that open the circuit breaker of a tool in a worker; 0 disables circuit breakers.
    /// Default 0.
    pub breaker_failures: u32,
    /// Time that a circuit breaker stays open before it lets a trial call through. Default 10 s.
    pub breaker_cooldown: Duration,
    /// Reaction of a worker whose machine does not support the sandbox of a tool. Default refuse_start.
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
    /// Maximum number of entries that are admitted at once. Default 64.
    pub batch: usize,
    /// Interval of checks for due throttle queues and retries. Default 50 ms.
    pub tick_poll: Duration,
    /// Interval of cleanup: memory, audit, dead entries, old budgets, and the check of some turns. Default 5 s.
    pub collect_every: Duration,
    /// Interval of checks for dead workers. Default 1 s.
    pub reap_every: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Retention of finished turns and tasks. Default 1 h.
    pub records: Duration,
    /// Retention of producers' IDs after their turns and tasks have ended, to reject duplicates; at least `records`.
    /// Default 1 h.
    pub dedupe_for: Duration,
    /// Retention of replies. Default 24 h.
    pub replies: Duration,
    /// Retention of audit entries. Default 7 days.
    pub audit: Duration,
    /// Maximum bytes of the audit entries of one shard. Default 256 MiB.
    pub audit_bytes_max: u64,
    /// Retention of dead letters. Default 7 days.
    pub dead: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSettings {
    /// Maximum number of turns that wait for admission, per shard. Default 100,000.
    pub turns_max: u64,
    /// Maximum bytes of turns that wait for admission, per shard. Default 256 MiB.
    pub turns_bytes_max: u64,
    /// Maximum number of waiting turns of one tenant. Default 20,000.
    pub tenant_turns_max: u64,
    /// Maximum bytes of waiting turns of one tenant. Default 256 MiB.
    pub tenant_bytes_max: u64,
    /// Maximum number of ready slices of one tenant. Default 5,000.
    pub tenant_ready_max: u64,
    /// Maximum number of unread replies of one inbox. Default 10,000.
    pub inbox_unread_max: u64,
    /// Maximum number of inboxes of one tenant. Default 1,000.
    pub inboxes_max: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSettings {
    /// True if calls are audited. Default true.
    pub log_tool_calls: bool,
    /// Argument names whose values are redacted in addition to the built-in names. Default none.
    pub redact_keys: BTreeSet<String>,
    /// Maximum number of characters of a stored result. Default 1,000.
    pub result_chars: usize,
    /// True if each entry records how its call was admitted. Default false.
    pub admissions: bool,
    /// True if each entry records the other inputs to the decision about its call. Default false.
    pub policy_inputs: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealSettings {
    /// Location of the secret key that signs seals; `None` disables sealing. Default none.
    pub key: Option<SealKey>,
    /// Name of the key, which seals contain. Default `seal-1`.
    pub key_id: String,
    /// Interval at which new entries are sealed. Default 1 s.
    pub every: Duration,
    /// Where copies of seals are stored outside the audit log, to detect a rewritten log. Default nowhere.
    pub anchor: AnchorPlace,
    /// Location of the URL of the Redis server whose stream stores copies of seals; `None` means the fleet's own Redis.
    /// Default none.
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
    /// In a stream. With a name, it is this stream of another Redis. Without a name, it is the shard's own stream in
    /// the fleet's Redis.
    Stream(Option<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairnessSettings {
    /// True if tenants share slots by weight while slots are scarce. Default true.
    pub tenants: bool,
    /// Maximum percentage of the slots that calls of one tool may use; 100 disables the limit. Default 100.
    pub tool_slots_percent: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopSettings {
    /// Number of equal calls in a row after which the agent receives a warning; 0 disables the loop breaker. Default
    /// 0.
    pub warn_after: u32,
    /// Number of further equal calls after which the call is denied. Default 3.
    pub deny_after: u32,
    /// Time for which the call is denied. Default 1 min.
    pub deny_for: Duration,
    /// Longest time between two equal calls of the same streak. Default 10 min.
    pub reset_after: Duration,
    /// Tools that may be called repeatedly. Default: the fleet's own tools that are used to poll.
    pub except: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionSettings {
    /// True if required capabilities are enforced. Default true.
    pub strict_capabilities: bool,
    /// Names or IDs of tools that no agent may call. Each of these tools must exist. Default none.
    pub disabled_tools: BTreeSet<String>,
    /// True if the built-in permissions let every agent call the trial tools.
    pub trial_tools: bool,
    /// True if the built-in sample business provides the files that are missing from the folder. Default true.
    pub samples: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// The address that serves health and metrics. Default `0.0.0.0:9090`.
    pub address: SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// Format of log lines. Default pretty.
    pub format: LogFormat,
    /// A log level, or filter directives for each module. Default `info`.
    pub level: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingSettings {
    /// Base URL of an OTLP/HTTP collector; empty disables the export of spans. Default empty.
    pub otlp_endpoint: String,
    /// Number of traces per million that are sampled, for traces that begin in this process. Default all.
    pub sample_ppm: u32,
    /// Name of the service in the exported spans. Default `tickfleet`.
    pub service_name: String,
    /// True if calls and model requests are also recorded with OpenTelemetry's semantic conventions. Default false.
    pub gen_ai: bool,
    /// True if the spans of `gen_ai` contain arguments and results. Default false.
    pub gen_ai_content: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Pretty,
    /// One JSON object per line, for log collectors.
    Json,
}
