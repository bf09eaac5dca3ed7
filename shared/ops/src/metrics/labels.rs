//! The words that labels may have: closed lists, so that the number of series has a bound.

use std::sync::LazyLock;

use tickfleet_model::{Outcome, RejectionCode};
use tickfleet_store::Refusal;

/// The reasons for which Redis refuses.
pub(crate) fn refusals() -> Vec<&'static str> {
    Refusal::ALL.map(Refusal::as_str).to_vec()
}

/// The decision of admission about a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Decision {
    /// At least its first slice went out at once.
    Dispatched,
    /// It waits on its agent's lane.
    Laned,
    /// It ended at once: the day's or the task's budget was used up, or its deadline had passed.
    Capped,
    /// It was admitted before.
    Duplicate,
    /// Its id was used for another content.
    Conflict,
    /// It was malformed, or its tenant or agent is unknown.
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

/// What a limit did to a turn that it had no room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum LimitAction {
    /// It waits for room.
    Wait,
    /// Calls of it ended with a result that says so.
    Reject,
    /// Nothing: the limit only counts.
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

/// What a rule on arguments and context did to a call that does not meet it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuleAction {
    /// The call ended with a result that says so.
    Deny,
    /// The same, for whether the call meets it cannot be said.
    Undecided,
    /// Nothing: the rule only counts.
    Shadow,
}

/// What was found out of calls of which nobody knew whether they had taken effect.
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

/// What became of a call that needs people's consent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ApprovalEvent {
    /// People were asked.
    Asked,
    /// They agreed, and the call went on.
    Approved,
    /// One of them denied it.
    Denied,
    /// They did not decide in time.
    Expired,
    /// What they had changed of the arguments cannot be used.
    Narrowed,
    /// Nobody could be asked.
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

/// Whether a read whose answers are kept found one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CachedRead {
    /// It did.
    Hit,
    /// It was carried out.
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

/// What came of telling others what has happened to an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// The receiver has it.
    Taken,
    /// It has not, and is told again.
    Failed,
    /// It is told no more.
    GivenUp,
}

/// The labels of [`Told`].
pub(crate) const TOLD: [&str; 3] = ["taken", "failed", "given_up"];

impl Told {
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

/// What came of a call that was made in a row too often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LoopAction {
    /// Its agent was told so.
    Told,
    /// It was refused.
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

/// What a circuit breaker did with a tool, or with one of its calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BreakerEvent {
    /// It opened: the tool rests.
    Opened,
    /// A call was not sent, and waits.
    Waited,
    /// After a rest, one call tries the tool.
    Tried,
    /// That call was answered: the tool is called as before.
    Closed,
    /// A call had waited for as long as it may, and ended without having been sent again.
    GaveUp,
}

impl BreakerEvent {
    /// All of them.
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

/// The place where work waits or runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// On the inbound streams: not yet read, or read and not yet decided.
    Inbound,
    /// On the ready streams, for a worker to take.
    Ready,
    /// On the streams of suspects, for a worker whose lane for them is free: an earlier holder died.
    Suspect,
    /// On a lane, for a later tick or day.
    ParkedCapped,
    /// Parked after a transient failure, for its next try.
    Delayed,
    /// Parked until people have decided about its next call.
    Approval,
    /// Leased by a worker.
    Running,
    /// On the dead stream.
    Dead,
}

impl Place {
    /// All places.
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

/// The value that stands for every other value.
pub(crate) const OTHER: &str = "other";

/// The inbound streams.
pub(super) const STREAMS: [&str; 2] = ["turns", "tasks"];

/// The levels of the sandbox.
pub(super) const SANDBOX_LEVELS: [&str; 3] = ["basic", "strict", "docker"];

/// Why a call is tried again.
pub(super) const RETRIES: [&str; 5] = ["timeout", "transient", "not_durable", "task", OTHER];

/// What has to know of a begin before its call runs, and whether it was known in time.
pub(super) const DURABLE: [&str; 2] = ["local", "replica"];
pub(super) const CONFIRMED: [&str; 2] = ["confirmed", "unconfirmed"];

/// How requests to models end: the words of the failures, and that of success.
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

/// What is asked of a gateway.
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

/// The classes of what a gateway answers.
pub(super) const STATUSES: [&str; 5] = ["2xx", "3xx", "4xx", "5xx", "gone"];

/// Why a gateway refuses a request.
pub(super) const REFUSALS: [&str; 7] = ["key", "forbidden", "too_large", "busy", "unavailable", "rate", "wrong_keys"];

/// What a call over MCP is answered.
pub(super) const MCP_ANSWERS: [&str; 4] = ["result", "task", "given_up", "error"];

/// Which way tokens go.
pub(super) const DIRECTIONS: [&str; 2] = ["input", "output"];

/// The steps of a task that a model carries out.
pub(super) const STEPS: [&str; 6] = ["plan", "execute", "validate", "answer", "compact", OTHER];

/// The verbs that a fence may refuse.
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

/// The verbs and questions that Redis is asked: the store's own list.
pub(super) static VERBS: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| tickfleet_store::command_names().into_iter().chain([OTHER]).collect());

/// Whose lease was lost.
pub(super) const HOLDERS: [&str; 3] = ["scheduler", "worker", "external"];

/// The results of a reload of the configuration.
pub(super) const RELOADS: [&str; 2] = ["ok", "rejected"];

/// `word` where the list has it, else `other`: a word that nobody foresaw must not make a series of its own.
pub(super) fn known(list: &[&'static str], word: &str) -> &'static str {
    list.iter().find(|known| **known == word).copied().unwrap_or(OTHER)
}

/// Why a message is refused, or an entry dead.
pub(super) fn rejections() -> Vec<&'static str> {
    RejectionCode::WORDS.into_iter().chain([OTHER]).collect()
}

pub(super) fn decisions() -> Vec<&'static str> {
    Decision::ALL.map(Decision::as_str).to_vec()
}

pub(super) fn places() -> Vec<&'static str> {
    Place::ALL.map(Place::as_str).to_vec()
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
