//! A slice is parked while the tool of its next call rests.

use std::time::Duration;

use crate::keys::{Queue, TurnName};
use crate::records::notes;
use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::verbs::parked::retry::{Parked, parked};
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// A slice whose next call was not sent, for its tool rests.
#[derive(Debug, Clone)]
pub struct Rest {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// The queue that it was leased from, and goes back to.
    pub queue: Queue,
    /// Position of the call; all results before it are settled.
    pub position: usize,
    /// When it is looked at again.
    pub delay: Duration,
    /// The time that the call may rest in all, from its first rest on. It rests once at least. None: until its deadline, and
    /// this rest does not count for later ones that have a bound.
    pub at_most: Option<Duration>,
    /// Whether calls behind it ran beside it, and their results were dropped.
    pub beside: bool,
    /// Why the tool rests, without secrets: for the turn's log.
    pub why: String,
}

/// The outcome of asking to let a slice rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rested {
    /// As for a retry or a wait.
    Parked(Parked),
    /// The call has rested for as long as it may: settle it.
    Over,
}

impl Store {
    /// Parks slices while the tools of their calls rest. No try is used up.
    ///
    /// # Errors
    /// [`StoreError`]; the same rest may be repeated.
    pub async fn rest(&self, slices: &[Rest]) -> Result<Vec<Rested>, StoreError> {
        let mut args = self.args();
        args.show(limits::LOG_BYTES_MAX).show(slices.len());
        for s in slices {
            args.show(&s.name.tenant).show(&s.name.turn).text(s.fence.as_str()).show(&s.queue).show(s.position);
            args.show(s.delay.as_millis()).maybe(s.at_most.map(|at_most| at_most.as_millis()));
            args.text(if s.beside { "1" } else { "" }).text(notes::noted(&s.why));
        }
        let mut reply = self.ask(Verb::Rest, args).await?;
        let rested = |value: &redis::Value| match text_of(value).as_deref() {
            Some("OVER") => Ok(Rested::Over),
            _ => parked(Verb::Rest, value).map(Rested::Parked),
        };
        reply.rest().iter().map(rested).collect()
    }
}
