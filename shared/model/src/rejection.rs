//! The codes of rejections.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        /// Why a message is not accepted: the `error.code` of its reply, and the reason of its dead letter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RejectionCode {
            $($(#[$doc])* $variant,)+
        }

        impl RejectionCode {
            /// The words of all codes.
            pub const WORDS: [&str; [$($word),+].len()] = [$($word),+];

            /// The word in replies, dead letters and metrics.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }
    };
}

codes! {
    /// No JSON, not UTF-8, or half of a surrogate pair.
    MalformedJson = "malformed_json",
    /// More bytes than allowed.
    TooLarge = "too_large",
    /// Nested deeper than allowed.
    TooDeep = "too_deep",
    /// A key occurs twice in one object.
    DuplicateKey = "duplicate_key",
    /// A field is missing.
    MissingField = "missing_field",
    /// A field is not what it should be.
    InvalidField = "invalid_field",
    /// A field that is not known.
    UnknownField = "unknown_field",
    /// A turn without calls.
    NoCalls = "no_calls",
    /// A turn with more calls than allowed.
    TooManyCalls = "too_many_calls",
    /// The tenant is not configured.
    UnknownTenant = "unknown_tenant",
    /// The tenant was set at run time, and what was set cannot be read.
    UnreadableTenant = "unreadable_tenant",
    /// The agent is not configured.
    UnknownAgent = "unknown_agent",
    /// The task has ended, was never there, or belongs to another agent.
    UnknownTask = "unknown_task",
    /// The tenant lives in another shard.
    WrongShard = "wrong_shard",
    /// The id was used before with other content.
    Conflict = "conflict",
    /// The tenant has too much unfinished work.
    TenantQueueFull = "tenant_queue_full",
    /// The inbox has too many unread replies.
    InboxFull = "inbox_full",
    /// The tenant has too many inboxes.
    TooManyInboxes = "too_many_inboxes",
    /// Too many cancels wait for what has not come.
    TooManyCancels = "too_many_cancels",
    /// Refused for a reason that this build does not know.
    Refused = "refused",
    /// The agent takes no tasks.
    NoTaskHandler = "no_task_handler",
    /// A task's deadline is over, or too far away.
    InvalidDeadline = "invalid_deadline",
    /// The delegator does not work on the parent task.
    WrongDelegator = "wrong_delegator",
    /// The delegator may not delegate.
    MayNotDelegate = "may_not_delegate",
    /// The parent task has ended or was never there.
    UnknownParent = "unknown_parent",
    /// The parent task has too little of its budget left.
    BudgetExceedsParent = "budget_exceeds_parent",
    /// The task comes back to an agent above it.
    DelegationCycle = "delegation_cycle",
    /// The task is delegated too deep.
    DelegationDepth = "delegation_depth",
    /// The fleet failed.
    Internal = "internal",
    /// It killed whoever read it, again and again.
    Poison = "poison",
    /// An entry of the fleet's own that cannot be read.
    Unreadable = "unreadable",
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
