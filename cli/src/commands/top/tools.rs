//! Tools by outcome, over the last minute, from the tail of the audit log. Pure.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;
use tickfleet_store::EndedCall;

/// The time that the table of tools looks back, ms.
pub(super) const WINDOW_MS: i64 = 60_000;
/// Calls that are remembered at most: at higher rates the window is a sample.
const CALLS_MAX: usize = 50_000;

/// One tool's calls of the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct ToolRow {
    pub(crate) tool: String,
    /// Calls that were seen to end.
    pub(crate) calls: u64,
    /// Their outcomes, with the number of each.
    pub(crate) outcomes: BTreeMap<String, u64>,
    /// Mean duration, ms.
    pub(crate) mean_ms: u64,
    /// The longest, ms.
    pub(crate) longest_ms: u64,
}

/// The tools of the last minute.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Tools {
    pub(crate) rows: Vec<ToolRow>,
    /// Calls that the rows are made of.
    pub(crate) seen: u64,
    /// True if there were more: the rows are a sample then.
    pub(crate) sampled: bool,
}

/// The calls of the last minute that were seen to end.
#[derive(Debug, Default)]
pub(super) struct Window {
    calls: VecDeque<EndedCall>,
    /// Until when the window lacks calls that nobody saw, ms of the shard's time.
    sampled_until_ms: i64,
}

impl Window {
    /// Takes in what one look at one shard saw; `ended` is how many calls ended meanwhile, where that is known.
    pub(super) fn add(&mut self, seen: Vec<EndedCall>, ended: Option<u64>, now_ms: i64) {
        // The newest are seen first: where the oldest of them is out of sight, nothing in sight was missed.
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

    /// The table, at this time.
    pub(super) fn tools(&mut self, now_ms: i64) -> Tools {
        self.calls.retain(|call| call.at_ms > now_ms - WINDOW_MS);
        let mut rows: BTreeMap<&str, (ToolRow, u64)> = BTreeMap::new();
        for call in &self.calls {
            let (row, total_ms) = rows.entry(&call.tool).or_default();
            row.calls += 1;
            *row.outcomes.entry(call.outcome.clone()).or_default() += 1;
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

    fn call(at_ms: i64, tool: &str, outcome: &str, duration_ms: u64) -> EndedCall {
        EndedCall { at_ms, tool: tool.into(), outcome: outcome.into(), duration_ms }
    }

    #[test]
    fn tools_are_counted_by_outcome_over_the_last_minute() {
        let mut window = Window::default();
        window.add(vec![call(2_000, "echo", "ok", 30), call(1_000, "echo", "denied", 0)], Some(2), 2_000);
        window.add(vec![call(50_000, "sleep", "ok", 9)], None, 50_000);
        let tools = window.tools(50_000);
        assert_eq!((tools.seen, tools.sampled, tools.rows.len()), (3, false, 2));
        assert_eq!((tools.rows[0].calls, tools.rows[0].mean_ms, tools.rows[0].longest_ms), (2, 15, 30));
        assert_eq!(tools.rows[0].outcomes["denied"], 1);
        assert_eq!(window.tools(62_500).seen, 1, "what is older than a minute is forgotten");
    }

    #[test]
    fn calls_that_nobody_saw_make_the_minute_a_sample() {
        let mut window = Window::default();
        window.add(vec![call(1_000, "echo", "ok", 1)], Some(5), 1_000);
        assert!(window.tools(2_000).sampled);
        assert!(!window.tools(1_000 + WINDOW_MS).sampled);
    }
}
