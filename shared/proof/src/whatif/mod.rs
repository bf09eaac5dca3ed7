//! What-if: finds recorded calls that another policy would have decided differently.
//!
//! An export has the decision about each call, and the time of each admission, so no call needs to run again. Instead,
//! the policy is evaluated at each time at which the fleet decided, with the counter values under the policy. A result
//! that differs is reported as a [`Difference`], and the counters continue from the new result.
//!
//! - [`recorded`]: the recorded decision about a call, from its entry
//! - [`turns`]: the calls of one turn, and the decisions about the calls, in order
//! - [`facts`]: conditions on session facts, in the order in which calls began and ended
//! - [`replay`]: caps and limits, evaluated by [`tickfleet_core::turn::limit`], the code that schedulers use
//!
//! The command evaluates permission, arguments, rules and consent, because it has the tools.

pub mod facts;
pub mod recorded;
pub mod replay;
pub mod turns;

mod counters;
mod tasks;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Name of an agent's tick cap in the reported differences.
pub const TICK: &str = "max_calls_per_tick";
/// Name of an agent's or a tenant's day cap in the reported differences.
pub const DAY: &str = "max_actions_per_day";

/// Name of a task's call budget in the reported differences.
pub const TASK: &str = "task_budget";

/// Name of a limit in the reported differences.
#[must_use]
pub fn limit(name: &str) -> String {
    format!("limits.{name}")
}

pub use counters::{OF_MODELS, SHARE};

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DifferenceKind {
    /// Permission, arguments or a rule would have denied the call.
    Denied,
    /// The call would have passed a guard that ended it, or would not have needed approval.
    Allowed,
    Asked,
    /// The call would still have been stopped, but for another reason.
    Otherwise,
    Capped,
    /// A cap or limit rejected the call, but would have admitted it under the policy.
    NotRejected,
    Delayed,
    Sooner,
}

impl DifferenceKind {
    pub const ALL: [Self; 8] = [
        Self::Denied,
        Self::Allowed,
        Self::Asked,
        Self::Otherwise,
        Self::Capped,
        Self::NotRejected,
        Self::Delayed,
        Self::Sooner,
    ];

    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Denied => "would be denied",
            Self::Allowed => "would be allowed",
            Self::Asked => "would need approval",
            Self::Otherwise => "would be stopped by something else",
            Self::Capped => "would be rejected",
            Self::NotRejected => "would not be rejected",
            Self::Delayed => "would wait longer",
            Self::Sooner => "would wait less",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    pub kind: DifferenceKind,
    pub by: String,
    pub tenant: String,
    pub agent: String,
    pub tool: String,
    /// `<turn>/<position>`.
    pub call: String,
    pub was: String,
    pub would: String,
    /// The additional or saved wait of the call. Only for `Delayed` and `Sooner`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_ms: Option<i64>,
}

/// Names that a summary counts separately. All other names are counted under [`OTHERS`].
const NAMES_MAX: usize = 1_000;
const OTHERS: &str = "(others)";

pub type Counts = BTreeMap<String, u64>;

#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    pub calls: u64,
    /// Evaluated calls whose conditions on session facts could be decided.
    pub by_facts: u64,
    /// Calls by the beginning of the digest of the policy that decided them. Calls whose entries have no digest are
    /// not counted.
    pub by_policy: Counts,
    /// A call can have several.
    pub differences: u64,
    pub by_kind: BTreeMap<DifferenceKind, u64>,
    /// By rule, cap or limit.
    pub by_rule: Counts,
    pub by_tool: Counts,
    /// By `tenant:agent`.
    pub by_agent: Counts,
    pub by_tenant: Counts,
    /// The sum of the additional waits of delayed calls.
    pub delayed_ms: i64,
    /// Undecidable calls, by reason.
    pub not_decidable: Counts,
}

impl Summary {
    pub fn count(&mut self, difference: &Difference) {
        self.differences += 1;
        *self.by_kind.entry(difference.kind).or_default() += 1;
        add(&mut self.by_rule, &difference.by, 1);
        add(&mut self.by_tool, &difference.tool, 1);
        add(&mut self.by_agent, &format!("{}:{}", difference.tenant, difference.agent), 1);
        add(&mut self.by_tenant, &difference.tenant, 1);
        if difference.kind == DifferenceKind::Delayed {
            self.delayed_ms = self.delayed_ms.saturating_add(difference.by_ms.unwrap_or(0));
        }
    }

    pub fn look_at(&mut self, call: &recorded::RecordedCall) {
        self.calls += 1;
        if !call.policy.is_empty() {
            add(&mut self.by_policy, &call.policy, 1);
        }
    }

    /// Lists a limit that is not evaluated, with the number 0 of calls.
    pub fn name_undecided(&mut self, limit: &str, why: &str) {
        add(&mut self.not_decidable, &format!("{limit} {why}"), 0);
    }

    pub fn cannot_say_of(&mut self, limit: &str, why: &str, calls: u64) {
        self.count_undecidable(&format!("{limit} {why}"), calls);
    }

    pub fn count_undecidable(&mut self, why: &str, calls: u64) {
        if calls > 0 {
            add(&mut self.not_decidable, why, calls);
        }
    }
}

fn add(counts: &mut Counts, name: &str, number: u64) {
    let name = if counts.len() < NAMES_MAX || counts.contains_key(name) { name } else { OTHERS };
    *counts.entry(name.to_owned()).or_default() += number;
}

#[cfg(test)]
mod tests;
