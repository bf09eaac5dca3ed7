//! What must hold of tasks, beside what holds of every turn.

use tickfleet_model::{CallResult, Outcome};

use super::Oracle;
use crate::parts::tasks;
use crate::world::{Facts, Made};

impl Oracle {
    /// Whether a message that was taken in may be refused with this code: for now, because its task has ended before it
    /// came, or because its schedulers died as often as what kills its readers may.
    pub(super) fn may_be_refused(&self, facts: &Facts, made: &Made, code: &str) -> bool {
        match code {
            "tenant_queue_full" | "inbox_full" => true,
            "unknown_task" => made.under.is_some(),
            "poison" => facts.deaths.len() as u64 >= u64::from(self.settings.store.crashes_max),
            _ => false,
        }
    }
}

/// A call that is told to have delegated a task which never was on a queue.
pub(super) fn never_delegated(facts: &Facts, tenant: &str, result: &CallResult) -> Option<String> {
    if result.outcome != Outcome::Ok || !facts.lost.is_empty() {
        return None;
    }
    let output = result.output.as_ref().and_then(|output| serde_json::to_value(output).ok()).unwrap_or_default();
    let job = format!("{tenant}:{}", output["job_id"].as_str().unwrap_or_default());
    (!facts.turns.contains_key(&job))
        .then(|| format!("{} is told to have delegated {job}, which never was", result.call))
}

impl Oracle {
    /// What nobody has submitted is on a queue: a task that a call has delegated, or a mistake.
    pub(super) fn appeared(&self, name: String) {
        if !name.contains(":d-") {
            return self.world.wrong(format!("{name} is on a queue, but nobody has submitted it"));
        }
        let mut facts = self.world.facts();
        let made = Made { accepted_us: Some(facts.now_us), is_child: true, ..tasks::made() };
        facts.turns.insert(name, made);
    }
}
