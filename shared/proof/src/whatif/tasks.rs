//! The call budgets of tasks, and how much of each budget is used in the replay.

use std::collections::HashMap;

use super::TASK;
use super::turns::{Decision, DispatchDecision, Turn};

/// When this many tasks are known, inactive tasks are dropped.
const KEPT_MIN: usize = 100_000;
/// A task is inactive after this time without decisions.
const SILENT_MS: i64 = 86_400_000;

#[derive(Debug, Clone, Copy)]
struct Task {
    max: u32,
    /// In the fleet, as last recorded. Includes the budget that the task passed to subtasks.
    used: u32,
    /// Calls that the replay dispatched minus calls that the fleet dispatched.
    more: i64,
    seen_ms: i64,
}

#[derive(Debug, Default)]
pub(super) struct Tasks {
    known: HashMap<String, Task>,
    kept: usize,
}

fn name_of(turn: &Turn) -> Option<String> {
    let task = turn.context.as_ref()?.task.as_deref()?;
    Some(format!("{}:{task}", turn.tenant))
}

impl Tasks {
    /// Must be called before the decision is replayed.
    pub(super) fn apply_before(&mut self, turn: &Turn, decision: &Decision) {
        let Some(name) = name_of(turn) else { return };
        match &decision.what {
            DispatchDecision::Go(calls, note) => {
                let Some((used, max)) = note.task else { return };
                let used = used.saturating_sub(u32::try_from(*calls).unwrap_or(u32::MAX));
                let more = self.known.get(&name).map_or(0, |known| known.more);
                self.known.insert(name, Task { max, used, more, seen_ms: decision.at_ms });
                self.forget(decision.at_ms);
            }
            DispatchDecision::Refuse(_, Some(by)) if by == TASK => {
                if let Some(known) = self.known.get_mut(&name) {
                    known.used = known.max;
                }
            }
            DispatchDecision::Refuse(..) | DispatchDecision::Wait(..) => {}
        }
    }

    /// Must be called after the decision was replayed.
    pub(super) fn apply_after(&mut self, turn: &Turn, decision: &Decision) {
        let DispatchDecision::Go(calls, note) = &decision.what else { return };
        let Some((used, _)) = note.task else { return };
        if let Some(known) = name_of(turn).and_then(|name| self.known.get_mut(&name)) {
            known.used = used;
            known.more -= i64::try_from(*calls).unwrap_or(0);
        }
    }

    pub(super) fn count_dispatched(&mut self, turn: &Turn, calls: usize) {
        if let Some(known) = name_of(turn).and_then(|name| self.known.get_mut(&name)) {
            known.more += i64::try_from(calls).unwrap_or(0);
        }
    }

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
