//! Redis' memory is weighed, for all scripts to go by.

use crate::reads::memory::Memory;
use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Looks at Redis' memory and tells the scripts whether new work may come in, however full it is.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn weigh(&self) -> Result<Memory, StoreError> {
        let mut reply = self.ask(Verb::Weigh, self.args()).await?;
        Ok(Memory { used: reply.number()?.unsigned_abs(), max: reply.number()?.unsigned_abs() })
    }
}
