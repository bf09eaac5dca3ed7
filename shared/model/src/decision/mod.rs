//! The decision about a turn's next calls: what the scripts in Redis decide when they admit and release, as pure functions over
//! plain data. In tests it referees the scripts; `tickfleet whatif` decides recorded calls anew by it.
//!
//! - [`budget`]: counters that know their end, and the arithmetic of windows;
//! - [`admission`]: how many calls of a turn fit the budgets of its chain;
//! - [`limits`]: the same for counters that are data.

pub mod admission;
pub mod budget;
pub mod limits;

/// Why calls end without having run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reason {
    /// The deadline came first.
    Expired,
    /// Somebody cancelled the turn, or the task it ran under has ended.
    Cancelled,
    /// The day's budget is used up.
    DailyCapReached,
    /// The task's budget is used up.
    TaskBudgetReached,
    /// A limit has no room.
    LimitReached,
    /// More than a limit ever allows.
    OverLimit,
    /// A limit counts an amount that the call does not say.
    NoAmount,
    /// The slice killed its workers.
    Internal,
    /// The agent is no longer configured.
    Rejected,
}

impl Reason {
    /// The word that scripts use.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::Cancelled => "cancelled",
            Self::DailyCapReached => "daily_cap_reached",
            Self::TaskBudgetReached => "task_budget_reached",
            Self::LimitReached => "limit_reached",
            Self::OverLimit => "over_limit",
            Self::NoAmount => "no_amount",
            Self::Internal => "internal",
            Self::Rejected => "rejected",
        }
    }
}
