//! One scheduler or one worker, as a process that tests can kill:
//! `fleet_node scheduler|worker <name> <Redis URL>`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use std::io::Read as _;
use std::sync::Arc;

use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_tests::plain_node;

#[allow(clippy::disallowed_methods, reason = "the process ends with its test")]
#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [role, name, redis] = arguments.as_slice() else {
        panic!("usage: fleet_node scheduler|worker <name> <Redis URL>");
    };
    #[allow(clippy::disallowed_methods, reason = "the test has ended, so nothing is left to drain")]
    std::thread::spawn(|| {
        // The test never writes, so the read returns only when the test has ended.
        drop(std::io::stdin().read(&mut [0]));
        std::process::exit(0);
    });
    tickfleet_outbound::install_crypto_provider();

    let plan = plain_node::plan();
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
