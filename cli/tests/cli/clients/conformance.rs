//! Each client runs the same cases on a fleet of the real binary, with its own tenant.

use std::path::{Path, PathBuf};
use std::process::Command;

use tickfleet_testkit::{Cluster, RedisOptions, RedisServer, SentinelSetup};

use super::rust;
use crate::support::binary::DevFleet;
use crate::support::documents::REPOSITORY;
use crate::support::node::Node;
use crate::support::python::interpreter;

pub fn cases() -> PathBuf {
    Path::new(REPOSITORY).join("tests/conformance/cases.json")
}

pub fn fleet(url: &str) -> DevFleet {
    let config = Path::new(REPOSITORY).join("tests/conformance/conf").display().to_string();
    DevFleet::start(&["--redis-url", url, "--config", &config])
}

pub fn run(command: &mut Command, url: &str) -> String {
    let output = command.env("REDIS_URL", url).current_dir(REPOSITORY).output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    assert!(output.status.success(), "{command:?}:\n{said}");
    said
}

fn passes(command: &mut Command, url: &str) {
    let said = run(command, url);
    assert!(said.contains(&format!("{} cases", rust::read(&cases(), "x").len())), "{said}");
}

fn python(tenant: &str, more: &[&str], url: &str) {
    let mut command = Command::new(interpreter());
    command.args(["-B", "tests/conformance/conformance.py"]).arg(cases()).arg(tenant).args(more);
    passes(&mut command, url);
}

fn typescript(tenant: &str, node: &Node, url: &str) {
    let mut command = node.command();
    command.arg("tests/conformance/conformance.mjs").arg(cases()).arg(tenant).arg(node.package.join("dist"));
    passes(&mut command, url);
}

#[tokio::test]
async fn every_case_holds_for_the_client_in_rust() {
    let redis = RedisServer::start().await;
    let fleet = fleet(&redis.url());
    rust::run(&cases(), "rust", &redis.url()).await;
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn every_case_holds_for_the_client_in_python() {
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let fleet = fleet(&redis.url());
    python("python", &[], &redis.url());
    python("python-blocking", &["--blocking"], &redis.url());
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn every_case_holds_for_the_client_in_typescript() {
    let Some(node) = Node::unless_skipped() else { return };
    let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
    let fleet = fleet(&redis.url());
    typescript("typescript", &node, &redis.url());
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn an_undecided_turn_does_not_get_an_earlier_turns_reply() {
    let server = || RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() });
    let mut command = Command::new(interpreter());
    run(command.args(["-B", "tests/conformance/undecided.py"]), &server().await.url());
    let Some(node) = Node::unless_skipped() else { return };
    let mut command = node.command();
    run(command.arg("tests/conformance/undecided.mjs").arg(node.package.join("dist")), &server().await.url());
}

#[tokio::test]
async fn every_case_holds_behind_sentinels_and_on_a_cluster() {
    let trio = SentinelSetup::start(1).await;
    let cluster = Cluster::start(3, 0).await;
    for url in [trio.url(), cluster.url()] {
        let fleet = fleet(&url);
        python("python", &[], &url);
        if let Some(node) = Node::unless_skipped() {
            typescript("typescript", &node, &url);
        }
        assert_eq!(fleet.stop(), Some(0));
    }
}
