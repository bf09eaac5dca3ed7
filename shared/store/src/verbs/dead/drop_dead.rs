//! What was put aside is done with.

use crate::verbs::Verb;
use crate::verbs::dead::replay::{Aside, Handled};
use crate::{Store, StoreError};
use tickfleet_model::limits;

impl Store {
    /// Is done with something that was put aside; `entry` goes into the audit log.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn drop_dead(&self, aside: Aside<'_>, entry: &str) -> Result<Handled, StoreError> {
        let (kind, from) = aside.parts();
        let mut args = self.args();
        args.text(kind).text(from).show(limits::HANDLED_CALLS_MAX).text(entry);
        Handled::read(Verb::DropDead, &self.run(Verb::DropDead, args).await?)
    }
}
