//! One suspect at a time in a whole process.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The right to look into a suspect: what was there when a process died. A process that serves several shards has one
/// such right, for all of them die together, and a crash must count against one suspect alone (rule 12). Cloned, it is
/// the same.
#[derive(Debug, Clone)]
pub struct OneSuspect(Arc<Semaphore>);

/// A suspect is looked into for as long as this lives.
#[derive(Debug)]
pub struct Look {
    /// None where the right is gone with its process.
    _right: Option<OwnedSemaphorePermit>,
}

impl Default for OneSuspect {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl OneSuspect {
    /// Waits until nobody else looks into a suspect. Who comes first is served first; dropped before it answers, it has
    /// taken nothing.
    pub async fn look(&self) -> Look {
        Look { _right: Arc::clone(&self.0).acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const AT_ONCE: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn of_two_that_share_the_right_one_waits() {
        let (ours, theirs) = (OneSuspect::default(), OneSuspect::default());
        let same = ours.clone();
        let look = ours.look().await;
        assert!(timeout(AT_ONCE, same.look()).await.is_err(), "two suspects at a time");
        assert!(timeout(AT_ONCE, theirs.look()).await.is_ok(), "another process waits for this one");
        drop(look);
        assert!(timeout(AT_ONCE, same.look()).await.is_ok(), "the right was not given back");
    }
}
