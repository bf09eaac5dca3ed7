//! Accepted turns and tasks without a record: no scheduler has admitted or rejected them yet.

use tickfleet_model::AgentId;
use tickfleet_protocol::{TaskMessage, parse_task_message, parse_turn};
use tickfleet_store::{Inbound, Store, StoreError, TurnName, UndecidedMessage};

/// A turn or task that waits for a scheduler.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndecidedTurn {
    /// `None` if the message cannot be read now.
    pub agent: Option<AgentId>,
}

pub(super) async fn undecided(store: &Store, name: &TurnName) -> Result<Option<UndecidedTurn>, StoreError> {
    if let Some(waits) = store.undecided(name).await? {
        return Ok(agent(&waits, name).map(|agent| UndecidedTurn { agent: Some(agent) }));
    }
    // The search above misses a message while its entry is moved.
    Ok(store.waits_for_admission(name).await?.then_some(UndecidedTurn { agent: None }))
}

/// `None` for a message of another tenant. Turns of two tenants can have the same ID if the IDs were derived from
/// stream entries.
fn agent(waits: &UndecidedMessage, name: &TurnName) -> Option<AgentId> {
    let raw = waits.message.as_bytes();
    let (tenant, given, agent) = match waits.from {
        Inbound::Turns => {
            let turn = parse_turn(raw).ok()?;
            (turn.tenant, turn.id, turn.agent)
        }
        Inbound::Tasks => {
            let TaskMessage::Delegate(task) = parse_task_message(raw).ok()? else { return None };
            (task.tenant, task.id.map(Into::into), task.target)
        }
    };
    let is_it = given.map_or(waits.is_minted, |given| given == name.turn);
    (tenant == name.tenant && is_it).then_some(agent)
}
