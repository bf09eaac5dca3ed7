//! Tests that the number of workers follows the load. Measures the memory of turns and agents.

use std::fmt::Write as _;
use std::fs;
use std::time::Duration;

use tickfleet_testkit::RedisServer;

use super::scaling;
use crate::support::process::{Process, pause};

#[tokio::test]
async fn a_fleet_scales_out_and_in_with_its_load_but_not_for_capped_work() {
    let seconds = Duration::from_secs;
    let course = scaling::Course {
        speed: 60,
        steps: vec![(seconds(3), 8.0), (seconds(8), 60.0), (seconds(4), 8.0)],
        capped: (seconds(4), 40),
    };
    let outcome = scaling::run(&course).await;
    println!("{}", outcome.summary());
    let (loaded, capped) = outcome.most_workers();
    assert!(loaded >= 3, "60 calls a second of 0.2 s need 12 slots at least: {}", outcome.csv());
    assert_eq!(capped, 1, "{}", outcome.csv());
    assert!(outcome.signaled >= loaded - 1 && outcome.left == outcome.signaled, "{}", outcome.summary());
}

/// The run in docs/operate/scale-workers.md. `TICKFLEET_SCALING_CSV` names a file for the samples, such as
/// `docs/operate/scaling/run.csv`.
#[tokio::test]
#[ignore = "takes three minutes and wants a quiet machine"]
async fn the_fleet_follows_its_load() {
    let seconds = Duration::from_secs;
    let steps = [(20, 12.0), (40, 120.0), (30, 40.0), (20, 120.0), (20, 12.0)];
    let course = scaling::Course {
        speed: 15,
        steps: steps.map(|(length, load)| (seconds(length), load)).into(),
        capped: (seconds(30), 200),
    };
    let outcome = scaling::run(&course).await;
    println!("{}", outcome.summary());
    #[allow(clippy::disallowed_methods, reason = "a knob of this run, documented beside it")]
    if let Ok(file) = std::env::var("TICKFLEET_SCALING_CSV") {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        std::fs::write(root.join(file), outcome.csv()).unwrap();
    }
    let (loaded, capped) = outcome.most_workers();
    assert!((8..=12).contains(&loaded) && capped == 1, "{}", outcome.summary());
    // The load goes up, down, up and down, so the number of workers changes direction three times. A short stall of the
    // machine can add two changes.
    assert!(outcome.turns_of_direction() <= 5, "{}", outcome.summary());
    assert!(outcome.absorbed().iter().all(Option::is_some), "{}", outcome.summary());
    assert_eq!(outcome.left, outcome.signaled);
}

/// For the table of memory in docs/operate/size-a-fleet.md.
#[tokio::test]
#[ignore = "measures; it asserts only that nothing costs far more than the document says"]
async fn each_turn_and_agent_uses_at_most_a_few_kilobytes() {
    let costs = scaling::memory::measure().await;
    for (what, bytes) in &costs {
        println!("{bytes:>6} B  {what}");
        assert!((1..5_000).contains(bytes), "{costs:?}");
    }
}

const AGENTS: usize = 30_000;
/// About 14 MB were measured. A second copy of the agents, their text or their parsed trees would exceed the maximum.
const AGENTS_COST_MAX: u64 = 40 << 20;

/// Returns the memory in bytes, after the process has released the memory for reading the configuration.
async fn resident(role: &str, agents: usize, enough: u64) -> u64 {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let mut text = String::from("agents:\n");
    for agent in 0..agents {
        writeln!(text, "  a{agent}: {{}}").unwrap();
    }
    fs::write(dir.path().join("agents.yaml"), text).unwrap();
    fs::write(dir.path().join("tenants.yaml"), "tenants: {demo: {}}\n").unwrap();
    fs::write(dir.path().join("permissions.yaml"), "permissions: {echo: {everyone: true}}\n").unwrap();
    let process = Process::start(role, dir.path(), &redis.url());
    let seen = || {
        let status = fs::read_to_string(format!("/proc/{}/status", process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
    };
    for _ in 0..2_400 {
        if seen() <= enough {
            break;
        }
        pause();
    }
    seen()
}

/// With `TICKFLEET_TEST_BINARY` and `--no-capture`, this test prints the memory of another build.
#[tokio::test]
async fn many_agents_add_little_memory_to_a_process() {
    for role in ["scheduler", "worker"] {
        let few = resident(role, 1, u64::MAX).await;
        let many = resident(role, AGENTS, few + AGENTS_COST_MAX).await;
        println!("{role}: {:.1} MB with one agent, {:.1} MB with {AGENTS}", few as f64 / 1e6, many as f64 / 1e6);
        assert!(many <= few + AGENTS_COST_MAX, "{role}: {few} and {many} bytes");
    }
}
