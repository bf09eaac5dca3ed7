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
    pub loops: LoopSettings,
    pub permission: PermissionSettings,
    pub http: HttpSettings,
    pub log: LogSettings,
    pub tracing: TracingSettings,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// Includes the path in the setting `tls_ca`.
    pub url: RedisUrl,
    /// First part of every key.
    pub namespace: String,
    pub shards: u32,
    pub pool_size: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapSettings {
    pub tick: Duration,
    /// Per agent.
    pub max_calls_per_tick: u32,
    /// Per agent.
    pub max_actions_per_day: u32,
    /// IANA time zone in which days begin.
    pub time_zone: String,
    pub on_day_cap: DayCapAction,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    pub slots: usize,
    /// A worker without a heartbeat for this time counts as dead.
    pub lease: Duration,
    /// Time that running calls get after SIGTERM.
    pub drain: Duration,
    pub priorities: Priorities,
    /// For one try. A tool can override this timeout.
    pub tool_timeout: Duration,
    pub retry_delays: RetryDelays,
    pub allow_dynamic_registration: bool,
    /// For shell and file tools. Empty means a folder in the machine's temporary folder.
    pub workspaces: String,
    pub workspace_ttl: Duration,
    /// For `once` calls. A tool can override this setting.
    pub durable: Durability,
    pub durable_wait: Duration,
    pub output_bytes_max: u64,
    /// Failures in a row that open a circuit breaker; 0 disables circuit breakers.
    pub breaker_failures: u32,
    pub breaker_cooldown: Duration,
    pub without_sandbox: WithoutSandbox,
}

/// For a tool with a sandbox that the machine does not support.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutSandbox {
    #[default]
    RefuseStart,
    /// The calls end as `not_configured`.
    RefuseCalls,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerSettings {
    pub batch: usize,
    /// Interval of checks for due throttle queues and retries.
    pub tick_poll: Duration,
    /// Interval at which the janitor cleans up (memory, audit, dead items, old counters) and checks some turns.
    pub collect_every: Duration,
    pub reap_every: Duration,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionSettings {
    pub records: Duration,
    /// How long IDs are kept to reject duplicates. At least `records`.
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
    pub turns_bytes_max: u64,
    pub tenant_turns_max: u64,
    pub tenant_bytes_max: u64,
    /// Turns and tasks in queues or with workers.
    pub tenant_ready_max: u64,
    pub inbox_unread_max: u64,
    pub inboxes_max: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSettings {
    pub log_tool_calls: bool,
    /// In addition to the built-in names.
    pub redact_keys: BTreeSet<String>,
    pub result_chars: usize,
    pub admissions: bool,
    pub policy_inputs: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealSettings {
    /// Signs seals; `None` disables sealing.
    pub key: Option<SealKey>,
    pub key_id: String,
    pub every: Duration,
    pub anchor: AnchorPlace,
    /// `None` means the fleet's own Redis.
    pub anchor_redis: Option<SealKey>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealKey {
    Env(String),
    File(String),
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AnchorPlace {
    #[default]
    None,
    Log,
    File(String),
    /// `None` means the shard's own stream in the fleet's Redis.
    Stream(Option<String>),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairnessSettings {
    pub tenants: bool,
    /// For calls of one tool; 100 disables the limit.
    pub tool_slots_percent: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopSettings {
    /// Equal calls in a row; 0 disables the loop breaker.
    pub warn_after: u32,
    /// Further equal calls after the warning.
    pub deny_after: u32,
    pub deny_for: Duration,
    /// Longest time between two equal calls of one streak.
    pub reset_after: Duration,
    pub except: BTreeSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionSettings {
    pub strict_capabilities: bool,
    /// Names or IDs of existing tools.
    pub disabled_tools: BTreeSet<String>,
    pub trial_tools: bool,
    pub samples: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    pub address: SocketAddr,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    pub format: LogFormat,
    pub level: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingSettings {
    /// Base URL of an OTLP/HTTP collector; empty disables the export.
    pub otlp_endpoint: String,
    /// For traces that begin in this process.
    pub sample_ppm: u32,
    pub service_name: String,
    pub gen_ai: bool,
    pub gen_ai_content: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    #[default]
    Pretty,
    Json,
}
