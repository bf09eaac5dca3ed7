use std::fmt;

crate::words! {
    /// The `error.code` of the reply, and the reason of the dead letter.
    pub enum RejectionCode {
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

impl RejectionCode {
    #[must_use]
    pub const fn cause(self) -> RejectionCause {
        match self {
            Self::MalformedJson
            | Self::TooLarge
            | Self::TooDeep
            | Self::DuplicateKey
            | Self::MissingField
            | Self::InvalidField
            | Self::UnknownField
            | Self::NoCalls
            | Self::TooManyCalls
            | Self::UnknownTenant
            | Self::WrongShard
            | Self::Conflict
            | Self::NoTaskHandler
            | Self::InvalidDeadline
            | Self::WrongDelegator
            | Self::MayNotDelegate
            | Self::UnknownParent
            | Self::BudgetExceedsParent
            | Self::DelegationCycle
            | Self::DelegationDepth
            | Self::Internal
            | Self::Poison
            | Self::Unreadable => RejectionCause::Message,
            Self::UnreadableTenant | Self::UnknownAgent | Self::UnknownTask => RejectionCause::State,
            Self::TenantQueueFull | Self::InboxFull | Self::TooManyInboxes | Self::TooManyCancels => {
                RejectionCause::Load
            }
        }
    }
}

impl fmt::Display for RejectionCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
