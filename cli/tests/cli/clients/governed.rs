//! Tests functions that run in the process of their agent, under the rules of a fleet.

use std::path::Path;
use std::process::Command;

use tempfile::TempDir;
use tickfleet_testkit::{RedisOptions, RedisServer};

use super::conformance::run;
use super::gateway::NOWHERE;
use crate::operation::gateway::Gateway;
use crate::support::binary::DevFleet;
use crate::support::documents::REPOSITORY;
use crate::support::node::Node;
use crate::support::python::interpreter;

const CONF: &str = "tests/conformance/governed/conf";

fn gateway(url: &str) -> (Gateway, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("keys.yaml");
    std::fs::write(&keys, "").unwrap();
    (Gateway::start(url, &keys), folder)
}

fn python() -> Command {
    let mut command = Command::new(interpreter());
    command.env("PYTHONPATH", "python/src").args(["-B", "tests/conformance/governed.py"]);
    command
}

fn runs_through_a_gateway(command: &mut Command, url: &str, tenant: &str) {
    let (gateway, _folder) = gateway(url);
    let key = gateway.key(&["--id", tenant, "--tenant", tenant]);
    run(command.env("GATEWAY_URL", gateway.url()).env("GATEWAY_KEY", key), NOWHERE);
}

async fn fleet() -> (RedisServer, DevFleet) {
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let fleet = DevFleet::start_in(Path::new(REPOSITORY), &["--redis-url", &redis.url(), "--config", CONF], &[]);
    (redis, fleet)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_governed_function_in_python_runs_once_over_redis_and_through_a_gateway() {
    let (redis, fleet) = fleet().await;
    let said = run(&mut python(), &redis.url());
    for what in ["an equal call", "a refused call", "two processes", "a process that dies", "asyncio"] {
        assert!(said.contains(&format!("{what}: ok")), "{said}");
    }
    runs_through_a_gateway(&mut python(), &redis.url(), "bank-http");
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_governed_function_in_typescript_runs_once_over_redis_and_through_a_gateway() {
    let Some(node) = Node::unless_skipped() else { return };
    let (redis, fleet) = fleet().await;
    let typescript = || {
        let mut command = node.command();
        command.arg("tests/conformance/governed.mjs").arg(node.package.join("dist"));
        command
    };
    let said = run(&mut typescript(), &redis.url());
    assert!(said.contains("a process that dies: ok") && said.contains("many at once: ok"), "{said}");
    runs_through_a_gateway(&mut typescript(), &redis.url(), "bank-js-http");
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_governed_function_runs_once_on_a_fleet_in_memory() {
    let fleet = DevFleet::start_in(Path::new(REPOSITORY), &["--config", CONF], &[]);
    let program = format!(
        "GATEWAY_URL=$FLEET_URL GATEWAY_KEY=$FLEET_KEY PYTHONPATH=python/src exec {} -B tests/conformance/governed.py",
        interpreter().display()
    );
    let output = fleet.shell(&program).current_dir(REPOSITORY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("asyncio: ok"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(fleet.stop(), Some(0));
}
