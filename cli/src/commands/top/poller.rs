//! Asks every shard, look by look.

use std::time::Instant;

use tickfleet_model::policy::Policy;
use tickfleet_store::{ServerLoad, Watch};

use super::frame::{Frame, Heading};
use super::seen::Seen;
use super::tools::Window;
use crate::failure::Failure;
use crate::setup::Setup;

/// Looks at all shards, and remembers what the next frame needs of the last look.
pub(crate) struct Poller {
    watches: Vec<Watch>,
    window: Window,
    last: Option<Seen>,
    redis: String,
}

impl Poller {
    /// Looks at the shards of this configuration; none is made yet.
    ///
    /// # Errors
    /// The URL of Redis is none.
    pub(crate) fn new(setup: &Setup) -> Result<Self, Failure> {
        let stores = setup.stores()?;
        // In a cluster each shard has a primary of its own.
        Ok(Self {
            watches: stores.into_iter().map(Watch::new).collect(),
            window: Window::default(),
            last: None,
            redis: setup.shown_url(),
        })
    }

    /// One look, as a frame; what caps allow says `policy`. Rates are over the time since the last look, and absent in the first.
    ///
    /// # Errors
    /// [`Failure::Redis`], or what Redis refuses.
    #[allow(clippy::disallowed_methods, reason = "the edge: rates are over the time that really passed")]
    pub(crate) async fn look(&mut self, policy: &Policy) -> Result<Frame, Failure> {
        let mut shards = Vec::with_capacity(self.watches.len());
        let server = match self.watches.first() {
            Some(watch) => watch.server().await?,
            None => ServerLoad::default(),
        };
        let at = Instant::now();
        for watch in &mut self.watches {
            shards.push(watch.look().await?);
        }
        let now = Seen { at, server, shards };
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
