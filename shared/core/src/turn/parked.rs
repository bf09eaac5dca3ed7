//! Maintains the set of parked turns, for metrics.

use super::state::{State, Turn};
use crate::keys::{self, TurnName};
use crate::transaction::Transaction;

const fn is_listed(state: &State) -> bool {
    match state {
        State::Retrying { .. } => true,
        State::Waiting { reason, .. } => !reason.is_for_people(),
        _ => false,
    }
}

pub(super) fn join_parked(transaction: &mut Transaction, name: &TurnName, turn: &Turn, now_ms: i64) {
    if is_listed(&turn.state) {
        transaction.join(keys::parked(), name.to_string(), now_ms);
    }
}

pub(super) fn leave_parked(transaction: &mut Transaction, name: &TurnName, turn: &Turn) {
    if is_listed(&turn.state) {
        transaction.leave(keys::parked(), name.to_string());
    }
}
