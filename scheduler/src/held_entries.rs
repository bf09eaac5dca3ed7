use tickfleet_core::recovery::reap::HeldEntry;
use tickfleet_core::{Query, StreamKey, Value};
use tickfleet_store::{Store, StoreError};

/// Returns entries that were delivered to the consumer, but are not acknowledged yet. At most `count` per queue.
pub(crate) async fn held_entries(
    store: &Store,
    queues: &[StreamKey],
    consumer: &str,
    count: usize,
) -> Result<Vec<HeldEntry>, StoreError> {
    let holds = |stream: &StreamKey| Query::Holds { stream: stream.clone(), consumer: consumer.into(), count };
    let values = store.seam().read(&queues.iter().map(holds).collect::<Vec<_>>()).await?;
    let mut found = Vec::new();
    for (queue, value) in queues.iter().zip(values) {
        let Value::Holds(entries) = value else { continue };
        found.extend(entries.into_iter().map(|entry| (queue.clone(), entry)));
    }
    if found.is_empty() {
        return Ok(Vec::new());
    }
    let queries: Vec<Query> = found.iter().map(|(queue, entry)| Query::Entry(queue.clone(), entry.clone())).collect();
    let fields = store.seam().read(&queries).await?;
    let entries = found.into_iter().zip(fields).map(|((queue, entry), value)| {
        let fields = if let Value::Entry(Some(fields)) = value { fields } else { Vec::new() };
        HeldEntry { queue, entry, fields }
    });
    Ok(entries.collect())
}
