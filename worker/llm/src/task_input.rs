//! Inputs from outside a task. The history stores them before the model reads them, so that retries send the same text.

use serde::{Deserialize, Serialize};
use tickfleet_client::session::{ExchangeRef, store_answer};
use tickfleet_store::{Store, StoreError};
use tickfleet_tools::CallContext;

use crate::history::HistoryEntry;

const MESSAGES: usize = 10;

/// The tool that sends messages writes this format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct AgentMessage {
    id: String,
    from: String,
    text: String,
}

pub(crate) async fn earlier_exchanges(store: &Store, context: &CallContext) -> Result<Vec<HistoryEntry>, StoreError> {
    let before = tickfleet_client::session::earlier_exchanges(
        store,
        &context.tenant,
        &context.agent,
        context.call.turn.as_str(),
    )
    .await?;
    let exchanges = before.map(|(_, exchanges)| exchanges).unwrap_or_default();
    Ok(exchanges.into_iter().map(|spoken| HistoryEntry::Earlier { user: spoken.user, agent: spoken.agent }).collect())
}

pub(crate) async fn record_answer(store: &Store, context: &CallContext, text: &str) -> Result<(), StoreError> {
    match ExchangeRef::of_task(context.call.turn.as_str()) {
        Some(place) => store_answer(store, &context.tenant, &context.agent, &place, text).await,
        None => Ok(()),
    }
}

/// `known` is the number of entries in the history. A repeated call with the same `known` returns the same messages.
pub(crate) async fn unread_messages(
    store: &Store,
    context: &CallContext,
    known: usize,
) -> Result<Vec<HistoryEntry>, StoreError> {
    let name = format!("{}:{known}", context.call.turn);
    let unread = store.receive_messages(&context.tenant, &context.agent, &name, MESSAGES).await?;
    let read = unread.iter().filter_map(|unread| serde_json::from_slice::<AgentMessage>(&unread.text).ok());
    Ok(read
        .map(|message| HistoryEntry::AgentMessage { id: message.id, from: message.from, text: message.text })
        .collect())
}
