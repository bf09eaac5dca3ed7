//! The active policy. An older policy becomes active again when no scheduler uses the newer one.

use std::sync::Arc;

use tickfleet_core::workers::{EndLease, Heartbeat, Role};
use tickfleet_model::ConsumerId;
use tickfleet_store::{AnnounceResult, Store, StoreOptions};
use tickfleet_testkit::RedisServer;

struct ShardFixture {
    _server: RedisServer,
    store: Store,
}

impl ShardFixture {
    async fn new() -> Self {
        let server = RedisServer::start().await;
        let store = Store::open(&server.url(), 0, Arc::new(StoreOptions::default())).unwrap();
        Self { _server: server, store }
    }

    async fn scheduler(&self, name: &str) -> ConsumerId {
        let consumer = ConsumerId::new(name).unwrap();
        let lease_ms = self.store.options().lease_ms;
        let beat = Heartbeat { consumer: consumer.clone(), role: Role::Scheduler, lease_ms, policy: String::new() };
        self.store.decide(beat).await.unwrap();
        consumer
    }

    async fn announce(&self, digest: &str, scheduler: &ConsumerId, take: bool) -> AnnounceResult {
        self.store.announce(digest, Some(scheduler), take).await.unwrap()
    }

    async fn in_force(&self, digest: &str, scheduler: &ConsumerId) -> u64 {
        match self.announce(digest, scheduler, false).await {
            AnnounceResult::InForce { generation } => generation,
            older @ AnnounceResult::Older { .. } => panic!("{digest}: {older:?}"),
        }
    }
}

const fn older(generation: u64, silent: bool) -> AnnounceResult {
    AnnounceResult::Older { generation, silent }
}

#[tokio::test]
async fn an_older_policy_becomes_active_when_no_scheduler_uses_the_newer_one() {
    let world = ShardFixture::new().await;
    let one = world.scheduler("s-one").await;
    let two = world.scheduler("s-two").await;
    let first = world.in_force("old", &one).await;
    let second = world.in_force("new", &two).await;
    assert!(second > first, "{first} {second}");
    assert_eq!(world.in_force("new", &two).await, second, "saying it again changes nothing");
    assert_eq!(world.announce("old", &one, true).await, older(second, false), "nobody takes it from the living");
    // Scheduler two has read the older policy again, so no scheduler uses the newer policy.
    let third = world.in_force("old", &two).await;
    assert!(third > second, "{second} {third}");
    assert_eq!(world.announce("new", &one, false).await, older(third, false));
    world.store.decide(EndLease { consumer: two, role: Role::Scheduler }).await.unwrap();
    let fourth = world.in_force("new", &one).await;
    assert!(fourth > third, "{third} {fourth}");
    assert_eq!(world.store.generation_of("old").await.unwrap(), Some(third));
    assert_eq!(world.store.generation_of("new").await.unwrap(), Some(fourth));
    assert_eq!(world.store.generation_of("other").await.unwrap(), None);
}
