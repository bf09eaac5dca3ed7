//! Label values are closed lists, to bound the number of series.

use std::sync::LazyLock;

use tickfleet_model::{Outcome, RejectionCode};
use tickfleet_store::Refusal;

macro_rules! labels {
    ($($name:ident { $($(#[$meta:meta])* $variant:ident = $text:literal,)+ })+) => {$(
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name {
            $($(#[$meta])* $variant,)+
        }

        impl $name {
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }

            pub(super) fn words() -> Vec<&'static str> {
                Self::ALL.map(Self::as_str).to_vec()
            }
        }
    )+};
}

labels! {
    Decision {
        Dispatched = "dispatched",
        Queued = "queued",
        Capped = "capped",
        Duplicate = "duplicate",
        Conflict = "conflict",
        Rejected = "rejected",
    }
    LimitAction {
        Wait = "wait",
        Reject = "reject",
        Shadow = "shadow",
    }
    RuleAction {
        Deny = "deny",
        Undecided = "undecided",
        Shadow = "shadow",
    }
    ApprovalEvent {
        Asked = "asked",
        Approved = "approved",
        Denied = "denied",
        Expired = "expired",
        Narrowed = "not_narrowed",
        NotAsked = "not_asked",
    }
    CachedRead {
        Hit = "hit",
        Miss = "miss",
    }
    NotificationResult {
        Taken = "taken",
        Failed = "failed",
        GivenUp = "given_up",
    }
    LoopAction {
        Warned = "warned",
        Denied = "denied",
    }
    BreakerEvent {
        Opened = "opened",
        Waited = "waited",
        Tried = "tried",
        Closed = "closed",
        GaveUp = "gave_up",
    }
    WorkStage {
        Inbound = "inbound",
        Ready = "ready",
        /// An earlier holder died. The work waits for a slot for suspects.
        Suspect = "suspect",
        ParkedCapped = "parked_capped",
        Delayed = "delayed",
        Approval = "approval",
        Running = "running",
        Dead = "dead",
    }
}

pub(super) const VERDICTS: [&str; 3] = ["happened", "not_happened", "unknown"];

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

pub(super) fn refusals() -> Vec<&'static str> {
    Refusal::ALL.map(Refusal::as_str).to_vec()
}

pub(super) fn outcomes() -> Vec<&'static str> {
    Outcome::ALL.map(Outcome::as_str).to_vec()
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
