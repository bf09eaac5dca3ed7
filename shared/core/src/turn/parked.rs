//! Maintains the set of parked turns, for metrics.

use super::state::{State, Turn};
use crate::keys::{self, TurnName};
use crate::transaction::{Transaction, Write};

const fn is_listed(state: &State) -> bool {
    match state {
        State::Retrying { .. } => true,
        State::Waiting { reason, .. } => !reason.is_for_people(),
        _ => false,
    }
}

pub(super) fn join_parked(transaction: &mut Transaction, name: &TurnName, turn: &Turn, now_ms: i64) {
    if is_listed(&turn.state) {
        let member = name.to_string().into();
        let score = now_ms.max(0).unsigned_abs();
        transaction.write(Write::AddMember { set: keys::parked(), member, score, queue_of: None });
    }
}

pub(super) fn leave_parked(transaction: &mut Transaction, name: &TurnName, turn: &Turn) {
    if is_listed(&turn.state) {
        transaction.write(Write::RemoveMember { set: keys::parked(), member: name.to_string().into(), queue_of: None });
    }
}
