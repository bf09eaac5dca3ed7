//! Measures how long Redis is busy with a turn that has the maximum number of results of the maximum size.

use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_model::Effect;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{ToolError, TypedTool};

const CALLS: usize = 128;
const BYTES: usize = 60 * 1024;

/// Run it with `cargo nextest run --workspace -E 'test(as_many_large_results)' --run-ignored only --no-capture`.
#[tokio::test]
#[ignore = "measures, and wants a quiet machine"]
async fn measures_redis_for_a_turn_with_as_many_large_results_as_allowed() {
    let large = TypedTool::new("large", "Much.", Effect::Read, |_, _: Value| async {
        Ok::<_, ToolError>(json!("x".repeat(BYTES)))
    });
    let caps = DefaultCaps { tick_ms: 1_000, calls_per_tick: CALLS as u32, ..DefaultCaps::default() };
    let mut fleet =
        Fleet::start(Plan { tools: vec![large.timeout(Duration::from_secs(30))], caps, ..Plan::default() }).await;
    let mut redis = fleet.server.connection().await;
    let config =
        |name: &'static str, value: &'static str| redis::cmd("CONFIG").arg("SET").arg(name).arg(value).to_owned();
    let () = config("slowlog-log-slower-than", "1000").query_async(&mut redis).await.unwrap();
    let () = config("slowlog-max-len", "10000").query_async(&mut redis).await.unwrap();
    for _ in 0..8 {
        fleet.submit(&vec![("large", json!({})); CALLS]).await;
    }
    for _ in 0..8 {
        let reply = fleet.reply().await;
        assert_eq!(reply["results"].as_array().unwrap().len(), CALLS);
    }
    let slow: Vec<Vec<redis::Value>> = redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(&mut redis).await.unwrap();
    let mut took: Vec<i64> = slow.iter().map(|entry| redis::from_redis_value(entry[2].clone()).unwrap()).collect();
    took.sort_unstable();
    println!(
        "8 turns of {CALLS} results of {BYTES} bytes: {} commands of 1 ms or more, the slowest {:?} µs",
        took.len(),
        took.last()
    );
    fleet.stop().await;
}
