//! Which policy is in force: a new one at once, an older one when nobody decides by the newer one any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tickfleet_model::ConsumerId;
use tickfleet_store::{Announced, Store, StoreOptions, TimeSource};
use tickfleet_testkit::RedisServer;

const START_MS: i64 = 1_767_571_200_000;

/// A shard on a clock of the test's own, with two schedulers.
struct World {
    server: RedisServer,
    store: Store,
    clock: Arc<AtomicI64>,
    one: ConsumerId,
    two: ConsumerId,
}

impl World {
    async fn new() -> Self {
        let (server, clock) = (RedisServer::start().await, Arc::new(AtomicI64::new(START_MS)));
        let store = Store::open(&server.url(), 0, Arc::new(StoreOptions::default())).unwrap();
        let store = store.with_time(TimeSource::Injected(clock.clone()));
        let name = |name| ConsumerId::new(name).unwrap();
        let world = Self { server, store, clock, one: name("s-one"), two: name("s-two") };
        world.store.beat(&world.one).await.unwrap();
        world.store.beat(&world.two).await.unwrap();
        world
    }

    async fn announce(&self, digest: &str, scheduler: &ConsumerId, take: bool) -> Announced {
        self.store.announce(digest, Some(scheduler), take).await.unwrap()
    }

    fn a_lease_passes(&self) {
        self.clock.fetch_add(self.store.options().lease_ms + 1, Ordering::SeqCst);
    }
}

const fn in_force(generation: u64) -> Announced {
    Announced::InForce { generation }
}

const fn older(generation: u64, silent: bool) -> Announced {
    Announced::Older { generation, silent }
}

#[tokio::test]
async fn an_older_policy_comes_back_when_the_newer_ones_scheduler_has_left_or_changed() {
    let world = World::new().await;
    assert_eq!(world.announce("old", &world.one, false).await, in_force(1));
    assert_eq!(world.announce("new", &world.two, false).await, in_force(2));
    assert_eq!(world.announce("new", &world.two, false).await, in_force(2), "saying it again changes nothing");
    assert_eq!(world.announce("old", &world.one, true).await, older(2, false), "nobody takes it from the living");
    // Two has read the older one again: nobody decides by the newer one.
    assert_eq!(world.announce("old", &world.two, false).await, in_force(3));
    assert_eq!(world.announce("new", &world.one, false).await, older(3, false));
    world.store.leave(&world.two).await.unwrap();
    assert_eq!(world.announce("new", &world.one, false).await, in_force(4));
    assert_eq!(world.store.generation_of("old").await.unwrap(), Some(3));
    assert_eq!(world.store.generation_of("new").await.unwrap(), Some(4));
    assert_eq!(world.store.generation_of("other").await.unwrap(), None);
}

#[tokio::test]
async fn who_only_fell_silent_is_waited_for() {
    let world = World::new().await;
    world.announce("old", &world.one, false).await;
    world.announce("new", &world.two, false).await;
    world.a_lease_passes();
    world.store.beat(&world.one).await.unwrap();
    assert_eq!(world.announce("old", &world.one, false).await, older(2, true));
    world.store.beat(&world.two).await.unwrap();
    assert_eq!(world.announce("old", &world.one, true).await, older(2, false), "it is back");
    world.a_lease_passes();
    world.store.beat(&world.one).await.unwrap();
    assert_eq!(world.announce("old", &world.one, true).await, in_force(3));
}

#[tokio::test]
async fn the_policies_that_are_remembered_are_bounded_and_a_forgotten_one_is_news() {
    let world = World::new().await;
    for number in 1..=100 {
        let announced = world.announce(&format!("p{number}"), &world.one, false).await;
        assert_eq!(announced, in_force(number));
    }
    let kept: u64 = redis::cmd("HLEN")
        .arg(world.store.keys().key("policies"))
        .query_async(&mut world.server.connection().await)
        .await
        .unwrap();
    assert_eq!(kept, 64 + 1, "the last policies, and who decides by one");
    assert_eq!(world.announce("p99", &world.two, false).await, older(100, false));
    assert_eq!(world.announce("p1", &world.two, false).await, in_force(101));
}
