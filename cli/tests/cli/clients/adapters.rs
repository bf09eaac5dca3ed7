//! Agents of other frameworks, whose models are stood in for, run their tools through a fleet with caps.

use std::process::Command;

use super::conformance::run;
use super::gateway::{NOWHERE, World};
use crate::support::node::Node;
use crate::support::python::installed;

#[tokio::test]
async fn an_agent_of_the_ai_sdk_meets_the_fleets_cap() {
    let Some(node) = Node::unless_skipped() else { return };
    let world = World::new().await;
    let agent = || {
        let mut command = node.command();
        command.arg("tests/conformance/ai-sdk.mjs").arg(&node.package);
        command
    };
    run(&mut agent(), &world.redis.url());
    let mut through = agent();
    world.through(&mut through, "gateway-ai-sdk");
    run(&mut through, NOWHERE);
    world.end();
}

#[tokio::test]
async fn agents_of_python_frameworks_meet_the_fleets_cap() {
    let python = installed("adapters").join("python");
    let world = World::new().await;
    let mut agents = Command::new(python);
    agents.env("PYTHONPATH", "python/src").args(["-B", "tests/conformance/adapters.py"]);
    world.through(&mut agents, "gateway-python");
    let said = run(&mut agents, &world.redis.url());
    for what in ["openai_agents", "langgraph", "pydantic_ai", "through a gateway"] {
        assert!(said.contains(&format!("{what}: ok")), "{said}");
    }
    world.end();
}
