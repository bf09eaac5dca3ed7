//! Counts calls by tool and outcome over the last minute, from the end of the audit log. This module does no I/O.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use tickfleet_model::Outcome;
use tickfleet_store::EndedCall;

pub(super) const WINDOW_MS: i64 = 60_000;
const CALLS_MAX: usize = 50_000;

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct ToolRow {
    pub(crate) tool: String,
    pub(crate) calls: u64,
    pub(crate) outcomes: BTreeMap<Outcome, u64>,
    pub(crate) mean_ms: u64,
    pub(crate) longest_ms: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Tools {
    pub(crate) rows: Vec<ToolRow>,
    pub(crate) seen: u64,
    pub(crate) sampled: bool,
}

#[derive(Debug, Default)]
pub(super) struct Window {
    calls: VecDeque<EndedCall>,
    /// Until this time (ms of shard time), the window is incomplete, because the polls missed calls.
    sampled_until_ms: i64,
}

impl Window {
    /// `ended` counts the calls that ended since the previous poll, if known.
    pub(super) fn add(&mut self, seen: Vec<EndedCall>, ended: Option<u64>, now_ms: i64) {
        // The newest calls come first. If the oldest is older than the window, no call in the window is missing.
        let reaches_back = seen.last().is_some_and(|oldest| oldest.at_ms <= now_ms - WINDOW_MS);
        if ended.is_some_and(|ended| ended > seen.len() as u64) && !reaches_back {
            self.sampled_until_ms = now_ms + WINDOW_MS;
        }
        self.calls.extend(seen.into_iter().rev());
        if self.calls.len() > CALLS_MAX {
            self.calls.drain(..self.calls.len() - CALLS_MAX);
            self.sampled_until_ms = now_ms + WINDOW_MS;
        }
    }

    pub(super) fn tools(&mut self, now_ms: i64) -> Tools {
        self.calls.retain(|call| call.at_ms > now_ms - WINDOW_MS);
        let mut rows: BTreeMap<&str, (ToolRow, u64)> = BTreeMap::new();
        for call in &self.calls {
            let (row, total_ms) = rows.entry(&call.tool).or_default();
            row.calls += 1;
            *row.outcomes.entry(call.outcome).or_default() += 1;
            row.longest_ms = row.longest_ms.max(call.duration_ms);
            *total_ms += call.duration_ms;
        }
        let row = |(tool, (row, total_ms)): (&str, (ToolRow, u64))| ToolRow {
            tool: tool.to_owned(),
            mean_ms: total_ms / row.calls.max(1),
            ..row
        };
        Tools {
            rows: rows.into_iter().map(row).collect(),
            seen: self.calls.len() as u64,
            sampled: now_ms < self.sampled_until_ms,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(at_ms: i64, tool: &str, outcome: Outcome, duration_ms: u64) -> EndedCall {
        EndedCall { at_ms, tool: tool.into(), outcome, duration_ms }
    }

    #[test]
    fn tools_are_counted_by_outcome_over_the_last_minute() {
        let mut window = Window::default();
        window.add(vec![call(2_000, "echo", Outcome::Ok, 30), call(1_000, "echo", Outcome::Denied, 0)], Some(2), 2_000);
        window.add(vec![call(50_000, "sleep", Outcome::Ok, 9)], None, 50_000);
        let tools = window.tools(50_000);
        assert_eq!((tools.seen, tools.sampled, tools.rows.len()), (3, false, 2));
        assert_eq!((tools.rows[0].calls, tools.rows[0].mean_ms, tools.rows[0].longest_ms), (2, 15, 30));
        assert_eq!(tools.rows[0].outcomes[&Outcome::Denied], 1);
        assert_eq!(window.tools(62_500).seen, 1, "what is older than a minute is forgotten");
    }

    #[test]
    fn missed_calls_mark_the_window_as_sampled() {
        let mut window = Window::default();
        window.add(vec![call(1_000, "echo", Outcome::Ok, 1)], Some(5), 1_000);
        assert!(window.tools(2_000).sampled);
        assert!(!window.tools(1_000 + WINDOW_MS).sampled);
    }
}
