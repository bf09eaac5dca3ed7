//! After a restart, Redis 7.0 reports a lag even if a group has read all entries. The fleet must not rely on the lag.

use std::slice::from_ref;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::json;
use tickfleet_store::{Keys, Store, TurnName, Watch};
use tickfleet_testkit::{RedisOptions, RedisServer};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;

const ENTRIES: usize = 300;

async fn read_all(connection: &mut MultiplexedConnection, stream: &str) {
    let mut pipe = redis::pipe();
    for _ in 0..ENTRIES {
        pipe.cmd("XADD").arg(stream).arg("*").arg("a").arg("b").ignore();
    }
    let () = pipe.query_async(connection).await.unwrap();
    let mut read = redis::cmd("XREADGROUP");
    read.arg(&["GROUP", "workers", "w", "COUNT", "1000", "STREAMS", stream, ">"]);
    type Read = Vec<(String, Vec<(String, redis::Value)>)>;
    let found: Read = read.query_async(connection).await.unwrap();
    let ids: Vec<&String> = found[0].1.iter().map(|(id, _)| id).collect();
    assert_eq!(ids.len(), ENTRIES);
    let mut pipe = redis::pipe();
    pipe.cmd("XACK").arg(stream).arg("workers").arg(&ids).ignore().cmd("XDEL").arg(stream).arg(&ids).ignore();
    let () = pipe.query_async(connection).await.unwrap();
}

/// A restart after a rewrite of the append-only file makes the server report a lag of these streams.
async fn restarted(streams: &[String]) -> RedisServer {
    let options = RedisOptions { appendonly: true, tcp: true, ..RedisOptions::default() };
    let mut server = RedisServer::start_with(options).await;
    let mut connection = server.connection().await;
    for stream in streams {
        let create = ["CREATE", stream.as_str(), "workers", "0", "MKSTREAM"];
        let () = redis::cmd("XGROUP").arg(&create).query_async(&mut connection).await.unwrap();
        read_all(&mut connection, stream).await;
    }
    let _: String = redis::cmd("BGREWRITEAOF").query_async(&mut connection).await.unwrap();
    loop {
        let info: String = redis::cmd("INFO").arg("persistence").query_async(&mut connection).await.unwrap();
        if info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0") {
            break;
        }
        // Only INFO reports the end of a rewrite. The test's own timeout bounds this.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for stream in streams {
        read_all(&mut connection, stream).await;
    }
    server.restart().await;
    let mut connection = server.connection().await;
    let info: String = redis::cmd("INFO").arg("server").query_async(&mut connection).await.unwrap();
    if info.contains("redis_version:7.0.") && !info.contains("valkey_version") {
        for stream in streams {
            let groups: Vec<std::collections::BTreeMap<String, redis::Value>> =
                redis::cmd("XINFO").arg("GROUPS").arg(stream).query_async(&mut connection).await.unwrap();
            let lag: u64 = redis::from_redis_value(groups[0]["lag"].clone()).unwrap();
            assert_eq!(lag, ENTRIES as u64, "the fault that this is about");
        }
    }
    server
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_false_lag_of_redis_counts_as_no_backlog_and_blocks_no_dispatch() {
    let plan = Plan::default();
    let keys = Keys::new(&plan.store.namespace, 0);
    let streams: Vec<String> = ["turns", "ready:urgent", "ready:normal"].map(|name| keys.key(name)).into();
    let server = restarted(&streams).await;
    let store = Store::open(&server.url(), 0, Arc::new(plan.store.clone())).unwrap();
    store.ensure_groups().await.unwrap();

    let backlog = store.backlog(&[], &[]).await.unwrap();
    assert_eq!((backlog.inbound, backlog.ready, backlog.running), (0, 0, 0), "{backlog:?}");
    assert_eq!(store.fleet_load().await.unwrap().in_flight, 0);
    let seen = Watch::new(store.clone()).poll().await.unwrap();
    let waiting: u64 = seen.streams.iter().map(|stream| stream.waiting).sum();
    assert_eq!(waiting, 0, "{:?}", seen.streams);

    let mut fleet = Fleet::start_on(server, plan).await;
    let turn = fleet.submit(&vec![("echo", json!({"text": "x"})); 12]).await;
    let name = TurnName::parse(&format!("acme:{turn}")).unwrap();
    fleet.until("it is admitted", async |fleet| fleet.store.are_under_way(from_ref(&name)).await.unwrap()[0]).await;
    let mut connection = fleet.server.connection().await;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await.unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse::<u64>().unwrap();
    let bound = (used * 10 / 9).to_string();
    let () = redis::cmd("CONFIG").arg(&["SET", "maxmemory", &bound]).query_async(&mut connection).await.unwrap();
    assert_eq!(outcomes(&fleet.reply().await), vec!["ok"; 12]);
    fleet.stop().await;
}
