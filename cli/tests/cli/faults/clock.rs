//! Tests that stored data survives after the clock of Redis was days ahead and was then corrected.

use std::fs;

use serde_json::json;
use tickfleet_testkit::RedisServer;

use crate::support::process::{Process, pause};

const DAY_MS: i64 = 86_400_000;

async fn length(server: &RedisServer, stream: &str) -> u64 {
    let command = redis::cmd("XLEN").arg(format!("{{tickfleet:0}}:{stream}")).to_owned();
    command.query_async(&mut server.connection().await).await.unwrap()
}

async fn has(server: &RedisServer, stream: &str, entries: u64) {
    for _ in 0..2_400 {
        if length(server, stream).await >= entries {
            return;
        }
        pause();
    }
    panic!("{stream} has {} entries, not {entries}", length(server, stream).await);
}

#[tokio::test]
async fn stored_data_survives_a_clock_that_ran_ten_days_ahead() {
    let server = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut redis = server.connection().await;
    fs::write(dir.path().join("permissions.yaml"), "permissions: {echo: {everyone: true}}").unwrap();
    fs::write(dir.path().join("tickfleet.yaml"), "scheduler: {collect_every: 1s}").unwrap();
    // Simulates a clock that was ahead: shard time and entry IDs contain the wrong time.
    let (seconds, _): (i64, i64) = redis::cmd("TIME").query_async(&mut redis).await.unwrap();
    let ahead_ms = seconds * 1_000 + 10 * DAY_MS;
    let mut pipe = redis::pipe();
    pipe.cmd("HSET").arg("{tickfleet:0}:meta").arg("last_ms").arg(ahead_ms).ignore();
    for stream in ["replies:demo:old", "audit", "dead"] {
        let key = format!("{{tickfleet:0}}:{stream}");
        pipe.cmd("XADD").arg(key).arg(format!("{ahead_ms}-7")).arg("reply").arg("{}").ignore();
    }
    let () = pipe.query_async(&mut redis).await.unwrap();

    let fleet = ["scheduler", "worker"].map(|role| Process::start(role, dir.path(), &server.url()));
    let turns = 6;
    for i in 0..turns {
        let inbox = if i % 2 == 0 { "old" } else { "new" };
        let calls = json!([{"name": "echo", "arguments": {"text": "x"}}]);
        let turn =
            json!({"turn_id": format!("t{i}"), "tenant": "demo", "agent": "kelly", "reply_to": inbox, "calls": calls});
        for message in [turn.to_string(), "{".to_owned()] {
            let mut command = redis::cmd("XADD");
            command.arg("{tickfleet:0}:turns").arg("*").arg("turn").arg(message);
            let _: String = command.query_async(&mut redis).await.unwrap();
        }
        // Waits until the turn is settled, so that each turn is settled by its own commit. Each commit trims the
        // streams.
        has(&server, &format!("replies:demo:{inbox}"), i / 2 + 1 + (i + 1) % 2).await;
    }
    has(&server, "dead", turns + 1).await;
    // Streams are trimmed once per second (`collect_every`), so twice in this time.
    tokio::time::sleep(std::time::Duration::from_millis(2_500)).await;
    let lengths = [length(&server, "replies:demo:old").await, length(&server, "replies:demo:new").await];
    assert_eq!(lengths, [turns / 2 + 1, turns / 2]);
    assert_eq!([length(&server, "audit").await, length(&server, "dead").await], [turns + 1; 2]);
    assert!(fleet.map(Process::stop).iter().all(|code| *code == Some(0)));
}
