//! Lists the slices that workers currently run. A slice occupies one slot.

use std::sync::Arc;

use futures::future::try_join_all;
use tickfleet_core::turn::{Slice, Turn};
use tickfleet_core::{EntryId, Query, StreamKey, Value, keys};
use tickfleet_model::Priority;
use tickfleet_store::{Store, StoreError, worker_of};

/// A slice that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldSlice {
    /// The worker.
    pub worker: String,
    /// The turn or task, `tenant:id`.
    pub turn: String,
    /// The tool of the first call without a stored result, or the agent that runs the task. A later call may already
    /// run, because the result of a short call is stored together with the next result.
    pub tool: String,
    /// The tools of all calls of the slice, in order.
    pub tools: Vec<String>,
    /// The time (ms) since the worker took the slice.
    pub held_ms: i64,
}

/// Returns the slices that workers hold in a shard, the longest held first. Returns at most `most` slices per worker
/// and queue, and only those of the worker `only`, if given.
pub async fn held_slices(store: &Store, only: Option<&str>, most: usize) -> Result<Vec<HeldSlice>, StoreError> {
    let shard = store.workers().await?;
    let queues: Vec<StreamKey> =
        Priority::ALL.into_iter().map(keys::ready).chain(Priority::ALL.into_iter().map(keys::suspect)).collect();
    let mut held = Vec::new();
    for node in &shard.consumers {
        let Some(worker) = worker_of(&node.name).filter(|worker| only.is_none_or(|only| only == *worker)) else {
            continue;
        };
        let consumer: Arc<str> = node.name.as_str().into();
        let holds =
            |stream: &StreamKey| Query::Holds { stream: stream.clone(), consumer: consumer.clone(), count: most };
        let values = store.seam().read(&queues.iter().map(holds).collect::<Vec<_>>()).await?;
        for (queue, value) in queues.iter().zip(values) {
            let Value::Holds(entries) = value else { continue };
            held.extend(entries.into_iter().map(|entry| (worker, queue, entry)));
        }
    }
    let slices =
        try_join_all(held.into_iter().map(|(worker, queue, entry)| slice(store, worker, queue, entry))).await?;
    let mut slices: Vec<HeldSlice> = slices.into_iter().flatten().collect();
    slices.sort_by_key(|slice| std::cmp::Reverse(slice.held_ms));
    Ok(slices)
}

/// `None` if the slice has been finished in the meantime, or cannot be read.
async fn slice(
    store: &Store,
    worker: &str,
    queue: &StreamKey,
    entry: EntryId,
) -> Result<Option<HeldSlice>, StoreError> {
    let Some((_, held_ms)) = store.seam().holder(queue, &entry).await? else { return Ok(None) };
    let Value::Entry(Some(fields)) = store.query(Query::Entry(queue.clone(), entry.clone())).await? else {
        return Ok(None);
    };
    let Ok(slice) = Slice::read(queue.clone(), entry, &fields) else { return Ok(None) };
    let Some(now) = store.record_of::<Turn>(&slice.name.record()).await? else { return Ok(None) };
    let begun = now.value.position.saturating_sub(slice.turn.position);
    let agent = slice.turn.is_task().then(|| slice.turn.head.agent.to_string());
    let tools: Vec<String> = slice.calls.into_iter().map(|call| call.tool).collect();
    let tool = agent.or_else(|| tools.get(begun).cloned()).unwrap_or_default();
    Ok(Some(HeldSlice { worker: worker.to_owned(), turn: slice.name.to_string(), tool, tools, held_ms }))
}
