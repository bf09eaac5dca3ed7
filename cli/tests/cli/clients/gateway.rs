//! Tests clients in other languages through a gateway.

use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;
use tickfleet_testkit::{RedisOptions, RedisServer};

use super::conformance::{cases, fleet, run};
use crate::operation::gateway::{Gateway, add_key};
use crate::support::binary::DevFleet;
use crate::support::node::Node;
use crate::support::python::interpreter;

/// No server listens here: clients of a gateway need no Redis.
pub const NOWHERE: &str = "redis://127.0.0.1:1";

pub struct GatewayFleet {
    pub redis: RedisServer,
    fleet: DevFleet,
    gateway: Gateway,
    folder: TempDir,
}

impl GatewayFleet {
    pub async fn new() -> Self {
        let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
        let fleet = fleet(&redis.url());
        let folder = tempfile::tempdir().unwrap();
        let keys = folder.path().join("keys.yaml");
        std::fs::write(&keys, "").unwrap();
        let gateway = Gateway::start(&redis.url(), &keys);
        Self { redis, fleet, gateway, folder }
    }

    pub fn through(&self, command: &mut Command, tenant: &str) {
        let key = self.gateway.key(&["--id", tenant, "--tenant", tenant]);
        command.env("GATEWAY_URL", self.gateway.url()).env("GATEWAY_KEY", key);
    }

    pub fn end(self) {
        drop((self.gateway, self.folder));
        assert_eq!(self.fleet.stop(), Some(0));
    }

    fn passes(&self, command: &mut Command, tenant: &str) {
        self.through(command, tenant);
        let text = std::fs::read_to_string(cases()).unwrap();
        let all = serde_json::from_str::<Value>(&text).unwrap();
        let allowed = all["cases"].as_array().unwrap().iter().filter(|case| case["needs"].is_null()).count();
        assert!(allowed >= 20, "{allowed}");
        let said = run(command, NOWHERE);
        assert!(said.contains(&format!("{allowed} cases")), "{said}");
    }

    fn is_troubled(&self, command: &mut Command, tenant: &str) {
        let rows = self.folder.path().join("keys.yaml");
        let reading = add_key(&rows, &["--id", &format!("{tenant}-reads"), "--tenant", tenant, "--verb", "read"]);
        // When the gateway accepts the key that `through` adds, it has also loaded the key above.
        self.through(command, tenant);
        let said = run(command.env("READING_KEY", reading), &self.redis.url());
        assert!(said.contains("gateway: ok"), "{said}");
    }
}

fn python(program: &str) -> Command {
    let mut command = Command::new(interpreter());
    command.args(["-B", &format!("tests/conformance/{program}")]);
    command
}

#[tokio::test(flavor = "multi_thread")]
async fn every_case_holds_through_a_gateway() {
    let world = GatewayFleet::new().await;
    world.passes(python("conformance.py").arg(cases()).arg("python"), "python");
    world.passes(python("conformance.py").arg(cases()).args(["python-blocking", "--blocking"]), "python-blocking");
    if let Some(node) = Node::unless_skipped() {
        let mut command = node.command();
        let dist = node.package.join("dist");
        command.arg("tests/conformance/conformance.mjs").arg(cases()).arg("typescript").arg(dist);
        world.passes(&mut command, "typescript");
    }
    world.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn network_errors_duplicate_nothing_and_are_classified_in_python() {
    let world = GatewayFleet::new().await;
    world.is_troubled(python("gateway.py").arg("wire-python"), "wire-python");
    world.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn network_errors_duplicate_nothing_and_are_classified_in_typescript() {
    let Some(node) = Node::unless_skipped() else { return };
    let world = GatewayFleet::new().await;
    let mut command = node.command();
    let dist = node.package.join("dist");
    command.arg("tests/conformance/gateway.mjs").arg("wire-typescript").arg(dist);
    world.is_troubled(&mut command, "wire-typescript");
    world.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_tenant_is_rejected_over_redis_and_the_gateway() {
    let world = GatewayFleet::new().await;
    let mut command = python("absent.py");
    world.through(&mut command, "nowhere");
    run(&mut command, &world.redis.url());
    if let Some(node) = Node::unless_skipped() {
        let mut command = node.command();
        let dist = node.package.join("dist");
        command.arg("tests/conformance/absent.mjs").arg(dist);
        world.through(&mut command, "nowhere-js");
        run(&mut command, &world.redis.url());
    }
    world.end();
}
