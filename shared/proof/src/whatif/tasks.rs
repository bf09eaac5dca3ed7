//! The budgets of calls that tasks were granted, as they would be.

use std::collections::HashMap;

use super::TASK;
use super::turns::{Decision, Turn, What};

/// Tasks that are kept before those go of which nothing was heard for long.
const KEPT_MIN: usize = 100_000;
/// How long that is, ms.
const SILENT_MS: i64 = 86_400_000;

/// One task: what the log says of its budget, and what is otherwise here.
#[derive(Debug, Clone, Copy)]
struct Task {
    max: u32,
    /// What was used by what the log said last, in the fleet: calls, and what was carved off for tasks below it.
    used: u32,
    /// So many calls more than in the fleet have gone out here.
    more: i64,
    seen_ms: i64,
}

/// Tasks by tenant and id.
#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: HashMap<String, Task>,
    kept: usize,
}

/// The name of a turn's task; none where it has none, or entries do not say it.
fn name_of(turn: &Turn) -> Option<String> {
    let task = turn.context.as_ref()?.task.as_deref()?;
    Some(format!("{}:{task}", turn.tenant))
}

impl Tasks {
    /// The fleet is about to decide something about a turn: what its task had used just before.
    pub(super) fn before(&mut self, turn: &Turn, decision: &Decision) {
        let Some(name) = name_of(turn) else { return };
        match &decision.what {
            What::Go(calls, note) => {
                let Some((used, max)) = note.task else { return };
                let used = used.saturating_sub(u32::try_from(*calls).unwrap_or(u32::MAX));
                let more = self.known.get(&name).map_or(0, |known| known.more);
                self.known.insert(name, Task { max, used, more, seen_ms: decision.at_ms });
                self.forget(decision.at_ms);
            }
            // Nothing was left.
            What::Refuse(_, Some(by)) if by == TASK => {
                if let Some(known) = self.known.get_mut(&name) {
                    known.used = known.max;
                }
            }
            What::Refuse(..) | What::Wait(..) => {}
        }
    }

    /// It has decided: what went out in the fleet is used there.
    pub(super) fn after(&mut self, turn: &Turn, decision: &Decision) {
        let What::Go(calls, note) = &decision.what else { return };
        let Some((used, _)) = note.task else { return };
        if let Some(known) = name_of(turn).and_then(|name| self.known.get_mut(&name)) {
            known.used = used;
            known.more -= i64::try_from(*calls).unwrap_or(0);
        }
    }

    /// Calls of a turn go out here.
    pub(super) fn go(&mut self, turn: &Turn, calls: usize) {
        if let Some(known) = name_of(turn).and_then(|name| self.known.get_mut(&name)) {
            known.more += i64::try_from(calls).unwrap_or(0);
        }
    }

    /// The call budget of a turn's task, and its use as it is here; none where it has none, or nothing is known of it.
    pub(super) fn of(&self, turn: &Turn) -> Option<(u64, u64)> {
        let known = self.known.get(&name_of(turn)?)?;
        let used = (i64::from(known.used) + known.more).max(0).unsigned_abs();
        Some((known.max.into(), used))
    }

    fn forget(&mut self, now_ms: i64) {
        if self.known.len() < self.kept.max(KEPT_MIN) {
            return;
        }
        self.known.retain(|_, task| task.seen_ms > now_ms - SILENT_MS);
        self.kept = 2 * self.known.len();
    }
}
