//! What-if: finds recorded calls that another policy would have decided differently. In this module, *the policy* is
//! that other policy. The replay evaluates the policy at each recorded decision, with the counter values that the
//! policy would have caused. The command `tickfleet whatif` evaluates permission, arguments, rules and consent, because
//! the command has the tools.

pub mod facts;
pub mod recorded;
pub mod replay;
pub mod turns;

mod counters;
mod tasks;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// An agent's tick cap in reported differences.
pub const TICK: &str = "max_calls_per_tick";
/// The day cap of an agent or a tenant in reported differences.
pub const DAY: &str = "max_actions_per_day";

/// A task's call budget in reported differences.
pub const TASK: &str = "task_budget";

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
    /// A guard would not have ended the call, or no approval would have been needed.
    Allowed,
    Asked,
    /// The call is still stopped, but for another reason.
    Otherwise,
    Capped,
    /// A cap or limit rejected the call in the fleet, but not under the policy.
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
    /// The additional or saved wait. Only for `Delayed` and `Sooner`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_ms: Option<i64>,
}

/// Further names count under [`OTHERS`].
const NAMES_MAX: usize = 1_000;
const OTHERS: &str = "(others)";

pub type Counts = BTreeMap<String, u64>;

#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    pub calls: u64,
    pub by_facts: u64,
    /// By the start of the policy's digest. Calls without a digest are not counted.
    pub by_policy: Counts,
    /// A call can have several differences.
    pub differences: u64,
    pub by_kind: BTreeMap<DifferenceKind, u64>,
    /// By rule, cap or limit.
    pub by_rule: Counts,
    pub by_tool: Counts,
    /// By `tenant:agent`.
    pub by_agent: Counts,
    pub by_tenant: Counts,
    pub delayed_ms: i64,
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

    /// Lists a limit that is not evaluated, with 0 calls.
    pub fn report_undecided(&mut self, limit: &str, why: &str) {
        add(&mut self.not_decidable, &format!("{limit} {why}"), 0);
    }

    pub fn count_undecidable_limit(&mut self, limit: &str, why: &str, calls: u64) {
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
