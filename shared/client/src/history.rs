//! The fleet's history, by minute (kept for 24 hours) or by hour (kept for 35 days). Schedulers take a sample once per
//! minute.

use serde::Serialize;
use tickfleet_store::{Point, ShardHistory, Store, StoreError};

pub use tickfleet_store::HistoryStep;

const MINUTE_MS: i64 = 60_000;
/// Each shard applies a new policy separately, so changes within less than this time are shown as one change.
const ONE_CHANGE_MS: i64 = 60_000;

/// A query for a part of the history.
#[derive(Debug, Clone, Copy)]
pub struct HistoryQuery {
    /// The resolution.
    pub step: HistoryStep,
    /// Start of the range (ms of shard time). Default: an hour ago for minutes, seven days ago for hours.
    pub from_ms: Option<i64>,
    /// End of the range, exclusive (ms of shard time). Default: the end of the last full step.
    pub until_ms: Option<i64>,
}

/// The values of one step. An optional value is `None` if a shard has no sample in this step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HistoryPoint {
    /// Start of the step (ms of shard time).
    pub at_ms: i64,
    /// Successful calls.
    pub ok: u64,
    /// Calls that ran and failed.
    pub failed: u64,
    /// Calls that did not run: denied, invalid, over a cap, expired, canceled.
    pub refused: u64,
    /// Calls with an unknown outcome.
    pub unknown: u64,
    /// Turns and tasks that were received.
    pub turns: Option<u64>,
    /// Turns that waited when the sample was taken. For an hour, the maximum of all samples.
    pub waiting: Option<u64>,
    /// Slots that were busy when the sample was taken. For an hour, the maximum of all samples.
    pub running: Option<u64>,
}

/// A change of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PolicyChange {
    /// Time when the policy came into force (ms of shard time).
    pub at_ms: i64,
    /// The policy's generation.
    pub generation: u64,
}

/// A time range in which at least one shard has no samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct HistoryGap {
    /// Start (ms of shard time).
    pub from_ms: i64,
    /// End, exclusive (ms of shard time).
    pub until_ms: i64,
}

/// The history of the fleet in a time range.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct History {
    /// Length of a step (ms).
    pub step_ms: i64,
    /// Start of the range, rounded down to a step.
    pub from_ms: i64,
    /// End of the range, exclusive: at most the end of the last step for which all shards have samples.
    pub until_ms: i64,
    /// The steps with values, the oldest first.
    pub points: Vec<HistoryPoint>,
    /// Changes of the configuration in the range, oldest first.
    pub changes: Vec<PolicyChange>,
    /// Time ranges in which a shard has no samples. The missing values are unknown, not zero.
    pub gaps: Vec<HistoryGap>,
    /// The current time (ms of shard time).
    pub now_ms: i64,
}

/// Returns the history of all shards combined.
pub async fn history(shards: &[Store], query: &HistoryQuery) -> Result<History, StoreError> {
    let step = query.step;
    let mut now_ms = 0;
    for store in shards {
        now_ms = now_ms.max(store.now_ms().await?);
    }
    let floor = |ms: i64| ms - ms.rem_euclid(step.ms());
    let end_ms = query.until_ms.map_or(now_ms, |until_ms| until_ms.clamp(0, now_ms));
    let default_ms = match step {
        HistoryStep::Minute => 60 * step.ms(),
        HistoryStep::Hour => 7 * 24 * step.ms(),
    };
    let from_ms = floor(query.from_ms.unwrap_or(floor(end_ms) - default_ms).max(now_ms - step.kept_ms()));
    let mut found = Vec::with_capacity(shards.len());
    for store in shards {
        found.push(store.history(step, from_ms, floor(end_ms)).await?);
    }
    Ok(join(&found, step, from_ms, floor(end_ms), now_ms))
}

fn join(shards: &[ShardHistory], step: HistoryStep, from_ms: i64, mut until_ms: i64, now_ms: i64) -> History {
    let floor = |ms: i64| ms - ms.rem_euclid(step.ms());
    // The last minute is sampled a few seconds after its end. Until then, the missing sample is not a gap.
    for sampled_ms in shards.iter().filter_map(|shard| shard.sampled_upto_ms) {
        if sampled_ms < until_ms && sampled_ms >= now_ms - now_ms.rem_euclid(MINUTE_MS) - MINUTE_MS {
            until_ms = floor(sampled_ms);
        }
    }
    let mut history =
        History { step_ms: step.ms(), from_ms, until_ms, points: vec![], changes: vec![], gaps: vec![], now_ms };
    let mut at_ms = from_ms;
    while at_ms < until_ms {
        let of_shards: Vec<Option<&Point>> = shards.iter().map(|shard| shard.points.get(&at_ms)).collect();
        history.points.extend(point(at_ms, &of_shards));
        if of_shards.iter().any(|point| point.is_none_or(|point| point.waiting.is_none())) {
            match history.gaps.last_mut() {
                Some(gap) if gap.until_ms == at_ms => gap.until_ms += step.ms(),
                _ => history.gaps.push(HistoryGap { from_ms: at_ms, until_ms: at_ms + step.ms() }),
            }
        }
        at_ms += step.ms();
    }
    history.changes = changes(shards, from_ms, until_ms);
    history
}

fn point(at_ms: i64, shards: &[Option<&Point>]) -> Option<HistoryPoint> {
    let known = || shards.iter().flatten();
    known().next()?;
    let calls = |of: fn(&Point) -> u64| known().map(|point| of(point)).sum();
    let sample = |of: fn(&Point) -> Option<u64>| shards.iter().map(|point| of((*point)?)).sum();
    Some(HistoryPoint {
        at_ms,
        ok: calls(|point| point.calls.ok),
        failed: calls(|point| point.calls.failed),
        refused: calls(|point| point.calls.refused),
        unknown: calls(|point| point.calls.unknown),
        turns: sample(|point| point.turns),
        waiting: sample(|point| point.waiting),
        running: sample(|point| point.running),
    })
}

fn changes(shards: &[ShardHistory], from_ms: i64, until_ms: i64) -> Vec<PolicyChange> {
    let mut generations: Vec<u64> = shards.iter().flat_map(|shard| shard.generations.iter().copied()).collect();
    generations.sort_unstable();
    let mut changes: Vec<PolicyChange> = Vec::new();
    for generation in generations {
        // The number of a generation is the time (ms) when its policy came into force.
        let at_ms = i64::try_from(generation).unwrap_or(i64::MAX);
        if changes.last().is_none_or(|last| at_ms - last.at_ms >= ONE_CHANGE_MS) {
            changes.push(PolicyChange { at_ms, generation });
        }
    }
    changes.retain(|change| (from_ms..until_ms).contains(&change.at_ms));
    changes
}

#[cfg(test)]
mod tests {
    use tickfleet_store::EndedCalls;

    use super::*;

    fn shard(points: &[(i64, Option<u64>)], sampled_upto: i64, generations: &[u64]) -> ShardHistory {
        let point = |(minute, waiting): &(i64, Option<u64>)| {
            let calls = EndedCalls { ok: 2, ..EndedCalls::default() };
            (minute * MINUTE_MS, Point { calls, turns: *waiting, waiting: *waiting, running: *waiting })
        };
        ShardHistory {
            points: points.iter().map(point).collect(),
            sampled_upto_ms: Some(sampled_upto * MINUTE_MS),
            generations: generations.to_vec(),
            now_ms: 0,
        }
    }

    #[test]
    fn points_of_shards_are_summed_and_incomplete_minutes_are_gaps() {
        let one = shard(&[(10, Some(1)), (11, Some(1)), (12, None), (14, Some(1))], 15, &[600_000, 700_000]);
        let two = shard(&[(10, Some(2)), (12, Some(2)), (14, Some(2))], 15, &[600_900]);
        let now_ms = 15 * MINUTE_MS + 5;
        let history = join(&[one, two], HistoryStep::Minute, 10 * MINUTE_MS, 15 * MINUTE_MS, now_ms);
        let points: Vec<_> =
            history.points.iter().map(|point| (point.at_ms / MINUTE_MS, point.ok, point.waiting)).collect();
        assert_eq!(points, [(10, 4, Some(3)), (11, 2, None), (12, 4, None), (14, 4, Some(3))]);
        assert_eq!(history.gaps, [HistoryGap { from_ms: 11 * MINUTE_MS, until_ms: 14 * MINUTE_MS }]);
        let changes: Vec<u64> = history.changes.iter().map(|change| change.generation).collect();
        assert_eq!(changes, [600_000, 700_000], "both shards applied the first one");
    }

    #[test]
    fn the_range_ends_before_a_minute_that_waits_for_its_sample() {
        let ends = |sampled_upto, now_ms| {
            let shard = shard(&[], sampled_upto, &[]);
            join(&[shard], HistoryStep::Minute, 10 * MINUTE_MS, 15 * MINUTE_MS, now_ms).until_ms / MINUTE_MS
        };
        assert_eq!(ends(14, 15 * MINUTE_MS + 200), 14);
        assert_eq!(ends(13, 15 * MINUTE_MS + 200), 15, "the scheduler is late: a gap");
        assert_eq!(ends(14, 90 * MINUTE_MS), 15, "an old range");
    }
}
