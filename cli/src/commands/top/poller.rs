use std::collections::BTreeMap;
use std::time::Instant;

use tickfleet_store::{ServerLoad, ShardView, Store, Watch};

use super::facts::FactsReader;
use super::findings::findings;
use super::frame::{Frame, Heading};
use super::poll_result::PollResult;
use super::tools::Window;
use crate::failure::Failure;
use crate::setup::Setup;

pub(crate) struct Poller {
    stores: Vec<Store>,
    watches: Vec<Watch>,
    facts: FactsReader,
    window: Window,
    last: Option<PollResult>,
    redis: String,
}

impl Poller {
    pub(crate) fn new(setup: &Setup) -> Result<Self, Failure> {
        let stores = setup.stores()?;
        // Connect for each shard separately, because the shards of a cluster can have different primaries.
        Ok(Self {
            watches: stores.iter().cloned().map(Watch::new).collect(),
            stores,
            facts: FactsReader::default(),
            window: Window::default(),
            last: None,
            redis: setup.shown_url(),
        })
    }

    /// A shard that does not respond becomes a finding. Fails if no shard responds, or if Redis returns an error.
    #[allow(clippy::disallowed_methods, reason = "the edge: rates are over the time that really passed")]
    pub(crate) async fn poll(&mut self, setup: &Setup) -> Result<Frame, Failure> {
        let mut shards = Vec::with_capacity(self.watches.len());
        let mut unread = BTreeMap::new();
        let mut first_error = None;
        let at = Instant::now();
        for (number, watch) in self.watches.iter_mut().enumerate() {
            let polled = watch.poll().await;
            shards.push(polled.unwrap_or_else(|error| {
                unread.insert(number, error.to_string());
                first_error.get_or_insert(error);
                ShardView::default()
            }));
        }
        if let Some(error) = first_error.filter(|_| unread.len() == shards.len()) {
            return Err(error.into());
        }
        let responding = || (0..shards.len()).filter(|number| !unread.contains_key(number));
        let server = match responding().next().and_then(|number| self.watches.get(number)) {
            Some(watch) => watch.server().await?,
            None => ServerLoad::default(),
        };
        for number in responding() {
            let Some(shard) = shards.get(number) else { continue };
            let before = self.last.as_ref().and_then(|last| last.shards.get(number)?.calls);
            let ended = shard.calls.map(|calls| calls.saturating_sub(before.unwrap_or(0)));
            self.window.add(shard.ended.clone(), ended, shard.now_ms);
        }
        let read: Vec<(&Store, &ShardView)> =
            responding().filter_map(|number| Some((self.stores.get(number)?, shards.get(number)?))).collect();
        let facts = self.facts.read(setup, &read).await;
        let now_ms = shards.iter().map(|shard| shard.now_ms).max().unwrap_or(0);
        let now = PollResult { at, server, shards, unread };
        let heading = Heading { redis: self.redis.clone(), now_ms };
        let policy = &setup.configuration.policy;
        let mut frame = Frame::of(heading, self.last.as_ref(), &now, self.window.tools(now_ms)).with_caps(policy);
        frame.findings = findings(&frame, &now, &facts, policy.defaults.tick_ms);
        self.last = Some(now);
        Ok(frame)
    }
}
