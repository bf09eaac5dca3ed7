//! Turns whose own timer is due.

use redis::Value;

use crate::keys::TurnName;
use crate::script::reply::{text_of, unexpected};
use crate::verbs::Verb;
use crate::verbs::ending::Ending;
use crate::{Store, StoreError};

/// The outcome of a turn's timer.
#[derive(Debug)]
pub enum Promoted {
    /// A parked retry is back on its queue.
    Promoted,
    /// It gave the places of limits back that it held, and stands on the lane of one for them.
    Queues,
    /// Nothing was due; the timer is set anew.
    Later,
    /// An external runtime fell silent and lost its task, which is offered to another.
    Lapsed,
    /// The turn has ended.
    Gone,
    /// Its slice was with nobody and on no queue, or its lane's timer was gone: they are made anew from its record.
    Restored,
    /// Its record cannot be read and is put aside, or what is due cannot be done now: why.
    Aside(String),
    /// The turn ends; to be settled.
    Ending(Box<Ending>),
}

impl Store {
    /// Acts on timers of turns that are due.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn promote(&self, turns: &[TurnName]) -> Result<Vec<Promoted>, StoreError> {
        let o = &self.options;
        let mut args = self.args();
        args.show(o.ending_lease_ms).show(o.crashes_max).show(turns.len());
        for turn in turns {
            args.show(turn);
        }
        args.run_id_last();
        let mut reply = self.ask(Verb::Promote, args).await?;
        reply.text()?;
        reply.number()?;
        Ok(reply.rest().into_iter().map(promoted).collect())
    }
}

/// One answer that cannot be read costs no other.
fn promoted(value: Value) -> Promoted {
    if matches!(value, Value::Array(_)) {
        return match Ending::read(Verb::Promote.as_str(), value) {
            Ok(ending) => Promoted::Ending(Box::new(ending)),
            Err(error) => Promoted::Aside(error.to_string()),
        };
    }
    match text_of(&value).as_deref() {
        Some("PROMOTED") => Promoted::Promoted,
        Some("QUEUES") => Promoted::Queues,
        Some("LATER") => Promoted::Later,
        Some("LAPSED") => Promoted::Lapsed,
        Some("GONE") => Promoted::Gone,
        Some("RESTORED") => Promoted::Restored,
        Some(other) => Promoted::Aside(other.trim_start_matches("ASIDE ").to_owned()),
        None => Promoted::Aside(unexpected(Verb::Promote.as_str(), &value).to_string()),
    }
}
