//! `whatif` evaluates the recorded traffic of a fleet again, under the same policy and under other policies.

use std::path::Path;

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet, tickfleet};
use crate::support::files::write;
use crate::support::process::until;

const SETTINGS: &str = "audit: {admissions: true, policy_inputs: true}\ncaps: {tick: 1s, max_calls_per_tick: 3}\n";
const PERMISSIONS: &str = "permissions:
  echo:
    everyone: true
    rules:
      - {name: small, require: args.value <= 500, message: 'value {args.value} exceeds 500'}
      - {name: known, require: 'has(user_context.id)', when: args.value == 77}
  fail:
    agents: [kelly]
    rules:
      - {name: ask, require: 'false', otherwise: ask}
approvers: {ann: {roles: [finance]}}
";
const LIMITS: &str = "limits:
  three:
    match: {agents: [fran]}
    per: [agent]
    max: 3
    every: 1d
    on_reach: reject
  two:
    match: {agents: [ben], tools: [echo]}
    per: [tenant, 'argument:/text']
    max: 2
    every: 3s
";

fn configuration(folder: &Path, name: &str, files: &[(&str, &str)]) -> String {
    let dir = folder.join(name);
    for (file, text) in files.iter().chain(&[("tenants.yaml", "tenants: {demo: {}}\n"), ("tools.yaml", "tools: {}\n")])
    {
        write(&dir, file, text);
    }
    dir.to_str().unwrap().to_owned()
}

/// Each change is a file, a text in this file, and the new text.
fn configure(folder: &Path, name: &str, changes: &[(&str, &str, &str)]) -> String {
    let mut files = [("tickfleet.yaml", SETTINGS), ("permissions.yaml", PERMISSIONS), ("limits.yaml", LIMITS)]
        .map(|(file, text)| (file, text.to_owned()));
    for (file, text) in &mut files {
        for (_, from, to) in changes.iter().filter(|(of, ..)| *of == *file) {
            assert!(text.contains(from), "{file}: {from}");
            *text = text.replace(from, to);
        }
    }
    let mut files: Vec<(&str, &str)> = files.iter().map(|(file, text)| (*file, text.as_str())).collect();
    files.push(("agents.yaml", "agents: {kelly: {}, fran: {}, ben: {}}\n"));
    configuration(folder, name, &files)
}

fn play(fleet: &DevFleet, config: &str) {
    let submit = |agent: &str, id: &str, calls: &[(&str, Value)], wait: bool| {
        let calls: Vec<Value> = calls.iter().map(|(tool, args)| json!({"name": tool, "arguments": args})).collect();
        let turn = json!({"turn_id": id, "calls": calls, "user_context": {"id": 5}});
        let mut args = vec!["submit", "--config", config, "--tenant", "demo", "--agent", agent, "-"];
        args.extend(wait.then_some("--wait"));
        fleet.run_with(&args, &turn.to_string())
    };
    let echo = |value: u64, text: &str| ("echo", json!({"value": value, "text": text}));
    submit("kelly", "asks", &[("fail", json!({"outcomes": ["ok"]}))], false);
    for (number, value) in [100, 600, 77, 5].into_iter().enumerate() {
        submit("kelly", &format!("k{number}"), &[echo(value, "hi")], false);
    }
    submit("kelly", "many", &[echo(1, "a"), echo(2, "b"), echo(3, "c"), echo(4, "d"), echo(5, "e")], false);
    submit("ben", "same", &[echo(1, "same"), echo(2, "same"), echo(3, "same"), echo(4, "same")], false);
    submit(
        "ben",
        "odd",
        &[("nothing", json!({})), ("fail", json!({})), ("echo", json!({"value": 1, "other": 2}))],
        false,
    );
    let list = || fleet.run(&["approvals", "list", "--config", config, "--json"]).exits(0).json();
    let found = until("an approval", list, |found| found["items"][0]["id"].is_string());
    let approval = format!("demo:{}", found["items"][0]["id"].as_str().unwrap());
    fleet.run(&["approvals", "approve", &approval, "--config", config, "--by", "ann"]).exits(0);
    for number in 0..5 {
        submit("fran", &format!("f{number}"), &[echo(1, "x")], true);
    }
}

fn whatif(policy: &str, export: &str) -> CommandOutput {
    tickfleet(&["whatif", "--policy", policy, "--audit", export, "--json"])
}

fn export(fleet: &DevFleet, config: &str, path: &Path, calls: usize) -> String {
    let path = path.to_str().unwrap();
    let export = || {
        let _ = std::fs::remove_file(path);
        fleet.run(&["audit", "export", "--config", config, "--to", path]).exits(0);
        std::fs::read_to_string(path).unwrap()
    };
    until("all calls", export, |log| log.matches("TOOL_CALL").count() >= calls);
    path.to_owned()
}

fn differ(said: &CommandOutput) -> Vec<(String, String, String)> {
    let differences = said.json()["differences"].as_array().cloned().unwrap();
    let text = |one: &Value, name: &str| one[name].as_str().unwrap().to_owned();
    let mut found: Vec<_> =
        differences.iter().map(|one| (text(one, "call"), text(one, "kind"), text(one, "by"))).collect();
    found.sort();
    found
}

fn expected(calls: &[(&str, &str, &str)]) -> Vec<(String, String, String)> {
    calls.iter().map(|(call, kind, by)| ((*call).into(), (*kind).into(), (*by).into())).collect()
}

#[tokio::test]
async fn a_policy_change_alters_only_the_decisions_it_affects() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), "old", &[]);
    let fleet = DevFleet::start(&["--config", &config, "--redis-url", &redis.url()]);
    play(&fleet, &config);
    let export = export(&fleet, &config, &folder.path().join("day.jsonl"), 22);
    let live = ["whatif", "--policy", &config, "--config", &config, "--tenant", "demo"];
    fleet.run(&live).exits(0).says("No decision would change");
    assert_eq!(fleet.stop(), Some(0));

    let same = whatif(&config, &export);
    let summary = &same.json()["summary"];
    assert_eq!(
        (same.code, &summary["calls"]),
        (0, &json!(22)),
        "{}\n{}",
        same.stdout,
        std::fs::read_to_string(&export).unwrap()
    );
    assert_eq!(summary["not_decidable"], json!({}), "{summary}");

    let other = |name: &str, changes: &[(&str, &str, &str)]| {
        let said = whatif(&configure(folder.path(), name, changes), &export);
        let mut found = differ(&said);
        // The calls of a tick depend on the machine's speed, so these differences are ignored.
        found.retain(|(.., by)| by != "max_calls_per_tick");
        (found, said)
    };
    let (found, said) = other("rules", &[("permissions.yaml", "args.value <= 500", "args.value <= 50")]);
    let small = "permissions.echo.rules.small";
    assert_eq!((said.code, found), (1, expected(&[("k0/0", "denied", small), ("k2/0", "denied", small)])));
    let (found, said) = other("grant", &[("permissions.yaml", "agents: [kelly]", "agents: [kelly, ben]")]);
    assert_eq!(found, expected(&[("odd/1", "asked", "permissions.fail.rules.ask")]), "{}", said.stdout);
    let (found, said) = other("more", &[("limits.yaml", "max: 3", "max: 4")]);
    assert_eq!(found, expected(&[("f3/0", "not_rejected", "limits.three")]), "{}", said.stdout);
    let (found, said) = other("fewer", &[("limits.yaml", "max: 3", "max: 2")]);
    assert_eq!(found, expected(&[("f2/0", "capped", "limits.three")]), "{}", said.stdout);
    // On some machines, a tick also delayed ben's calls. The effect of the limit is then not decidable.
    let sooner = ["a limit", "limits.two"].map(|by| expected(&[("same/2", "sooner", by)]));
    let delayed = [expected(&["same/2", "same/3"].map(|call| (call, "delayed", "limits.two")))];
    for (name, from, to, decided) in
        [("none", "max: 2", "max: 9", sooner.as_slice()), ("slow", "every: 3s", "every: 1d", &delayed)]
    {
        let (found, said) = other(name, &[("limits.yaml", from, to)]);
        let is_undecided =
            || said.json()["summary"]["not_decidable"].to_string().contains("a limit and a cap both delayed");
        assert!(decided.contains(&found) || found.is_empty() && is_undecided(), "{name}: {}", said.stdout);
    }
    let ticks =
        configure(folder.path(), "ticks", &[("tickfleet.yaml", "max_calls_per_tick: 3", "max_calls_per_tick: 30")]);
    let said = whatif(&ticks, &export);
    let found = differ(&said);
    // If a call is dispatched sooner, so are the calls behind it.
    let sooner = found.iter().all(|(_, kind, by)| {
        kind == "sooner" && (by == "max_calls_per_tick" || by.contains("earlier") || by.contains("limit"))
    });
    assert!(sooner && found.iter().any(|(call, ..)| call == "many/4"), "{}", said.stdout);
    tickfleet(&["whatif", "--policy", folder.path().join("rules").to_str().unwrap(), "--audit", &export])
        .exits(1)
        .says("would be denied")
        .says(small);
}

const PLACES: &str = "limits:
  part: {match: {tools: [sleep]}, concurrent: 25%}
  never: {match: {agents: [archy], tools: [fail]}, per: [agent], max: 9, every: 1d, on_reach: reject}
";

fn configure_places(folder: &Path, name: &str, limits: &str) -> String {
    configuration(
        folder,
        name,
        &[
            (
                "tickfleet.yaml",
                "audit: {admissions: true, policy_inputs: true}\ncaps: {tick: 1s, max_calls_per_tick: 100}\nworker: {slots: 8}\n",
            ),
            (
                "permissions.yaml",
                "permissions: {echo: {everyone: true}, sleep: {everyone: true}, fail: {everyone: true}}\n",
            ),
            ("limits.yaml", limits),
            ("agents.yaml", "agents: {ben: {}, archy: {task_handler: {external: {lease_ms: 60000}}}}\n"),
        ],
    )
}

/// The calls need permits at the same time. The task's budget is too small for its turn.
fn play_places(fleet: &DevFleet, config: &str) {
    let submit = |agent: &str, id: &str, more: Value, calls: &[(&str, Value)]| {
        let calls: Vec<Value> = calls.iter().map(|(tool, args)| json!({"name": tool, "arguments": args})).collect();
        let mut turn = json!({"turn_id": id, "calls": calls});
        turn.as_object_mut().unwrap().extend(more.as_object().cloned().unwrap_or_default());
        let args = ["submit", "--config", config, "--tenant", "demo", "--agent", agent, "-"];
        fleet.run_with(&args, &turn.to_string()).exits(0);
    };
    let slow = || ("sleep", json!({"ms": 100}));
    let echo = || ("echo", json!({"value": 1}));
    let delegate = ["delegate", "--config", config, "--tenant", "demo", "--to", "archy", "--task-id", "job"];
    fleet.run(&[&delegate[..], &["--budget", "2", "Do"]].concat());
    // The pause makes all three calls eligible at the same time, even on slow machines.
    fleet.run(&["pause", "demo", "--config", config, "--reason", "they are to meet", "--by", "ann"]).exits(0);
    for number in 0..3 {
        submit("ben", &format!("b{number}"), json!({}), &[slow()]);
    }
    let explained = |id: &str, reported: &str| {
        until(id, || fleet.run(&["explain", id, "--config", config]).stdout, |said| said.contains(reported));
    };
    explained("demo:b2", "waits in its agent's throttle queue");
    fleet.run(&["resume", "demo", "--config", config, "--reason", "now", "--by", "ann"]).exits(0);
    explained("demo:job", "accepted");
    let fail = ("fail", json!({"outcomes": ["ok"]}));
    submit("archy", "under", json!({"task_id": "job"}), &[echo(), fail, echo(), echo()]);
}

#[tokio::test]
async fn concurrency_limits_and_task_budgets_replay_as_recorded() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = configure_places(folder.path(), "old", PLACES);
    let fleet = DevFleet::start(&["--config", &config, "--redis-url", &redis.url()]);
    play_places(&fleet, &config);
    let export = export(&fleet, &config, &folder.path().join("day.jsonl"), 7);
    assert_eq!(fleet.stop(), Some(0));

    let whatif = |policy: &str, export: &str| {
        tickfleet(&["whatif", "--policy", policy, "--audit", export, "--slots", "8", "--json"])
    };
    let same = whatif(&config, &export);
    let log = || std::fs::read_to_string(&export).unwrap();
    assert_eq!((same.code, &same.json()["summary"]["not_decidable"]), (0, &json!({})), "{}\n{}", same.stdout, log());
    assert!(log().contains(";T2,2"), "{}", log());
    let other = |name: &str, from: &str, to: &str| {
        assert!(PLACES.contains(from));
        let said = whatif(&configure_places(folder.path(), name, &PLACES.replace(from, to)), &export);
        (differ(&said), said)
    };
    // The pause put the calls into their agent's throttle queue, as a cap does. The log does not show the cause of the
    // delay.
    let (found, said) = other("more", "25%", "100%");
    let undecided = said.json()["summary"]["not_decidable"].to_string();
    assert!(found.is_empty() && undecided.contains("a limit and a cap both delayed"), "{}{}", said.stdout, log());
    let (found, said) = other("never", "max: 9", "max: 0");
    let of_task = [("under/1", "capped", "limits.never"), ("under/2", "not_rejected", "task_budget")];
    assert_eq!(found, expected(&of_task), "{}", said.stdout);
    let budgets = "limits:\n  tokens: {per: [tenant], tokens: 10, every: day}\n";
    let said = whatif(&configure_places(folder.path(), "tokens", budgets), &export);
    assert!(said.json()["summary"]["not_decidable"].to_string().contains("limits.tokens"), "{}", said.stdout);
}

const FACTS: &str = "permissions:
  fail: {everyone: true, facts: {sets: [tainted]}}
  echo: {everyone: true, facts: {forbid: [tainted]}}
  sleep: {agents: [sam], facts: {clears: [tainted]}}
";

fn configure_facts(folder: &Path, name: &str, permissions: &str) -> String {
    configuration(
        folder,
        name,
        &[
            ("tickfleet.yaml", "audit: {admissions: true, policy_inputs: true}\n"),
            ("permissions.yaml", permissions),
            ("agents.yaml", "agents: {kelly: {}, sam: {}}\n"),
        ],
    )
}

#[tokio::test]
async fn session_facts_replay_as_recorded_and_follow_a_changed_policy() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    let config = configure_facts(folder.path(), "old", FACTS);
    let fleet = DevFleet::start(&["--config", &config, "--redis-url", &redis.url()]);
    let submit = |agent: &str, id: &str, session: &str, calls: Value| {
        let turn = json!({"turn_id": id, "session_id": session, "calls": calls});
        let args = ["submit", "--config", &config, "--tenant", "demo", "--agent", agent, "-", "--wait"];
        fleet.run_with(&args, &turn.to_string());
    };
    let echo = json!({"name": "echo", "arguments": {"value": 1}});
    let mail = json!({"name": "fail", "arguments": {"outcomes": ["ok"]}});
    submit("kelly", "t1", "case", json!([echo, mail, echo]));
    submit("kelly", "t2", "other", json!([echo]));
    submit("sam", "t3", "case", json!([{"name": "sleep", "arguments": {"ms": 1}}]));
    submit("kelly", "t4", "case", json!([echo]));
    let export = export(&fleet, &config, &folder.path().join("day.jsonl"), 6);
    assert_eq!(fleet.stop(), Some(0));

    let log = std::fs::read_to_string(&export).unwrap();
    assert!(!log.contains("case"), "a session may be a secret: {log}");
    let same = whatif(&config, &export);
    let summary = same.json()["summary"].clone();
    assert_eq!((same.code, &summary["not_decidable"]), (0, &json!({})), "{}\n{log}", same.stdout);
    assert_eq!(summary["by_facts"], json!(4), "{log}");
    let other = |name: &str, from: &str, to: &str| {
        assert!(FACTS.contains(from));
        differ(&whatif(&configure_facts(folder.path(), name, &FACTS.replace(from, to)), &export))
    };
    let by = "permissions.echo.facts.forbid.tainted";
    assert_eq!(other("stays", ", facts: {clears: [tainted]}", ""), expected(&[("t4/0", "denied", by)]));
    assert_eq!(other("none", ", facts: {forbid: [tainted]}", ""), expected(&[("t1/2", "allowed", by)]));
    // A fact of the agent forbids calls in all of its sessions. Sam's call clears only the fact of one session.
    let of_agent = FACTS
        .replace("{sets: [tainted]}", "{sets: [tainted], of: agent}")
        .replace("{forbid: [tainted]}", "{forbid: [tainted], of: agent}");
    let found = differ(&whatif(&configure_facts(folder.path(), "agent", &of_agent), &export));
    assert_eq!(found, expected(&[("t2/0", "denied", by), ("t4/0", "denied", by)]));
}

/// The log does not show whether guards passed such a call.
#[test]
fn a_call_of_a_lost_worker_is_reported_as_not_decidable() {
    let folder = tempfile::tempdir().unwrap();
    let config = configure(folder.path(), "policy", &[]);
    let reported = |outcome: &str, ran: bool| {
        let policy_inputs = json!({"calls": 1, "session": "s", "ran": ran});
        let meta = json!({"call": "t/0", "turn": "t", "arguments": {"value": 600}, "outcome": outcome,
            "error": {"code": outcome, "message": "lost", "details": null}, "policy_inputs": policy_inputs});
        let entry = json!({"timestamp": "2026-01-01T00:00:01.000Z", "level": "error", "action": "TOOL_CALL",
            "entity_type": "tool", "entity_id": "echo", "actor_type": "agent", "actor_id": "kelly", "tenant": "demo",
            "message": format!("kelly called echo: {outcome} in 0 ms"), "meta": meta});
        let admitted = "A1767225600000,1,1,3,1767225601000,1,500";
        let header = json!({"export": 1, "fleet": "tickfleet", "made_ms": 1_767_225_700_000_u64});
        let line = json!({"shard": 0, "id": "1767225601000-0", "admitted": admitted, "audit": entry});
        let export = folder.path().join("lost.jsonl");
        std::fs::write(&export, format!("{header}\n{line}\n")).unwrap();
        whatif(&config, export.to_str().unwrap()).json()["summary"].clone()
    };
    for outcome in ["internal", "outcome_unknown"] {
        let summary = reported(outcome, false);
        let unknown = summary["not_decidable"].as_object().unwrap();
        let is_unknown = unknown.keys().any(|why| why.starts_with("its worker was lost"));
        assert!(is_unknown && summary["differences"] == 0, "{outcome}: {summary}");
    }
    // This call ran, so it had passed the guards.
    assert_eq!(reported("internal", true)["by_rule"]["permissions.echo.rules.small"], 1);
}
