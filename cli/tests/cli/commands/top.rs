//! `tickfleet top` with a real fleet, as text and as JSON.

use serde_json::json;
use tickfleet_testkit::RedisServer;

use crate::support::binary::{DevFleet, tickfleet, until_all_printed};

fn submit(fleet: &DevFleet, calls: usize) {
    let calls: Vec<&str> = std::iter::repeat_n(["--call", "echo {\"text\":\"x\"}"], calls).flatten().collect();
    fleet.run(&[&["submit", "--tenant", "demo", "--agent", "kelly"], &calls[..]].concat()).exits(0);
}

#[tokio::test]
async fn top_prints_a_frame_with_capped_agents_tools_and_live_processes() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    submit(&fleet, 60);
    // Right after a tick begins, fewer than ten of its calls have run.
    let frame = loop {
        let frame = fleet.run(&["top", "--json"]).exits(0).json();
        let agent = &frame["agents"][0];
        let is_capped = agent["tick_used"] == 10 && agent["due_in_ms"].as_i64() > Some(0);
        if frame["tools"]["seen"].as_u64() >= Some(10) && is_capped {
            break frame;
        }
    };
    let agent = &frame["agents"][0];
    assert_eq!((&agent["tenant"], &agent["agent"], &agent["turns"]), (&"demo".into(), &"kelly".into(), &json!(1)));
    assert_eq!(
        (&agent["tick_used"], &agent["tick_max"], &agent["day_max"]),
        (&json!(10), &json!(10), &json!(1_000)),
        "{frame:#}"
    );
    assert!(agent["first"].as_str().unwrap().starts_with("demo:"), "{frame:#}");
    assert!((1..=5_000).contains(&agent["due_in_ms"].as_i64().unwrap()), "{frame:#}");
    assert_eq!(frame["tools"]["rows"][0]["tool"], "echo");
    assert_eq!(frame["tools"]["rows"][0]["outcomes"]["ok"], frame["tools"]["seen"]);
    assert_eq!(frame["slots"]["all"], 32, "what the worker said with its heartbeat: {frame:#}");
    let kinds: Vec<&str> =
        frame["nodes"].as_array().unwrap().iter().map(|node| node["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["scheduler", "worker"]);
    assert!(frame["nodes"][1]["heartbeat_age_ms"].is_i64(), "{frame:#}");
    let kinds: Vec<&str> =
        frame["findings"].as_array().unwrap().iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
    // This Redis has no append-only file and no maxmemory, so there is a finding about the store.
    assert!(kinds.iter().all(|kind| ["limit_full", "store"].contains(kind)), "{frame:#}");
    assert!(kinds.contains(&"store"), "{frame:#}");

    // A frame may be taken before the next ten calls run. The remaining calls last for several ticks.
    let printed = ["demo:kelly", "Capped agents: 1", "1 scheduler, 1 worker alive", "of 32 busy"];
    until_all_printed(&printed, || fleet.run(&["top"]));
}

#[tokio::test]
async fn top_reports_an_unreachable_redis_and_an_unused_fleet() {
    let mut redis = RedisServer::start().await;
    let url = redis.url();
    tickfleet(&["top", "--redis-url", &url]).exits(0).says("shard 0 has never been used");
    redis.kill9();
    tickfleet(&["top", "--redis-url", &url]).exits(3).prints_error("cannot be reached");
    redis.restart().await;
    tickfleet(&["top", "--redis-url", &url]).exits(0).says("no policy yet");
}
