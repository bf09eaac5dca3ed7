//! The codes of rejections.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        /// Why a message is rejected: the `error.code` of its reply, and the reason of its dead letter.
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
    /// Not JSON, not UTF-8, or with half of a surrogate pair.
    MalformedJson = "malformed_json",
    /// More bytes than allowed.
    TooLarge = "too_large",
    /// Nested deeper than allowed.
    TooDeep = "too_deep",
    /// A key occurs twice in one object.
    DuplicateKey = "duplicate_key",
    /// A field is missing.
    MissingField = "missing_field",
    /// A field has an invalid value.
    InvalidField = "invalid_field",
    /// A field is unknown.
    UnknownField = "unknown_field",
    /// A turn without calls.
    NoCalls = "no_calls",
    /// A turn with more calls than allowed.
    TooManyCalls = "too_many_calls",
    /// The tenant is not configured.
    UnknownTenant = "unknown_tenant",
    /// The tenant was set at run time, and its declaration cannot be read.
    UnreadableTenant = "unreadable_tenant",
    /// The agent is not configured.
    UnknownAgent = "unknown_agent",
    /// The task has ended, never existed, or belongs to another agent.
    UnknownTask = "unknown_task",
    /// The tenant belongs to another shard.
    WrongShard = "wrong_shard",
    /// The ID was used before with different content.
    Conflict = "conflict",
    /// The tenant has too much unfinished work.
    TenantQueueFull = "tenant_queue_full",
    /// The inbox has too many unread replies.
    InboxFull = "inbox_full",
    /// The tenant has too many inboxes.
    TooManyInboxes = "too_many_inboxes",
    /// Too many cancels wait for turns or tasks that have not arrived.
    TooManyCancels = "too_many_cancels",
    /// Rejected for a reason that this build does not know.
    Refused = "refused",
    /// The agent does not accept tasks.
    NoTaskHandler = "no_task_handler",
    /// A task's deadline has passed, or is too far in the future.
    InvalidDeadline = "invalid_deadline",
    /// The delegator does not work on the parent task.
    WrongDelegator = "wrong_delegator",
    /// The delegator may not delegate.
    MayNotDelegate = "may_not_delegate",
    /// The parent task has ended or never existed.
    UnknownParent = "unknown_parent",
    /// The parent task has too little of its budget left.
    BudgetExceedsParent = "budget_exceeds_parent",
    /// The task would return to an agent above it in the chain.
    DelegationCycle = "delegation_cycle",
    /// The chain of delegations is too long.
    DelegationDepth = "delegation_depth",
    /// An internal error of the fleet.
    Internal = "internal",
    /// It repeatedly crashed the process that read it.
    Poison = "poison",
    /// An internal entry of the fleet that cannot be read.
    Unreadable = "unreadable",
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
