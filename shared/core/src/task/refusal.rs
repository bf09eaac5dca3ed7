//! Why a task is refused, with the codes of results and replies.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The tenant has too many unfinished turns and tasks, or they have too many bytes.
    TenantQueueFull,
    DeadlinePassed,
    InboxFull,
    TooManyInboxes,
    /// The delegating turn or task has ended, or was canceled.
    ParentEnded,
    UnknownParent,
    /// The parent's budget has fewer calls left than the task asks for.
    BudgetExceedsParent,
}

impl Refusal {
    #[must_use]
    pub const fn code(self) -> &'static str {
        match self {
            Self::TenantQueueFull => "tenant_queue_full",
            Self::DeadlinePassed => "deadline_passed",
            Self::InboxFull => "inbox_full",
            Self::TooManyInboxes => "too_many_inboxes",
            Self::ParentEnded => "parent_ended",
            Self::UnknownParent => "unknown_parent",
            Self::BudgetExceedsParent => "budget_exceeds_parent",
        }
    }
}
