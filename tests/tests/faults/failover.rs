//! If a server is no longer a primary, its connections must not be used again.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tickfleet_core::keys;
use tickfleet_model::Priority;
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::{Pool, RedisCommand, Store, StoreOptions};
use tickfleet_testkit::RedisServer;
use tickfleet_tests::fleet::PATIENCE;

async fn reported<T: redis::FromRedisValue>(redis: &mut MultiplexedConnection, words: &[&str]) -> T {
    redis::cmd(words[0]).arg(&words[1..]).query_async(redis).await.unwrap()
}

async fn others(mine: &mut MultiplexedConnection) -> BTreeSet<String> {
    let me: u64 = reported(mine, &["CLIENT", "ID"]).await;
    let list: String = reported(mine, &["CLIENT", "LIST", "TYPE", "normal"]).await;
    let ids = list.lines().filter_map(|line| line.strip_prefix("id=")?.split(' ').next().map(str::to_owned));
    ids.filter(|id| *id != me.to_string()).collect()
}

#[tokio::test]
async fn a_demotion_seen_by_a_reader_replaces_the_shared_connection() {
    let server = RedisServer::start().await;
    let store = Store::open(&server.url(), 0, Arc::new(StoreOptions::default())).unwrap();
    store.ensure_groups().await.unwrap();
    let id =
        async || -> u64 { store.connection().query(RedisCommand::Look, redis::cmd("CLIENT").arg("ID")).await.unwrap() };
    let before = id().await;
    assert_eq!(id().await, before, "a connection that works is kept");

    let wait_ms = u64::try_from(PATIENCE.as_millis()).unwrap();
    let take = TakeRequest { consumer: "w".into(), queues: vec![keys::ready(Priority::Normal)], count: 1, wait_ms };
    let reader = store.clone();
    let waiting = tokio::spawn(async move { reader.seam().take(&take).await });
    let mut redis = server.connection().await;
    while !reported::<String>(&mut redis, &["INFO", "clients"]).await.contains("blocked_clients:1") {
        // Redis does not announce that a reader waits. The test's own timeout bounds this.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let () = reported(&mut redis, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let said = waiting.await.unwrap().unwrap_err().to_string();
    assert!(said.contains("UNBLOCKED"), "{said}");
    assert_ne!(id().await, before, "the shared connection still leads where the reader's did");
}

#[tokio::test]
async fn a_pooled_connection_is_dropped_after_its_server_is_demoted() {
    let server = RedisServer::start().await;
    let pool = Pool::open(&server.url(), 1).unwrap();
    let mut redis = server.connection().await;
    let role = async |redis: &mut MultiplexedConnection| (pool.server().await.unwrap().role, others(redis).await);
    let first = role(&mut redis).await;
    assert_eq!((first.0.as_str(), first.1.len()), ("master", 1));
    assert_eq!(role(&mut redis).await, first, "it is kept while its server is a primary");

    let () = reported(&mut redis, &["REPLICAOF", "127.0.0.1", "1"]).await;
    let demoted = role(&mut redis).await;
    assert_eq!(demoted.0, "slave");
    assert!(demoted.1.is_disjoint(&first.1), "{demoted:?} {first:?}");

    let () = reported(&mut redis, &["REPLICAOF", "NO", "ONE"]).await;
    let promoted = role(&mut redis).await;
    assert_eq!(promoted, ("master".into(), demoted.1), "a replica that was promoted is as good as any");
    for id in &promoted.1 {
        let () = reported(&mut redis, &["CLIENT", "KILL", "ID", id]).await;
    }
    assert_eq!(role(&mut redis).await.0, "master", "one that broke is made anew");
}
