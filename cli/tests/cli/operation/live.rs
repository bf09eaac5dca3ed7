//! Live configuration: the configuration folder changes while real schedulers and workers run.

use std::fs;
use std::os::unix::fs::symlink;

use nix::sys::signal::Signal;
use serde_json::Value;
use tickfleet_testkit::RedisServer;

use crate::support::binary::tickfleet;
use crate::support::files::write;
use crate::support::process::{Process, until};

fn ask(url: &str, args: &[&str]) -> Value {
    tickfleet(&[args, &["--redis-url", url, "--json"]].concat()).json()
}

fn outcome(url: &str, call: &str) -> String {
    let reply = ask(url, &["submit", "--tenant", "demo", "--agent", "kelly", "--call", call, "--wait"]);
    reply["results"][0]["outcome"].as_str().unwrap_or_else(|| panic!("{reply}")).to_owned()
}

#[tokio::test]
async fn a_reload_changes_permissions_and_tools_and_rejects_a_broken_file() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let dir = dir.path();
    write(dir, "permissions.yaml", "permissions: {sleep: {everyone: true}}");
    let fleet = [Process::start("scheduler", dir, &url), Process::start("worker", dir, &url)];
    let worker = &fleet[1];
    let before = ask(&url, &["submit", "--tenant", "demo", "--agent", "kelly", "--call", "sleep {\"ms\":6000}"]);
    assert_eq!(outcome(&url, "echo"), "unknown_tool", "no row names it: a plain fleet has no trial tools");

    write(dir, "permissions.yaml", "permissions: {sleep: {everyone: false}, echo: {everyone: true}}");
    for process in &fleet {
        process.signal(Signal::SIGHUP);
        process.reloaded(1);
    }
    assert_eq!((outcome(&url, "echo"), outcome(&url, "sleep {\"ms\":1}")), ("ok".into(), "denied".into()));

    write(dir, "permissions.yaml", "permissions:\n  echo: {everyone: maybe}\n");
    let refused = worker.says("configuration not reloaded; the previous one stays in force");
    let problems = refused["problems"].as_str().unwrap();
    assert!(problems.contains("permissions.yaml:2:20: permissions.echo.everyone: found \"maybe\""), "{problems}");
    assert!(worker.metrics().contains("tickfleet_config_reloads_total{result=\"rejected\"} 1"));
    assert_eq!(outcome(&url, "echo"), "ok");

    write(dir, "permissions.yaml", "permissions: {look_up: {everyone: true}}");
    worker.until("configuration not reloaded; the previous one stays in force", |line| {
        line["problems"].as_str().unwrap().contains("look_up")
    });
    assert_eq!(outcome(&url, "echo"), "ok");
    write(dir, "tools.yaml", "tools: {look_up: {description: Looks., effect: read, input_schema: {type: object}}}");
    fleet[0].reloaded(2);
    let now = worker.reloaded(2);
    let reply =
        ask(&url, &["submit", "--tenant", "demo", "--agent", "kelly", "--call", "look_up", "--call", "echo", "--wait"]);
    assert_eq!(reply["results"][0]["error"]["code"], "not_configured", "{reply}");
    assert_eq!(reply["results"][1]["outcome"], "unknown_tool");

    let long = before["turn_id"].as_str().unwrap();
    let story = until(long, || ask(&url, &["explain", &format!("demo:{long}")]), |story| story["state"] == "done");
    assert_eq!(story["results"][0]["outcome"], "ok", "{story}");
    let digest = now["policy"].as_str().unwrap();
    assert_eq!(story["policy"]["digest"].as_str(), Some(digest));
    let judged = &story["audit"]["entries"][0]["meta"];
    let versions = [&judged["policy_version"], &story["policy"]["generation"]].map(|version| version.as_u64().unwrap());
    assert!(versions[0] < versions[1] && judged["policy_digest"] != *digest, "{judged}");
    for process in &fleet {
        let metrics = process.metrics();
        assert!(metrics.contains(&format!("tickfleet_config_info{{digest=\"{digest}\"}} 1")), "{metrics}");
    }
    assert!(fleet.map(Process::stop).iter().all(|code| *code == Some(0)));
}

#[tokio::test]
async fn a_swapped_config_map_reloads_live_settings_and_lists_the_others() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let dir = dir.path();
    // The kubelet updates a mounted ConfigMap in this way: the files are links through `..data`, and the kubelet
    // replaces `..data`.
    let settings = |version: &str, text: &str| {
        fs::create_dir(dir.join(version)).unwrap();
        write(&dir.join(version), "tickfleet.yaml", text);
        symlink(version, dir.join("..data_tmp")).unwrap();
        fs::rename(dir.join("..data_tmp"), dir.join("..data")).unwrap();
    };
    settings("..one", "caps: {max_actions_per_day: 100}");
    symlink("..data/tickfleet.yaml", dir.join("tickfleet.yaml")).unwrap();
    write(dir, "permissions.yaml", "permissions: {echo: {everyone: true}}");
    let fleet = [Process::start("scheduler", dir, &url), Process::start("worker", dir, &url)];
    let scheduler = &fleet[0];
    let stranger = || ask(&url, &["submit", "--tenant", "demo", "--agent", "nobody", "--call", "echo", "--wait"]);
    assert_eq!((stranger()["status"].as_str(), outcome(&url, "echo").as_str()), (Some("rejected"), "ok"));
    assert_eq!(scheduler.count("turn rejected"), 0, "that is a line of level debug");

    settings("..two", "caps: {max_actions_per_day: 2}\nlog: {level: debug}\nworker: {slots: 3}\n");
    scheduler.reloaded(1);
    let waits = scheduler.says("changed settings need a restart");
    assert_eq!(waits["settings"], "worker.slots");
    let outcomes = [outcome(&url, "echo"), outcome(&url, "echo")];
    assert_eq!(outcomes, ["ok", "daily_cap_reached"]);
    stranger();
    scheduler.says("turn rejected");
    assert!(fleet.map(Process::stop).iter().all(|code| *code == Some(0)));
}

#[tokio::test]
async fn an_older_configuration_returns_only_after_newer_schedulers_stop() {
    let redis = RedisServer::start().await;
    let url = redis.url();
    let [old, new] = ["caps: {max_actions_per_day: 10}", "caps: {max_actions_per_day: 20}"].map(|text| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "tickfleet.yaml", text);
        dir
    });
    let stands_by = "other schedulers use a newer policy; on standby until this one has it or they stop";
    let first = Process::start("scheduler", old.path(), &url);
    let generation = |process: &Process| process.says("policy in force")["generation"].as_u64().unwrap();
    let older = generation(&first);
    let second = Process::start("scheduler", new.path(), &url);
    let newer = generation(&second);
    assert!(newer > older);
    first.says(stands_by);
    assert_eq!(first.stop(), Some(0));
    let first = Process::start("scheduler", old.path(), &url);
    first.says(stands_by);
    assert_eq!(first.count("policy in force"), 0);

    assert_eq!(second.stop(), Some(0));
    let mut last = generation(&first);
    assert!(last > newer);
    for cap in ["30", "10"] {
        write(old.path(), "tickfleet.yaml", &format!("caps: {{max_actions_per_day: {cap}}}"));
        let line = first.until("policy in force", |line| line["generation"].as_u64().unwrap() > last);
        last = line["generation"].as_u64().unwrap();
    }
    assert_eq!(first.stop(), Some(0));
}

/// The schema of the tool is invalid.
const NO_SCHEMA: &str = "tools:\n  look_up:\n    description: Looks.\n    effect: read\n    \
    input_schema: {type: object, properties: {name: {type: text}}}\n";
/// The address is in a private network.
const PRIVATE: &str = "tools:\n  look_up:\n    description: Looks.\n    effect: read\n    \
    input_schema: {type: object}\n    http: {base_url: 'http://10.0.0.1/', method: GET, path: /}\n";

#[tokio::test]
async fn every_role_rejects_a_broken_config_but_applies_a_disabled_tool() {
    let redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let dir = dir.path();
    write(dir, "permissions.yaml", "permissions: {echo: {everyone: true}, sleep: {everyone: true}}");
    let fleet = [Process::start("scheduler", dir, &url), Process::start("worker", dir, &url)];
    let in_force = fleet[0].says("policy in force")["policy"].clone();
    assert_eq!(outcome(&url, "echo"), "ok");
    for (times, broken) in [NO_SCHEMA, PRIVATE].into_iter().enumerate() {
        write(dir, "permissions.yaml", "permissions: {sleep: {everyone: true}}");
        write(dir, "tools.yaml", broken);
        for process in &fleet {
            let refused = "configuration not reloaded; the previous one stays in force";
            until(refused, || process.count(refused), |count| *count > times);
            assert_eq!(
                (process.count("configuration reloaded"), process.says(refused)["policy"].clone()),
                (0, in_force.clone())
            );
        }
        let config = ["--config", dir.to_str().unwrap(), "--redis-url", &url];
        for command in [&["config", "check"][..], &["scheduler"], &["worker"]] {
            let said = tickfleet(&[command, &config].concat());
            assert_ne!(said.code, 0, "{command:?}");
            let reported = said.stdout + &said.stderr;
            assert!(reported.contains("look_up"), "{command:?}: {reported}");
        }
    }
    assert_eq!(outcome(&url, "echo"), "ok", "the old rows are in force");

    let config = ["--config", dir.to_str().unwrap(), "--redis-url", &url];
    let why = ["--by", "anna", "--reason", "it posts twice"];
    tickfleet(&[&["tools", "disable", "echo"], &why[..], &config[..]].concat()).exits(0);
    until("denied", || outcome(&url, "echo"), |outcome| outcome == "denied");
    let reply = ask(&url, &["submit", "--tenant", "demo", "--agent", "kelly", "--call", "echo", "--wait"]);
    assert_eq!(reply["results"][0]["error"]["details"]["rule"], "tickfleet tools disable", "{reply:#}");
    tickfleet(&["doctor", "--redis-url", &url]).says("disabled at run time for all agents: echo");
    let audit =
        tickfleet(&["audit", "search", "--text", "it posts twice", "--json", "--redis-url", &url]).exits(0).stdout;
    assert!(audit.contains("DISABLE_TOOL") && audit.contains("anna disabled"), "{audit}");
    let [scheduler, worker] = fleet;
    assert_eq!(worker.stop(), Some(0));
    fs::remove_file(dir.join("tools.yaml")).unwrap();
    write(dir, "permissions.yaml", "permissions: {echo: {everyone: true}, sleep: {everyone: true}}");
    let worker = Process::start("worker", dir, &url);
    assert_eq!(outcome(&url, "echo"), "denied");
    tickfleet(&[&["tools"], &config[..]].concat()).exits(0).says("none: disabled");
    tickfleet(&[&["tools", "try", "echo", "--agent", "kelly", "{}"], &config[..]].concat()).exits(1).says("denied");
    tickfleet(&["tools", "enable", "echo", "--redis-url", &url]).exits(0);
    until("ok", || outcome(&url, "echo"), |outcome| outcome == "ok");
    assert_eq!((scheduler.stop(), worker.stop()), (Some(0), Some(0)));
}

#[tokio::test]
async fn doctor_reports_a_worker_with_a_different_policy() {
    let redis = RedisServer::start().await;
    let url = redis.url();
    let [one, other] = ["permissions: {echo: {everyone: true}}", "permissions: {}"].map(|text| {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "permissions.yaml", text);
        dir
    });
    let fleet = [Process::start("scheduler", one.path(), &url), Process::start("worker", one.path(), &url)];
    let doctor = || ask(&url, &["doctor", "--config", one.path().to_str().unwrap()])["findings"].clone();
    let names_one = |findings: &Value| findings.as_array().unwrap().iter().any(|f| f["what"] == "policies");
    fleet[0].says("policy in force");
    let works =
        |findings: &Value| findings.as_array().unwrap().iter().any(|f| f["what"] == "workers" && f["level"] == "OK");
    until("the worker works", doctor, works);
    assert!(!names_one(&doctor()), "{:#}", doctor());
    let stranger = Process::start("worker", other.path(), &url);
    let found = until("the other policy", doctor, names_one);
    let says = found.as_array().unwrap().iter().find(|f| f["what"] == "policies").unwrap()["says"].to_string();
    let [pid, ours] = [stranger.id(), fleet[1].id()].map(|pid| format!("-{pid:x}"));
    assert!(says.contains(&pid) && !says.contains(&ours), "{says}");
    assert_eq!((fleet.map(Process::stop), stranger.stop()), ([Some(0), Some(0)], Some(0)));
}
