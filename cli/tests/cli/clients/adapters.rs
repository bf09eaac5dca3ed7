//! Agents of other frameworks run their tools through a fleet with caps. A fake model drives each agent.

use std::path::Path;
use std::process::Command;

use tickfleet_testkit::{RedisOptions, RedisServer};

use super::conformance::run;
use super::gateway::{GatewayFleet, NOWHERE};
use crate::operation::gateway::Gateway;
use crate::support::binary::DevFleet;
use crate::support::documents::{REPOSITORY, with_binary};
use crate::support::node::Node;
use crate::support::python::{installed, interpreter};

#[tokio::test]
async fn an_ai_sdk_agent_hits_the_fleets_cap() {
    let Some(node) = Node::unless_skipped() else { return };
    let world = GatewayFleet::new().await;
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
async fn python_framework_agents_hit_the_fleets_cap() {
    let python = installed("adapters").join("python");
    let world = GatewayFleet::new().await;
    let mut agents = Command::new(python);
    agents.env("PYTHONPATH", "python/src").args(["-B", "tests/conformance/adapters.py"]);
    world.through(&mut agents, "gateway-python");
    let said = run(&mut agents, &world.redis.url());
    for what in ["openai_agents", "langgraph", "pydantic_ai", "through a gateway"] {
        assert!(said.contains(&format!("{what}: ok")), "{said}");
    }
    world.end();
}

async fn bank() -> (RedisServer, DevFleet) {
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let args = ["--redis-url", &redis.url(), "--config", "tests/conformance/bank/conf"];
    let python = interpreter().display().to_string();
    let fleet = DevFleet::start_in(Path::new(REPOSITORY), &args, &[("PYTHON", &python)]);
    (redis, fleet)
}

#[tokio::test]
async fn a_retried_or_resumed_ai_sdk_agent_pays_once() {
    let Some(node) = Node::unless_skipped() else { return };
    let (redis, fleet) = bank().await;
    run(node.command().arg("tests/conformance/resumed.mjs").arg(&node.package), &redis.url());
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn agents_and_governed_functions_in_node_pay_once_or_report_an_unknown_outcome() {
    let Some(node) = Node::unless_skipped() else { return };
    let mut tests = node.command();
    tests.args(["--test", "test/payments.test.mjs", "test/testing.test.mjs", "test/definitions.test.mjs"]);
    let output = with_binary(&mut tests).current_dir(&node.package).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
}

async fn agents_pay(program: &str) {
    let python = installed("adapters").join("python");
    let (redis, fleet) = bank().await;
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.yaml");
    std::fs::write(&keys, "").unwrap();
    let gateway = Gateway::start(&redis.url(), &keys);
    let mut agents = Command::new(python);
    agents.env("PYTHONPATH", "python/src").args(["-B", &format!("tests/conformance/{program}")]);
    agents.env("GATEWAY_URL", gateway.url()).env("GATEWAY_KEY", gateway.key(&["--id", "bank", "--tenant", "bank"]));
    run(agents.env("TICKFLEET", env!("CARGO_BIN_EXE_tickfleet")), &redis.url());
    drop(gateway);
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn agent_loops_pay_once_after_cancel_retry_replay_edit_or_kill() {
    agents_pay("payments.py").await;
}

#[tokio::test]
async fn retried_or_resumed_python_framework_agents_pay_once() {
    agents_pay("resumed.py").await;
}

#[tokio::test]
async fn python_framework_agents_pause_for_approval_and_then_pay_once() {
    agents_pay("approved.py").await;
}

#[tokio::test]
async fn python_adapters_use_their_frameworks_contexts_states_and_failures() {
    agents_pay("framework_features.py").await;
}

#[test]
fn a_program_with_python_adapters_passes_strict_type_checks() {
    let frameworks = installed("adapters").join("python");
    let mut mypy = Command::new(interpreter());
    mypy.args(["-B", "-m", "mypy", "--strict", "--no-error-summary", "--python-executable"]).arg(frameworks);
    mypy.args([
        "--cache-dir",
        concat!(env!("CARGO_TARGET_TMPDIR"), "/mypy-adapters"),
        "tests/conformance/typed_agents.py",
    ]);
    run(mypy.env("MYPYPATH", "python/src"), NOWHERE);
}
