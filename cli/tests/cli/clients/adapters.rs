//! Agents of other frameworks, whose models are stood in for, run their tools through a fleet with caps.

use std::process::Command;

use tickfleet_testkit::{RedisOptions, RedisServer};

use super::conformance::{fleet, run};
use crate::support::node::Node;
use crate::support::python::installed;

#[tokio::test]
async fn an_agent_of_the_ai_sdk_meets_the_fleets_cap() {
    let Some(node) = Node::unless_skipped() else { return };
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let fleet = fleet(&redis.url());
    run(node.command().arg("tests/conformance/ai-sdk.mjs").arg(&node.package), &redis.url());
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn agents_of_python_frameworks_meet_the_fleets_cap() {
    let python = installed("adapters").join("python");
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let fleet = fleet(&redis.url());
    let mut agents = Command::new(python);
    agents.env("PYTHONPATH", "python/src").args(["-B", "tests/conformance/adapters.py"]);
    let said = run(&mut agents, &redis.url());
    for framework in ["openai_agents", "langgraph", "pydantic_ai"] {
        assert!(said.contains(&format!("{framework}: ok")), "{said}");
    }
    assert_eq!(fleet.stop(), Some(0));
}
