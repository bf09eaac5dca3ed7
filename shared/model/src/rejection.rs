use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal,)+) => {
        /// The `error.code` of the reply, and the reason of the dead letter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RejectionCode {
            $($(#[$doc])* $variant,)+
        }

        impl RejectionCode {
            pub const WORDS: [&str; [$($word),+].len()] = [$($word),+];

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
    /// Not JSON or not UTF-8, or half of a surrogate pair.
    MalformedJson = "malformed_json",
    TooLarge = "too_large",
    TooDeep = "too_deep",
    DuplicateKey = "duplicate_key",
    MissingField = "missing_field",
    InvalidField = "invalid_field",
    UnknownField = "unknown_field",
    NoCalls = "no_calls",
    TooManyCalls = "too_many_calls",
    UnknownTenant = "unknown_tenant",
    /// The tenant's declaration at run time cannot be read.
    UnreadableTenant = "unreadable_tenant",
    UnknownAgent = "unknown_agent",
    /// The task has ended, never existed, or belongs to another agent.
    UnknownTask = "unknown_task",
    WrongShard = "wrong_shard",
    Conflict = "conflict",
    TenantQueueFull = "tenant_queue_full",
    InboxFull = "inbox_full",
    TooManyInboxes = "too_many_inboxes",
    /// Too many cancel requests wait for turns or tasks that have not arrived.
    TooManyCancels = "too_many_cancels",
    NoTaskHandler = "no_task_handler",
    /// The deadline has passed, or is too far in the future.
    InvalidDeadline = "invalid_deadline",
    WrongDelegator = "wrong_delegator",
    MayNotDelegate = "may_not_delegate",
    /// The parent task has ended or never existed.
    UnknownParent = "unknown_parent",
    BudgetExceedsParent = "budget_exceeds_parent",
    DelegationCycle = "delegation_cycle",
    DelegationDepth = "delegation_depth",
    Internal = "internal",
    Poison = "poison",
    Unreadable = "unreadable",
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
