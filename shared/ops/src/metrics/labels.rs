//! The values of labels: closed lists, so that the number of series is bounded.

use std::sync::LazyLock;

use tickfleet_model::{Outcome, RejectionCode};
use tickfleet_store::Refusal;

/// The reasons for which Redis rejects commands.
pub(crate) fn refusals() -> Vec<&'static str> {
    Refusal::ALL.map(Refusal::as_str).to_vec()
}

/// The result of a turn's admission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// The turn's first slice, or more, was dispatched at once.
    Dispatched,
    /// The turn waits in its agent's throttle queue.
    Laned,
    /// The turn ended at once: the budget of the day or task was used up, or the turn's deadline had passed.
    Capped,
    /// The turn was already admitted earlier.
    Duplicate,
    /// The turn has the ID of an earlier turn with different content.
    Conflict,
    /// The turn was malformed, or its tenant or agent is unknown.
    Rejected,
}

impl Decision {
    /// All decisions.
    pub const ALL: [Self; 6] =
        [Self::Dispatched, Self::Laned, Self::Capped, Self::Duplicate, Self::Conflict, Self::Rejected];

    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Dispatched => "dispatched",
            Self::Laned => "laned",
            Self::Capped => "capped",
            Self::Duplicate => "duplicate",
            Self::Conflict => "conflict",
            Self::Rejected => "rejected",
        }
    }
}

/// The effect of a limit on a turn, if the limit has no room for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitAction {
    /// The turn waits for room.
    Wait,
    /// Calls of the turn ended with a result that names the limit.
    Reject,
    /// No effect: the limit is in shadow mode and only counts.
    Shadow,
}

/// The labels of [`LimitAction`].
pub(crate) const LIMIT_ACTIONS: [&str; 3] = ["wait", "reject", "shadow"];

impl LimitAction {
    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Reject => "reject",
            Self::Shadow => "shadow",
        }
    }
}

/// The effect of a rule on a call that does not pass it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// The call ended with a result that names the rule.
    Deny,
    /// The call ended as with `Deny`, because the rule could not be evaluated.
    Undecided,
    /// No effect: the rule is in shadow mode and only counts.
    Shadow,
}

/// Results of a reconciliation of calls with an unknown outcome.
pub(super) const VERDICTS: [&str; 3] = ["happened", "not_happened", "unknown"];

/// The labels of [`RuleAction`].
pub(crate) const RULE_ACTIONS: [&str; 3] = ["deny", "undecided", "shadow"];

impl RuleAction {
    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Deny => "deny",
            Self::Undecided => "undecided",
            Self::Shadow => "shadow",
        }
    }
}

/// An event of a call that needs an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApprovalEvent {
    /// People were asked.
    Asked,
    /// People approved the call, and it continued.
    Approved,
    /// A person denied the call.
    Denied,
    /// Nobody decided about the call in time.
    Expired,
    /// An approver's change of the arguments is invalid.
    Narrowed,
    /// No approver can be asked.
    NotAsked,
}

/// The labels of [`ApprovalEvent`].
pub(crate) const APPROVAL_EVENTS: [&str; 6] = ["asked", "approved", "denied", "expired", "not_narrowed", "not_asked"];

impl ApprovalEvent {
    /// The label.
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

/// The result of a cache lookup.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedRead {
    /// The result was in the cache.
    Hit,
    /// The result was not in the cache, so the call ran.
    Miss,
}

/// The labels of [`CachedRead`].
pub(crate) const CACHED_READS: [&str; 2] = ["hit", "miss"];

impl CachedRead {
    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Hit => "hit",
            Self::Miss => "miss",
        }
    }
}

/// The result of a notification about an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotificationResult {
    /// The receiver accepted the notification.
    Taken,
    /// The notification failed, and is retried.
    Failed,
    /// The notification was dropped.
    GivenUp,
}

/// The labels of [`NotificationResult`].
pub(crate) const NOTIFICATION_RESULTS: [&str; 3] = ["taken", "failed", "given_up"];

impl NotificationResult {
    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Taken => "taken",
            Self::Failed => "failed",
            Self::GivenUp => "given_up",
        }
    }
}

/// The effect of a streak of equal calls that exceeds its maximum length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopAction {
    /// The agent was warned.
    Told,
    /// The call was denied.
    Refused,
}

/// The labels of [`LoopAction`].
pub(crate) const LOOP_ACTIONS: [&str; 2] = ["told", "refused"];

impl LoopAction {
    /// The label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Told => "told",
            Self::Refused => "refused",
        }
    }
}

/// An event of a tool's circuit breaker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerEvent {
    /// The breaker opened: the tool is not called.
    Opened,
    /// A call was not sent, and waits.
    Waited,
    /// The breaker is half-open: one call probes the tool.
    Tried,
    /// The probe succeeded, and the tool is called again.
    Closed,
    /// A call waited for the maximum time, and ended without another attempt.
    GaveUp,
}

impl BreakerEvent {
    /// All events.
    pub const ALL: [Self; 5] = [Self::Opened, Self::Waited, Self::Tried, Self::Closed, Self::GaveUp];

    /// The label.
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

/// A stage in which work waits or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum WorkStage {
    /// In the inbound streams: not read yet, or read but not admitted yet.
    Inbound,
    /// In the ready streams, until a worker takes it.
    Ready,
    /// In the streams of suspects, because an earlier holder died. The work waits for a worker that has a free slot in
    /// its slot pool for suspects.
    Suspect,
    /// In a throttle queue, until a later tick or day.
    ParkedCapped,
    /// Parked after a transient failure, until its retry.
    Delayed,
    /// Parked until people have decided about its next call.
    Approval,
    /// Leased by a worker.
    Running,
    /// In the dead stream.
    Dead,
}

impl WorkStage {
    /// All stages.
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

    /// The label.
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

/// The value that replaces every unlisted value.
pub(crate) const OTHER: &str = "other";

/// The inbound streams.
pub(super) const STREAMS: [&str; 2] = ["turns", "tasks"];

/// The sandbox levels.
pub(super) const SANDBOX_LEVELS: [&str; 3] = ["basic", "strict", "docker"];

/// Reasons for a retry.
pub(super) const RETRIES: [&str; 5] = ["timeout", "transient", "not_durable", "task", OTHER];

/// The required durability of a begin, and whether it was confirmed in time.
pub(super) const DURABLE: [&str; 2] = ["local", "replica"];
pub(super) const CONFIRMED: [&str; 2] = ["confirmed", "unconfirmed"];

/// Outcomes of requests to models: `ok`, and the kinds of failures.
pub(super) const MODEL_OUTCOMES: [&str; 14] = [
    "ok",
    "rate_limited",
    "unavailable",
    "timeout",
    "disconnected",
    "resting",
    "quota_spent",
    "unauthorised",
    "not_found",
    "bad_request",
    "too_large",
    "malformed",
    "blocked",
    OTHER,
];

/// Kinds of requests to a gateway.
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

/// Classes of a gateway's responses.
pub(super) const STATUSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "gone"];

/// Reasons for which a gateway rejects a request.
pub(super) const REFUSALS: [&str; 7] = ["key", "forbidden", "too_large", "busy", "unavailable", "rate", "wrong_keys"];

/// Kinds of responses to calls over MCP.
pub(super) const MCP_ANSWERS: [&str; 4] = ["result", "task", "given_up", "error"];

/// Directions of tokens.
pub(super) const DIRECTIONS: [&str; 2] = ["input", "output"];

/// Steps of a task that runs on a model.
pub(super) const STEPS: [&str; 6] = ["plan", "execute", "validate", "answer", "compact", OTHER];

/// Verbs that the fence can reject.
pub(super) const FENCED: [&str; 14] = [
    "settle",
    "retry",
    "rest",
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
    OTHER,
];

/// Verbs and queries of Redis, from the store's own list.
pub(super) static VERBS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| tickfleet_store::command_names().into_iter().chain([OTHER]).collect());

/// Holders of a lost lease.
pub(super) const HOLDERS: [&str; 3] = ["scheduler", "worker", "external"];

/// The results of a reload of the configuration.
pub(super) const RELOADS: [&str; 2] = ["ok", "rejected"];

/// Returns `word` if the list has it, and otherwise `other`, so that an unexpected word does not create a series.
pub(super) fn known(list: &[&'static str], word: &str) -> &'static str {
    list.iter().find(|known| **known == word).copied().unwrap_or(OTHER)
}

/// Reasons for which a message is rejected, or an entry is moved to the dead stream.
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
    fn a_word_on_no_list_is_other() {
        assert_eq!(known(&RETRIES, "timeout"), "timeout");
        assert_eq!(known(&RETRIES, "a word from outside"), OTHER);
    }
}
