//! Label values are closed lists, to bound the number of series.

use std::sync::LazyLock;

use tickfleet_model::{Outcome, RejectionCode};
use tickfleet_store::Refusal;

pub(crate) fn refusals() -> Vec<&'static str> {
    Refusal::ALL.map(Refusal::as_str).to_vec()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    Dispatched,
    Queued,
    Capped,
    Duplicate,
    Conflict,
    Rejected,
}

impl Decision {
    pub const ALL: [Self; 6] =
        [Self::Dispatched, Self::Queued, Self::Capped, Self::Duplicate, Self::Conflict, Self::Rejected];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dispatched => "dispatched",
            Self::Queued => "queued",
            Self::Capped => "capped",
            Self::Duplicate => "duplicate",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitAction {
    Wait,
    Reject,
    Shadow,
}

pub(crate) const LIMIT_ACTIONS: [&str; 3] = ["wait", "reject", "shadow"];

impl LimitAction {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Reject => "reject",
            Self::Shadow => "shadow",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleAction {
    Deny,
    Undecided,
    Shadow,
}

pub(super) const VERDICTS: [&str; 3] = ["happened", "not_happened", "unknown"];

pub(crate) const RULE_ACTIONS: [&str; 3] = ["deny", "undecided", "shadow"];

impl RuleAction {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Undecided => "undecided",
            Self::Shadow => "shadow",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApprovalEvent {
    Asked,
    Approved,
    Denied,
    Expired,
    Narrowed,
    NotAsked,
}

pub(crate) const APPROVAL_EVENTS: [&str; 6] = ["asked", "approved", "denied", "expired", "not_narrowed", "not_asked"];

impl ApprovalEvent {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Asked => "asked",
            Self::Approved => "approved",
            Self::Denied => "denied",
            Self::Expired => "expired",
            Self::Narrowed => "not_narrowed",
            Self::NotAsked => "not_asked",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedRead {
    Hit,
    Miss,
}

pub(crate) const CACHED_READS: [&str; 2] = ["hit", "miss"];

impl CachedRead {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationResult {
    Taken,
    Failed,
    GivenUp,
}

pub(crate) const NOTIFICATION_RESULTS: [&str; 3] = ["taken", "failed", "given_up"];

impl NotificationResult {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Failed => "failed",
            Self::GivenUp => "given_up",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopAction {
    Warned,
    Denied,
}

pub(crate) const LOOP_ACTIONS: [&str; 2] = ["warned", "denied"];

impl LoopAction {
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Warned => "warned",
            Self::Denied => "denied",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerEvent {
    Opened,
    Waited,
    Tried,
    Closed,
    GaveUp,
}

impl BreakerEvent {
    pub const ALL: [Self; 5] = [Self::Opened, Self::Waited, Self::Tried, Self::Closed, Self::GaveUp];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Waited => "waited",
            Self::Tried => "tried",
            Self::Closed => "closed",
            Self::GaveUp => "gave_up",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkStage {
    Inbound,
    Ready,
    /// An earlier holder died. The work waits for a slot for suspects.
    Suspect,
    ParkedCapped,
    Delayed,
    Approval,
    Running,
    Dead,
}

impl WorkStage {
    pub const ALL: [Self; 8] = [
        Self::Inbound,
        Self::Ready,
        Self::Suspect,
        Self::ParkedCapped,
        Self::Delayed,
        Self::Approval,
        Self::Running,
        Self::Dead,
    ];

    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Inbound => "inbound",
            Self::Ready => "ready",
            Self::Suspect => "suspect",
            Self::ParkedCapped => "parked_capped",
            Self::Delayed => "delayed",
            Self::Approval => "approval",
            Self::Running => "running",
            Self::Dead => "dead",
        }
    }
}

pub(crate) const OTHER: &str = "other";

pub(super) const STREAMS: [&str; 2] = ["turns", "tasks"];

pub(super) const SANDBOX_LEVELS: [&str; 3] = ["basic", "strict", "docker"];

pub(super) const RETRIES: [&str; 5] = ["timeout", "transient", "not_durable", "task", OTHER];

/// The required durability, and whether Redis confirmed it in time.
pub(super) const DURABLE: [&str; 2] = ["local", "replica"];
pub(super) const CONFIRMED: [&str; 2] = ["confirmed", "unconfirmed"];

pub(super) const MODEL_OUTCOMES: [&str; 14] = [
    "ok",
    "rate_limited",
    "unavailable",
    "timeout",
    "disconnected",
    "breaker_open",
    "quota_spent",
    "unauthorised",
    "not_found",
    "bad_request",
    "too_large",
    "malformed",
    "blocked",
    OTHER,
];

pub(super) const REQUESTS: [&str; 19] = [
    "submit",
    "submit_wait",
    "reply",
    "reply_wait",
    "cancel",
    "delegate",
    "tasks",
    "task",
    "events",
    "cancel_task",
    "tools",
    "chat",
    "mcp",
    "view",
    "operate",
    "approve",
    "console",
    "document",
    OTHER,
];

pub(super) const STATUSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "client_closed"];

pub(super) const REFUSALS: [&str; 7] =
    ["key", "forbidden", "too_large", "busy", "unavailable", "rate", "auth_failure_rate"];

pub(super) const MCP_RESPONSES: [&str; 4] = ["result", "task", "given_up", "error"];

pub(super) const DIRECTIONS: [&str; 2] = ["input", "output"];

pub(super) const STEPS: [&str; 6] = ["plan", "execute", "validate", "answer", "compact", OTHER];

/// These writes fail if another process has taken over the slice.
pub(super) const FENCED: [&str; 15] = [
    "settle",
    "retry",
    "breaker",
    "wait",
    "enter",
    "claim",
    "ask_approval",
    "use_approval",
    "begin",
    "assert",
    "execute",
    "touch",
    "finish",
    "offer",
    OTHER,
];

pub(super) static VERBS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| tickfleet_store::command_names().into_iter().chain([OTHER]).collect());

pub(super) const HOLDERS: [&str; 3] = ["scheduler", "worker", "external"];

pub(super) const RELOADS: [&str; 2] = ["ok", "rejected"];

/// An unexpected word becomes `other`, and creates no series.
pub(super) fn known(list: &[&'static str], word: &str) -> &'static str {
    list.iter().find(|known| **known == word).copied().unwrap_or(OTHER)
}

pub(super) fn rejections() -> Vec<&'static str> {
    RejectionCode::WORDS.into_iter().chain([OTHER]).collect()
}

pub(super) fn decisions() -> Vec<&'static str> {
    Decision::ALL.map(Decision::as_str).to_vec()
}

pub(super) fn work_stages() -> Vec<&'static str> {
    WorkStage::ALL.map(WorkStage::as_str).to_vec()
}

pub(super) fn outcomes() -> Vec<&'static str> {
    Outcome::ALL.map(Outcome::as_str).to_vec()
}

pub(super) fn breaker_events() -> Vec<&'static str> {
    BreakerEvent::ALL.map(BreakerEvent::as_str).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unlisted_label_value_becomes_other() {
        assert_eq!(known(&RETRIES, "timeout"), "timeout");
        assert_eq!(known(&RETRIES, "a word from outside"), OTHER);
    }
}
