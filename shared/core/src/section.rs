//! Sections: parts of a transaction that another module adds, such as the effects of a call's end on facts, claims,
//! streaks or caches.

use tickfleet_model::RejectionCode;

use crate::bounds::Bounds;
use crate::decision::Context;
use crate::transaction::Transaction;
use crate::turn::dead_letter::DeadLetter;
use crate::view::{Undecided, View};

/// Adds the guards and writes of one module to the transaction of another decision.
///
/// A section checks [`Context::conflicts`] for an earlier failure of its own guards. The section does not change
/// [`Transaction::dedupe_record`]. The section adds no [`crate::Guard::Held`], because that guard must come last, after
/// all sections.
pub trait Section: Sync {
    /// Fails with [`Undecided`] if a read is missing, or if a record is unreadable.
    fn add_to(&self, transaction: &mut Transaction, view: &View, context: &Context) -> Result<(), Undecided>;
}

pub fn add_all(
    sections: &[&dyn Section],
    transaction: &mut Transaction,
    view: &View,
    context: &Context,
) -> Result<(), Undecided> {
    sections.iter().try_for_each(|section| section.add_to(transaction, view, context))
}

/// Adds all sections to a transaction that must be committed even if a section's record is unreadable, such as a
/// transaction with results. If a section's record is unreadable, a dead letter is added in place of the section's
/// guards and writes, and the record does not change.
pub fn add_readable(
    sections: &[&dyn Section],
    transaction: &mut Transaction,
    view: &View,
    context: &Context,
    bounds: &Bounds,
) -> Result<(), Undecided> {
    for section in sections {
        isolate(transaction, bounds, |own| section.add_to(own, view, context))?;
    }
    Ok(())
}

/// Runs `add`, or adds a dead letter if a record is unreadable.
pub(crate) fn isolate(
    transaction: &mut Transaction,
    bounds: &Bounds,
    add: impl FnOnce(&mut Transaction) -> Result<(), Undecided>,
) -> Result<(), Undecided> {
    let mut own = Transaction::new(transaction.version.clone());
    match add(&mut own) {
        Ok(()) => {
            transaction.guards.append(&mut own.guards);
            transaction.writes.append(&mut own.writes);
        }
        Err(Undecided::Unreadable { key, why }) => {
            let reason = RejectionCode::Unreadable;
            let raw = why.to_string().into();
            DeadLetter { from: "record", entry: key.as_str(), reason, raw, tenant: None }.add_to(transaction, bounds);
        }
        Err(missing) => return Err(missing),
    }
    Ok(())
}
