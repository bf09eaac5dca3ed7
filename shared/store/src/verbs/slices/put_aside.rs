//! An entry of a queue that is no slice of anybody's.

use crate::keys::Queue;
use crate::verbs::Verb;
use crate::{Store, StoreError};

/// Characters of the reason that a dead letter keeps of what could not be read.
const PUT_ASIDE_CHARS: usize = 500;

impl Store {
    /// Takes an entry of a queue that is no slice of anybody's to the dead stream.
    ///
    /// # Errors
    /// [`StoreError`].
    pub async fn put_aside(&self, queue: &Queue, entry: &str, why: &str) -> Result<(), StoreError> {
        let mut args = self.args();
        args.show(queue).text(entry).text(why.chars().take(PUT_ASIDE_CHARS).collect::<String>());
        self.run(Verb::PutAside, args).await.map(drop)
    }
}
