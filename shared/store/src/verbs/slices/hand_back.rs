//! A worker returns slices that it does not carry out.

use crate::keys::{Queue, TurnName};
use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// Why a slice is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// Its holder knows that nothing of its next call was sent: if it was begun, it is so no longer.
    Unsent,
    /// Its next call, which may run twice, was broken off: that was a try.
    Tried,
    /// Calls behind its next one ran beside that, and their results were dropped: what any of them did is not known.
    Beside,
    /// It was delivered, and nobody knows of it: what was begun stays begun.
    Stray,
    /// This build cannot read it: another may, and in the end its calls are answered from its record.
    Unread,
}

/// A slice that its holder returns.
#[derive(Debug, Clone)]
pub struct HandBack {
    /// Why.
    pub why: Returned,
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// The queue that it was leased from, and goes back to.
    pub queue: Queue,
}

impl Store {
    /// Returns slices. Answers how many were still ours.
    ///
    /// # Errors
    /// [`StoreError`]; the same hand-back may be repeated.
    pub async fn hand_back(&self, slices: &[HandBack]) -> Result<usize, StoreError> {
        let mut args = self.args();
        args.show(slices.len());
        for s in slices {
            args.show(&s.name).text(s.fence.as_str()).show(&s.queue);
            match s.why {
                Returned::Unsent => args.text("unsent"),
                Returned::Tried => args.text("tried"),
                Returned::Beside => args.text("beside"),
                Returned::Stray => args.text("stray"),
                Returned::Unread => args.show(limits::UNREAD_OFFERS_MAX),
            };
        }
        let mut reply = self.ask(Verb::HandBack, args).await?;
        Ok(reply.rest().iter().filter(|w| text_of(w).as_deref() == Some("OK")).count())
    }
}
