use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One right per process to run a suspect, so that a crash counts against only one suspect (invariant 17). Clones share
/// the right.
#[derive(Debug, Clone)]
pub struct SuspectSemaphore(Arc<Semaphore>);

/// Dropping this value returns the right.
#[derive(Debug)]
pub struct SuspectPermit {
    /// `None` if the semaphore was closed, which does not happen.
    _permit: Option<OwnedSemaphorePermit>,
}

impl Default for SuspectSemaphore {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl SuspectSemaphore {
    /// Callers are served in order. A dropped future has not taken the right.
    pub async fn acquire(&self) -> SuspectPermit {
        SuspectPermit { _permit: Arc::clone(&self.0).acquire_owned().await.ok() }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    const AT_ONCE: Duration = Duration::from_millis(1);

    #[tokio::test(start_paused = true)]
    async fn one_process_handles_one_suspect_at_a_time() {
        let ours = SuspectSemaphore::default();
        let theirs = SuspectSemaphore::default();
        let same = ours.clone();
        let permit = ours.acquire().await;
        assert!(timeout(AT_ONCE, same.acquire()).await.is_err(), "two suspects at a time");
        assert!(timeout(AT_ONCE, theirs.acquire()).await.is_ok(), "another process waits for this one");
        drop(permit);
        assert!(timeout(AT_ONCE, same.acquire()).await.is_ok(), "the right was not given back");
    }
}
