//! A turn or task is asked to end.

use std::collections::BTreeSet;

use crate::keys::TurnName;
use crate::reads::look::TurnView;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::{TurnId, limits};

/// Turns and tasks that one cancel ends at most.
const DESCENDANTS_MAX: usize = 200;

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

    /// Asks for the end of a turn or task, as [`Self::cancel`], and of all that it has begun: the tasks that were delegated from it,
    /// the work that its call waits for, and what those have begun. From the first step on, nothing is delegated under it any more.
    ///
    /// # Errors
    /// [`StoreError`]; what was reached until then is ending, and the same may be asked for again.
    pub async fn cancel_all(&self, name: &TurnName, reason: &str) -> Result<Cancelled, StoreError> {
        let awaited = self.begun_by(name).await?;
        let cancelled = self.cancel(name, reason).await?;
        let below = format!("what began it was cancelled: {reason}");
        let mut seen = BTreeSet::from([name.turn.clone()]);
        let mut list = awaited;
        list.extend(self.begun_by(name).await?);
        while let Some(turn) = list.pop().filter(|_| seen.len() < DESCENDANTS_MAX) {
            let below_it = TurnName { tenant: name.tenant.clone(), turn: turn.clone() };
            if seen.insert(turn) && matches!(self.look(&below_it).await?, TurnView::Live(_)) {
                list.extend(self.begun_by(&below_it).await?);
                self.cancel(&below_it, &below).await?;
                list.extend(self.begun_by(&below_it).await?);
            }
        }
        Ok(cancelled)
    }

    /// What a turn or task has begun: its tasks, and what its call waits for.
    async fn begun_by(&self, name: &TurnName) -> Result<Vec<TurnId>, StoreError> {
        let children = self.children(name, DESCENDANTS_MAX).await?.into_iter().map(TurnId::from);
        let awaited = match self.look(name).await? {
            // What it waits for without having begun it is somebody else's.
            TurnView::Live(live) if live.record.has_begun => live.record.awaits,
            TurnView::Live(_) | TurnView::Finished(_) | TurnView::Unknown => None,
        };
        Ok(children.chain(awaited.and_then(|turn| TurnId::new(turn).ok())).collect())
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
