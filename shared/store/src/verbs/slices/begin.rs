//! Verbs of a worker while it holds a slice: begin, retry, hand back.

use crate::keys::{Queue, TurnName};
use crate::records::notes;
use crate::script::reply::{Reply, text_of, unexpected};
use crate::{SettledCall, Store, StoreError};
use tickfleet_model::limits;

/// The start of one call, or (without a nonce) the mark that a suspect slice was really started.
#[derive(Debug, Clone)]
pub struct Begin {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// Position of the call.
    pub position: usize,
    /// Fresh for each try; none only marks.
    pub nonce: Option<String>,
    /// Digest of the turn's content.
    pub digest: String,
    /// The Redis (its `run_id`) that the worker has told of what it began; none where it knows none.
    pub knows: Option<String>,
}

/// What became of a begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Begun {
    /// Go on.
    Ok,
    /// The call's result is there already.
    Done,
    /// Somebody who is gone began the call: what it did cannot be known.
    Unknown,
    /// It was carried out, Redis lost that, and somebody knew its result.
    Kept(Box<SettledCall>),
    /// Somebody else holds the turn now.
    Stale,
    /// The turn was cancelled.
    Cancelled,
    /// The turn's deadline has come.
    Expired,
    /// Redis restarted less than a lease ago: begin again later.
    Hold,
}

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
    /// Why this try failed, without secrets: for the turn's log.
    pub cause: String,
}

/// What became of a retry.
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

/// Why a slice is returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Returned {
    /// Its holder knows that nothing of its next call was sent: if it was begun, it is so no longer.
    Unsent,
    /// Its next call, which may run twice, was broken off: that was a try.
    Tried,
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
    /// Fences the start of calls.
    ///
    /// # Errors
    /// [`StoreError`]; the same begin (same nonce) may be repeated.
    pub async fn begin(&self, calls: &[Begin]) -> Result<Vec<Begun>, StoreError> {
        let mut args = self.args();
        args.show(self.options.lease_ms).show(calls.len());
        for call in calls {
            args.show(&call.name).text(call.fence.as_str()).show(call.position).maybe(call.nonce.as_ref());
            args.text(call.digest.as_str()).maybe(call.knows.as_ref());
        }
        let mut reply = Reply::new("begin", self.run("begin", args).await?)?;
        let begun = |value: &redis::Value| {
            if let redis::Value::Array(kept) = value {
                let text = |at: usize| kept.get(at).and_then(text_of).unwrap_or_default();
                return Ok(Begun::Kept(Box::new(SettledCall { result: text(1), message: text(2), audit: text(3) })));
            }
            Ok(match text_of(value).as_deref() {
                Some("OK") => Begun::Ok,
                Some("DONE") => Begun::Done,
                Some("UNKNOWN") => Begun::Unknown,
                Some("STALE") => Begun::Stale,
                Some("CANCELLED") => Begun::Cancelled,
                Some("EXPIRED") => Begun::Expired,
                Some("HOLD") => Begun::Hold,
                _ => return Err(unexpected("begin", value)),
            })
        };
        reply.rest().iter().map(begun).collect()
    }

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
            args.text(notes::noted(&s.cause));
        }
        let mut reply = Reply::new("retry", self.run("retry", args).await?)?;
        let parked = |value: &redis::Value| {
            Ok(match text_of(value).as_deref() {
                Some("OK") => Parked::Ok,
                Some("ALREADY") => Parked::Already,
                Some("CANCELLED") => Parked::Cancelled,
                Some("STALE") => Parked::Stale,
                Some("GAP") => Parked::Gap,
                _ => return Err(unexpected("retry", value)),
            })
        };
        reply.rest().iter().map(parked).collect()
    }

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
                Returned::Stray => args.text("stray"),
                Returned::Unread => args.show(limits::UNREAD_OFFERS_MAX),
            };
        }
        let mut reply = Reply::new("hand_back", self.run("hand_back", args).await?)?;
        Ok(reply.rest().iter().filter(|w| text_of(w).as_deref() == Some("OK")).count())
    }
}
