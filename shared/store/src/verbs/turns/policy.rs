//! The rules that a batch of turns or lanes is decided by: policies, each with its day, and generations.

use crate::script::args::Args;
use tickfleet_model::{Caps, DayCapAction};

/// Caps together with the calendar day that they count in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PolicyRow {
    /// The caps.
    pub caps: Caps,
    /// When the day began, ms.
    pub day_start_ms: i64,
    /// When it ends, ms.
    pub day_end_ms: i64,
}

/// The generations that a batch is decided by, as the shard counts them: it refuses to be decided by less than it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Generations {
    /// The policy's.
    pub policy: u64,
    /// That of the tenants that were set at run time.
    pub tenants: u64,
}

impl std::fmt::Display for Generations {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.policy, self.tenants)
    }
}

/// Adds policies as `read_policies` of `budget.lua` reads them.
pub(crate) fn add_policies(args: &mut Args, rows: &[PolicyRow]) {
    args.show(rows.len());
    for row in rows {
        args.show(row.caps.tick_ms).show(row.caps.calls_per_tick).show(row.caps.calls_per_day);
        args.show(row.day_start_ms).show(row.day_end_ms);
        args.show(row.caps.tenant_calls_per_day.map_or(-1, i64::from));
        args.text(match row.caps.on_day_cap {
            DayCapAction::Reject => "reject",
            DayCapAction::Defer => "defer",
        });
    }
}
