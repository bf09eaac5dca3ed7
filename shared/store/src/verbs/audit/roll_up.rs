//! Counts of the calls of each day, made from the audit log by whoever asks for them.

use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// What is added to one count.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Addition {
    /// The day, days since the epoch.
    pub day: i64,
    /// Which count.
    pub field: String,
    /// The count that takes it where the day has as many as it may.
    pub overflow: String,
    /// How much.
    pub amount: u64,
}

impl Store {
    /// Adds counts of entries behind `before`, up to `upto`. False where somebody else has counted on meanwhile: nothing was
    /// added.
    ///
    /// # Errors
    /// [`StoreError`]; the same may be asked again, and counts once.
    pub async fn roll_up(&self, before: &str, upto: &str, additions: &[Addition]) -> Result<bool, StoreError> {
        let mut args = self.args();
        args.text(before).text(upto).show(limits::STATS_KEPT_MS).show(limits::STATS_FIELDS_MAX).show(additions.len());
        for addition in additions {
            args.show(addition.day).text(addition.field.as_str()).text(addition.overflow.as_str());
            args.show(addition.amount);
        }
        let answer = self.run(Verb::RollUp, args).await?;
        Ok(text_of(&answer).as_deref() == Some("OK"))
    }
}
