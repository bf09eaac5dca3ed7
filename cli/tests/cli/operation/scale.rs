//! Tests that the number of workers follows the load. Measures the memory of turns and agents.

use std::fmt::Write as _;
use std::fs;

use tickfleet_testkit::RedisServer;

use super::scaling;
use crate::support::process::{Process, pause};

#[tokio::test]
async fn a_fleet_scales_out_and_in_with_its_load_but_not_for_capped_work() {
    scaling::out_and_in().await;
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
