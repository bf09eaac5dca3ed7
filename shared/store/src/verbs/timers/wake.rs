//! Turns that are to be looked at now.

use crate::keys::TurnName;
use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Has turns looked at now, whatever they wait for: `promote` decides by their records.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn wake(&self, names: &[TurnName]) -> Result<(), StoreError> {
        if names.is_empty() {
            return Ok(());
        }
        let mut args = self.args();
        for name in names {
            args.show(name);
        }
        self.run(Verb::Wake, args).await.map(drop)
    }
}
