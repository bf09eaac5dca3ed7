use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use tickfleet_core::call::progress::CallProgress;
use tickfleet_core::turn::end::parts;
use tickfleet_core::turn::reject::absent_tenant;
use tickfleet_core::turn::slice::fields;
use tickfleet_core::turn::state::Finished;
use tickfleet_core::turn::{Cancellation, State, Turn};
use tickfleet_core::{EntryId, Query, RecordKey, Stored, Value, keys};
use tickfleet_model::{AgentId, Call, TaskGrant, TenantId};

use super::{score, text};
use crate::{Store, StoreError, TurnName};

const KEYS_PER_STEP: usize = 128;

#[derive(Debug, Clone)]
pub struct LiveTurn {
    pub turn: Turn,
    pub canceled: Option<String>,
    /// Set while the slice waits on a queue or a consumer runs it.
    pub entry: Option<EntryId>,
    /// The known calls as JSON, by position.
    pub calls: Vec<Option<String>>,
    /// JSON, in the order of the calls.
    pub results: Vec<String>,
    /// In shard time.
    pub timer_ms: Option<i64>,
    /// When the turn's throttle queue is evaluated next, in shard time; `None` if the turn is in no throttle queue.
    pub throttle_due_ms: Option<i64>,
    pub holder: Option<String>,
    /// Time since the consumer took the slice.
    pub held_ms: Option<i64>,
    pub progress: Option<CallProgress>,
}

impl LiveTurn {
    #[must_use]
    pub fn next_call(&self) -> Option<&str> {
        self.calls.get(self.turn.position)?.as_deref()
    }

    #[must_use]
    pub fn first_call(&self) -> Option<&str> {
        self.calls.first()?.as_deref()
    }

    #[must_use]
    pub fn remaining_tools(&self) -> BTreeSet<String> {
        let calls = self.calls.iter().skip(self.turn.position).flatten();
        calls.filter_map(|call| serde_json::from_str::<Call>(call).ok()).map(|call| call.tool).collect()
    }

    /// For display. Does not distinguish the separate queue for redelivery after a crash.
    #[must_use]
    pub fn queue(&self, tenant: &TenantId) -> String {
        match self.turn.destination {
            tickfleet_core::turn::Destination::Workers(priority) => keys::ready(priority).to_string(),
            tickfleet_core::turn::Destination::External { .. } => self.turn.queue(tenant).to_string(),
        }
    }
}

#[derive(Debug, Clone)]
pub enum TurnView {
    Live(Box<LiveTurn>),
    Finished(Box<Finished>),
    /// Never admitted, or the record has expired.
    Unknown,
}

impl Store {
    pub async fn turn_view(&self, name: &TurnName) -> Result<TurnView, StoreError> {
        let mut view = self.record(name).await?;
        if let TurnView::Live(live) = &mut view {
            self.complete_view(name, live).await?;
        }
        Ok(view)
    }

    /// Takes one round trip. Does not read the holder, the calls of the dispatched slice, and the throttle queue.
    pub async fn record(&self, name: &TurnName) -> Result<TurnView, StoreError> {
        let record = name.record();
        let finished = name.finished();
        // Read the finished record last, so that a turn that ends between these reads is found.
        let queries = [
            Query::Record(record.clone()),
            Query::AllParts(record.clone()),
            Query::Score(keys::timers(), name.timer().into()),
            Query::Record(name.cancellation()),
            Query::Record(finished.clone()),
        ];
        let mut found = self.values(&queries).await?;
        let live = found.next();
        let parts = found.next();
        let timer = found.next();
        let cancellation = found.next();
        let done = found.next();
        if let Some(done) = super::stored::<Finished>(&finished, done)? {
            return Ok(TurnView::Finished(Box::new(done.value)));
        }
        let Some(stored) = read_turn(&record, live)? else { return Ok(TurnView::Unknown) };
        let cancellation: Option<Stored<Cancellation>> = super::stored(&name.cancellation(), cancellation)?;
        let asked = cancellation.filter(|one| one.value.is_of(&stored.value)).map(|one| one.value.reason);
        let parts = if let Some(Value::AllParts(parts)) = parts { parts } else { Vec::new() };
        let part = |name: &str| {
            let at = parts.binary_search_by(|(known, _)| (**known).cmp(name)).ok()?;
            parts.get(at).map(|(_, part)| text(part))
        };
        let calls = (0..stored.value.head.calls).map(|position| part(&parts::call(position))).collect();
        let results = (0..stored.value.position).map_while(|position| part(&parts::result(position))).collect();
        let progress = part(&parts::progress()).and_then(|part| CallProgress::parse(part.as_bytes()));
        Ok(TurnView::Live(Box::new(LiveTurn {
            progress: progress.filter(|progress| progress.position >= stored.value.position),
            canceled: stored.value.canceled.clone().or(asked),
            entry: stored.in_flight_entry().cloned(),
            turn: stored.value,
            calls,
            results,
            timer_ms: score(timer),
            throttle_due_ms: None,
            holder: None,
            held_ms: None,
        })))
    }

    async fn complete_view(&self, name: &TurnName, live: &mut LiveTurn) -> Result<(), StoreError> {
        if let State::Throttled { counter, .. } = &live.turn.state {
            let timer = Query::Score(keys::timers(), keys::throttle_timer(counter).into());
            live.throttle_due_ms = score(Some(self.query(timer).await?));
        }
        let (Some(entry), Some(upto)) = (live.entry.clone(), live.turn.state.in_flight_upto()) else { return Ok(()) };
        let queue = live.turn.queue(&name.tenant);
        if let Some((consumer, held_ms)) = self.seam().holder(&queue, &entry).await? {
            (live.holder, live.held_ms) = (Some(consumer.to_string()), Some(held_ms));
        }
        if let Value::Entry(Some(fields)) = self.query(Query::Entry(queue, entry)).await? {
            // Count backward, because the first calls of the slice may have results and be missing in the entry.
            let in_slice: Vec<&Bytes> = calls_of(&fields).collect();
            for (back, call) in in_slice.into_iter().rev().enumerate() {
                let slot = upto.checked_sub(back + 1).and_then(|at| live.calls.get_mut(at));
                if let Some(slot) = slot {
                    *slot = Some(text(call));
                }
            }
        }
        Ok(())
    }

    /// The deadline is in shard time.
    pub async fn task_grant(&self, task: &TurnName) -> Result<Option<(AgentId, TaskGrant, i64)>, StoreError> {
        let Some(stored) = self.record_of::<Turn>(&task.record()).await? else { return Ok(None) };
        let Turn { head, task, .. } = stored.value;
        Ok(task.and_then(|_| Some((head.agent, head.task?.1, head.deadline_ms))))
    }

    pub async fn canceled_because(&self, name: &TurnName) -> Result<Option<String>, StoreError> {
        let Some(stored) = self.record_of::<Turn>(&name.record()).await? else { return Ok(None) };
        let cancellation = self.record_of::<Cancellation>(&name.cancellation()).await?;
        let asked = cancellation.filter(|one| one.value.is_of(&stored.value)).map(|one| one.value.reason);
        Ok(stored.value.canceled.or(asked))
    }

    /// True if a message named a tenant without configuration within the last minute. Such a tenant has no inbox for
    /// the rejection.
    pub async fn is_absent(&self, tenant: &TenantId) -> Result<bool, StoreError> {
        Ok(self.record_of::<tickfleet_core::record::Present>(&absent_tenant(tenant)).await?.is_some())
    }

    pub async fn scan_turns(&self, tenant: Option<&TenantId>, cursor: u64) -> Result<(u64, Vec<TurnName>), StoreError> {
        let prefix = tenant.map_or_else(|| "turn:".to_owned(), |tenant| format!("turn:{tenant}:"));
        let (records, next) = self.seam().scan(&prefix, cursor, KEYS_PER_STEP).await?;
        let named = |record: &RecordKey| TurnName::parse(record.as_str().strip_prefix("turn:")?);
        Ok((next, records.iter().filter_map(named).collect()))
    }
}

/// Copies the counters that the store added to the record at the last admission.
pub(super) fn read_turn(key: &RecordKey, value: Option<Value>) -> Result<Option<Stored<Turn>>, StoreError> {
    let mut stored: Option<Stored<Turn>> = super::stored(key, value)?;
    if let Some(stored) = &mut stored
        && !stored.debits.is_empty()
    {
        let debits = tickfleet_core::record::Debited::render_all(&stored.debits);
        stored.value.note_debited(Some(&debits));
    }
    Ok(stored)
}

fn calls_of(fields: &[(Arc<str>, Bytes)]) -> impl Iterator<Item = &Bytes> {
    fields.iter().filter(|(name, _)| &**name == fields::CALL).map(|(_, call)| call)
}
