//! A turn or task is asked to end.

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{TurnId, limits};

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
    /// Asks for the end of a turn or task, and of the inner turn that a call of it waits for.
    ///
    /// # Errors
    /// [`StoreError`]; it may have been asked for all the same.
    pub async fn cancel(&self, name: &TurnName, reason: &str) -> Result<Cancelled, StoreError> {
        let (cancelled, mut inner) = self.cancel_one(name, reason).await?;
        let mut deeper = 0;
        while let Some(turn) = inner.take().filter(|_| deeper < limits::INNER_DEPTH_MAX) {
            deeper += 1;
            let name = TurnName { tenant: name.tenant.clone(), turn };
            inner = self.cancel_one(&name, reason).await?.1;
        }
        Ok(cancelled)
    }

    /// Asks for the end of one turn. Answers which inner turn a call of it has waited for, too.
    async fn cancel_one(&self, name: &TurnName, reason: &str) -> Result<(Cancelled, Option<TurnId>), StoreError> {
        let mut args = self.args();
        args.show(name).text(cut(reason, limits::CANCEL_REASON_BYTES_MAX)).show(self.options.lease_ms);
        args.show(limits::EARLY_CANCEL_MS).show(limits::EARLY_CANCELS_MAX);
        let value = self.run(Verb::Cancel, args).await?;
        let told = text_of(&value).unwrap_or_default();
        let (word, inner) = told.split_once(' ').unwrap_or((&told, ""));
        let cancelled = match word {
            "OK" => Cancelled::Ok,
            "FLAGGED" => Cancelled::Flagged,
            "ENDED" => Cancelled::Ended,
            "WAITING" => Cancelled::Waiting,
            "FULL" => Cancelled::Full,
            "UNKNOWN" => Cancelled::Unknown,
            _ => return Err(unexpected(Verb::Cancel.as_str(), &value)),
        };
        Ok((cancelled, TurnId::new(inner).ok()))
    }
}

/// The beginning of a text, `bytes_max` long at most, that ends between characters.
fn cut(text: &str, bytes_max: usize) -> &str {
    let end = (0..=bytes_max.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    &text[..end]
}
