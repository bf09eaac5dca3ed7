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
    /// The command that shows the details of the problem or solves it.
    pub(crate) action: String,
}

/// How urgent a finding is. The variants are ordered, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    /// Calls are lost, fail or do not run.
    Bad,
    /// A person should check something or decide.
    Doubt,
    Info,
}

/// What a finding is about. The variants are ordered, the most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    /// Calls of the last hour with an unknown outcome: they may have taken effect.
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
    /// Returns the short name that `doctor` prints.
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
