//! What comes to a task from outside while it is under way: what its session said before, and messages of other agents.
//! Both are written into its history before the model reads them, so that whoever takes the task over tells the same.

use serde::{Deserialize, Serialize};
use tickfleet_client::session::{ExchangeRef, earlier_exchanges, store_answer};
use tickfleet_store::{Store, StoreError};
use tickfleet_tools::CallContext;

use crate::history::Entry;

/// Messages that one step of a task is given.
const MESSAGES: usize = 10;

/// A message from agent to agent, as it is kept. The tool that sends it writes the same.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Message {
    /// Unique: it holds the key of the call that sent it.
    id: String,
    /// Who sent it.
    from: String,
    /// Its words.
    text: String,
}

/// What was said in the task's session before it; nothing where it has none.
pub(crate) async fn said(store: &Store, context: &CallContext) -> Result<Vec<Entry>, StoreError> {
    let before = earlier_exchanges(store, &context.tenant, &context.agent, context.call.turn.as_str()).await?;
    let exchanges = before.map(|(_, exchanges)| exchanges).unwrap_or_default();
    Ok(exchanges.into_iter().map(|spoken| Entry::Earlier { user: spoken.user, agent: spoken.agent }).collect())
}

/// Writes the answer into the task's session, where it has one.
pub(crate) async fn answer(store: &Store, context: &CallContext, text: &str) -> Result<(), StoreError> {
    match ExchangeRef::of_task(context.call.turn.as_str()) {
        Some(place) => store_answer(store, &context.tenant, &context.agent, &place, text).await,
        None => Ok(()),
    }
}

/// The messages that its agent has not read. `known` entries of its history are there: asked again at the same place, the
/// same messages are answered.
pub(crate) async fn heard(store: &Store, context: &CallContext, known: usize) -> Result<Vec<Entry>, StoreError> {
    let name = format!("{}:{known}", context.call.turn);
    let heard = store.receive_messages(&context.tenant, &context.agent, &name, MESSAGES).await?;
    let read = heard.iter().filter_map(|heard| serde_json::from_slice::<Message>(&heard.text).ok());
    Ok(read.map(|message| Entry::Heard { id: message.id, from: message.from, text: message.text }).collect())
}
