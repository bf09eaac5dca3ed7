//! The counters of limits, seen from outside, however many there are. Reads only; for `tickfleet limits`.

use std::collections::{BTreeMap, BTreeSet};

use crate::connection::pool::Pool;
use crate::keys::CounterName;
use crate::reads::diagnosis::CounterFacts;
use crate::{Keys, StoreError};

/// Counters that one command looks at: Redis answers others in between.
const PAGE: usize = 500;
/// Bytes of a counter as scripts pack it. One of another length was changed by a hand, and counts as used up.
const PACKED_BYTES: usize = 24;

/// The counters of one limit in one shard, as far as they were looked at.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SeenCounters {
    /// By name; none where what is there cannot be read, which counts as used up.
    pub counters: BTreeMap<String, Option<CounterFacts>>,
    /// Counters that there are.
    pub total: u64,
    /// True if these are all.
    pub complete: bool,
}

impl Pool {
    /// The names of the limits that have counters in a shard.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn limits(&self, keys: &Keys) -> Result<BTreeSet<String>, StoreError> {
        self.query("limits", redis::cmd("SMEMBERS").arg(keys.key("limits"))).await
    }

    /// Looks at the counters of a limit, a page at a time, until it has seen all of them or `seen_max`; a page may be some
    /// more. Of a limit of calls that are out at the same time (`is_held`), those that have places taken.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn counters(
        &self,
        keys: &Keys,
        limit: &str,
        is_held: bool,
        seen_max: usize,
    ) -> Result<SeenCounters, StoreError> {
        let key = keys.key(format_args!("counters:{limit}"));
        let total = self.query("counters", redis::cmd("HLEN").arg(&key)).await?;
        let mut seen = SeenCounters { total, ..SeenCounters::default() };
        let mut cursor = 0_u64;
        while seen.counters.len() < seen_max {
            let command = redis::cmd("HSCAN").arg(&key).arg(cursor).arg("COUNT").arg(PAGE).to_owned();
            type Page = (u64, Vec<(Vec<u8>, Vec<u8>)>);
            let (next, page): Page = self.query("counters", &command).await?;
            // A scan may show one twice.
            seen.counters.extend(page.into_iter().map(|(name, packed)| {
                let facts = (packed.len() == PACKED_BYTES).then(|| CounterFacts::unpack(&packed, 0));
                (String::from_utf8_lossy(&name).into_owned(), facts)
            }));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        seen.complete = cursor == 0;
        if is_held {
            self.count_places(keys, limit, &mut seen).await?;
        }
        Ok(seen)
    }

    /// The places that are held of these counters; those of which none is are left out.
    async fn count_places(&self, keys: &Keys, limit: &str, seen: &mut SeenCounters) -> Result<(), StoreError> {
        let names: Vec<String> = seen.counters.keys().cloned().collect();
        let before = names.len() as u64;
        for page in names.chunks(PAGE) {
            let mut pipe = redis::pipe();
            for name in page {
                pipe.cmd("ZCARD").arg(keys.key(format_args!("held:{limit}@{name}")));
            }
            let held: Vec<u64> = self.pipeline("places", &pipe).await?;
            for (name, held) in page.iter().zip(held) {
                if held == 0 {
                    seen.counters.remove(name);
                } else {
                    seen.counters.insert(name.clone(), Some(CounterFacts { held, ..CounterFacts::default() }));
                }
            }
        }
        seen.total -= before.min(seen.total) - seen.counters.len() as u64;
        Ok(())
    }

    /// The number of turns on the lane of each of these counters, in their order.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn waiting_for(&self, keys: &Keys, counters: &[CounterName]) -> Result<Vec<u64>, StoreError> {
        if counters.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        for counter in counters {
            pipe.cmd("ZCARD").arg(keys.key(format_args!("lane:{counter}")));
        }
        self.pipeline("lanes", &pipe).await
    }
}
