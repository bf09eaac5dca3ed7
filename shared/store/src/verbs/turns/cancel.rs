//! A turn or task is asked to end.

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// The outcome of a cancel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cancelled {
    /// It ends as soon as a scheduler looks.
    Ok,
    /// Its running calls end first.
    Flagged,
    /// It had ended.
    Ended,
    /// Nothing of that name has come yet. Should it come within [`limits::EARLY_CANCEL_MS`], it ends without running.
    Waiting,
    /// Nothing of that name has come yet, and too many cancels of the tenant wait already: this one is not kept.
    Full,
    /// It was admitted once, and its record is lost.
    Unknown,
}

impl Store {
    /// Asks for the end of a turn or task, and of everything that it has begun: the turns under a task, the tasks that were delegated
    /// from it, the work that its calls wait for, and what those have begun. Schedulers end these step by step (see
    /// [`Self::cascade`]); nothing begins under it any more.
    ///
    /// # Errors
    /// [`StoreError`]; it may have been asked for all the same.
    pub async fn cancel(&self, name: &TurnName, reason: &str) -> Result<Cancelled, StoreError> {
        let mut args = self.args();
        args.show(name).text(cut(reason, limits::CANCEL_REASON_BYTES_MAX)).show(self.options.lease_ms);
        args.show(limits::EARLY_CANCEL_MS).show(limits::EARLY_CANCELS_MAX);
        let value = self.run(Verb::Cancel, args).await?;
        match text_of(&value).as_deref() {
            Some("OK") => Ok(Cancelled::Ok),
            Some("FLAGGED") => Ok(Cancelled::Flagged),
            Some("ENDED") => Ok(Cancelled::Ended),
            Some("WAITING") => Ok(Cancelled::Waiting),
            Some("FULL") => Ok(Cancelled::Full),
            Some("UNKNOWN") => Ok(Cancelled::Unknown),
            _ => Err(unexpected(Verb::Cancel.as_str(), &value)),
        }
    }
}

/// The beginning of a text, `bytes_max` long at most, that ends between characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}
