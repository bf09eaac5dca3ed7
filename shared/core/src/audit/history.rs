//! Figures of the fleet (calls, turns, slots) by minute and by hour. Once a minute, one scheduler of a shard takes a
//! sample.
//!
//! A sample counts the calls in the audit log since the previous sample, so each call is counted once, even if another
//! scheduler takes over.
//!
//! | Record | Holds | Kept |
//! |---|---|---|
//! | `history` | position of the last sample | 37 days after the last write |
//! | `history:minutes:<hour>` | points of the minutes of an hour | 26 hours after the last write |
//! | `history:hours:<day>` | points of the hours of a day | 37 days after the last write |

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tickfleet_model::Outcome;

use crate::decision::{Context, Decision, Step};
use crate::record::{Record, Stored};
use crate::transaction::{EntryId, RecordKey, Transaction};
use crate::view::{Query, Undecided, View};

pub const MINUTE_MS: i64 = 60_000;
pub const HOUR_MS: i64 = 60 * MINUTE_MS;
const DAY_MS: i64 = 24 * HOUR_MS;
pub const MINUTES_KEPT_MS: i64 = DAY_MS;
pub const HOURS_KEPT_MS: i64 = 35 * DAY_MS;
const CHANGES_MAX: usize = 100;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedCalls {
    pub ok: u64,
    pub failed: u64,
    pub refused: u64,
    pub unknown: u64,
}

impl EndedCalls {
    pub const fn count(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Ok => self.ok += 1,
            Outcome::OutcomeUnknown => self.unknown += 1,
            _ if outcome.has_failed_running() => self.failed += 1,
            _ => self.refused += 1,
        }
    }

    pub const fn add(&mut self, other: &Self) {
        self.ok += other.ok;
        self.failed += other.failed;
        self.refused += other.refused;
        self.unknown += other.unknown;
    }

    #[must_use]
    pub fn scaled(&self, by: u64, per: u64) -> Self {
        let scaled = |calls: u64| {
            let product = u128::from(calls) * u128::from(by) / u128::from(per.max(1));
            u64::try_from(product).unwrap_or(u64::MAX)
        };
        Self {
            ok: scaled(self.ok),
            failed: scaled(self.failed),
            refused: scaled(self.refused),
            unknown: scaled(self.unknown),
        }
    }
}

/// A figure is `None` if no sample provides it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Numbers", into = "Numbers")]
pub struct Point {
    pub calls: EndedCalls,
    pub turns: Option<u64>,
    /// For an hour, the highest number of its samples.
    pub waiting: Option<u64>,
    pub running: Option<u64>,
}

type Numbers = ([u64; 4], Option<u64>, Option<u64>, Option<u64>);

impl From<Numbers> for Point {
    fn from(([ok, failed, refused, unknown], turns, waiting, running): Numbers) -> Self {
        Self { calls: EndedCalls { ok, failed, refused, unknown }, turns, waiting, running }
    }
}

impl From<Point> for Numbers {
    fn from(Point { calls, turns, waiting, running }: Point) -> Self {
        ([calls.ok, calls.failed, calls.refused, calls.unknown], turns, waiting, running)
    }
}

impl Point {
    fn extend(&mut self, other: &Self) {
        self.calls.add(&other.calls);
        self.turns = match (self.turns, other.turns) {
            (Some(one), Some(two)) => Some(one + two),
            (one, two) => one.or(two),
        };
        self.waiting = self.waiting.max(other.waiting);
        self.running = self.running.max(other.running);
    }
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Points(pub BTreeMap<u8, Point>);

impl Record for Points {
    const SCHEMA: u32 = 1;
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    /// Minutes since 1970.
    #[serde(rename = "m")]
    pub minute: i64,
    /// `None` for an empty log.
    #[serde(rename = "to", default, skip_serializing_if = "Option::is_none")]
    pub upto: Option<EntryId>,
    /// The number of entries since the shard was created.
    #[serde(rename = "e")]
    pub entries: u64,
    /// The number of turns since the shard was created.
    #[serde(rename = "t")]
    pub turns: u64,
    /// Oldest first.
    #[serde(rename = "g", default)]
    pub generations: Vec<u64>,
}

impl Record for Sampled {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key() -> RecordKey {
    RecordKey::new("history")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HistoryStep {
    Minute,
    Hour,
}

impl HistoryStep {
    #[must_use]
    pub const fn ms(self) -> i64 {
        match self {
            Self::Minute => MINUTE_MS,
            Self::Hour => HOUR_MS,
        }
    }

    #[must_use]
    pub const fn kept_ms(self) -> i64 {
        match self {
            Self::Minute => MINUTES_KEPT_MS,
            Self::Hour => HOURS_KEPT_MS,
        }
    }

    #[must_use]
    pub const fn record_ms(self) -> i64 {
        match self {
            Self::Minute => HOUR_MS,
            Self::Hour => DAY_MS,
        }
    }

    #[must_use]
    pub fn place(self, at_ms: i64) -> (RecordKey, u8) {
        let number = at_ms.rem_euclid(self.record_ms()) / self.ms();
        let record = at_ms.div_euclid(self.record_ms());
        let name = match self {
            Self::Minute => "minutes",
            Self::Hour => "hours",
        };
        (RecordKey::new(format!("history:{name}:{record}")), u8::try_from(number).unwrap_or(u8::MAX))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The last complete minute, in minutes since 1970.
    pub minute: i64,
    pub before: Option<EntryId>,
    pub upto: Option<EntryId>,
    pub entries: u64,
    pub turns: u64,
    pub waiting: u64,
    pub running: u64,
    /// 0 if no policy is in force.
    pub generation: u64,
    pub ended: BTreeMap<i64, EndedCalls>,
}

impl Sample {
    /// An entry has the time of the store's clock, which can differ from shard time. So the entry counts in the nearest
    /// minute since the previous sample.
    fn points(&self, last: &Sampled) -> BTreeMap<i64, Point> {
        let mut points = BTreeMap::<i64, Point>::new();
        for (minute, calls) in &self.ended {
            let minute = (*minute).max(last.minute + 1).min(self.minute);
            points.entry(minute * MINUTE_MS).or_default().calls.add(calls);
        }
        let sampled = points.entry(self.minute * MINUTE_MS).or_default();
        // After a gap, the minutes of the turns are unknown, so the point gets no number of turns.
        let is_next = last.minute + 1 == self.minute;
        sampled.turns = self.turns.checked_sub(last.turns).filter(|_| is_next);
        sampled.waiting = Some(self.waiting);
        sampled.running = Some(self.running);
        points
    }
}

impl Decision for Sample {
    /// False if the minute already has a sample.
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        let (mut transaction, last) = context.update::<Sampled>(view, &key())?;
        transaction.dedupe_record = Some(key());
        let mut generations = Vec::new();
        if let Some(last) = last {
            if last.minute >= self.minute || last.upto != self.before {
                return Ok(Step::Return(false));
            }
            self.write_points(&last, view, &mut transaction)?;
            generations = last.generations;
        }
        if self.generation > 0 && generations.last() != Some(&self.generation) {
            generations.push(self.generation);
            let outdated = generations.len().saturating_sub(CHANGES_MAX);
            generations.drain(..outdated);
        }
        let Self { minute, entries, turns, .. } = *self;
        let sampled = Sampled { minute, upto: self.upto.clone(), entries, turns, generations };
        transaction.put_for(&key(), &sampled, kept_ms(HistoryStep::Hour));
        Ok(Step::Commit(transaction, true))
    }
}

const fn kept_ms(step: HistoryStep) -> i64 {
    step.kept_ms() + 2 * step.record_ms()
}

impl Sample {
    fn write_points(&self, last: &Sampled, view: &View, transaction: &mut Transaction) -> Result<(), Undecided> {
        let points = self.points(last);
        let end_ms = (self.minute + 1) * MINUTE_MS;
        let mut records = BTreeMap::<(HistoryStep, RecordKey), Vec<(u8, Point)>>::new();
        for (at_ms, point) in points {
            for step in [HistoryStep::Minute, HistoryStep::Hour] {
                if at_ms + step.kept_ms() >= end_ms {
                    let (record, number) = step.place(at_ms);
                    records.entry((step, record)).or_default().push((number, point));
                }
            }
        }
        view.need(records.keys().map(|(_, record)| Query::Record(record.clone())))?;
        for ((step, record), added) in records {
            let stored: Option<Stored<Points>> = view.record(&record)?;
            transaction.guard_read(&record, stored.as_ref());
            let mut points = stored.map(|stored| stored.value).unwrap_or_default();
            for (number, point) in added {
                points.0.entry(number).or_default().extend(&point);
            }
            transaction.put_for(&record, &points, kept_ms(step));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trial::Trial;

    fn sample(minute: i64, before: Option<&str>, upto: &str) -> Sample {
        let ok = EndedCalls { ok: 2, ..EndedCalls::default() };
        Sample {
            minute,
            before: before.map(EntryId::new),
            upto: Some(EntryId::new(upto)),
            entries: 0,
            turns: minute.unsigned_abs() * 3,
            waiting: 4,
            running: 5,
            generation: 7,
            ended: [(minute, ok)].into(),
        }
    }

    fn point(shard: &Trial, step: HistoryStep, minute: i64) -> Option<Point> {
        let (record, number) = step.place(minute * MINUTE_MS);
        shard.record::<Points>(&record)?.0.get(&number).copied()
    }

    #[test]
    fn a_sample_adds_to_its_minute_and_hour() {
        let mut shard = Trial::at(0);
        assert!(shard.run(&sample(100, None, "1-0")));
        assert_eq!(point(&shard, HistoryStep::Minute, 100), None, "the first sample only notes the position");
        assert!(shard.run(&sample(101, Some("1-0"), "2-0")));
        assert!(shard.run(&Sample { waiting: 9, ..sample(102, Some("2-0"), "3-0") }));
        let ended = |ok| EndedCalls { ok, ..EndedCalls::default() };
        let minute = Point { calls: ended(2), turns: Some(3), waiting: Some(9), running: Some(5) };
        assert_eq!(point(&shard, HistoryStep::Minute, 102), Some(minute));
        let hour = Point { calls: ended(4), turns: Some(6), waiting: Some(9), running: Some(5) };
        assert_eq!(point(&shard, HistoryStep::Hour, 102), Some(hour));
        assert_eq!(shard.record::<Sampled>(&key()).unwrap().generations, [7]);
    }

    #[test]
    fn a_minute_has_one_sample() {
        let mut shard = Trial::at(0);
        shard.receipt(&sample(100, None, "1-0"));
        let next = sample(101, Some("1-0"), "2-0");
        let decided = shard.step(&next);
        assert!(shard.run(&next));
        assert!(!shard.finish(&next, decided).result, "another scheduler has sampled it in between");
        assert!(!shard.run(&sample(102, Some("1-0"), "3-0")), "its calls are counted from an older position");
        assert_eq!(point(&shard, HistoryStep::Minute, 101).unwrap().calls.ok, 2);
    }

    #[test]
    fn after_a_gap_calls_count_in_their_own_minutes() {
        let mut shard = Trial::at(0);
        shard.receipt(&sample(100, None, "1-0"));
        let one = EndedCalls { failed: 1, ..EndedCalls::default() };
        let ended = [(7, one), (103, one), (104, one), (900, one)].into();
        assert!(shard.run(&Sample { ended, ..sample(105, Some("1-0"), "2-0") }));
        let failed = |minute| point(&shard, HistoryStep::Minute, minute).map(|point| point.calls.failed);
        assert_eq!([101, 102, 103, 104, 105].map(failed), [Some(1), None, Some(1), Some(1), Some(1)]);
        let sampled = point(&shard, HistoryStep::Minute, 105).unwrap();
        assert_eq!((sampled.turns, sampled.waiting), (None, Some(4)));
        assert_eq!(point(&shard, HistoryStep::Minute, 104).unwrap().waiting, None);
    }

    #[test]
    fn a_history_has_a_bounded_size() {
        let mut shard = Trial::at(0);
        shard.receipt(&sample(0, None, "0-0"));
        let days = (1..39 * 24).map(|hour| hour * 60_i64);
        let mut last = 0;
        for minute in days.chain((1..27 * 60).map(|minute| 39 * 24 * 60 + minute)) {
            shard.pass((minute - last) * MINUTE_MS);
            let before = format!("{last}-0");
            last = minute;
            let generation = minute.unsigned_abs();
            let full = EndedCalls { ok: 1_000_000, failed: 1_000_000, refused: 1_000_000, unknown: 1_000_000 };
            let waiting = 1_000_000;
            let sample = sample(minute, Some(&before), &format!("{minute}-0"));
            assert!(shard.run(&Sample { generation, waiting, ended: [(minute, full)].into(), ..sample }));
        }
        let bytes: usize = shard.records.iter().map(|(key, text)| key.as_str().len() + text.len()).sum();
        assert!(shard.records.len() <= 27 + 38, "{} records", shard.records.len());
        assert!(bytes < 200_000, "{bytes} bytes");
    }

    proptest! {
        #[test]
        fn each_call_counts_once(steps in prop::collection::vec((0..4i64, 0..5u64, any::<bool>()), 1..40)) {
            let mut shard = Trial::at(0);
            let mut decided = None;
            let mut first = None;
            let (mut minute, mut calls) = (100, 0);
            for (passed, ended, late) in steps {
                minute += passed;
                calls += ended;
                let last = shard.record::<Sampled>(&key());
                let before = last.as_ref().and_then(|last| last.upto.clone());
                let ok = last.as_ref().map_or(0, |last| calls - last.entries);
                let ended = [(minute, EndedCalls { ok, ..EndedCalls::default() })].into();
                let upto = Some(EntryId::new(format!("{calls}-0")));
                let next = Sample { before, upto, entries: calls, ended, ..sample(minute, None, "") };
                if late {
                    decided = Some((shard.step(&next), next));
                    continue;
                }
                shard.receipt(&next);
                first = first.or_else(|| shard.record::<Sampled>(&key()).map(|sampled| sampled.entries));
                if let Some((old, next)) = decided.take() {
                    shard.finish(&next, old);
                }
            }
            let minutes = shard.records.keys().filter(|key| key.as_str().starts_with("history:minutes:"));
            let points = minutes.filter_map(|key| shard.record::<Points>(key)).flat_map(|points| points.0.into_values());
            let counted: u64 = points.map(|point| point.calls.ok).sum();
            let last = shard.record::<Sampled>(&key()).map_or(0, |last| last.entries);
            prop_assert_eq!(counted, last - first.unwrap_or(last));
        }
    }
}
