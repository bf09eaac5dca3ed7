//! `explain`, `doctor` and `tenant` with a running fleet.

use tickfleet_testkit::{RedisOptions, RedisServer};

use crate::support::binary::{CommandOutput, DevFleet, command, command_names, submit, tickfleet};
use crate::support::files::short_folder;
use crate::support::process::{Process, until};

#[tokio::test]
async fn explain_finds_turns_that_no_scheduler_has_admitted() {
    let redis = RedisServer::start().await;
    let url = redis.url();
    let ask = |args: &[&str]| tickfleet(&[args, &["--redis-url", &url]].concat());
    ask(&submit(&["--call", "echo", "--turn-id", "mine"])).exits(0);
    let minted = ask(&submit(&["--call", "echo", "--json"])).exits(0).json();
    for id in ["mine", minted["turn_id"].as_str().unwrap()] {
        ask(&["explain", id, "--tenant", "demo"]).exits(0).says("waits for a scheduler");
    }
    ask(&["submit", "--tenant", "acme", "--agent", "kelly", "--call", "echo", "--turn-id", "stray"]).exits(0);
    let fleet = DevFleet::start(&["--redis-url", &url]);
    let story = loop {
        let story = fleet.run(&["explain", "acme:stray", "--json"]).exits(0).json();
        if story["state"] != "inbound" {
            break story;
        }
    };
    assert_eq!((&story["state"], &story["refusal"]), (&"rejected".into(), &"unknown_tenant".into()));
}

#[tokio::test]
async fn a_tenant_set_at_run_time_survives_a_restart() {
    let folder = short_folder();
    let dir = ["--redis", "--dir", folder.path().to_str().unwrap()];
    let fleet = DevFleet::start(&dir);
    let set = ["tenant", "set", "acme", "--plan", "gold", "--max-actions-per-day", "7", "--json"];
    assert_eq!(fleet.run(&set).exits(0).json()["max_actions_per_day"], 7);
    fleet.run(&["tenant", "set", "acme", "--time-zone", "Europe/Berlinn"]).exits(2).prints_error("Europe/Berlinn");
    fleet.run(&["tenant", "set", "acme", "--agent", "nobody"]).exits(1).prints_error("nobody");
    DevFleet::refused(&dir).exits(1).prints_error("a running Redis uses the folder");
    assert_eq!(fleet.stop(), Some(0));

    let fleet = DevFleet::start(&dir);
    let shown = fleet.run(&["tenant", "show", "acme", "--json"]).exits(0).json();
    assert_eq!((&shown["plan"], &shown["source"]), (&"gold".into(), &"run time".into()));
    fleet.run(&["tenant", "list"]).exits(0).says("acme").says("atlas-ux").says("configuration");
}

/// Operators do not need these commands while the configuration is broken, or another test runs them.
const NOT_FOR_OPERATORS: [&str; 19] = [
    "scheduler",
    "worker",
    "gateway",
    "init",
    "dev",
    "demo",
    "submit",
    "delegate",
    "chat",
    "usage",
    "prove",
    "whatif",
    "kb",
    "memory",
    "mcp",
    "acl",
    "doctor",
    "config",
    "completions",
];

#[tokio::test]
async fn operators_commands_work_while_the_mounted_configuration_is_broken() {
    let place = short_folder();
    let fleet = DevFleet::start(&["--dir", place.path().to_str().unwrap()]);
    let folder = tempfile::tempdir().unwrap();
    let broken = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    broken("permissions.yaml", "permissions: [");
    broken("tickfleet.yaml", "caps: {tick: soon}\n");
    let run = |arguments: &[&str]| {
        let conf = ["--config", folder.path().to_str().unwrap()];
        fleet.run(&[arguments, &conf[..]].concat())
    };
    let working = [
        &["turns", "list"][..],
        &["tasks", "list"],
        &["rules"],
        &["top"],
        &["tenant", "list"],
        &["workers", "list"],
        &["stats"],
        &["stats", "--history", "1h"],
        &["dead", "list"],
        &["pause", "demo", "--reason", "x", "--by", "anna"],
        &["resume", "demo", "--reason", "x", "--by", "anna"],
        &["pauses"],
        &["limits"],
        &["audit", "search"],
        &["approvals", "list"],
        &["tools", "disable", "echo", "--reason", "x", "--by", "anna"],
        &["tools", "enable", "echo", "--reason", "x", "--by", "anna"],
    ];
    let about_nothing = [&["explain", "demo:none"][..], &["cancel", "demo:none"], &["reply", "demo:none"]];
    for command in working {
        run(command).exits(0).prints_error("The configuration is broken").prints_error("permissions.yaml:1");
    }
    for command in about_nothing {
        run(command).prints_error("The configuration is broken");
    }
    for name in command_names().iter().filter(|name| *name != "help") {
        let is_working = working.iter().chain(&about_nothing).any(|command| command[0] == name.as_str());
        assert!(is_working != NOT_FOR_OPERATORS.contains(&name.as_str()), "state whether operators need `{name}` now");
    }
    run(&["doctor"]).exits(1).says("invalid; no process can start with it").prints_error("caps.tick");
    run(&["worker"]).exits(1);
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn a_missing_tool_host_is_logged_immediately_as_json() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: String| std::fs::write(folder.path().join(name), text).unwrap();
    let socket = folder.path().join("shop.sock");
    write("tickfleet.yaml", "log: {format: json}\n".into());
    write("tools.yaml", format!("python: {{shop: {{host: {}, start_timeout: 2s}}}}\n", socket.display()));
    let worker = tickfleet(&["worker", "--config", folder.path().to_str().unwrap()]).exits(1);
    let lines: Vec<serde_json::Value> =
        worker.stderr.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect();
    let [waits, ends] = lines.as_slice() else { panic!("{lines:?}") };
    assert_eq!((&waits["level"], &ends["level"]), (&"WARN".into(), &"ERROR".into()));
    assert!(waits.to_string().contains("shop.sock") && waits.to_string().contains("waiting for it"), "{waits}");
    assert!(ends.to_string().contains("no tool host listens at"), "{ends}");
}

/// If an upgrade loses the configuration files, the sample policy must not silently replace the operator's policy.
#[tokio::test]
async fn doctor_fails_without_agents_and_warns_about_built_in_samples() {
    let redis = RedisServer::start_with(RedisOptions { appendonly: true, ..RedisOptions::default() }).await;
    let folder = tempfile::tempdir().unwrap();
    let url = redis.url();
    let conf = folder.path().to_str().unwrap();
    let doctor = || tickfleet(&["doctor", "--json", "--redis-url", &url, "--config", conf]);
    let policy = |report: &serde_json::Value| {
        report["findings"]
            .as_array()
            .unwrap()
            .iter()
            .find(|finding| finding["what"] == "configuration")
            .unwrap()
            .clone()
    };
    let samples = doctor().exits(0).json();
    assert_eq!(policy(&samples)["level"], "WARN");

    std::fs::write(folder.path().join("tickfleet.yaml"), "permission: {samples: false}\n").unwrap();
    let nobody = doctor().exits(1).json();
    assert_eq!(policy(&nobody)["level"], "FAIL");
    assert!(policy(&nobody)["says"].as_str().unwrap().contains("every turn is rejected"));
    tickfleet(&["config", "check", "--config", conf]).exits(0).says("no agent is configured: every turn is rejected");

    std::fs::write(folder.path().join("agents.yaml"), "agents: {bot: {}}\n").unwrap();
    let homeless = doctor().exits(1).json();
    let says = policy(&homeless)["says"].as_str().unwrap().to_owned();
    assert!(says.starts_with("no tenants configured") && says.ends_with("tenants.yaml is missing"), "{says}");
    std::fs::write(folder.path().join("tenants.yaml"), "tenants: {}\n").unwrap();
    assert!(policy(&doctor().exits(1).json())["says"].as_str().unwrap().ends_with("tenants.yaml names none"));

    // Without tenants, a process rejects all turns, so `/readyz` contains a warning.
    let scheduler = Process::start("scheduler", folder.path(), &url);
    let ready = scheduler.answer("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200") && ready.contains("warning: no tenants configured"), "{ready}");
    let metrics = scheduler.metrics();
    assert!(metrics.contains("tickfleet_config_tenants 0\n") && metrics.contains("tickfleet_config_agents 1\n"));
    tickfleet(&["tenant", "set", "acme", "--plan", "gold", "--redis-url", &url, "--config", conf]).exits(0);
    until("the tenant", || scheduler.metrics(), |metrics| metrics.contains("tickfleet_config_tenants 1\n"));
    let ready = scheduler.answer("/readyz");
    assert!(ready.starts_with("HTTP/1.1 200") && !ready.contains("warning"), "{ready}");
    drop(scheduler);

    std::fs::write(folder.path().join("tenants.yaml"), "tenants: {acme: {}}\n").unwrap();
    assert_ne!(
        policy(&tickfleet(&["doctor", "--json", "--redis-url", &url, "--config", conf]).json())["level"],
        "FAIL"
    );
    std::fs::write(folder.path().join("tenants.yaml"), "tenants: [acme]\n").unwrap();
    let broken = policy(&doctor().exits(1).json());
    assert!(broken["says"].as_str().unwrap().contains("tenants.yaml:1"), "{broken}");
}

#[tokio::test]
async fn a_startup_error_is_a_line_of_the_json_log() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = redis.url();
    let conf = folder.path().to_str().unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let fails = |args: &[&str], variables: &[(&str, &str)], code: i32, error: &str| {
        let mut command = command(args);
        let said = CommandOutput::of(command.env("REDIS_URL", &url).envs(variables.iter().copied()), "").exits(code);
        let lines: Vec<serde_json::Value> = said
            .stderr
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{args:?}: no JSON: {}", said.stderr)))
            .collect();
        let shape =
            |line: &serde_json::Value| ["timestamp", "level", "message", "target"].iter().all(|f| line[f].is_string());
        assert!(lines.iter().all(shape), "{lines:?}");
        let found = lines.iter().any(|line| line["error"].as_str().is_some_and(|text| text.contains(error)));
        assert!(found, "{args:?}: no {error:?} in {lines:?}");
        assert_eq!(lines.last().unwrap()["level"], "ERROR");
    };
    let json = ("TICKFLEET_LOG_FORMAT", "json");
    fails(&["worker"], &[json, ("TICKFLEET_WORKER_SLOTS", "many")], 1, "TICKFLEET_WORKER_SLOTS");
    fails(&["scheduler"], &[json, ("TICKFLEET_WORKER_SLOT", "4")], 1, "TICKFLEET_WORKER_SLOT");
    fails(&["scheduler"], &[json, ("TICKFLEET_HTTP_ADDRESS", &address)], 1, "is taken by another process");
    fails(&["gateway", "--keys", "/dev/null/none"], &[json], 1, "/dev/null/none");
    fails(&["worker", "--redis-url", "http://x"], &[json], 2, "--redis-url");

    std::fs::write(folder.path().join("tickfleet.yaml"), "log: {format: json}\nwoker: {slots: 4}\n").unwrap();
    std::fs::write(folder.path().join("agents.yaml"), "agents: [\n").unwrap();
    fails(&["worker", "--config", conf], &[], 1, "agents.yaml");
    std::fs::write(folder.path().join("tickfleet.yaml"), "log: {format: json}\n").unwrap();
    let export = ["audit", "export", "--follow", "--to", "file:/dev/null/none", "--config", conf];
    fails(&export, &[], 1, "/dev/null/none");
}

#[tokio::test]
async fn doctor_passes_a_fit_server_and_fails_an_unfit_one() {
    let fit = RedisServer::start_with(RedisOptions { appendonly: true, ..RedisOptions::default() }).await;
    let url = fit.url();
    tickfleet(&["doctor", "--redis-url", &url]).exits(0).says("has never been used").says("fsync always");
    tickfleet(&["doctor", "--redis-url", &url, "--strict"]).exits(1);

    let extra_args = ["--maxmemory-policy", "allkeys-lru"].map(String::from).into();
    let unfit = RedisServer::start_with(RedisOptions { extra_args, ..RedisOptions::default() }).await;
    let report = tickfleet(&["doctor", "--json", "--redis-url", &unfit.url()]).exits(1).json();
    let eviction = report["findings"].as_array().unwrap().iter().find(|f| f["what"] == "eviction").unwrap();
    assert_eq!((&eviction["level"], &report["level"]), (&"FAIL".into(), &"FAIL".into()));
    assert!(eviction["advice"].as_str().unwrap().contains("noeviction"));
}
