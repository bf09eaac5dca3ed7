//! The checker. It believes no counter of the fleet: it is given what producers were told, the replies, what the tools'
//! own server saw, and the entries by which slices went out, as Redis' append-only files have them.

use std::collections::{BTreeMap, BTreeSet};

/// Calls that an agent may make in a window.
pub const TICK_CALLS: usize = 10;
/// The length of a window, ms.
pub const TICK_MS: u64 = 1_000;
/// Calls that the agent `daily` may make in a day.
pub const DAY_CALLS: usize = 30;
/// An entry is numbered when it is written, not when it was decided: by so much may one lie beyond its window, ms.
const BLUR_MS: u64 = 60;

/// A run of a call, as the tools' server saw it.
#[derive(Debug, Clone)]
pub struct Run {
    pub agent: String,
    pub number: u64,
    pub once: bool,
}

/// A call that was admitted: whose, and when, ms.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Admitted {
    pub agent: String,
    pub at_ms: u64,
}

/// All that is judged by.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Ids of turns that were accepted.
    pub accepted: BTreeSet<String>,
    /// The ids that replies name, one for each reply.
    pub replies: Vec<String>,
    pub runs: Vec<Run>,
    pub admitted: Vec<Admitted>,
}

/// What is wrong; nothing may be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Accepted turns without a reply.
    pub lost: Vec<String>,
    /// Turns with more than one reply.
    pub answered_twice: Vec<String>,
    /// `once` calls that ran more than once.
    pub doubled: Vec<u64>,
    /// Agents that had more than their calls in a window, however its windows lie.
    pub tick_exceeded: Vec<String>,
    /// Calls of a day beyond its cap.
    pub day_exceeded: usize,
}

impl Evidence {
    pub fn judge(&self) -> Verdict {
        let mut replies: BTreeMap<&String, usize> = BTreeMap::new();
        for id in &self.replies {
            *replies.entry(id).or_default() += 1;
        }
        let mut once: BTreeMap<u64, usize> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| run.once) {
            *once.entry(run.number).or_default() += 1;
        }
        let daily: BTreeSet<u64> = self.runs.iter().filter(|run| run.agent == "daily").map(|run| run.number).collect();
        let mut by_agent: BTreeMap<&String, Vec<u64>> = BTreeMap::new();
        for call in &self.admitted {
            by_agent.entry(&call.agent).or_default().push(call.at_ms);
        }
        let exceeded = by_agent.into_iter().filter(|(_, times)| !windows_hold(times));
        Verdict {
            lost: self.accepted.iter().filter(|id| !replies.contains_key(id)).cloned().collect(),
            answered_twice: replies.iter().filter(|(_, count)| **count > 1).map(|(id, _)| (*id).clone()).collect(),
            doubled: once.into_iter().filter(|(_, count)| *count > 1).map(|(number, _)| number).collect(),
            tick_exceeded: exceeded.map(|(agent, _)| agent.clone()).collect(),
            day_exceeded: daily.len().saturating_sub(DAY_CALLS),
        }
    }
}

/// Whether windows can lie so that none has more calls than it may: where an agent's windows begin only the fleet knows. A
/// call close to a boundary may be of either window.
fn windows_hold(times: &[u64]) -> bool {
    (0..TICK_MS).step_by(5).any(|begins| {
        // Of each window, the calls that are surely of it, and those that may be of the next one.
        let mut windows: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        for at in times {
            let since = at + TICK_MS - begins;
            let (window, into) = (since / TICK_MS, since % TICK_MS);
            if into < BLUR_MS {
                windows.entry(window - 1).or_default().1 += 1;
            } else if into >= TICK_MS - BLUR_MS {
                windows.entry(window).or_default().1 += 1;
            } else {
                windows.entry(window).or_default().0 += 1;
            }
        }
        let (mut last, mut carried) = (0, 0);
        windows.into_iter().all(|(window, (sure, either))| {
            // What was carried over is of the very next window.
            let before = if window == last + 1 || carried == 0 { carried } else { 0 };
            let room = TICK_CALLS.checked_sub(before + sure);
            let fits_before = window == last + 1 || carried <= TICK_CALLS;
            carried = room.map_or(0, |room| either.saturating_sub(room));
            last = window;
            room.is_some() && fits_before
        }) && carried <= TICK_CALLS
    })
}

fn honest() -> Evidence {
    let runs = |number| Run { agent: "a1".into(), number, once: true };
    let calls = (0..40).map(|n| Admitted { agent: "a1".into(), at_ms: 5_000 + n / 10 * 1_000 + n % 10 });
    Evidence {
        accepted: ["t1", "t2"].map(String::from).into(),
        replies: ["t1", "t2"].map(String::from).into(),
        runs: (0..40).map(runs).collect(),
        admitted: calls.collect(),
    }
}

#[test]
fn an_honest_run_passes() {
    assert_eq!(honest().judge(), Verdict::default());
}

#[test]
fn a_missing_fence_is_seen_by_a_call_that_ran_twice() {
    let mut evidence = honest();
    evidence.runs.push(evidence.runs[3].clone());
    assert_eq!(evidence.judge(), Verdict { doubled: vec![3], ..Verdict::default() });
}

#[test]
fn a_settle_in_two_steps_is_seen_by_a_reply_that_is_missing_or_comes_twice() {
    let mut evidence = honest();
    evidence.replies = ["t1", "t1"].map(String::from).into();
    let expected = Verdict { lost: vec!["t2".into()], answered_twice: vec!["t1".into()], ..Verdict::default() };
    assert_eq!(evidence.judge(), expected);
}

#[test]
fn a_missing_debit_is_seen_by_a_window_and_by_a_day_with_too_many_calls() {
    let mut evidence = honest();
    // Too close together for any two windows.
    evidence.admitted.extend((0..21).map(|n| Admitted { agent: "a2".into(), at_ms: 7_000 + n * 2 }));
    evidence.runs.extend((0..31).map(|n| Run { agent: "daily".into(), number: 100 + n, once: false }));
    let expected = Verdict { tick_exceeded: vec!["a2".into()], day_exceeded: 1, ..Verdict::default() };
    assert_eq!(evidence.judge(), expected);
}
