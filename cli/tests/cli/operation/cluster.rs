//! Tests processes and commands with the URL of a Redis Cluster.

use tickfleet_testkit::Cluster;

use crate::support::binary::{CommandOutput, command, reached, tickfleet, until_all_printed, until_printed};
use crate::support::process::{Process, until};

#[tokio::test]
async fn roles_and_commands_accept_the_url_of_a_cluster() {
    let mut cluster = Cluster::start(3, 0).await;
    let dir = tempfile::tempdir().unwrap();
    let url = cluster.url();
    let refused = tickfleet(&["doctor", "--redis-url", &format!("{url}/3")]);
    refused.prints_error("a cluster has only database 0");
    assert_ne!(refused.code, 0);
    let variables = [("TICKFLEET_REDIS_SHARDS", "4")];
    let scheduler = Process::start_with("scheduler", dir.path(), &url, &variables);
    let worker = Process::start_with("worker", dir.path(), &url, &variables);
    for process in [&scheduler, &worker] {
        until("ready", || process.answer("/readyz"), |answer| answer.contains("primary 127.0.0.1:"));
    }

    let asked = |args: &[&str]| {
        let mut command = command(&[args, &["--redis-url", &url]].concat());
        CommandOutput::of(command.envs(variables), "")
    };
    let call = ["submit", "--tenant", "demo", "--agent", "kelly", "--call", "list_tools", "--wait"];
    reached(|| asked(&call)).exits(0).says("list_tools");
    let placed = ["3 of 3 nodes agree on the slot owners", "shards on 127.0.0.1:"];
    let few = ["4 shards over 3 primaries: fewer than 4 for each", "cluster"];
    until_all_printed(&[placed, few].concat(), || asked(&["doctor"]));
    until_printed("4 schedulers, 4 workers alive", || asked(&["top"]));

    // `doctor` reports the dead primary, which has no replica, but still checks the other primaries.
    assert_eq!((scheduler.stop(), worker.stop()), (Some(0), Some(0)));
    cluster.servers[2].kill9();
    let reported = asked(&["doctor"]);
    assert_eq!(reported.code, 3, "{}", reported.stderr);
    reported.says("are unreachable").says("shards on 127.0.0.1:");
}
