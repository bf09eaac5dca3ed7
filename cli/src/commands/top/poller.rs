use std::time::Instant;

use tickfleet_model::policy::Policy;
use tickfleet_store::{ServerLoad, Watch};

use super::frame::{Frame, Heading};
use super::poll_result::PollResult;
use super::tools::Window;
use crate::failure::Failure;
use crate::setup::Setup;

/// Polls all shards, and keeps the data of the last poll that the next frame needs.
pub(crate) struct Poller {
    watches: Vec<Watch>,
    window: Window,
    last: Option<PollResult>,
    redis: String,
}

impl Poller {
    /// Prepares to poll the shards of this configuration. Does not connect yet.
    ///
    /// # Errors
    /// The URL of Redis is invalid.
    pub(crate) fn new(setup: &Setup) -> Result<Self, Failure> {
        let stores = setup.stores()?;
        // Connect for each shard separately, because each shard of a cluster can have another primary.
        Ok(Self {
            watches: stores.into_iter().map(Watch::new).collect(),
            window: Window::default(),
            last: None,
            redis: setup.shown_url(),
        })
    }

    /// Polls once and returns a frame, with the caps from `policy`. Rates cover the time since the last poll. The first
    /// frame has no rates.
    ///
    /// # Errors
    /// [`Failure::Redis`] if Redis cannot be reached, or an error that Redis returned.
    #[allow(clippy::disallowed_methods, reason = "the edge: rates are over the time that really passed")]
    pub(crate) async fn poll(&mut self, policy: &Policy) -> Result<Frame, Failure> {
        let mut shards = Vec::with_capacity(self.watches.len());
        let server = match self.watches.first() {
            Some(watch) => watch.server().await?,
            None => ServerLoad::default(),
        };
        let at = Instant::now();
        for watch in &mut self.watches {
            shards.push(watch.poll().await?);
        }
        let now = PollResult { at, server, shards };
        for (number, shard) in now.shards.iter().enumerate() {
            let before = self.last.as_ref().and_then(|last| last.shards.get(number)?.calls);
            let ended = shard.calls.map(|calls| calls.saturating_sub(before.unwrap_or(0)));
            self.window.add(shard.ended.clone(), ended, shard.now_ms);
        }
        let now_ms = now.shards.iter().map(|shard| shard.now_ms).max().unwrap_or(0);
        let heading = Heading { redis: self.redis.clone(), now_ms };
        let frame = Frame::of(heading, self.last.as_ref(), &now, self.window.tools(now_ms));
        self.last = Some(now);
        Ok(frame.with_caps(policy))
    }
}
