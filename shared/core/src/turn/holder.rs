//! Code that all transitions of a slice's holder share.

use bytes::Bytes;
use serde::Serialize;

use super::end::parts;
use super::slice::Slice;
use crate::decision::Context;
use crate::keys::{TurnName, limits};
use crate::mutant;
use crate::transaction::{Conflict, CounterKey, Guard, RecordKey, Transaction, Write};

pub(super) fn is_stale(slice: &Slice, context: &Context) -> bool {
    has_changed(&slice.name.record(), context)
}

pub(super) fn has_changed(record: &RecordKey, context: &Context) -> bool {
    context.failed(|conflict| matches!(conflict, Conflict::Record { key, .. } if key == record))
}

pub(super) fn guard_version(transaction: &mut Transaction, slice: &Slice) {
    if !mutant!("holder_guards_the_version") {
        transaction.guard(Guard::Version(slice.name.record(), slice.version.clone()));
    }
}

/// Must be called after all other guards are added. If a restart lost the holder's read, only the version guards the
/// slice.
pub(super) fn acknowledge(transaction: &mut Transaction, slice: &Slice, context: &Context) {
    if context.failed(|conflict| *conflict == Conflict::NotHeld) {
        transaction.write(Write::Remove(slice.queue.clone(), slice.entry.clone()));
    } else {
        transaction.guard(Guard::Held(slice.queue.clone(), slice.entry.clone()));
    }
}

/// `amount` is 1 for a slice that goes to workers, and -1 for a slice that leaves workers.
pub(crate) fn count_in_flight(transaction: &mut Transaction, name: &TurnName, amount: i64) {
    let counter = CounterKey::new(limits::IN_FLIGHT, name.tenant.as_str());
    transaction.write(Write::Add { counter, amount, ends_ms: None });
}

pub(super) fn keep_calls(transaction: &mut Transaction, name: &TurnName, position: usize, calls: &[Bytes]) {
    for (at, call) in (position..).zip(calls) {
        transaction.write(Write::PutPart(name.record(), parts::call(at), call.clone()));
    }
}

pub(super) fn texts<T: Serialize>(items: &[T]) -> Vec<Bytes> {
    items.iter().map(|item| serde_json::to_vec(item).unwrap_or_default().into()).collect()
}
