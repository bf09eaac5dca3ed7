//! What was taken in, and nobody has decided about so far: there is no record of it yet.

use tickfleet_model::AgentId;
use tickfleet_protocol::{TaskMessage, parse_task_message, parse_turn};
use tickfleet_store::{Inbound, Store, StoreError, TurnName, UndecidedMessage};

/// A turn or task that waits for its decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Undecided {
    /// The agent that its message names; none where the message is not known.
    pub agent: Option<AgentId>,
}

pub(super) async fn undecided(store: &Store, name: &TurnName) -> Result<Option<Undecided>, StoreError> {
    if let Some(waits) = store.undecided(name).await? {
        return Ok(agent(&waits, name).map(|agent| Undecided { agent: Some(agent) }));
    }
    // Its entry is moved just now.
    Ok(store.waits_for_admission(name).await?.then_some(Undecided { agent: None }))
}

/// The agent that a message names, where it is this turn's or task's: what is minted from an entry may be another tenant's.
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
