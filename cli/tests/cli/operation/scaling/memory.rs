//! Measures how much memory turns and agents use in Redis, on a real fleet, for docs/operate/size-a-fleet.md.

use std::time::Duration;

use tokio::time::Instant;

use redis::aio::MultiplexedConnection;
use tickfleet_testkit::{RedisOptions, RedisServer};

use super::fleet::Processes;
use super::load::Producer;

const TURNS: u64 = 5_000;
const TENANTS: usize = 2_000;

pub type Cost = (&'static str, i64);

async fn used(redis: &mut MultiplexedConnection) -> i64 {
    let info: String = redis::cmd("INFO").arg("memory").query_async(redis).await.unwrap();
    info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap().trim().parse().unwrap()
}

/// Waits until at most `open` turns lack a reply. Returns the used memory in bytes.
async fn settled(redis: &mut MultiplexedConnection, producer: &mut Producer, open: u64) -> i64 {
    let began = Instant::now();
    loop {
        producer.listen().await;
        let inbound: u64 = redis::cmd("XLEN").arg("{tickfleet:0}:turns").query_async(redis).await.unwrap();
        if inbound == 0 && producer.open() as u64 <= open {
            return used(redis).await;
        }
        assert!(began.elapsed() < Duration::from_secs(120), "{inbound} inbound, {} open", producer.open());
        // An empty stream causes no event, so the stream is polled. The assertion above bounds the loop.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn bytes_of(redis: &mut MultiplexedConnection, key: &str) -> i64 {
    let mut command = redis::cmd("MEMORY");
    let usage = command.arg("USAGE").arg(format!("{{tickfleet:0}}:{key}")).arg("SAMPLES").arg(0);
    usage.query_async::<Option<i64>>(redis).await.unwrap().unwrap_or_else(|| panic!("there is no key {key}"))
}

pub async fn measure() -> Vec<Cost> {
    let server = RedisServer::start_with(RedisOptions::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let mut redis = server.connection().await;
    let mut producer = Producer::new(server.connection().await);
    let turns = i64::try_from(TURNS).unwrap();
    let mut costs = Vec::new();

    // No scheduler runs yet, so the turns wait in the inbound stream.
    let empty = used(&mut redis).await;
    producer.submit_many("crowd", TURNS).await;
    costs.push(("a turn that waits for a scheduler", (used(&mut redis).await - empty) / turns));

    let mut fleet = Processes::start(&server.url(), 32, folder.path(), TENANTS);
    fleet.scale(1);
    let before = settled(&mut redis, &mut producer, 0).await - empty;
    let kept = [("audit", "its audit entry"), ("replies:demo:box", "its reply")];
    for (key, what) in kept {
        costs.push((what, bytes_of(&mut redis, key).await / turns));
    }
    costs.insert(1, ("a turn that has ended, while everything of it is kept", before / turns));
    costs.push(("its record", bytes_of(&mut redis, "done:demo:crowd-7").await));
    costs.push(("its id, where the producer gave one", bytes_of(&mut redis, "id:demo:crowd-7").await));

    let idle = used(&mut redis).await;
    producer.submit_many("capped", TURNS).await;
    let waiting = settled(&mut redis, &mut producer, TURNS).await;
    let open = i64::try_from(producer.open()).unwrap();
    costs.push(("a turn that waits in its agent's throttle queue", (waiting - idle) / open));

    producer.submit_for_tenants(TENANTS).await;
    settled(&mut redis, &mut producer, u64::try_from(open).unwrap()).await;
    let tenants = i64::try_from(TENANTS).unwrap();
    costs.push(("an agent and its tenant that were active today", bytes_of(&mut redis, "counters:_").await / tenants));
    costs
}
