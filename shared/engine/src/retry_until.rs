//! Repeats work that must not be dropped while Redis is unreachable.

use std::future::Future;
use std::time::Duration;

use tickfleet_store::Backoff;
use tokio_util::sync::CancellationToken;

#[derive(Debug)]
pub enum Attempt<T> {
    Done(T),
    /// The next attempt follows after a growing wait ([`Backoff`]).
    Failed,
    Later(Duration),
    /// The inputs of the work have changed. The next attempt follows immediately.
    AtOnce,
}

pub trait RetryWait {
    fn is_over(&self) -> bool;
    /// Waits for `time`, or until the loop must stop.
    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

impl RetryWait for CancellationToken {
    fn is_over(&self) -> bool {
        self.is_cancelled()
    }

    async fn pause(&self, time: Duration) {
        tokio::select! {
            () = self.cancelled() => {}
            () = tokio::time::sleep(time) => {}
        }
    }
}

#[derive(Debug, Clone, Copy)]
pub struct NeverStop;

impl RetryWait for NeverStop {
    fn is_over(&self) -> bool {
        false
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// `None` if the loop must stop before an attempt is done. Each attempt logs its own failures.
pub async fn retry_until<T, AttemptFuture: Future<Output = Attempt<T>>>(
    waiting: &impl RetryWait,
    mut attempt: impl FnMut() -> AttemptFuture,
) -> Option<T> {
    let mut backoff = Backoff::default();
    loop {
        let wait = match attempt().await {
            Attempt::Done(answer) => return Some(answer),
            Attempt::Failed => Some(backoff.pause()),
            Attempt::Later(time) => Some(time),
            Attempt::AtOnce => None,
        };
        if waiting.is_over() {
            return None;
        }
        if let Some(time) = wait {
            waiting.pause(time).await;
            if waiting.is_over() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failed_attempts_retry_with_backoff_until_one_succeeds() {
        let began = Instant::now();
        let tried = AtomicU32::new(0);
        let attempt = || async {
            match tried.fetch_add(1, Ordering::Relaxed) {
                5 => Attempt::Done("an answer"),
                _ => Attempt::Failed,
            }
        };
        assert_eq!(retry_until(&NeverStop, attempt).await, Some("an answer"));
        assert!(began.elapsed() > Duration::from_millis(300), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_stopped_retry_still_tries_once() {
        let stop = CancellationToken::new();
        stop.cancel();
        assert_eq!(retry_until(&stop, || async { Attempt::Done(1) }).await, Some(1));
        let tried = AtomicU32::new(0);
        let attempt = || async {
            tried.fetch_add(1, Ordering::Relaxed);
            Attempt::<()>::Failed
        };
        assert_eq!(retry_until(&stop, attempt).await, None);
        assert_eq!(tried.into_inner(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_wait() {
        let stop = CancellationToken::new();
        let began = Instant::now();
        let waits = tokio::spawn({
            let stop = stop.clone();
            async move { retry_until(&stop, || async { Attempt::<()>::Later(Duration::from_secs(3_600)) }).await }
        });
        tokio::task::yield_now().await;
        stop.cancel();
        assert_eq!(waits.await.unwrap(), None);
        assert!(began.elapsed() < Duration::from_secs(1));
    }
}
