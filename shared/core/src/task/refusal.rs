//! Reasons to refuse a task.

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
