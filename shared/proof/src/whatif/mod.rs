//! What-if: what of recorded traffic another policy would have decided otherwise.
//!
//! An export says of each call what was decided, and of each admission when that was. So nothing is played anew: at each
//! moment at which the fleet decided, the policy is asked, with the counters as they would be then. Where it says the same,
//! nothing differs; where it does not, that call is a [`Difference`], and the counters go on from what it says.
//!
//! - [`recorded`]: what an entry says of how its call was decided;
//! - [`turns`]: the calls of one turn, and what was decided about them, in its order;
//! - [`facts`]: conditions on facts of sessions, by when calls began and ended;
//! - [`replay`]: caps and limits, evaluated by [`tickfleet_core::turn::limit`], as schedulers evaluate them.
//!
//! Permission, arguments, rules and consent are decided by whoever has the tools (the command).

pub mod facts;
pub mod recorded;
pub mod replay;
pub mod turns;

mod counters;
mod tasks;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The agent's cap of a tick, as differences name it.
pub const TICK: &str = "max_calls_per_tick";
/// The caps of a day, of an agent and of a tenant.
pub const DAY: &str = "max_actions_per_day";

/// The budget of calls that a task was granted.
pub const TASK: &str = "task_budget";

/// A limit, as differences name it.
#[must_use]
pub fn limit(name: &str) -> String {
    format!("limits.{name}")
}

pub use counters::{OF_MODELS, SHARE};

/// What would have become of a call that was decided otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Permission, arguments or a rule would have ended it.
    Denied,
    /// What ended it would not have, or people would not have been asked.
    Allowed,
    /// People would have been asked.
    Asked,
    /// It would have been stopped by something else.
    Otherwise,
    /// A cap or limit would have refused it.
    Capped,
    /// A cap or limit that refused it would have let it go.
    LetGo,
    /// It would have gone out later.
    Delayed,
    /// It would have gone out earlier.
    Sooner,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Denied,
        Self::Allowed,
        Self::Asked,
        Self::Otherwise,
        Self::Capped,
        Self::LetGo,
        Self::Delayed,
        Self::Sooner,
    ];

    /// In words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Denied => "would be denied",
            Self::Allowed => "would be allowed",
            Self::Asked => "would need approval",
            Self::Otherwise => "would be stopped by something else",
            Self::Capped => "would be rejected",
            Self::LetGo => "would not be rejected",
            Self::Delayed => "would wait longer",
            Self::Sooner => "would wait less",
        }
    }
}

/// A call that would have been decided otherwise.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Difference {
    /// What would have become of it.
    pub kind: Kind,
    /// The rule, cap or limit that makes the difference.
    pub by: String,
    /// The tenant.
    pub tenant: String,
    /// The agent.
    pub agent: String,
    /// The tool.
    pub tool: String,
    /// `<turn>/<position>`.
    pub call: String,
    /// What was decided.
    pub was: String,
    /// What would be.
    pub would: String,
    /// Of a wait, by how much longer or shorter, ms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by_ms: Option<i64>,
}

/// Names that a summary counts apart; whatever comes beyond is counted together.
const NAMES_MAX: usize = 1_000;
/// What is counted together.
const OTHERS: &str = "(others)";

/// Differences by a name.
pub type Counts = BTreeMap<String, u64>;

/// What came of deciding anew.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    /// Calls that were looked at.
    pub calls: u64,
    /// Those among them that asked for facts of their sessions, and could be decided by these.
    pub by_facts: u64,
    /// By the policy that decided them, the beginning of its digest, where entries say it.
    pub by_policy: Counts,
    /// Calls that would have been decided otherwise, each as often as something is otherwise about it.
    pub differences: u64,
    /// By what would have become of them.
    pub by_kind: BTreeMap<Kind, u64>,
    /// By rule, cap or limit.
    pub by_rule: Counts,
    /// By tool.
    pub by_tool: Counts,
    /// By agent.
    pub by_agent: Counts,
    /// By tenant.
    pub by_tenant: Counts,
    /// Of calls that would wait longer, how much longer in all, ms.
    pub delayed_ms: i64,
    /// Of what it cannot be said, by why: so many calls.
    pub not_decidable: Counts,
}

impl Summary {
    /// Counts a difference.
    pub fn count(&mut self, difference: &Difference) {
        self.differences += 1;
        *self.by_kind.entry(difference.kind).or_default() += 1;
        add(&mut self.by_rule, &difference.by, 1);
        add(&mut self.by_tool, &difference.tool, 1);
        add(&mut self.by_agent, &format!("{}:{}", difference.tenant, difference.agent), 1);
        add(&mut self.by_tenant, &difference.tenant, 1);
        if difference.kind == Kind::Delayed {
            self.delayed_ms = self.delayed_ms.saturating_add(difference.by_ms.unwrap_or(0));
        }
    }

    /// Counts a call that is looked at.
    pub fn look_at(&mut self, call: &recorded::Recorded) {
        self.calls += 1;
        if !call.policy.is_empty() {
            add(&mut self.by_policy, &call.policy, 1);
        }
    }

    /// Names a limit that nothing is decided anew by.
    pub fn name_undecided(&mut self, limit: &str, why: &str) {
        add(&mut self.not_decidable, &format!("{limit} {why}"), 0);
    }

    /// Counts calls about which a limit cannot say anything.
    pub fn cannot_say_of(&mut self, limit: &str, why: &str, calls: u64) {
        self.cannot_say(&format!("{limit} {why}"), calls);
    }

    /// Counts calls of which something cannot be said.
    pub fn cannot_say(&mut self, why: &str, calls: u64) {
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
