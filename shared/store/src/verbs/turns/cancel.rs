use serde::Serialize;
use tickfleet_core::task::cancel::{Cancel, Canceled};
use tickfleet_core::turn::Turn;
use tickfleet_core::{Query, Value, View};

use crate::{Store, StoreError, TurnName};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum CancelResult {
    Ok,
    /// The turn or task ends after its current call.
    Flagged,
    Ended,
    /// If the turn or task arrives within [`tickfleet_model::limits::EARLY_CANCEL_MS`], it ends without running.
    Waiting,
    /// The tenant has too many cancellations of turns that have not arrived yet, so this one is not stored.
    Full,
    /// Admitted before, and the record is lost.
    Unknown,
}

impl Store {
    /// Also cancels turns under a task, delegated tasks, and everything below these. After an error, the cancellation
    /// may have been stored.
    pub async fn cancel(&self, name: &TurnName, reason: &str) -> Result<CancelResult, StoreError> {
        let bounds = self.bounds();
        let cancel = Cancel { name: name.clone(), reason: reason.to_owned(), above: None, bounds: &bounds };
        let mut view = View::default();
        let mut results = self.decide_with(&mut view, std::slice::from_ref(&cancel)).await?;
        let Some(result) = results.pop() else { return Ok(CancelResult::Unknown) };
        Ok(match result?.result {
            Canceled::Ending if self.is_held(name, &view).await? => CancelResult::Flagged,
            Canceled::Ending => CancelResult::Ok,
            Canceled::Ended => CancelResult::Ended,
            Canceled::Waiting => CancelResult::Waiting,
            Canceled::Full => CancelResult::Full,
            Canceled::Unknown | Canceled::Unreadable => CancelResult::Unknown,
        })
    }

    async fn is_held(&self, name: &TurnName, view: &View) -> Result<bool, StoreError> {
        let Ok(Some(turn)) = view.record::<Turn>(&name.record()) else { return Ok(false) };
        let Some(entry) = turn.in_flight_entry() else { return Ok(false) };
        let holder = Query::Holder(turn.value.queue(&name.tenant), entry.clone());
        Ok(matches!(self.query(holder).await?, Value::Holder(Some(_))))
    }
}
