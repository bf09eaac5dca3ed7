//! Code that all transitions of a slice's holder share: checks that the caller holds the slice, and removes the slice.

use bytes::Bytes;
use serde::Serialize;

use super::end::parts;
use super::slice::Slice;
use crate::decision::Context;
use crate::keys::{TurnName, limits};
use crate::mutant;
use crate::transaction::{Conflict, CounterKey, Guard, RecordKey, Transaction, Write};

/// True if an earlier attempt found a changed record: the slice was redelivered, or its turn has ended.
pub(super) fn is_stale(slice: &Slice, context: &Context) -> bool {
    has_changed(&slice.name.record(), context)
}

pub(super) fn has_changed(record: &RecordKey, context: &Context) -> bool {
    context.failed(|conflict| matches!(conflict, Conflict::Record { key, .. } if key == record))
}

/// Guards the record's version, so that writes by earlier holders of the slice fail.
pub(super) fn guard_version(transaction: &mut Transaction, slice: &Slice) {
    if !mutant!("holder_guards_the_version") {
        transaction.guard(Guard::Version(slice.name.record(), slice.version.clone()));
    }
}

/// Removes the slice's entry. Must be called after all other guards are added. If the store lost the holder's read
/// of the entry in a restart, the entry is removed without a guard on the holder. The guard on the version is then the
/// only fence.
pub(super) fn acknowledge(transaction: &mut Transaction, slice: &Slice, context: &Context) {
    if context.failed(|conflict| *conflict == Conflict::NotHeld) {
        transaction.write(Write::Remove(slice.queue.clone(), slice.entry.clone()));
    } else {
        transaction.guard(Guard::Held(slice.queue.clone(), slice.entry.clone()));
    }
}

/// Changes the tenant's number of dispatched slices. `amount` is 1 for a slice that is dispatched to workers, and -1
/// for a slice that leaves workers.
pub(super) fn count_in_flight(transaction: &mut Transaction, name: &TurnName, amount: i64) {
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
