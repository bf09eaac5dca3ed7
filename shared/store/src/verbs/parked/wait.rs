//! A slice is parked until the work that its call has begun elsewhere has ended.

use std::time::Duration;

use crate::keys::{Queue, TurnName};
use crate::verbs::Verb;
use crate::verbs::parked::retry::{Parked, parked};
use crate::{Store, StoreError};
use tickfleet_model::TurnId;

/// A slice whose next call has begun a turn or a task, and goes on when that has ended.
#[derive(Debug, Clone)]
pub struct Wait {
    /// The turn.
    pub name: TurnName,
    /// The fence of the slice.
    pub fence: String,
    /// The queue that it was leased from, and goes back to.
    pub queue: Queue,
    /// Position of the call; all results before it are settled.
    pub position: usize,
    /// The turn or task of the same tenant whose end wakes it.
    pub awaits: Option<TurnId>,
    /// The time after which it goes on in any case.
    pub at_most: Duration,
    /// True if its call has begun what it waits for; false if that is somebody else's, and nothing of the call has begun.
    pub has_begun: bool,
    /// True if calls behind it ran beside it: they are carried out again.
    pub beside: bool,
}

impl Store {
    /// Parks slices until what their calls wait for has ended. What has ended already is not waited for.
    ///
    /// # Errors
    /// [`StoreError`]; the same wait may be repeated.
    pub async fn wait(&self, slices: &[Wait]) -> Result<Vec<Parked>, StoreError> {
        let mut args = self.args();
        args.show(slices.len());
        for s in slices {
            args.show(&s.name.tenant).show(&s.name.turn).text(s.fence.as_str()).show(&s.queue).show(s.position);
            args.maybe(s.awaits.as_ref()).show(s.at_most.as_millis()).flag(s.has_begun).flag(s.beside);
        }
        let mut reply = self.ask(Verb::Wait, args).await?;
        reply.rest().iter().map(|value| parked(Verb::Wait, value)).collect()
    }
}
