//! What a turn or task has begun ends with it.

use crate::keys::TurnName;
use crate::script::reply::text_of;
use crate::verbs::Verb;
use crate::{Store, StoreError};
use tickfleet_model::limits;

/// The outcome of one step of a cascade.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cascaded {
    /// How many turns and tasks were asked to end.
    pub ended: u64,
    /// How many are left for the next step.
    pub left: u64,
    /// Why some of them could not be asked: what is under their name cannot be read.
    pub aside: Vec<String>,
}

impl Store {
    /// Ends what a turn or task has begun that was cancelled or has failed, at most `count` turns and tasks directly below it.
    /// What these have begun has a timer of its own then.
    ///
    /// # Errors
    /// [`StoreError`]; its timer stays, and the next step continues.
    pub async fn cascade(&self, name: &TurnName, count: usize) -> Result<Cascaded, StoreError> {
        let mut args = self.args();
        args.show(name).show(count).show(self.options.lease_ms);
        args.show(limits::EARLY_CANCEL_MS).show(limits::EARLY_CANCELS_MAX);
        let mut reply = self.ask(Verb::Cascade, args).await?;
        let (ended, left) = (reply.number()?, reply.number()?);
        let why = |value: &redis::Value| Some(text_of(value)?.trim_start_matches("ASIDE ").to_owned());
        let aside = reply.rest().iter().filter_map(why).collect();
        Ok(Cascaded { ended: ended.max(0).unsigned_abs(), left: left.max(0).unsigned_abs(), aside })
    }
}
