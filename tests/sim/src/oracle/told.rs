//! What is told of calls without a reason, or in another order than they were made.

use crate::world::{End, Facts, OUTSIDE, Run};

/// The one run of a call that returned, and whose worker could say so all the time: it lived, was reached, and its lease
/// held. That Redis was away, or lost what it had been told, is no reason: the worker tells it again.
pub(super) fn unknown_without_reason<'a>(
    facts: &Facts,
    mut runs: impl Iterator<Item = (usize, &'a Run)>,
    grace_us: i64,
) -> Option<String> {
    // A runtime outside may have been heard too late.
    let (number, run) = runs.next().filter(|(_, run)| run.end == End::Returned && run.worker != OUTSIDE)?;
    let since_us = run.began_us - grace_us;
    let is_alone = runs.next().is_none();
    let lived = !facts.deaths.iter().any(|(who, at)| *who == run.worker && *at >= since_us);
    let is_calm = !facts.upsets.iter().any(|(_, to)| to + grace_us >= run.began_us);
    (is_alone && lived && is_calm).then(|| format!("run {number} returned, and {} lived and was reached", run.worker))
}

/// The first call of a turn that began before the one before it.
pub(super) fn out_of_order(facts: &Facts, name: &str, parallel_reads: bool, calls: usize) -> Option<String> {
    if parallel_reads {
        return None;
    }
    let firsts: Vec<(usize, i64)> =
        (0..calls).filter_map(|at| Some((at, facts.runs_of(name, at).map(|(_, run)| run.began_us).min()?))).collect();
    // A try that was lost may have refused a call that the next one carries out: its tool was switched off meanwhile.
    let tried_anew = |from: i64, to: i64| {
        let times = facts.dispatches.get(name).into_iter().flatten();
        let mut lost = facts.lost.iter().chain(&facts.upsets);
        times.into_iter().any(|at| (from..=to).contains(at)) || lost.any(|(_, end)| (from..=to).contains(end))
    };
    let pair = firsts.windows(2).find(|pair| pair[1].1 < pair[0].1 && !tried_anew(pair[1].1, pair[0].1))?;
    Some(format!("{name}: call {} began before call {}", pair[1].0, pair[0].0))
}
