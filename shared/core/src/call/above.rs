//! Detects a call that waits for the end of a turn, directly or through other turns and tasks.

use tickfleet_model::TurnId;

use super::CallName;
use crate::keys::TurnName;
use crate::turn::Turn;
use crate::turn::end::waiter;
use crate::view::{Undecided, View};

const STEPS_MAX: usize = 64;

pub fn waits_for(view: &View, call: &CallName, name: &TurnName, turn: &Turn) -> Result<bool, Undecided> {
    let mut next = step(name, turn);
    for _ in 0..STEPS_MAX {
        let Some((above, position)) = next else { return Ok(false) };
        if above == call.turn && position.is_none_or(|position| position == call.position) {
            return Ok(true);
        }
        let name = TurnName { tenant: name.tenant.clone(), turn: above };
        let Some(stored) = view.record::<Turn>(&name.record())? else { return Ok(false) };
        next = step(&name, &stored.value);
    }
    Ok(false)
}

/// The position belongs to the call that waits for `turn`.
fn step(name: &TurnName, turn: &Turn) -> Option<(TurnId, Option<usize>)> {
    let above = waiter(name, &turn.head, turn.is_task())?;
    let position = turn.head.delegated_by.as_deref().filter(|_| turn.is_task());
    Some((above, position.and_then(|by| by.rsplit_once('/')?.1.parse().ok())))
}
