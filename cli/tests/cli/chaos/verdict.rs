//! Checks the guarantees only with evidence from outside the fleet. Windows and days are computed from shard time,
//! because entry IDs never go back with a clock. A new primary may lack the last writes, so each primary is checked
//! separately.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub const TICK_CALLS: usize = 10;
pub const TICK_MS: u64 = 1_000;
const DAY_MS: u64 = 86_400_000;
pub const DAY_CALLS: usize = 30;
/// The fleet decides in a window, and the entry gets its ID at most this much later, possibly after the window.
const BLUR_MS: u64 = 60;

#[derive(Debug, Clone)]
pub struct ToolRun {
    pub agent: String,
    pub turn: String,
    pub number: u64,
    pub once: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdmittedCall {
    pub agent: String,
    pub turn: String,
    pub at_ms: u64,
    pub shard_ms: u64,
    /// ID of the primary that admitted the call. `None` if no file contains the ID.
    pub led: Option<Vec<u8>>,
    /// The entry appeared in a file between these two times since the start of the witness.
    pub seen: (Duration, Duration),
}

#[derive(Debug, Default)]
pub struct Evidence {
    pub accepted: BTreeSet<String>,
    pub replies: Vec<String>,
    pub runs: Vec<ToolRun>,
    pub admitted: Vec<AdmittedCall>,
    /// Times since the start of the witness at which a shard's clock may have changed.
    pub jumps: Vec<Duration>,
    /// True if two primaries can admit calls at the same time: one of them was paused or cut off, and then resumed. Its
    /// calls do not run, because no replica confirms them.
    pub has_replicas: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ChaosVerdict {
    pub lost: Vec<String>,
    pub answered_twice: Vec<String>,
    /// Only `once` calls.
    pub doubled: Vec<u64>,
    /// Agents with too many calls in a window, wherever the windows begin.
    pub tick_exceeded: Vec<String>,
    pub day_exceeded: usize,
}

impl Evidence {
    pub fn judge(&self) -> ChaosVerdict {
        let mut replies: BTreeMap<&String, usize> = BTreeMap::new();
        for id in &self.replies {
            *replies.entry(id).or_default() += 1;
        }
        let mut once: BTreeMap<u64, usize> = BTreeMap::new();
        for run in self.runs.iter().filter(|run| run.once) {
            *once.entry(run.number).or_default() += 1;
        }
        let mut by_agent: BTreeMap<&String, Vec<&AdmittedCall>> = BTreeMap::new();
        for call in &self.admitted {
            by_agent.entry(&call.agent).or_default().push(call);
        }
        let exceeded = by_agent.into_iter().filter(|(agent, calls)| {
            let windows = self.windows_hold(calls);
            let pace = self.pace_holds(calls);
            if !windows || !pace {
                eprintln!("{agent}: windows hold: {windows}, the pace holds: {pace}");
            }
            !windows || !pace
        });
        ChaosVerdict {
            lost: self.accepted.iter().filter(|id| !replies.contains_key(id)).cloned().collect(),
            answered_twice: replies.iter().filter(|(_, count)| **count > 1).map(|(id, _)| (*id).clone()).collect(),
            doubled: once.into_iter().filter(|(_, count)| *count > 1).map(|(number, _)| number).collect(),
            tick_exceeded: exceeded.map(|(agent, _)| agent.clone()).collect(),
            day_exceeded: self.day_exceeded(),
        }
    }

    fn windows_hold(&self, calls: &[&AdmittedCall]) -> bool {
        if self.jumps.is_empty() && !self.has_replicas {
            return windows_hold(&calls.iter().map(|call| call.at_ms).collect::<Vec<_>>());
        }
        let mut by_primary: BTreeMap<&Option<Vec<u8>>, Vec<u64>> = BTreeMap::new();
        for call in calls {
            by_primary.entry(&call.led).or_default().push(call.shard_ms);
        }
        by_primary.values().all(|times| windows_hold(times))
    }

    /// A period may contain the calls of every window that overlaps the period. Each clock jump allows one more window.
    fn pace_holds(&self, calls: &[&AdmittedCall]) -> bool {
        let mut seen: Vec<(Duration, Duration)> = calls.iter().map(|call| call.seen).collect();
        seen.sort_unstable();
        // The number of calls doubles until one period contains all calls.
        let counts = std::iter::successors(Some(2 * TICK_CALLS + 1), |count| Some(count * 2 - 1));
        counts.take_while(|count| *count <= seen.len()).all(|count| {
            seen.windows(count).all(|stretch| {
                let from = stretch[0].0;
                let until = stretch.iter().map(|seen| seen.1).max().unwrap();
                let jumps = self.jumps.iter().filter(|jump| (from..=until).contains(jump)).count();
                let windows = (until - from).as_millis() / u128::from(TICK_MS) + 2;
                count <= TICK_CALLS * (usize::try_from(windows).unwrap_or(usize::MAX / TICK_CALLS) + jumps)
            })
        })
    }

    /// Returns how many calls that ran exceed the cap per day. A new day can begin at each clock jump, and once more
    /// during the run. A failover can lose an admission, and the turn is then admitted again, so admissions of calls
    /// that never ran do not count.
    fn day_exceeded(&self) -> usize {
        let ran: BTreeSet<&String> = self.runs.iter().filter(|run| run.agent == "daily").map(|run| &run.turn).collect();
        let mut days: BTreeMap<u64, BTreeSet<&String>> = BTreeMap::new();
        for call in self.admitted.iter().filter(|call| ran.contains(&call.turn)) {
            days.entry(call.shard_ms / DAY_MS).or_default().insert(&call.turn);
        }
        let beyond: usize = days.values().map(|turns| turns.len().saturating_sub(DAY_CALLS)).sum();
        let possible = days.len().clamp(1, 2 + self.jumps.len());
        beyond.max(ran.len().saturating_sub(DAY_CALLS * possible))
    }
}

/// Only the fleet knows when windows begin, so one possible start is enough. A call close to a boundary can belong to
/// either window.
fn windows_hold(times: &[u64]) -> bool {
    (0..TICK_MS).step_by(5).any(|begins| {
        // Counts the calls that are certainly in the window, and the calls in this window or the next.
        let mut windows: BTreeMap<u64, (usize, usize)> = BTreeMap::new();
        for at in times {
            let since = at + TICK_MS - begins;
            let window = since / TICK_MS;
            let into = since % TICK_MS;
            if into < BLUR_MS {
                windows.entry(window - 1).or_default().1 += 1;
            } else if into >= TICK_MS - BLUR_MS {
                windows.entry(window).or_default().1 += 1;
            } else {
                windows.entry(window).or_default().0 += 1;
            }
        }
        let mut last = 0;
        let mut carried = 0;
        windows.into_iter().all(|(window, (sure, either))| {
            // A call that does not fit into its window can belong only to the next window.
            let before = if window == last + 1 || carried == 0 { carried } else { 0 };
            let room = TICK_CALLS.checked_sub(before + sure);
            let fits_before = window == last + 1 || carried <= TICK_CALLS;
            carried = room.map_or(0, |room| either.saturating_sub(room));
            last = window;
            room.is_some() && fits_before
        }) && carried <= TICK_CALLS
    })
}

fn call(agent: &str, number: u64, ms: u64) -> AdmittedCall {
    let seen = Duration::from_millis(ms);
    let at_ms = 20_000 * DAY_MS + ms;
    AdmittedCall {
        agent: agent.into(),
        turn: format!("{agent}-{number}"),
        at_ms,
        shard_ms: at_ms,
        led: None,
        seen: (seen, seen),
    }
}

fn ran(agent: &str, number: u64, once: bool) -> ToolRun {
    ToolRun { agent: agent.into(), turn: format!("{agent}-{number}"), number, once }
}

fn honest() -> Evidence {
    let runs = |number| ran("a1", number, true);
    Evidence {
        accepted: ["t1", "t2"].map(String::from).into(),
        replies: ["t1", "t2"].map(String::from).into(),
        runs: (0..40).map(runs).collect(),
        admitted: (0..40).map(|n| call("a1", n, 5_000 + n / 10 * 1_000 + n % 10)).collect(),
        jumps: Vec::new(),
        has_replicas: false,
    }
}

#[test]
fn an_honest_run_passes() {
    assert_eq!(honest().judge(), ChaosVerdict::default());
}

#[test]
fn a_call_that_ran_twice_reveals_a_missing_fence() {
    let mut evidence = honest();
    evidence.runs.push(evidence.runs[3].clone());
    assert_eq!(evidence.judge(), ChaosVerdict { doubled: vec![3], ..ChaosVerdict::default() });
}

#[test]
fn a_missing_or_duplicate_reply_reveals_a_non_atomic_settle() {
    let mut evidence = honest();
    evidence.replies = ["t1", "t1"].map(String::from).into();
    let expected =
        ChaosVerdict { lost: vec!["t2".into()], answered_twice: vec!["t1".into()], ..ChaosVerdict::default() };
    assert_eq!(evidence.judge(), expected);
}

#[test]
fn too_many_calls_in_a_window_or_day_reveal_a_missing_debit() {
    let mut evidence = honest();
    evidence.admitted.extend((0..21).map(|n| call("a2", n, 7_000 + n * 2)));
    evidence.runs.extend((0..31).map(|n| ran("daily", 100 + n, false)));
    let expected = ChaosVerdict { tick_exceeded: vec!["a2".into()], day_exceeded: 1, ..ChaosVerdict::default() };
    assert_eq!(evidence.judge(), expected);
}

#[test]
fn entries_after_a_clock_step_back_are_judged_by_shard_time() {
    let mut evidence = honest();
    evidence.admitted.iter_mut().for_each(|call| call.at_ms = 21_000 * DAY_MS);
    assert_eq!(evidence.judge().tick_exceeded, ["a1"]);
    evidence.jumps = vec![Duration::from_secs(4)];
    assert_eq!(evidence.judge(), ChaosVerdict::default());
    // A new primary may lack the writes of a window, and fill the window again. A single primary must not do so.
    for (primary, ms) in [("second", 12_000), ("third", 15_000)] {
        let seen = call("a1", 0, ms).seen;
        let later = |n| AdmittedCall { seen, led: Some(primary.into()), ..call("a1", ms + n, 5_000) };
        evidence.admitted.extend((0..10).map(later));
    }
    assert_eq!(evidence.judge(), ChaosVerdict::default());
    evidence.jumps.clear();
    assert_eq!(evidence.judge().tick_exceeded, ["a1"], "a Redis without replicas is one primary");
    evidence.has_replicas = true;
    assert_eq!(evidence.judge(), ChaosVerdict::default());
    evidence.admitted.iter_mut().for_each(|call| call.led = None);
    assert_eq!(evidence.judge().tick_exceeded, ["a1"]);
}

#[test]
fn a_shard_clock_that_runs_ahead_is_detected_by_real_time() {
    let mut evidence = honest();
    evidence.jumps = vec![Duration::from_secs(1)];
    // Each group of ten calls is one window later in shard time, but only 60 ms later in real time.
    let ahead =
        |n: u64| AdmittedCall { shard_ms: 20_000 * DAY_MS + n / 10 * 1_000, ..call("a3", n, 9_000 + n / 10 * 60) };
    evidence.admitted.extend((0..50).map(ahead));
    assert_eq!(evidence.judge().tick_exceeded, ["a3"]);
    evidence.jumps.extend([9_060, 9_120].map(Duration::from_millis));
    assert_eq!(evidence.judge().tick_exceeded, ["a3"]);
    evidence.jumps.push(Duration::from_millis(9_180));
    assert_eq!(evidence.judge(), ChaosVerdict::default());
}

#[test]
fn each_clock_jump_allows_the_calls_of_one_more_day() {
    let mut evidence = honest();
    let on = |day: u64| {
        (0..30).map(move |n| AdmittedCall { shard_ms: day * DAY_MS, ..call("daily", day * 100 + n, n * 3_000) })
    };
    let runs = |day: u64| (0..30).map(move |n| ran("daily", day * 100 + n, false));
    evidence.jumps = vec![Duration::from_secs(1)];
    for day in 1..=3 {
        evidence.admitted.extend(on(day));
        evidence.runs.extend(runs(day));
    }
    let days = |evidence: &Evidence| evidence.judge().day_exceeded;
    assert_eq!(days(&evidence), 0);
    evidence.admitted.extend(on(4));
    evidence.runs.extend(runs(4));
    assert_eq!(days(&evidence), 30, "a clock that stepped once makes no fourth day");
    evidence.jumps.push(Duration::from_secs(2));
    evidence.admitted.push(AdmittedCall { shard_ms: 2 * DAY_MS, ..call("daily", 999, 0) });
    assert_eq!(days(&evidence), 0, "an admission of a call that never ran");
    evidence.runs.push(ran("daily", 999, false));
    assert_eq!(days(&evidence), 1);
}
