use std::fmt;

macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $word:literal: $cause:ident,)+) => {
        /// The `error.code` of the reply, and the reason of the dead letter.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum RejectionCode {
            $($(#[$doc])* $variant,)+
        }

        impl RejectionCode {
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];
            pub const WORDS: [&str; [$($word),+].len()] = [$($word),+];

            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }

            #[must_use]
            pub const fn cause(self) -> RejectionCause {
                match self {
                    $(Self::$variant => RejectionCause::$cause,)+
                }
            }
        }
    };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RejectionCause {
    /// The message or its calls: the code stays until the message or the configuration changes.
    Message,
    /// Records of the fleet, which may have been different at the first admission.
    State,
    /// A full queue or inbox: the same message may be accepted later.
    Load,
}

codes! {
    /// Not JSON or not UTF-8, or half of a surrogate pair.
    MalformedJson = "malformed_json": Message,
    TooLarge = "too_large": Message,
    TooDeep = "too_deep": Message,
    DuplicateKey = "duplicate_key": Message,
    MissingField = "missing_field": Message,
    InvalidField = "invalid_field": Message,
    UnknownField = "unknown_field": Message,
    NoCalls = "no_calls": Message,
    TooManyCalls = "too_many_calls": Message,
    UnknownTenant = "unknown_tenant": Message,
    /// The tenant's declaration at run time cannot be read.
    UnreadableTenant = "unreadable_tenant": State,
    UnknownAgent = "unknown_agent": State,
    /// The task has ended, never existed, or belongs to another agent.
    UnknownTask = "unknown_task": State,
    WrongShard = "wrong_shard": Message,
    Conflict = "conflict": Message,
    TenantQueueFull = "tenant_queue_full": Load,
    InboxFull = "inbox_full": Load,
    TooManyInboxes = "too_many_inboxes": Load,
    /// Too many cancel requests wait for turns or tasks that have not arrived.
    TooManyCancels = "too_many_cancels": Load,
    NoTaskHandler = "no_task_handler": Message,
    /// The deadline has passed, or is too far in the future.
    InvalidDeadline = "invalid_deadline": Message,
    WrongDelegator = "wrong_delegator": Message,
    MayNotDelegate = "may_not_delegate": Message,
    /// The parent task has ended or never existed.
    UnknownParent = "unknown_parent": Message,
    BudgetExceedsParent = "budget_exceeds_parent": Message,
    DelegationCycle = "delegation_cycle": Message,
    DelegationDepth = "delegation_depth": Message,
    Internal = "internal": Message,
    Poison = "poison": Message,
    Unreadable = "unreadable": Message,
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
