//! The settings as types. Their defaults stand in `config/tickfleet.yaml` alone; the figures named here
//! only repeat them for the reader, and a test compares the two.

pub(crate) mod read;
pub(crate) mod redis_url;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use crate::settings::redis_url::RedisUrl;
use tickfleet_model::{DayCapAction, Durability, Priorities};

/// Every setting, validated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The place where the fleet's state lives.
    pub redis: RedisSettings,
    /// The bounds on what agents may do.
    pub caps: CapSettings,
    /// The settings by which calls are carried out.
    pub worker: WorkerSettings,
    /// The settings by which turns are admitted.
    pub scheduler: SchedulerSettings,
    /// The times for which what is finished is kept.
    pub retention: RetentionSettings,
    /// The bounds on what may wait.
    pub queues: QueueSettings,
    /// Settings of the audit log.
    pub audit: AuditSettings,
    /// How the audit log is sealed.
    pub seal: SealSettings,
    /// What tenants and tools have of the workers' slots.
    pub fairness: FairnessSettings,
    /// When agents that are run elsewhere go in circles.
    pub loops: LoopSettings,
    /// Switches of the permission policy.
    pub permission: PermissionSettings,
    /// Health and metrics.
    pub http: HttpSettings,
    /// The process' own log.
    pub log: LogSettings,
    /// The place that spans go to.
    pub tracing: TracingSettings,
}

/// `redis:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// Redis' URL, printed masked, with the file of `tls_ca` in it. Default `redis://127.0.0.1:6379/0`.
    pub url: RedisUrl,
    /// First part of every key. Default `tickfleet`.
    pub namespace: String,
    /// Number of shards. Default 1.
    pub shards: u32,
    /// Pooled connections for occasional commands. Default 4.
    pub pool_size: usize,
}

/// `caps:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CapSettings {
    /// Length of a tick. Default 5 s.
    pub tick: Duration,
    /// Calls per agent and tick. Default 10.
    pub max_calls_per_tick: u32,
    /// Calls per agent and day. Default 1,000.
    pub max_actions_per_day: u32,
    /// IANA zone in which days begin; valid. Default `UTC`.
    pub time_zone: String,
    /// The action at the day cap. Default reject.
    pub on_day_cap: DayCapAction,
}

/// `worker:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerSettings {
    /// Slices at the same time. Default 32.
    pub slots: usize,
    /// Silence after which a worker is dead. Default 10 s.
    pub lease: Duration,
    /// Time for running calls after SIGTERM. Default 45 s, above the default of `tool_timeout`.
    pub drain: Duration,
    /// The `ready` streams that the process leases from. Default all.
    pub priorities: Priorities,
    /// Wall-clock limit of one try where the tool sets none. Default 30 s.
    pub tool_timeout: Duration,
    /// Waits before retries. Default 1 s, 3 s, 9 s.
    pub retry_ladder: Vec<Duration>,
    /// True if tools may be registered at run time. Default false.
    pub allow_dynamic_registration: bool,
    /// Folder of the workspaces that shell and file tools work in; empty means one below the machine's temporary folder.
    /// Default empty.
    pub workspaces: String,
    /// The time for which a workspace is kept after its last use. Default 24 h.
    pub workspace_ttl: Duration,
    /// What has to know that a call of a `once` tool has begun before it runs, where the tool does not say. Default none.
    pub durable: Durability,
    /// Longest wait for that. Default 1 s.
    pub durable_wait: Duration,
    /// Failures of a tool in a row after which a worker does not call it for a while; 0 never. Default 0.
    pub breaker_failures: u32,
    /// For how long, before one call tries. Default 10 s.
    pub breaker_rest: Duration,
    /// What a worker does whose machine cannot hold the sandbox that a tool wants. Default refuse_start.
    pub without_sandbox: WithoutSandbox,
}

/// What a worker does whose machine cannot hold the sandbox that a tool wants. The tool is never run without it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum WithoutSandbox {
    /// It does not start, and takes over no configuration that wants such a tool.
    #[default]
    RefuseStart,
    /// It starts; calls of that tool which come to it end as `not_configured`.
    RefuseCalls,
}

/// `scheduler:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchedulerSettings {
    /// Entries admitted at once. Default 64.
    pub batch: usize,
    /// The period at which due lanes and retries are looked for. Default 50 ms.
    pub tick_poll: Duration,
    /// The period at which bounds are kept (memory, audit, dead entries, old budgets), and some turns are swept.
    /// Default 5 s.
    pub collect_every: Duration,
    /// The period at which dead workers are looked for. Default 1 s.
    pub reap_every: Duration,
}

/// `retention:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Finished turns and tasks. Default 1 h.
    pub records: Duration,
    /// Tombstones of producer-given ids; at least `records`. Default 1 h.
    pub dedupe_for: Duration,
    /// Replies. Default 24 h.
    pub replies: Duration,
    /// Audit entries. Default 7 days.
    pub audit: Duration,
    /// Audit entries of one shard, bytes. Default 256 MiB.
    pub audit_bytes_max: u64,
    /// Dead letters. Default 7 days.
    pub dead: Duration,
}

/// `queues:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueSettings {
    /// Turns waiting for admission, per shard. Default 100,000.
    pub turns_max: u64,
    /// Bytes of turns waiting for admission, per shard. Default 256 MiB.
    pub turns_bytes_max: u64,
    /// Waiting turns of one tenant. Default 20,000.
    pub tenant_turns_max: u64,
    /// Bytes of waiting turns of one tenant. Default 256 MiB.
    pub tenant_bytes_max: u64,
    /// Ready slices of one tenant. Default 5,000.
    pub tenant_ready_max: u64,
    /// Unread replies of one inbox. Default 10,000.
    pub inbox_unread_max: u64,
    /// Inboxes of one tenant. Default 1,000.
    pub inboxes_max: u64,
}

/// `audit:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditSettings {
    /// True if calls are audited at all. Default true.
    pub log_tool_calls: bool,
    /// Argument names whose values are hidden beside the built-in ones. Default none.
    pub redact_keys: BTreeSet<String>,
    /// Characters of a result that are kept. Default 1,000.
    pub result_chars: usize,
    /// True if each entry says how its call was admitted. Default false.
    pub admissions: bool,
    /// True if each entry says what else its call was decided by. Default false.
    pub premises: bool,
}

/// `seal:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealSettings {
    /// Where the secret key is; none where nothing is sealed. Default none.
    pub key: Option<SealKey>,
    /// What the key is called. Default `seal-1`.
    pub key_id: String,
    /// How often new entries are sealed. Default 1 s.
    pub every: Duration,
    /// Where heads of chains are kept outside of Redis. Default nowhere.
    pub anchor: AnchorPlace,
    /// Where the URL of the Redis is whose stream keeps them; none where that is the fleet's own. Default none.
    pub anchor_redis: Option<SealKey>,
}

/// Where a secret key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SealKey {
    /// In this variable of the environment.
    Env(String),
    /// In this file.
    File(String),
}

/// Where heads of chains are kept outside of Redis.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AnchorPlace {
    /// Nowhere.
    #[default]
    None,
    /// In the process' log, a line each.
    Log,
    /// In this file, a line each.
    File(String),
    /// In a stream: this one of another Redis, or the shard's own of the fleet's.
    Stream(Option<String>),
}

/// `fairness:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FairnessSettings {
    /// True if tenants share the slots by weight while these are short. Default true.
    pub tenants: bool,
    /// Per cent of the slots that the calls of one tool may have; 100 is no limit. Default 100.
    pub tool_slots_percent: u64,
}

/// `loops:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LoopSettings {
    /// Equal calls in a row after which their agent is told so; 0: nothing is counted. Default 0.
    pub tell_after: u32,
    /// So many more, and the call is refused. Default 3.
    pub refuse_after: u32,
    /// For how long. Default 1 min.
    pub refuse_for: Duration,
    /// Equal calls that are further apart are no row. Default 10 min.
    pub forget_after: Duration,
    /// Names of tools that may be asked again and again. Default those of the fleet that look for what is to come.
    pub except: BTreeSet<String>,
}

/// `permission:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PermissionSettings {
    /// True if required capabilities are enforced. Default true.
    pub strict_capabilities: bool,
    /// Names or ids of tools that nobody may call; each is known. Default none.
    pub disabled_tools: BTreeSet<String>,
    /// True if the built-in permissions give the trial tools to every agent.
    pub trial_tools: bool,
    /// True if the built-in sample business fills in for files that the folder does not have. Default true.
    pub samples: bool,
}

/// `http:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpSettings {
    /// The address at which health and metrics answer. Default `0.0.0.0:9090`.
    pub address: SocketAddr,
}

/// `log:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// The look of lines. Default pretty.
    pub format: LogFormat,
    /// A level, or directives per module. Default `info`.
    pub level: String,
}

/// `tracing:`
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracingSettings {
    /// Base URL of a collector that speaks OTLP over HTTP; empty where spans are not exported. Default empty.
    pub otlp_endpoint: String,
    /// Of a million traces that begin here, how many are sampled. Default all.
    pub sample_ppm: u32,
    /// Name of the service in its spans. Default `tickfleet`.
    pub service_name: String,
    /// True if calls and requests to models are recorded by OpenTelemetry's names too. Default false.
    pub gen_ai: bool,
    /// True if arguments and results are in those spans. Default false.
    pub gen_ai_content: bool,
}

/// The look of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LogFormat {
    /// For people.
    #[default]
    Pretty,
    /// One JSON object a line, for collectors.
    Json,
}
