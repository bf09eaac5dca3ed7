//! Puts a turn on the throttle queue of a counter.

use super::state::{Note, State, Turn};
use crate::keys::{self, TurnName, limits};
use crate::transaction::{CounterKey, TimerRule, Transaction, Write};

/// A timer that is due earlier stays unchanged. The caller must guard the record's version, return the permits
/// ([`super::end::return_permits`]), uncount the dispatched slice, and store the calls from `turn.position` on.
pub fn throttle(
    transaction: &mut Transaction,
    name: &TurnName,
    turn: &mut Turn,
    counter: CounterKey,
    due_ms: i64,
    now_ms: i64,
) {
    turn.note(Note::Throttled { at_ms: now_ms, counter: counter.clone(), until_ms: due_ms });
    turn.state = State::Throttled { counter: counter.clone(), since_ms: now_ms };
    turn.entry = None;
    transaction.put(&name.record(), turn);
    transaction.write(Write::AddMember {
        set: keys::throttle_queue(&counter),
        member: name.to_string().into(),
        score: turn.place,
        queue_of: Some(counter.clone()),
    });
    transaction.timer(keys::throttle_timer(&counter), due_ms, TimerRule::Earlier);
    transaction.timer(name.timer(), turn.head.deadline_ms, TimerRule::Earlier);
}

/// The queue of the agent's tick. In this queue, a scheduler dispatches the calls, or moves the turn to the queue of
/// the full counter.
#[must_use]
pub fn undecided_queue(name: &TurnName, turn: &Turn) -> CounterKey {
    CounterKey::new(limits::TICK, format!("{}:{}", name.tenant, turn.head.agent))
}
