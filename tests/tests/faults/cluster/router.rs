//! Each shard finds the primary of its slot, from redirections and from the cluster's list of slots.

use std::sync::Arc;
use std::time::Duration;

use tickfleet_core::keys;
use tickfleet_model::Priority;
use tickfleet_store::seam::TakeRequest;
use tickfleet_store::{Keys, Pool, Store};
use tickfleet_testkit::Cluster;
use tokio::time::{Instant, sleep};

use super::{RECOVERS_WITHIN, SHARDS, options};

#[tokio::test]
async fn a_blocked_reader_detects_a_slot_move() {
    let cluster = Cluster::start(3, 0).await;
    let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
    store.ensure_groups().await.unwrap();
    let slot = cluster.slot(store.keys().prefix()).await;
    let from = cluster.holder(slot).await.unwrap();
    let to = (from + 1) % 3;
    let first = store.connection().primary().unwrap().unwrap();
    assert_eq!(first, cluster.address(from));

    let ready = vec![keys::ready(Priority::Normal)];
    let take = TakeRequest { consumer: "w".into(), queues: ready, count: 1, wait_ms: 600_000 };
    let reader = store.clone();
    let waits = take.clone();
    let waiting = tokio::spawn(async move {
        reader.seam().take(&waits).await.map(|entries| entries.len()).map_err(|error| error.to_string())
    });
    // The reader must wait before its streams move.
    sleep(Duration::from_millis(300)).await;
    cluster.begin_to_move(slot, from, to).await;
    let keys = cluster.keys_in(slot, from).await;
    cluster.move_keys(&keys, from, to).await;
    cluster.end_move(slot, from, to).await;
    let error = waiting.await.unwrap().unwrap_err();
    assert!(!error.contains("gone"), "what moves is not lost");

    let deadline = Instant::now() + RECOVERS_WITHIN;
    while store.seam().take(&TakeRequest { wait_ms: 50, ..take.clone() }).await.is_err() {
        assert!(Instant::now() < deadline, "the reader does not find the next holder");
        // The nodes do not agree yet; the deadline bounds the wait.
        sleep(Duration::from_millis(50)).await;
    }
    store.ensure_groups().await.unwrap();
    assert_eq!(store.connection().primary().unwrap().unwrap(), cluster.address(to));
    let pool = Pool::open(&cluster.url(), 1).unwrap();
    let keys: Vec<Keys> = (0..SHARDS).map(|shard| Keys::new("tickfleet", shard)).collect();
    let view = pool.cluster(&keys).await.unwrap();
    let holders: Vec<&String> = view.holders.iter().map(|holder| &holder.address).collect();
    assert_eq!(holders.len(), 3, "{view:?}");
    assert_eq!(view.holders.iter().map(|holder| holder.slots).sum::<u32>(), 16_384);
    for said in &view.nodes {
        let primaries = said.primaries.clone().unwrap();
        assert_eq!(primaries[0], Some(cluster.address(to)), "{said:?}");
    }
    assert_eq!(pool.at(&keys[0]).unwrap().server().await.unwrap().mode, "cluster");
}

#[tokio::test]
async fn announced_hosts_are_used_with_the_queried_node_as_fallback() {
    let cluster = Cluster::start(3, 0).await;
    for (endpoint, host) in [("hostname", "localhost"), ("unknown-endpoint", "127.0.0.1")] {
        for server in &cluster.servers {
            let mut connection = server.connection().await;
            for (name, value) in
                [("cluster-announce-hostname", "localhost"), ("cluster-preferred-endpoint-type", endpoint)]
            {
                let mut set = redis::cmd("CONFIG");
                set.arg("SET").arg(name).arg(value);
                let () = set.query_async(&mut connection).await.unwrap();
            }
        }
        let deadline = Instant::now() + RECOVERS_WITHIN;
        loop {
            let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
            store.ensure_groups().await.unwrap();
            let reported = store.connection().primary().unwrap().unwrap();
            if reported.starts_with(&format!("{host}:")) {
                break;
            }
            assert!(Instant::now() < deadline, "{endpoint}: {reported}");
            // The nodes exchange the announced names; the deadline bounds the wait.
            sleep(Duration::from_millis(100)).await;
        }
    }
}

#[tokio::test]
async fn an_unowned_slot_is_reported_per_node() {
    let mut cluster = Cluster::start(3, 0).await;
    let store = Store::open(&cluster.url(), 0, Arc::new(options())).unwrap();
    let holder = cluster.holder(cluster.slot(store.keys().prefix()).await).await.unwrap();
    cluster.servers[holder].kill9();
    let error = store.now_ms().await.unwrap_err().to_string();
    for expected in ["cannot find the owner of slot ", &format!("names {}: ", cluster.address(holder)), ", too"] {
        assert!(error.contains(expected), "{expected}\n{error}");
    }
    assert!(store.connection().primary().unwrap().is_err());
    let alone = tickfleet_testkit::RedisServer::start_with(tickfleet_testkit::RedisOptions {
        tcp: true,
        ..tickfleet_testkit::RedisOptions::default()
    })
    .await;
    let url = alone.url().replace("redis://", "redis+cluster://");
    let error = Store::open(&url, 0, Arc::new(options())).unwrap().now_ms().await.unwrap_err().to_string();
    assert!(error.contains("cluster support disabled"), "{error}");
}
