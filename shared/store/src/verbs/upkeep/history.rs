//! Figures of the fleet over time, see [`tickfleet_core::audit::history`].

use std::collections::BTreeMap;
use std::ops::Bound;

use tickfleet_core::audit::history::{EndedCalls, HistoryStep, MINUTE_MS, Point, Points, Sample, Sampled, key};
use tickfleet_core::{EntryId, Query, RecordKey, keys};
use tickfleet_model::TenantId;
use tickfleet_protocol::AuditEntry;

use crate::reads::{entry_ms, stored};
use crate::seam::inspect::{Entry, Range};
use crate::{Store, StoreError};

const PAGE: usize = 500;
/// Redis takes about 30 ms to read this many entries. The outcomes of further entries are estimated from a sample.
const READ_MAX: usize = 20_000;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardHistory {
    /// By the start of each step (ms of shard time).
    pub points: BTreeMap<i64, Point>,
    /// The end of the last minute with a sample (shard time); `None` without a sample.
    pub sampled_upto_ms: Option<i64>,
    /// The policies that came into force. Each number is also the time of the change (ms of shard time).
    pub generations: Vec<u64>,
    pub now_ms: i64,
}

struct Counted {
    upto: Option<EntryId>,
    entries: u64,
    ended: BTreeMap<i64, EndedCalls>,
}

impl Store {
    /// At most one sample for each minute. The first sample of a shard only stores the position in the audit log.
    /// Returns false if it stored no sample. A repeated call does not count twice.
    pub async fn sample_history(&self, tenants: &[TenantId]) -> Result<bool, StoreError> {
        let minute = self.now_ms().await?.div_euclid(MINUTE_MS) - 1;
        let last = self.record_of::<Sampled>(&key()).await?.map(|stored| stored.value);
        if last.as_ref().is_some_and(|last| last.minute >= minute) {
            return Ok(false);
        }
        let backlog = self.backlog(tenants, &[]).await?;
        let inbound = self.seam().queue_states(&[keys::turns(), keys::tasks()]).await?;
        let generation = self.seam().shard_stats().await?.shard.policy;
        let counted = self.count_ended(last.as_ref()).await?;
        let waiting = [backlog.inbound, backlog.tasks, backlog.ready, backlog.suspect];
        let parked = [backlog.parked, backlog.delayed, backlog.approval];
        let sample = Sample {
            minute,
            before: last.and_then(|last| last.upto),
            upto: counted.upto,
            entries: counted.entries,
            turns: inbound.iter().map(|queue| queue.added).sum(),
            waiting: waiting.into_iter().chain(parked).sum(),
            running: backlog.running,
            generation,
            ended: counted.ended,
        };
        Ok(self.decide(sample).await?.result)
    }

    async fn count_ended(&self, last: Option<&Sampled>) -> Result<Counted, StoreError> {
        let before = last.and_then(|last| last.upto.clone());
        let mut range = Range { from: before.map_or(Bound::Unbounded, Bound::Excluded), ..Range::newest(PAGE) };
        let (mut page, state) = self.seam().page(&keys::audit(), &range).await?;
        let mut counted = Counted { upto: state.last, entries: state.added, ended: BTreeMap::new() };
        let Some(last) = last else { return Ok(counted) };
        let mut read = 0;
        loop {
            read += page.len();
            page.iter().for_each(|entry| counted.add(entry));
            let Some((oldest, _)) = page.last().filter(|_| page.len() == PAGE && read < READ_MAX) else { break };
            range.upto = Bound::Excluded(oldest.clone());
            page = self.seam().entries(&keys::audit(), &range).await?;
        }
        let unread = counted.entries.saturating_sub(last.entries).saturating_sub(read as u64);
        counted.estimate(unread, read as u64);
        Ok(counted)
    }

    /// `until_ms` is exclusive.
    pub async fn history(&self, step: HistoryStep, from_ms: i64, until_ms: i64) -> Result<ShardHistory, StoreError> {
        let mut history = ShardHistory { now_ms: self.now_ms().await?, ..ShardHistory::default() };
        let last = self.record_of::<Sampled>(&key()).await?.map(|stored| stored.value);
        history.sampled_upto_ms = last.as_ref().map(|last| (last.minute + 1) * MINUTE_MS);
        history.generations = last.map(|last| last.generations).unwrap_or_default();
        let from_ms = from_ms.max(history.now_ms - step.kept_ms() - step.ms());
        let until_ms = until_ms.min(history.now_ms + step.ms());
        let first = from_ms.div_euclid(step.record_ms());
        let last = (until_ms - 1).div_euclid(step.record_ms());
        let starts: Vec<i64> = (first..=last).map(|number| number * step.record_ms()).collect();
        let records: Vec<RecordKey> = starts.iter().map(|start| step.place(*start).0).collect();
        let queries: Vec<Query> = records.iter().cloned().map(Query::Record).collect();
        for ((start_ms, record), value) in starts.iter().zip(&records).zip(self.values(&queries).await?) {
            let points = stored::<Points>(record, Some(value))?.map(|stored| stored.value).unwrap_or_default();
            let points = points.0.into_iter().map(|(number, point)| (start_ms + i64::from(number) * step.ms(), point));
            history.points.extend(points.filter(|(at_ms, _)| (from_ms..until_ms).contains(at_ms)));
        }
        Ok(history)
    }
}

impl Counted {
    fn add(&mut self, (id, fields): &Entry) {
        let text =
            fields.iter().find(|(name, _)| &**name == "audit").and_then(|(_, text)| std::str::from_utf8(text).ok());
        let outcome = text.and_then(AuditEntry::read_call).and_then(|entry| entry.meta.outcome);
        let minute = entry_ms(id.as_str()).map_or(0, |at_ms| at_ms.div_euclid(MINUTE_MS));
        if let Some(outcome) = outcome {
            self.ended.entry(minute).or_default().count(outcome);
        }
    }

    /// Estimates the outcomes of `unread` entries in proportion to the calls in the `read` entries.
    fn estimate(&mut self, unread: u64, read: u64) {
        let mut found = EndedCalls::default();
        self.ended.values().for_each(|calls| found.add(calls));
        let estimated = found.scaled(unread, read);
        if estimated != EndedCalls::default() {
            self.ended.entry(i64::MAX).or_default().add(&estimated);
        }
    }
}
