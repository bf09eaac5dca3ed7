//! A Redis that responds with errors. The readiness probe must report the reason until the problem is solved.

use std::path::Path;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use tickfleet_core::workers::{self, Heartbeat};
use tickfleet_model::ConsumerId;
use tickfleet_store::{Pool, Refusal, Store};
use tickfleet_testkit::{RedisOptions, RedisServer};
use tickfleet_tests::fleet::users;

fn shard(url: &str) -> Store {
    Store::open(url, 0, Arc::default()).unwrap()
}

async fn refusal(store: &Store) -> Option<Refusal> {
    store.probe().await.err().map(|error| error.refusal().unwrap_or_else(|| panic!("not understood: {error}")))
}

async fn ask(connection: &mut MultiplexedConnection, words: &[&str]) {
    let _: redis::Value = redis::cmd(words[0]).arg(&words[1..]).query_async(connection).await.unwrap();
}

async fn saved(connection: &mut MultiplexedConnection, well: bool) {
    let word = if well { "rdb_last_bgsave_status:ok" } else { "rdb_last_bgsave_status:err" };
    loop {
        let info: String = redis::cmd("INFO").arg("persistence").query_async(connection).await.unwrap();
        if info.contains("rdb_bgsave_in_progress:0") && info.contains(word) {
            return;
        }
        // Only INFO reports the end of a snapshot. The test's own timeout bounds this.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn disk_demotion_and_replica_errors_are_reported_separately() {
    let server = RedisServer::start().await;
    let store = shard(&server.url());
    let mut connection = server.connection().await;
    assert_eq!(refusal(&store).await, None);
    let written: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap();
    assert_eq!(written, [store.keys().key("meta")], "the probe writes nothing but the time of the shard");

    // The snapshot cannot replace a folder, so the snapshot fails.
    let blocked = server.dir().join("dump.rdb");
    let make = |path: &Path| std::fs::create_dir(path).unwrap();
    make(&blocked);
    ask(&mut connection, &["CONFIG", "SET", "save", "3600 1"]).await;
    ask(&mut connection, &["BGSAVE"]).await;
    saved(&mut connection, false).await;
    assert_eq!(refusal(&store).await, Some(Refusal::Disk));
    std::fs::remove_dir(&blocked).unwrap();
    ask(&mut connection, &["BGSAVE"]).await;
    saved(&mut connection, true).await;
    assert_eq!(refusal(&store).await, None);

    ask(&mut connection, &["CONFIG", "SET", "min-replicas-to-write", "1"]).await;
    assert_eq!(refusal(&store).await, Some(Refusal::Replicas));
    ask(&mut connection, &["CONFIG", "SET", "min-replicas-to-write", "0"]).await;

    ask(&mut connection, &["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_eq!(refusal(&store).await, Some(Refusal::Replica));
    ask(&mut connection, &["REPLICAOF", "NO", "ONE"]).await;
    assert_eq!(refusal(&store).await, None);

    ask(&mut connection, &["CONFIG", "SET", "maxmemory", "1mb"]).await;
    assert_eq!(refusal(&store).await, None);
}

#[tokio::test]
async fn every_role_is_ready_and_missing_permissions_are_reported() {
    let server = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    users::make(&server, "tickfleet").await;
    for role in ["tickfleet", "scheduler", "worker", "operator", "gateway", "producer", "exporter"] {
        let error = shard(&users::url_in(&server.url(), role)).probe().await.err();
        // No process of a fleet is a producer, so a producer may lack permissions for the probe.
        assert!(error.is_none() || role == "producer", "{role}: {error:?}");
    }
    let mut connection = server.connection().await;
    // A worker that may not call the function runs the function's code as a script.
    let worker = shard(&users::url_in(&server.url(), "worker"));
    for (denied, refused) in
        [(&["fcall"][..], None), (&["fcall", "evalsha"], Some(Refusal::Rights)), (&["set"], Some(Refusal::Rights))]
    {
        assert_eq!(refusal(&worker).await, None, "{denied:?}");
        let rules = |sign: &str| denied.iter().map(|command| format!("{sign}{command}")).collect::<Vec<_>>();
        for (rule, expected) in [("-", refused), ("+", None)] {
            let rules = rules(rule);
            let words = ["ACL", "SETUSER", "worker"].into_iter().chain(rules.iter().map(String::as_str));
            ask(&mut connection, &words.collect::<Vec<_>>()).await;
            for store in [&worker, &shard(&users::url_in(&server.url(), "worker"))] {
                assert_eq!(refusal(store).await, expected, "{rules:?}");
            }
        }
    }
    let wrong = users::url_in(&server.url(), "worker").replace("worker-secret", "other");
    assert_eq!(refusal(&shard(&wrong)).await, Some(Refusal::Login));

    ask(&mut connection, &["ACL", "SETUSER", "operator", "-info", "-config|get"]).await;
    let pool = Pool::open(&users::url_in(&server.url(), "operator"), 1).unwrap();
    let facts = pool.server().await.unwrap();
    let named: Vec<&str> = facts.refused.iter().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(named[0], "INFO", "{facts:?}");
    assert!(named.contains(&"CONFIG GET") && facts.time_ms > 0, "{facts:?}");
}

async fn on(folder: &Path, appendonly: bool) -> RedisServer {
    let extra_args = ["--dir", folder.to_str().unwrap()].map(String::from).into();
    RedisServer::start_with(RedisOptions { appendonly, extra_args, ..RedisOptions::default() }).await
}

async fn size(server: &RedisServer) -> u64 {
    redis::cmd("DBSIZE").query_async(&mut server.connection().await).await.unwrap()
}

#[tokio::test]
async fn a_snapshot_loads_only_before_the_append_only_file_is_enabled() {
    let naive = tempfile::tempdir().unwrap();
    let guided = tempfile::tempdir().unwrap();
    let server = RedisServer::start().await;
    let store = shard(&server.url());
    store.ensure_groups().await.unwrap();
    let consumer = ConsumerId::new("s-a").unwrap();
    let beat = Heartbeat { consumer, role: workers::Role::Scheduler, lease_ms: 60_000, policy: String::new() };
    store.decide(beat).await.unwrap();
    let keys = size(&server).await;
    assert!(keys > 0);
    ask(&mut server.connection().await, &["SAVE"]).await;
    for folder in [&naive, &guided] {
        std::fs::copy(server.dir().join("dump.rdb"), folder.path().join("dump.rdb")).unwrap();
    }
    assert_eq!(size(&on(naive.path(), true).await).await, 0, "the guide's warning is out of date");

    let restored = on(guided.path(), false).await;
    assert_eq!(size(&restored).await, keys);
    let mut connection = restored.connection().await;
    ask(&mut connection, &["CONFIG", "SET", "appendonly", "yes"]).await;
    loop {
        let info: String = redis::cmd("INFO").arg("persistence").query_async(&mut connection).await.unwrap();
        if info.contains("aof_rewrite_in_progress:0") && info.contains("aof_rewrite_scheduled:0") {
            break;
        }
        // Only INFO reports the end of a rewrite. The test's own timeout bounds this.
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    drop(restored);
    assert_eq!(size(&on(guided.path(), true).await).await, keys);
}
