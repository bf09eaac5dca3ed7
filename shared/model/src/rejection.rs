//! The codes of rejections.

use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        /// Why a message is rejected. This is the `error.code` of the reply, and the reason of the dead letter.
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
    /// The message is not JSON or not UTF-8, or it contains half of a surrogate pair.
    MalformedJson = "malformed_json",
    /// The message has more bytes than allowed.
    TooLarge = "too_large",
    /// The message is nested deeper than allowed.
    TooDeep = "too_deep",
    /// A key occurs twice in one object.
    DuplicateKey = "duplicate_key",
    /// A field is missing.
    MissingField = "missing_field",
    /// A field has an invalid value.
    InvalidField = "invalid_field",
    /// A field is unknown.
    UnknownField = "unknown_field",
    /// The turn has no calls.
    NoCalls = "no_calls",
    /// The turn has more calls than allowed.
    TooManyCalls = "too_many_calls",
    /// The tenant is not configured.
    UnknownTenant = "unknown_tenant",
    /// The tenant was set at run time, and the tenant's declaration cannot be read.
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
    /// Too many cancellations wait for turns or tasks that have not arrived.
    TooManyCancels = "too_many_cancels",
    /// The message is rejected for a reason that this build does not know.
    Refused = "refused",
    /// The agent does not accept tasks.
    NoTaskHandler = "no_task_handler",
    /// The task's deadline has passed, or is too far in the future.
    InvalidDeadline = "invalid_deadline",
    /// The delegator does not work on the parent task.
    WrongDelegator = "wrong_delegator",
    /// The delegator may not delegate.
    MayNotDelegate = "may_not_delegate",
    /// The parent task has ended, or it never existed.
    UnknownParent = "unknown_parent",
    /// The parent task does not have enough budget left.
    BudgetExceedsParent = "budget_exceeds_parent",
    /// The task's target is an agent that is already in the chain of delegations.
    DelegationCycle = "delegation_cycle",
    /// The chain of delegations is too long.
    DelegationDepth = "delegation_depth",
    /// An internal error of the fleet.
    Internal = "internal",
    /// The message repeatedly crashed the process that read it.
    Poison = "poison",
    /// An internal entry of the fleet cannot be read.
    Unreadable = "unreadable",
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
