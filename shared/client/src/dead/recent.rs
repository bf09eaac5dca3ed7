//! Collects the calls and tasks that failed in the last hour. Each poll reads only the new entries of the audit log.

use std::collections::{BTreeMap, VecDeque};

use tickfleet_store::{LogEntry, Store, StoreError};

use super::DeadEntry;
use super::list::call;

const WINDOW_MS: i64 = 3_600_000;
const PAGE: usize = 500;
/// In pages, in the first poll of a shard.
const FIRST_READS_MAX: usize = 10;
/// In pages, in each later poll of a shard. A poll that finds more pages skips to the newest page.
const READS_MAX: usize = 2;
/// Per shard.
const FAILURES_MAX: usize = 2_000;
/// Per shard: failures for which a replay or drop is looked up.
const CHECKED_MAX: usize = 200;

/// Collects the failures of the last hour.
#[derive(Debug, Default)]
pub struct RecentFailures {
    shards: BTreeMap<u32, ShardFailures>,
}

#[derive(Debug, Default)]
struct ShardFailures {
    last: Option<String>,
    found: VecDeque<DeadEntry>,
    /// Until this shard time, the last hour may contain entries that were not read.
    partial_until_ms: i64,
}

/// The result of a poll.
#[derive(Debug, Clone, Default)]
pub struct FailuresSeen {
    /// The failures of the last hour, the oldest first. Includes items that an operator has replayed or dropped.
    pub failures: Vec<DeadEntry>,
    /// The calls with an unknown outcome that no operator has replayed or dropped.
    pub unknown: Vec<DeadEntry>,
    /// True if the log has entries of the last hour that were not read.
    pub is_partial: bool,
}

impl RecentFailures {
    /// Reads the new entries of a shard. `now_ms` is the shard's time.
    pub async fn poll(&mut self, store: &Store, now_ms: i64) -> Result<FailuresSeen, StoreError> {
        let shard = self.shards.entry(store.shard()).or_default();
        let from_ms = now_ms - WINDOW_MS;
        match shard.last.clone() {
            None => shard.read_back(store, from_ms, now_ms).await?,
            Some(last) => shard.read_on(store, &last, now_ms).await?,
        }
        shard.found.retain(|dead| dead.at_ms >= from_ms);
        let surplus = shard.found.len().saturating_sub(FAILURES_MAX);
        if surplus > 0 {
            shard.found.drain(..surplus);
            shard.partial_until_ms = now_ms + WINDOW_MS;
        }
        let unknown: Vec<&DeadEntry> =
            shard.found.iter().rev().filter(|dead| dead.is_unknown_outcome()).take(CHECKED_MAX).collect();
        let entries: Vec<&str> = unknown.iter().map(|dead| dead.id.entry.as_str()).collect();
        let handled = store.are_handled(&entries).await?;
        let open = unknown.into_iter().zip(handled).filter(|(_, is_handled)| !is_handled);
        Ok(FailuresSeen {
            unknown: open.map(|(dead, _)| dead.clone()).collect(),
            failures: shard.found.iter().cloned().collect(),
            is_partial: now_ms < shard.partial_until_ms,
        })
    }
}

impl ShardFailures {
    async fn read_back(&mut self, store: &Store, from_ms: i64, now_ms: i64) -> Result<(), StoreError> {
        let from = from_ms.max(0).to_string();
        let mut until = "+".to_owned();
        // The hour is partial until all its pages are read. After a failed read, it stays partial, because the next
        // poll skips the unread pages.
        self.partial_until_ms = now_ms + WINDOW_MS;
        for _ in 0..FIRST_READS_MAX {
            let page = store.log_entries_back(&until, &from, PAGE).await?;
            self.last = self.last.take().or_else(|| page.first().map(|newest| newest.id.clone()));
            for entry in &page {
                if let Some(whole) = call(store.shard(), entry, None) {
                    self.found.push_front(whole.dead);
                }
            }
            let Some(oldest) = page.last().filter(|_| page.len() == PAGE) else {
                // If the hour has no entry, `last` stays `None`, so the next poll reads the hour again.
                self.partial_until_ms = 0;
                return Ok(());
            };
            until = format!("({}", oldest.id);
        }
        Ok(())
    }

    /// If there are too many entries, skips some and continues with the newest.
    async fn read_on(&mut self, store: &Store, last: &str, now_ms: i64) -> Result<(), StoreError> {
        let mut last = last.to_owned();
        for _ in 0..READS_MAX {
            let page = store.log_entries(&format!("({last}"), "+", PAGE).await?;
            self.add(store.shard(), &page);
            last = self.last.clone().unwrap_or_default();
            if page.len() < PAGE {
                return Ok(());
            }
        }
        let mut newest = store.log_entries_back("+", &format!("({last}"), PAGE).await?;
        newest.reverse();
        if newest.len() == PAGE {
            self.partial_until_ms = now_ms + WINDOW_MS;
        }
        self.add(store.shard(), &newest);
        Ok(())
    }

    fn add(&mut self, shard: u32, page: &[LogEntry]) {
        self.found.extend(page.iter().filter_map(|entry| Some(call(shard, entry, None)?.dead)));
        self.last = page.last().map(|newest| newest.id.clone()).or_else(|| self.last.take());
    }
}
