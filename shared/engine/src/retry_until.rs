//! Trying until Redis answers: the loop for what must not be dropped because Redis is away. Only settlements that a
//! script error has refused wait in a loop of their own, in the worker's batches.

use std::future::Future;
use std::time::Duration;

use tickfleet_store::Backoff;
use tokio_util::sync::CancellationToken;

/// The result of one attempt.
#[derive(Debug)]
pub enum Attempt<T> {
    /// There is an answer.
    Done(T),
    /// It failed: the next attempt comes after a wait that grows ([`Backoff`]). If there was an error, the
    /// attempt has logged it.
    Failed,
    /// It cannot be done yet: the next attempt comes after this time.
    Later(Duration),
    /// Its premises have changed and were read anew: the next attempt comes at once.
    AtOnce,
}

/// The way in which a loop waits between two attempts, and when it must stop.
pub trait Waiting {
    /// Returns true if nothing may be tried any more.
    fn is_over(&self) -> bool;
    /// Waits for `time`, or until the loop must stop.
    fn pause(&self, time: Duration) -> impl Future<Output = ()> + Send;
}

impl Waiting for CancellationToken {
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

/// Waits without an end of its own: the attempts decide when to stop.
#[derive(Debug, Clone, Copy)]
pub struct Endless;

impl Waiting for Endless {
    fn is_over(&self) -> bool {
        false
    }

    async fn pause(&self, time: Duration) {
        tokio::time::sleep(time).await;
    }
}

/// Repeats `attempt` until it is done, and gives its answer. At least one attempt is made. None if the loop had to stop
/// before: that is asked after each attempt, before and after the wait.
///
/// It logs nothing: an attempt knows what failed, and says so itself.
pub async fn retry_until<T, Tried: Future<Output = Attempt<T>>>(
    waiting: &impl Waiting,
    mut attempt: impl FnMut() -> Tried,
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
    async fn it_tries_again_after_growing_waits_until_it_is_done() {
        let (began, tried) = (Instant::now(), AtomicU32::new(0));
        let attempt = || async {
            match tried.fetch_add(1, Ordering::Relaxed) {
                5 => Attempt::Done("an answer"),
                _ => Attempt::Failed,
            }
        };
        assert_eq!(retry_until(&Endless, attempt).await, Some("an answer"));
        assert!(began.elapsed() > Duration::from_millis(300), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn it_tries_once_at_least_and_stops_when_it_is_told_to() {
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
        let (stop, began) = (CancellationToken::new(), Instant::now());
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
