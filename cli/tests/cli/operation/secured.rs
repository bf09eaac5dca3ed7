//! Tests a cluster and Sentinels that accept only TLS. Each role uses its own Redis user.

use std::path::Path;

use tickfleet_store::Role;
use tickfleet_testkit::{Cluster, RedisServer, SentinelSetup, TlsFiles};

use crate::support::binary::{
    CommandOutput, DevFleet, command, command_names, reached, tickfleet, until_all_printed, until_printed,
};
use crate::support::certificates::certificates;
use crate::support::process::{Process, until};

fn files(folder: &Path) -> TlsFiles {
    certificates(folder, "DNS:localhost,IP:127.0.0.1");
    TlsFiles { ca: folder.join("ca.pem"), certificate: folder.join("redis.pem"), key: folder.join("redis.key") }
}

pub(super) async fn make_users(servers: &[RedisServer]) {
    for (name, _) in Role::WORDS {
        let data = tickfleet(&["acl", "--role", name]).exits(0);
        let words: Vec<&str> = data.stdout.trim().split(' ').skip(1).collect();
        for server in servers {
            let mut command = redis::cmd("ACL");
            let () = command.arg("SETUSER").arg(&words).query_async(&mut server.connection().await).await.unwrap();
        }
    }
}

fn url_for(url: &str, role: &str, ca: &Path) -> String {
    let (scheme, place) = url.split_once("://").unwrap();
    format!("{scheme}://{role}:{role}-secret@{place}?tls_ca={}", ca.display())
}

#[tokio::test]
async fn each_command_works_on_a_cluster_over_tls_as_the_user_of_its_role() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(dir.path());
    let cluster = Cluster::start_tls(3, 0, &files).await;
    make_users(&cluster.servers).await;
    let url = |role: &str| url_for(&cluster.url(), role, &files.ca);
    let variables = [("TICKFLEET_REDIS_SHARDS", "4")];
    let config = tempfile::tempdir().unwrap();
    let scheduler = Process::start_with("scheduler", config.path(), &url("scheduler"), &variables);
    let worker = Process::start_with("worker", config.path(), &url("worker"), &variables);
    let asked = |role: &str, args: &[&str]| {
        reached(|| {
            let mut command = command(&[args, &["--redis-url", &url(role)]].concat());
            CommandOutput::of(command.envs(variables), "")
        })
    };
    let turn =
        ["submit", "--tenant", "demo", "--agent", "kelly", "--turn-id", "over-tls", "--call", "list_tools", "--wait"];
    asked("producer", &turn).exits(0).says("list_tools");
    until_printed("4 schedulers, 4 workers alive", || asked("viewer", &["top"]));
    asked("viewer", &["explain", "demo:over-tls"]).exits(0).says("has ended");
    asked("viewer", &["limits"]).exits(0);
    // The commands allow one second for a node's slots, and two seconds for a heartbeat. On a busy machine, both can be
    // late.
    until_all_printed(&["3 of 3 nodes agree on the slot owners", "0 to fix"], || asked("operator", &["doctor"]));
    asked("operator", &["tenant", "set", "acme", "--plan", "gold"]).exits(0);
    asked("operator", &["cancel", "demo:over-tls"]);
    asked("viewer", &["tenant", "set", "other", "--plan", "gold"]).prints_error("no permissions");
    assert_eq!((worker.stop(), scheduler.stop()), (Some(0), Some(0)));

    let fleet = DevFleet::start_with(&["--redis-url", &url("tickfleet")], &variables);
    let echo = ["submit", "--tenant", "demo", "--agent", "kelly", "--turn-id", "again", "--call", "echo", "--wait"];
    reached(|| CommandOutput::of(fleet.command(&echo).envs(variables), "")).exits(0).says("ok");
    assert_eq!(fleet.stop(), Some(0));
    for server in &cluster.servers {
        let refused: Vec<redis::Value> =
            redis::cmd("ACL").arg("LOG").query_async(&mut server.connection().await).await.unwrap();
        let reported = format!("{refused:?}");
        let counts = reported.matches("\"username\"").count();
        // A producer first tries to load a script that no scheduler has loaded yet. If Redis rejects the load, the
        // producer continues without the script.
        let fair = ["viewer", "client|setinfo", "script|load"].map(|word| reported.matches(word).count());
        let fair: usize = fair.into_iter().sum();
        assert!(counts <= fair, "somebody but the viewer was refused: {reported}");
    }
}

/// Each command with the Redis user of a role that may run it.
const COMMANDS: [(&str, &str); 25] = [
    ("producer", "submit --tenant demo --agent kelly --turn-id t1 --call list_tools"),
    ("producer", "delegate --tenant demo --to archy Go."),
    ("viewer", "reply demo:t1"),
    ("viewer", "top"),
    ("viewer", "limits"),
    ("viewer", "turns list"),
    ("viewer", "workers list"),
    ("viewer", "dead list"),
    ("viewer", "audit search"),
    ("viewer", "usage --tenant demo"),
    ("viewer", "memory list --tenant demo --agent kelly"),
    ("viewer", "kb list --tenant demo"),
    ("viewer", "tools"),
    ("exporter", "audit export"),
    ("operator", "explain demo:t1"),
    ("operator", "stats"),
    ("operator", "rules"),
    ("operator", "approvals list"),
    ("operator", "tasks list --tenant demo"),
    ("operator", "tenant list"),
    ("operator", "pause demo --reason x --by anna"),
    ("operator", "resume demo --reason x --by anna"),
    ("operator", "pauses"),
    ("operator", "cancel demo:t1"),
    ("operator", "doctor"),
];
/// Processes and conversations have their own tests. The others use no Redis.
const OTHERS: [&str; 13] = [
    "scheduler",
    "worker",
    "gateway",
    "dev",
    "chat",
    "mcp",
    "init",
    "demo",
    "prove",
    "whatif",
    "acl",
    "config",
    "completions",
];

#[tokio::test]
async fn every_command_has_a_redis_role_that_may_run_it() {
    let server = RedisServer::start().await;
    make_users(std::slice::from_ref(&server)).await;
    let url = |role: &str| format!("{}?user={role}&pass={role}-secret", server.url());
    let config = tempfile::tempdir().unwrap();
    let scheduler = Process::start("scheduler", config.path(), &url("scheduler"));
    let mut denied = Vec::new();
    for (role, words) in COMMANDS {
        let args: Vec<&str> = words.split(' ').chain(["--redis-url"]).collect();
        let url = url(role);
        let said = reached(|| tickfleet(&[&args[..], &[&url]].concat()));
        let printed = [&*said.stdout, &*said.stderr].concat();
        let is_denied = printed.contains("permission") || printed.contains("can't access");
        denied.extend((said.code != 0 && is_denied).then(|| format!("{role}: {words}: {printed}")));
    }
    assert!(denied.is_empty(), "{denied:#?}");
    for name in command_names().iter().filter(|name| *name != "help") {
        let is_run = COMMANDS.iter().any(|(_, words)| words.split(' ').next() == Some(name.as_str()));
        assert!(is_run != OTHERS.contains(&name.as_str()), "state the Redis role of `{name}`");
    }
    assert_eq!(scheduler.stop(), Some(0));
}

#[tokio::test]
async fn a_fleet_follows_a_sentinel_failover_over_tls() {
    let dir = tempfile::tempdir().unwrap();
    let files = files(dir.path());
    let mut trio = SentinelSetup::start_tls(1, &files).await;
    let url = format!("{}?tls_ca={}", trio.url(), files.ca.display());
    assert!(url.starts_with("rediss+sentinel://"), "{url}");
    let config = tempfile::tempdir().unwrap();
    let scheduler = Process::start("scheduler", config.path(), &url);
    let worker = Process::start("worker", config.path(), &url);
    let turn =
        ["submit", "--tenant", "demo", "--agent", "kelly", "--call", "list_tools", "--wait", "--redis-url", &url];
    reached(|| tickfleet(&turn)).exits(0).says("list_tools");
    until_printed("according to 3 of 3 sentinels", || tickfleet(&["doctor", "--redis-url", &url]));
    let unknown = tickfleet(&["doctor", "--redis-url", &trio.url()]);
    unknown.exits(3);

    trio.replicated(0, 1).await;
    trio.servers[0].kill9();
    until("the new primary", || tickfleet(&turn), |said| said.code == 0).says("list_tools");
    assert_eq!((worker.stop(), scheduler.stop()), (Some(0), Some(0)));
}
