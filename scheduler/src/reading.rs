//! One inbound loop as its steps see it: the name that it reads under, and its sign of life while it waits.

use std::time::Duration;

use tickfleet_engine::retry_until::Waiting;
use tickfleet_model::ConsumerId;
use tickfleet_ops::progress::LoopHandle;
use tickfleet_store::Inbound;
use tokio_util::sync::CancellationToken;

/// A loop that reads an inbound stream.
pub(crate) struct Reading {
    /// The stream that it reads.
    pub(crate) from: Inbound,
    /// The name that it reads under.
    pub(crate) consumer: ConsumerId,
    handle: LoopHandle,
    stop: CancellationToken,
}

impl Reading {
    pub(crate) const fn new(from: Inbound, consumer: ConsumerId, handle: LoopHandle, stop: CancellationToken) -> Self {
        Self { from, consumer, handle, stop }
    }

    /// The loop has come round once.
    pub(crate) fn advanced(&self) {
        self.handle.advanced();
    }

    /// The loop has ended.
    pub(crate) fn finished(self) {
        self.handle.finished();
    }
}

impl Waiting for Reading {
    fn is_over(&self) -> bool {
        self.stop.is_over()
    }

    /// Waits for Redis, or for room in it; not beyond the loop's end. Who waits is alive: a probe that ended the
    /// process for it would count a crash against what it holds, and help nobody.
    async fn pause(&self, time: Duration) {
        self.handle.advanced();
        self.stop.pause(time).await;
        self.handle.advanced();
    }
}
