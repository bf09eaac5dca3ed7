//! The slices that consumers run now.

use futures::future::try_join_all;
use tickfleet_core::turn::Turn;
use tickfleet_core::turn::slice::Slice;
use tickfleet_core::{Query, Stored, StreamKey, Value};

use super::worker_queues;
use crate::{Store, StoreError, TurnName};

/// A slice that a worker runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningSlice {
    pub turn: TurnName,
    /// The tool of the call that runs, or that runs next.
    pub tool: String,
    /// When the worker took the slice (ms of shard time).
    pub since_ms: i64,
}

impl Store {
    /// The slices that these consumers hold, the oldest first. At most `count`.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn running_slices(&self, consumers: &[&str], count: usize) -> Result<Vec<RunningSlice>, StoreError> {
        let queues: Vec<StreamKey> = worker_queues().collect();
        let places: Vec<_> =
            consumers.iter().flat_map(|consumer| queues.iter().map(move |queue| (consumer, queue))).collect();
        let holds = |(consumer, queue): &(&&str, &StreamKey)| Query::Holds {
            stream: (*queue).clone(),
            consumer: (**consumer).into(),
            count,
        };
        let held = self.values(&places.iter().map(holds).collect::<Vec<_>>()).await?;
        let mut entries = Vec::new();
        for ((_, queue), value) in places.iter().zip(held) {
            if let Value::Holds(found) = value {
                entries.extend(found.into_iter().map(|entry| ((*queue).clone(), entry)));
            }
        }
        entries.truncate(count);
        let now_ms = self.now_ms().await?;
        let holders = try_join_all(entries.iter().map(|(queue, entry)| self.seam().holder(queue, entry))).await?;
        let queries: Vec<Query> =
            entries.iter().map(|(queue, entry)| Query::Entry(queue.clone(), entry.clone())).collect();
        let fields = self.values(&queries).await?;
        let mut slices = Vec::new();
        for (((queue, entry), holder), value) in entries.into_iter().zip(holders).zip(fields) {
            let (Some((_, held_ms)), Value::Entry(Some(fields))) = (holder, value) else { continue };
            // An unreadable slice affects only its own line.
            let Ok(slice) = Slice::read(queue, entry, &fields) else { continue };
            slices.push((slice, now_ms - held_ms));
        }
        let queries: Vec<Query> = slices.iter().map(|(slice, _)| Query::Record(slice.name.record())).collect();
        let records = self.values(&queries).await?;
        let mut running = Vec::new();
        for ((slice, since_ms), value) in slices.into_iter().zip(records) {
            let turn: Option<Stored<Turn>> = super::stored(&slice.name.record(), Some(value)).unwrap_or_default();
            let done = turn.map_or(0, |turn| turn.value.position.saturating_sub(slice.turn.position));
            let call = slice.calls.get(done).or(slice.calls.last());
            let tool = call.map(|call| call.tool.clone()).unwrap_or_default();
            running.push(RunningSlice { turn: slice.name, tool, since_ms });
        }
        running.sort_by_key(|slice| slice.since_ms);
        Ok(running)
    }
}
