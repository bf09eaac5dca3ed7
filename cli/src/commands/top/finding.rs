use serde::Serialize;

/// The console, `tickfleet top` and `tickfleet doctor` show the same findings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Finding {
    pub(crate) kind: FindingKind,
    pub(crate) severity: Severity,
    pub(crate) text: String,
    pub(crate) count: u64,
    /// The tool, worker, limit, tenant or shard. `None` if there are several.
    pub(crate) subject: Option<String>,
    /// A shell command.
    pub(crate) action: String,
}

/// The most urgent variant comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Severity {
    Bad,
    /// A person should check something or decide.
    Doubt,
    Info,
}

/// The most urgent variant comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum FindingKind {
    UnknownOutcomes,
    ApprovalsWait,
    ToolFails,
    ProcessDead,
    WorkerDrained,
    WorkerStuck,
    LimitFull,
    Paused,
    Waiting,
    DeadMessages,
    Store,
    Other,
}

impl FindingKind {
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
