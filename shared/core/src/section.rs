//! Sections: parts of a transaction that another module adds.

use tickfleet_model::RejectionCode;

use crate::bounds::Bounds;
use crate::decision::Context;
use crate::transaction::Transaction;
use crate::turn::dead_letter::DeadLetter;
use crate::view::{Undecided, View};

/// A section checks [`Context::conflicts`] for failures of its own guards. It must not change
/// [`Transaction::dedupe_record`], and must add no [`crate::Guard::Held`], because that guard comes last.
pub trait Section: Sync {
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

/// The transaction must commit, so a section with an unreadable record only adds a dead letter.
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
