//! A slice is parked until its call may be tried again.

use crate::keys::{Queue, TurnName};
use crate::records::notes;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// A slice whose next call failed for a reason that may pass.
#[derive(Debug, Clone)]
pub struct Retry {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// The queue that it was leased from, and goes back to.
    pub queue: Queue,
    /// Position of the call; all results before it are settled.
    pub position: usize,
    /// When to try again, ms from now.
    pub delay_ms: i64,
    /// Tries that the call has behind it.
    pub attempt: u32,
    /// Whether calls behind it ran beside it, and their results were dropped.
    pub beside: bool,
    /// Whether the call stays begun: it never begins again, and whoever goes on with it finds out what came of it.
    pub begun: bool,
    /// Why this try failed, without secrets: for the turn's log.
    pub cause: String,
}

/// The outcome of parking a slice, for a retry or a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parked {
    /// The slice waits until it is due.
    Ok,
    /// It was parked already.
    Already,
    /// The turn was cancelled: settle the call as cancelled.
    Cancelled,
    /// Somebody else holds the turn now.
    Stale,
    /// A result before the position is missing: settle it first.
    Gap,
}

impl Store {
    /// Parks slices until their calls may be tried again.
    ///
    /// # Errors
    /// [`StoreError`]; the same retry may be repeated.
    pub async fn retry(&self, slices: &[Retry]) -> Result<Vec<Parked>, StoreError> {
        let mut args = self.args();
        args.show(limits::LOG_BYTES_MAX).show(slices.len());
        for s in slices {
            args.show(&s.name.tenant).show(&s.name.turn).text(s.fence.as_str()).show(&s.queue);
            args.show(s.position).show(s.delay_ms).show(s.attempt);
            args.flag(s.beside).flag(s.begun).text(notes::noted(&s.cause));
        }
        let mut reply = self.ask(Verb::Retry, args).await?;
        reply.rest().iter().map(|value| parked(Verb::Retry, value)).collect()
    }
}

/// The word of a verb that parks slices.
pub(super) fn parked(verb: Verb, value: &redis::Value) -> Result<Parked, StoreError> {
    Ok(match text_of(value).as_deref() {
        Some("OK") => Parked::Ok,
        Some("ALREADY") => Parked::Already,
        Some("CANCELLED") => Parked::Cancelled,
        Some("STALE") => Parked::Stale,
        Some("GAP") => Parked::Gap,
        _ => return Err(unexpected(verb.as_str(), value)),
    })
}
