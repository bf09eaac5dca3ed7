//! One scheduler or one worker, as a process that tests can kill:
//! `fleet_node scheduler|worker <name> <Redis URL> <ledger host:port> <data folder>`. If the last two arguments are
//! `-`, the process has the tools of `tests/src/plain_node.rs` instead of the leaderboard's tools.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Read as _;
use std::sync::Arc;

use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_ops::telemetry::{self, LogOptions};
use tickfleet_tests::{bfcl, bfcl_node, plain_node};

#[allow(clippy::disallowed_methods, reason = "a knob of the chaos run, documented beside it")]
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, name, redis, ledger, data] = arguments.as_slice() else {
        panic!("usage: fleet_node scheduler|worker <name> <Redis URL> <ledger host:port> <data folder>");
    };
    std::thread::spawn(|| {
        // The test never writes, so the read returns only when the test has ended.
        drop(std::io::stdin().read(&mut [0]));
        std::process::exit(0);
    });
    let level = std::env::var(bfcl_node::LOG_VARIABLE).unwrap_or_else(|_| "off".into());
    telemetry::init(&LogOptions { level, ..LogOptions::default() }, None).unwrap();
    tickfleet_outbound::install_crypto_provider();

    let plan = if data == "-" {
        plain_node::plan()
    } else {
        let tools = if role == "worker" { bfcl::load_tools(data.as_ref()).unwrap() } else { Vec::new() };
        bfcl_node::plan(&tools, ledger)
    };
    let store = plan.store(redis);
    let active = plan.active();
    let metrics = Arc::new(Metrics::new().unwrap());
    let shutdown = Shutdown::default();
    if role == "worker" {
        let worker = plan.worker(store, active, metrics, name, shutdown.now.clone());
        worker.run(shutdown).await.unwrap();
    } else {
        plan.scheduler(store, active, metrics, name).run(shutdown.draining).await.unwrap();
    }
}
