//! The streams and groups of a shard are made where they are missing.

use crate::keys;
use crate::script::reply::{number_of, unexpected};
use crate::verbs::Verb;
use crate::{Store, StoreError};

impl Store {
    /// Makes the streams and groups of the shard where they are missing. Answers how many were made: more than
    /// none, on a shard that was in use, means that its state was lost.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn ensure_groups(&self) -> Result<usize, StoreError> {
        let mut args = self.args();
        for stream in keys::streams() {
            args.text(stream.as_str());
        }
        let made = self.run(Verb::EnsureGroups, args).await?;
        number_of(&made)
            .and_then(|made| usize::try_from(made).ok())
            .ok_or_else(|| unexpected(Verb::EnsureGroups.as_str(), &made))
    }
}
