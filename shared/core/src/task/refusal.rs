//! Reasons to refuse a task, and their codes in results and replies.

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// The tenant's unfinished turns and tasks are too many or too large.
    TenantQueueFull,
    DeadlinePassed,
    InboxFull,
    TooManyInboxes,
    /// The parent has ended or was canceled.
    ParentEnded,
    UnknownParent,
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
