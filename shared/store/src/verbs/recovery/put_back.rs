//! A scheduler that stops in order returns what it has not decided about.

use crate::verbs::Verb;
use crate::verbs::turns::Inbound;
use crate::{Store, StoreError};
use tickfleet_model::ConsumerId;

/// Inbound entries that one script returns, each of which may have the size of a turn.
const PUT_BACK_MAX: usize = 32;

impl Store {
    /// Returns the inbound entries that a scheduler holds and has not decided about: it stops in order. Others read them
    /// at once, and no crash counts against them. Answers how many there were.
    ///
    /// # Errors
    /// [`StoreError`]; what was not returned is taken back when the lease ends.
    pub async fn put_back(&self, consumer: &ConsumerId) -> Result<u64, StoreError> {
        let mut returned = 0;
        loop {
            let mut args = self.args();
            args.show(consumer).show(PUT_BACK_MAX);
            for inbound in [Inbound::Turns, Inbound::Tasks] {
                args.text(inbound.stream().to_string());
            }
            let mut reply = self.ask(Verb::PutBack, args).await?;
            let now = reply.number()?.unsigned_abs();
            returned += now;
            // What it cannot return (it is too odd) is left to reap.
            if reply.number()? == 0 || now == 0 {
                return Ok(returned);
            }
        }
    }
}
