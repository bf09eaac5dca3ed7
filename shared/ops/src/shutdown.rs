//! Shutdown in two phases: the first signal starts a drain, and the second signal stops the process.

use std::io;

use futures::{Stream, StreamExt, stream};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// Clones share the state.
#[derive(Debug, Clone, Default)]
pub struct Shutdown {
    /// Phase one: take no new work, finish running work, and return the rest to the queues.
    pub draining: CancellationToken,
    /// Phase two: stop now. The reaper redelivers running work. [`Self::draining`] is always canceled first.
    pub now: CancellationToken,
}

impl Shutdown {
    /// The first signal cancels [`Self::draining`], and the second signal cancels [`Self::now`]. Must be called inside
    /// a tokio runtime. Without this handling, PID 1 would ignore the signals.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let terminated = stream::poll_fn(move |cx| terminate.poll_recv(cx)).map(|()| "SIGTERM");
        let interrupted = stream::poll_fn(move |cx| interrupt.poll_recv(cx)).map(|()| "SIGINT");

        let shutdown = Self::default();
        tokio::spawn(shutdown.clone().follow(stream::select(terminated, interrupted)));
        Ok(shutdown)
    }

    pub fn drain(&self) {
        self.draining.cancel();
    }

    /// Also starts phase one.
    pub fn stop_now(&self) {
        self.draining.cancel();
        self.now.cancel();
    }

    async fn follow(self, signals: impl Stream<Item = &'static str>) {
        let mut signals = std::pin::pin!(signals);
        while let Some(name) = signals.next().await {
            if self.draining.is_cancelled() {
                tracing::warn!(signal = name, "second signal; stopping now, other workers recover what still runs");
                self.stop_now();
                return;
            }
            tracing::info!(signal = name, "draining; a second signal stops at once");
            self.drain();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use nix::sys::signal::{Signal, raise};

    use super::*;

    #[tokio::test]
    async fn the_first_signal_drains_and_the_second_one_stops() {
        let (send, receive) = futures::channel::mpsc::unbounded();
        let shutdown = Shutdown::default();
        let following = tokio::spawn(shutdown.clone().follow(receive));

        send.unbounded_send("SIGTERM").unwrap();
        shutdown.draining.cancelled().await;
        assert!(!shutdown.now.is_cancelled());

        send.unbounded_send("SIGINT").unwrap();
        shutdown.now.cancelled().await;
        following.await.unwrap();
    }

    #[tokio::test]
    async fn a_manual_drain_counts_as_the_first_signal() {
        let shutdown = Shutdown::default();
        shutdown.drain();
        shutdown.clone().follow(stream::iter(["SIGTERM"])).await;
        assert!(shutdown.now.is_cancelled());
    }

    #[tokio::test]
    async fn a_real_sigterm_drains_instead_of_killing() {
        let shutdown = Shutdown::on_signals().unwrap();
        raise(Signal::SIGTERM).unwrap();
        shutdown.draining.cancelled().await;
    }
}
