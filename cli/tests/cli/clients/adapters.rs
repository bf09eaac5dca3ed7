//! Agents of other frameworks, whose models are stood in for, run their tools through a fleet with caps.

use std::process::Command;

use tickfleet_testkit::{RedisOptions, RedisServer};

use super::conformance::{fleet, run};
use crate::support::node::Node;
use crate::support::python::interpreter_with;

#[tokio::test]
async fn an_agent_of_the_ai_sdk_meets_the_fleets_cap() {
    let Some(node) = Node::unless_skipped() else { return };
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let fleet = fleet(&redis.url());
    run(node.command().arg("tests/conformance/ai-sdk.mjs").arg(&node.package), &redis.url());
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
#[ignore = "installs three frameworks from PyPI, some 200 MB; by hand, as tests/README.md tells"]
async fn agents_of_python_frameworks_meet_the_fleets_cap() {
    let python = interpreter_with("adapters", "test,openai-agents,langgraph,pydantic-ai");
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let fleet = fleet(&redis.url());
    run(Command::new(python).args(["-B", "tests/conformance/adapters.py"]), &redis.url());
    assert_eq!(fleet.stop(), Some(0));
}
