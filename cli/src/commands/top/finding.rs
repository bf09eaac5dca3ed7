use serde::Serialize;

/// Something that needs a person. The console, `tickfleet top` and `tickfleet doctor` show the same findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) kind: FindingKind,
    pub(crate) severity: Severity,
    pub(crate) text: String,
    /// The number of calls, turns, processes or messages that the finding is about.
    pub(crate) count: u64,
    /// The name of the tool, worker, limit, tenant or shard. `None` if there are several.
    pub(crate) subject: Option<String>,
    /// The command that shows the details, or that ends the finding.
    pub(crate) action: String,
}

/// The most urgent severity first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Calls are lost, fail or do not run.
    Bad,
    /// A person should decide or look.
    Doubt,
    Info,
}

/// The most urgent kind first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// Calls of the last hour that may have taken effect.
    UnknownOutcomes,
    ApprovalsWait,
    ToolFails,
    ProcessDead,
    WorkerDrained,
    WorkerStuck,
    LimitFull,
    Paused,
    /// Turns and tasks wait longer than a tick.
    Waiting,
    DeadMessages,
    /// Memory and durability of the store, and shards that do not respond.
    Store,
    Other,
}

impl FindingKind {
    /// A short name, as `doctor` prints it.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::UnknownOutcomes => "unknown",
            Self::ApprovalsWait => "approvals",
            Self::ToolFails => "tool fails",
            Self::ProcessDead => "dead",
            Self::WorkerDrained => "drained",
            Self::WorkerStuck => "stuck",
            Self::LimitFull => "limit full",
            Self::Paused => "paused",
            Self::Waiting => "waiting",
            Self::DeadMessages => "messages",
            Self::Store => "store",
            Self::Other => "other",
        }
    }
}
