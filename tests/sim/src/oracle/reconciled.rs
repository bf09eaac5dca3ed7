//! What must hold of calls whose answers were lost, and of which another tool found out whether they took effect: what is
//! told agrees with the world's ledger, and nobody asks for ever.

use tickfleet_model::{CallResult, Outcome};

use super::Oracle;
use crate::settings::sealed::Sealed;
use crate::world::{Facts, Name};

/// Of a result that was found out, what is not so; none of any other.
pub(super) fn untrue(facts: &Facts, name: &str, position: usize, result: &CallResult) -> Option<Option<String>> {
    if !result.reconciled {
        return None;
    }
    let made = facts.runs_of(name, position).find(|(_, run)| run.effect_us.is_some()).map(|(number, _)| number);
    let output = result.output.as_ref().and_then(|output| serde_json::to_value(output).ok()).unwrap_or_default();
    let told = output["run"].as_u64().and_then(|run| usize::try_from(run).ok());
    Some(match (result.outcome, made) {
        (Outcome::Ok, Some(_)) => {
            let is_true =
                facts.runs_of(name, position).any(|(run, made)| Some(run) == told && made.effect_us.is_some());
            (!is_true).then(|| format!("{name}/{position} is found to have been made by run {told:?}, and was not"))
        }
        (Outcome::Ok, None) => Some(format!("{name}/{position} is found to have been made, and never was")),
        (Outcome::Transient, Some(run)) if facts.leaps.is_empty() => {
            Some(format!("{name}/{position} is found not to have been made, and run {run} has made it"))
        }
        (Outcome::Transient, _) => None,
        (outcome, _) => Some(format!("{name}/{position} is found out, and told as {}", outcome.as_str())),
    })
}

impl Oracle {
    /// What must hold at the end: what was told not to have been made is not made later, and each was looked up a bounded
    /// number of times.
    pub(super) fn unreconciled(&self, facts: &Facts, sealed: &Sealed) -> Vec<String> {
        let late = |(name, position, at_us): &(Name, usize, i64)| {
            // By a clock that leaps nobody waits long enough; what Redis has lost may be begun anew.
            if !facts.leaps.is_empty() || facts.lost.iter().any(|(_, to)| to >= at_us) || self.has_forgotten {
                return None;
            }
            let made = facts.runs_of(name, *position).find(|(_, run)| run.effect_us.is_some());
            made.map(|(run, _)| {
                format!("{name}/{position} was told not to have been made, and run {run} made it later")
            })
        };
        let mut wrong: Vec<String> = self.not_made.iter().filter_map(late).collect();
        // Whoever dies, is cut off or hands a call back has it asked once more.
        let broken = facts.deaths.len() + facts.lost.len() + facts.upsets.len();
        let most = 2 * (sealed.tries as usize + 5) + 2 * broken;
        let asked = facts.looked_up.iter().filter(|(_, times)| **times as usize > most);
        wrong.extend(asked.map(|(key, times)| format!("{key} was looked up {times} times, {most} would do")));
        wrong
    }
}
