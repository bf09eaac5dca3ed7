//! The real binary, against a real Redis of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

#[path = "cli/binary.rs"]
mod binary;
#[path = "cli/chart.rs"]
mod chart;
#[path = "cli/clock.rs"]
mod clock;
#[path = "cli/documents.rs"]
mod documents;
#[path = "cli/early.rs"]
mod early;
#[path = "cli/explained.rs"]
mod explained;
#[path = "cli/first_steps.rs"]
mod first_steps;
#[path = "cli/http_tools.rs"]
mod http_tools;
#[path = "cli/image.rs"]
mod image;
#[path = "cli/import.rs"]
mod import;
#[path = "cli/live.rs"]
mod live;
#[path = "cli/lost_second.rs"]
mod lost_second;
#[path = "cli/mcp.rs"]
mod mcp;
#[path = "cli/memory.rs"]
mod memory;
#[path = "cli/process.rs"]
mod process;
#[path = "cli/prometheus.rs"]
mod prometheus;
#[path = "cli/reaping.rs"]
mod reaping;
#[path = "cli/run_time.rs"]
mod run_time;
#[path = "cli/scaling/mod.rs"]
mod scaling;
#[path = "cli/security.rs"]
mod security;
#[path = "cli/suspects.rs"]
mod suspects;
#[path = "cli/top.rs"]
mod top;
#[path = "cli/traces.rs"]
mod traces;
#[path = "cli/typed_tools.rs"]
mod typed_tools;
#[path = "cli/watched.rs"]
mod watched;

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use binary::{DevFleet, Said, command, tickfleet};
use serde_json::{Value, json};
use tickfleet_testkit::{RedisOptions, RedisServer};

const TURN: [&str; 5] = ["submit", "--tenant", "demo", "--agent", "kelly"];

fn submit<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&TURN, more].concat()
}

#[tokio::test]
async fn dev_answers_a_submitted_turn_and_stops_cleanly() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);

    let said = fleet.run(&submit(&["--call", "echo {\"text\":\"hi\"}", "--wait"]));
    said.exits(0).says("echo").says("ok").says("{\"text\":\"hi\"}");

    let said = fleet.run(&submit(&["--call", "echo", "--call", "nope", "--wait", "--json"]));
    let reply = said.exits(1).json();
    assert_eq!(reply["status"], "done");
    assert_eq!(reply["results"][0]["outcome"], "ok");
    assert_eq!(reply["results"][1]["outcome"], "unknown_tool");

    let story = fleet.run(&["explain", reply["turn_id"].as_str().unwrap()]);
    story.exits(0).says("has ended").says("admitted 2 calls: tick").says("unknown_tool").says("Audit:");

    fleet.run(&["doctor"]).exits(0).says("1 alive").says("is that of this configuration");
    assert_eq!(fleet.stop(), Some(0));
}

#[tokio::test]
async fn a_turn_may_come_from_a_file_or_from_stdin_in_any_dialect() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let openai =
        r#"{"tool_calls":[{"id":"c1","type":"function","function":{"name":"echo","arguments":"{\"text\":\"x\"}"}}]}"#;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("turn.json");
    std::fs::write(&file, openai).unwrap();

    let said = fleet.run(&submit(&[file.to_str().unwrap(), "--wait", "--json"]));
    assert_eq!(said.exits(0).json()["messages"][0]["tool_call_id"], "c1");
    let piped = fleet.run_with(&submit(&["-", "--wait", "30", "--json"]), openai);
    assert_eq!(piped.exits(0).json()["dialect"], "openai_chat");

    let items = r#"[{"type":"function_call","call_id":"c2","name":"echo","arguments":"{}"}]"#;
    let said = fleet.run_with(&submit(&["-", "--format", "openai-responses", "--wait", "--json"]), items);
    assert_eq!(said.exits(0).json()["messages"][0]["call_id"], "c2");
    let said = fleet.run_with(&submit(&["-", "--format", "text", "--wait"]), "No tool is needed.");
    said.exits(0).says("calls no tool");
    let answer = "So: {\"tool\": \"echo\", \"arguments\": {\"text\": \"y\"}}";
    fleet.run_with(&submit(&["-", "--format", "text", "--wait"]), answer).exits(0).says("{\"text\":\"y\"}");

    let broken = fleet.run_with(&submit(&["-", "--wait"]), r#"{"calls":[{"name":"echo"},]}"#);
    broken.exits(1).complains("holds no turn").complains("malformed_json");
}

#[tokio::test]
async fn an_id_makes_a_submit_idempotent_and_other_content_is_a_conflict() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let first = fleet.run(&submit(&["--call", "echo", "--turn-id", "mine", "--wait", "--json"]));
    let again = fleet.run(&submit(&["--call", "echo", "--turn-id", "mine", "--wait", "--json"]));
    assert_eq!(first.exits(0).json(), again.exits(0).json(), "the record answers for the reply that was read");
    fleet.run(&submit(&["--call", "sleep", "--turn-id", "mine"])).exits(1).complains("other content");
}

#[tokio::test]
async fn explain_names_the_cap_that_keeps_a_turn_waiting() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    // Three windows' worth of calls: whichever window it is, the last calls wait for another.
    let calls: Vec<&str> = std::iter::repeat_n(["--call", "echo"], 25).flatten().collect();
    fleet.run(&submit(&[&calls[..], &["--turn-id", "long"]].concat())).exits(0).says("demo:long");
    let story = loop {
        let said = fleet.run(&["explain", "demo:long", "--json"]);
        if said.code == 0 && said.json()["state"] == "lane" {
            break said.json();
        }
    };
    assert_eq!(story["waits"]["rule"], "tick_cap");
    assert_eq!(story["waits"]["tick_cap"], 10);
    assert!(story["waits"]["until_ms"].as_i64() > story["now_ms"].as_i64(), "{story}");
    fleet.run(&["explain", "long"]).exits(0).says("the agent's tick is used up (10 of 10 calls)");

    fleet.run(&["cancel", "demo", "long", "--reason", "enough"]).exits(0);
    let ended = loop {
        let story = fleet.run(&["explain", "demo:long/24", "--json"]).exits(0).json();
        if story["state"] == "done" {
            break story;
        }
    };
    assert_eq!(ended["results"][24]["outcome"], "cancelled");
    fleet.run(&["explain", "demo:long/25"]).exits(2).complains("none of them");
}

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
async fn tasks_are_delegated_and_refused_with_a_reason() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let to = |agent| ["delegate", "--tenant", "atlas-ux", "--to", agent, "Announce it", "--wait", "--json"];
    let reply = fleet.run(&to("kelly")).exits(0).json();
    assert_eq!(reply["results"][0]["outcome"], "ok");
    fleet.run(&["explain", reply["task_id"].as_str().unwrap()]).exits(0).says("Task").says("has ended");
    assert_eq!(fleet.run(&to("tina")).exits(1).json()["error"]["code"], "no_task_handler");
    fleet.run(&["doctor"]).exits(0).says("no_task_handler");
}

#[tokio::test]
async fn a_tenant_that_is_set_is_known_to_the_running_fleet_and_kept_over_a_restart() {
    // A socket's path is short; that of the system's folder for temporary files may not be.
    let folder = tempfile::Builder::new().prefix("tf-").tempdir().unwrap();
    let dir = ["--dir", folder.path().to_str().unwrap()];
    let fleet = DevFleet::start(&dir);
    let set = ["tenant", "set", "acme", "--plan", "gold", "--max-actions-per-day", "7", "--json"];
    assert_eq!(fleet.run(&set).exits(0).json()["max_actions_per_day"], 7);
    fleet.run(&["tenant", "set", "acme", "--time-zone", "Europe/Berlinn"]).exits(2).complains("Europe/Berlinn");
    fleet.run(&["tenant", "set", "acme", "--agent", "nobody"]).exits(1).complains("nobody");
    // Until the next heartbeat a turn of the new tenant is rejected.
    let turn = ["submit", "--tenant", "acme", "--agent", "kelly", "--call", "echo", "--wait", "--json"];
    while fleet.run(&turn).json()["status"] != "done" {}
    DevFleet::refused(&dir).exits(1).complains("belongs to a Redis that still runs");
    assert_eq!(fleet.stop(), Some(0));

    let fleet = DevFleet::start(&dir);
    let shown = fleet.run(&["tenant", "show", "acme", "--json"]).exits(0).json();
    assert_eq!((&shown["plan"], &shown["source"]), (&"gold".into(), &"run time".into()));
    fleet.run(&["tenant", "list"]).exits(0).says("acme").says("atlas-ux").says("configuration");
}

#[tokio::test]
async fn doctor_tells_an_unfit_server_from_a_fit_one() {
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

#[tokio::test]
async fn a_producer_with_another_number_of_shards_is_refused() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let said = Said::of(fleet.command(&submit(&["--call", "echo"])).env("TICKFLEET_REDIS_SHARDS", "4"), "");
    said.exits(1).complains("4 shards").complains("written with 1");
    let doctor = Said::of(fleet.command(&["doctor"]).env("TICKFLEET_REDIS_SHARDS", "4"), "");
    doctor.exits(1).says("set redis.shards to 1");
    // Nobody stopped a producer in another language.
    let mut redis = redis::Client::open(redis.url()).unwrap().get_connection().unwrap();
    let () = redis::cmd("XADD").arg("{tickfleet:2}:turns").arg(&["*", "turn", "{}"]).query(&mut redis).unwrap();
    fleet.run(&["doctor"]).exits(0).says("nobody reads {tickfleet:2}:turns: the shards are 0 to 0");
}

/// The files of `docs/permissions.md` are a configuration, and what `dev` says next works with it.
#[test]
fn the_smallest_configuration_of_ones_own_runs_and_dev_shows_commands_that_fit_it() {
    let folder = tempfile::Builder::new().prefix("tf-").tempdir().unwrap();
    let guide = std::fs::read_to_string(Path::new(documents::REPOSITORY).join("docs/permissions.md")).unwrap();
    let files = documents::files(&guide, "yaml");
    assert_eq!(files.len(), 3, "agents, tenants, permissions");
    std::fs::create_dir(folder.path().join("conf")).unwrap();
    files.iter().for_each(|(name, text)| std::fs::write(folder.path().join(name), text).unwrap());
    let conf = folder.path().join("conf");
    let conf = conf.to_str().unwrap();
    let check = tickfleet(&["config", "check", "--config", conf]).exits(0);
    check.says("valid: 1 tenant, 1 agent, 7 declared tools").says("built-in samples in use: tools.yaml");
    tickfleet(&[
        "tools",
        "--config",
        conf,
        "--tenant",
        "nope",
        "--agent",
        "bot",
        "--redis-url",
        "redis://127.0.0.1:1/",
    ])
    .exits(3)
    .complains("the configuration has no tenant \"nope\"");

    let fleet = DevFleet::start_in(folder.path(), &["--config", "conf"], &[]);
    let next: Vec<&String> = fleet.welcome.iter().filter(|line| line.starts_with("  tickfleet ")).collect();
    assert_eq!(next.len(), 3, "{:?}", fleet.welcome);
    for command in next {
        let said = Said::of(documents::with_binary(&mut fleet.shell(command)).current_dir(folder.path()), "");
        assert_eq!(said.code, 0, "{command}: {}{}", said.stdout, said.stderr);
    }
    let ignored = std::fs::read_to_string(folder.path().join(".tickfleet/.gitignore"));
    assert_eq!(ignored.unwrap(), "*\n");
    assert_eq!(fleet.stop(), Some(0));
}

#[test]
fn configuration_errors_point_at_their_place() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().to_str().unwrap();
    tickfleet(&["config", "check", "--config", dir]).exits(0).says("is valid");
    std::fs::write(folder.path().join("tickfleet.yaml"), "caps:\n  tick: 5 weeks\n  max_cals: 3\n").unwrap();
    let said = tickfleet(&["config", "check", "--config", dir]).exits(1);
    said.says("tickfleet.yaml:2:9").says("caps.tick").says("2 errors");
    let report = tickfleet(&["config", "check", "--config", dir, "--json"]).exits(1).json();
    assert_eq!((report["valid"].as_bool(), report["errors"].as_array().unwrap().len()), (Some(false), 2));
    for role in ["worker", "scheduler"] {
        tickfleet(&[role, "--config", dir]).exits(1).complains("caps.tick");
    }
    let schema = "tools: {bad: {description: x, input_schema: {type: object, properties: {a: {type: what}}}}}";
    std::fs::write(folder.path().join("tickfleet.yaml"), "").unwrap();
    std::fs::write(folder.path().join("tools.yaml"), schema).unwrap();
    std::fs::write(folder.path().join("permissions.yaml"), "permissions: {}").unwrap();
    let said = tickfleet(&["config", "check", "--config", dir]).exits(1);
    said.says("tools.bad.input_schema.properties.a.type: found \"what\"");
}

#[test]
fn the_configuration_in_force_is_printed_with_its_origins_and_without_passwords() {
    let url = "redis://fleet:s3cret@127.0.0.1:1/";
    let said = tickfleet(&["config", "print", "--redis-url", url]).exits(0);
    said.says("***").says("max_calls_per_tick: 10").says("# default");
    assert!(!said.stdout.contains("s3cret"), "{}", said.stdout);
    let away = tickfleet(&["doctor", "--redis-url", url]).exits(3);
    assert!(!away.stderr.contains("s3cret"), "{}", away.stderr);
}

#[test]
fn exit_codes_tell_usage_from_failure_from_an_absent_redis() {
    let nowhere = ["--redis-url", "redis://127.0.0.1:1/"];
    for asked in [&["doctor"][..], &["explain", "demo:x"], &["tenant", "list"], &["cancel", "demo:x"]] {
        tickfleet(&[asked, &nowhere].concat()).exits(3).complains("cannot be reached");
    }
    tickfleet(&submit(&["--call", "echo", nowhere[0], nowhere[1]])).exits(3);
    for wrong in [
        &["submit"][..],
        &["frobnicate"],
        &["submit", "--call", "echo"],
        &["explain", "a:b:c"],
        &["tools", "--agent", "kelly"],
    ] {
        tickfleet(wrong).exits(2);
    }
    tickfleet(&submit(&[])).exits(2).complains("give --call or a file");
    let away = Said::of(command(&["dev"]).env("REDIS_URL", nowhere[1]), "").exits(3);
    away.complains("REDIS_URL (or --redis-url) names this Redis; unset it");
    tickfleet(&submit(&["--call", "echo text=hi"])).exits(2).complains("no JSON");
    tickfleet(&["doctor", "--redis-url", "localhost"]).exits(2).complains("redis://");
    tickfleet(&["--help"]).exits(0).says("Examples:").says("Exit codes:");
}

#[test]
fn tools_are_listed_and_defined_for_a_model() {
    tickfleet(&["tools"]).exits(0).says("post_to_x").says("atlas, kelly, sunday").says("everyone");
    let of =
        |agent, format| tickfleet(&["tools", "--tenant", "atlas-ux", "--agent", agent, "--format", format]).exits(0);
    let names = |agent| {
        let defined = of(agent, "openai").json();
        let name = |tool: &serde_json::Value| tool["function"]["name"].as_str().unwrap().to_owned();
        defined.as_array().unwrap().iter().map(name).collect::<Vec<_>>()
    };
    assert!(names("kelly").contains(&"post_to_x".to_owned()));
    assert!(!names("fran").contains(&"post_to_x".to_owned()));
    assert!(of("kelly", "anthropic").json()[0]["input_schema"].is_object());
    of("kelly", "text").says("Arguments (JSON Schema)").says("{\"tool\": ");
    assert!(of("kelly", "mcp").json()[0]["annotations"]["readOnlyHint"].is_boolean());
    assert_eq!(of("kelly", "openai-responses").json()[0]["strict"], false);
    let strict = ["tools", "--tenant", "atlas-ux", "--agent", "kelly", "--strict", "--format"];
    let defined = tickfleet(&[&strict[..], &["openai"]].concat()).exits(0).json();
    let defined = defined.as_array().unwrap().iter().find(|tool| tool["function"]["name"] == "post_to_x").unwrap();
    assert_eq!(
        (&defined["function"]["strict"], &defined["function"]["parameters"]["additionalProperties"]),
        (&true.into(), &false.into())
    );
    tickfleet(&[&strict[..], &["mcp"]].concat()).exits(2).complains("--strict is for");
    tickfleet(&["tools", "--tenant", "atlas-ux", "--agent", "fran"])
        .exits(0)
        .says("no row in permissions.yaml allows it");
}

#[test]
fn a_schema_that_cannot_be_used_is_refused_with_its_place_by_every_role() {
    let folder = tempfile::tempdir().unwrap();
    let tools = "tools:
  look:
    description: Looks.
    effect: read
    input_schema:
      type: object
      properties:
        kind: {type: strnig, description: Which.}
  find:
    description: Finds.
    effect: read
    input_schema:
      type: object
      properties:
        name: {type: string, description: Whose.}
      required: [name, nmae]
      additionalProperties: false
    output_schema:
      properties: {area: {minimum: low}}
";
    std::fs::write(folder.path().join("tools.yaml"), tools).unwrap();
    std::fs::write(folder.path().join("permissions.yaml"), "permissions: {look: {everyone: true}}").unwrap();
    let conf = folder.path().to_str().unwrap();
    for role in [&["config", "check"][..], &["scheduler"], &["worker"]] {
        let said = tickfleet(&[role, &["--config", conf, "--redis-url", "redis://127.0.0.1:1"]].concat()).exits(1);
        let told = said.stdout + &said.stderr;
        for (place, why) in [
            ("tools.yaml:8:22: tools.look.input_schema.properties.kind.type: found \"strnig\"", "is valid"),
            ("tools.yaml:16:24: tools.find.input_schema.required[1]: found \"nmae\"", "allows only `name`"),
            ("tools.yaml:19:36: tools.find.output_schema.properties.area.minimum: found \"low\"", "type number"),
        ] {
            let line = told.lines().find(|line| line.contains(place));
            assert!(line.is_some_and(|line| line.contains(why)), "{role:?}: {place}: {told}");
        }
    }
}

#[test]
fn a_plain_fleet_has_no_trial_tools_and_dev_has_them() {
    let listed = tickfleet(&["tools"]).exits(0).stdout;
    let defined =
        tickfleet(&["tools", "--tenant", "atlas-ux", "--agent", "kelly", "--format", "openai"]).exits(0).stdout;
    for trial in ["echo", "sleep", "fail", "fail_once"] {
        assert!(!listed.lines().any(|line| line.starts_with(trial)) && !defined.contains(&format!("\"{trial}\"")));
    }
    let with = Said::of(command(&["tools"]).env("TICKFLEET_PERMISSION_TRIAL_TOOLS", "true"), "").exits(0);
    with.says("echo").says("fail_once");
}

#[test]
fn completions_are_printed_for_shells() {
    for shell in ["bash", "zsh", "fish"] {
        tickfleet(&["completions", shell]).exits(0).says("tickfleet").says("explain");
    }
}

#[test]
fn the_demo_plays_its_day_and_every_promise_holds() {
    let report = tickfleet(&["demo", "--json"]).exits(0).json();
    assert_eq!((&report["ok"], &report["broken"]), (&true.into(), &json!([])));
    assert_eq!((&report["calls"], &report["results"]), (&138.into(), &138.into()));
    assert_eq!((&report["turns"], &report["tasks"], &report["duplicates"]), (&51.into(), &3.into(), &1.into()));
    let outcomes = json!({
        "ok": 111, "unknown_tool": 1, "denied": 4, "invalid_arguments": 5, "permanent": 5, "transient": 1,
        "outcome_unknown": 3, "expired": 1, "cancelled": 2, "daily_cap_reached": 4, "rejected": 1,
    });
    assert_eq!(report["outcomes"], outcomes, "{:#}", report["day"]);
    let capped = report["caps"].as_array().unwrap().iter().map(|capped| json!([capped["agent"], capped["windows"]]));
    let windows = json!([["archy", [10, 10, 5]], ["cornwall", [10, 2]], ["sunday", [10, 10, 5]]]);
    assert_eq!(json!(capped.collect::<Vec<_>>()), windows);
    assert_eq!(report["retries"], json!({"calls": 5, "tries": 9, "recovered": 4}));
    let seen = &report["stand_in"];
    assert_eq!((&seen["messages_sent"], &seen["posts_published"], &seen["twice"]), (&64.into(), &7.into(), &json!([])));
    // The booking whose answer was lost happened, and was not tried again.
    assert_eq!((&seen["meetings_booked"], &seen["calendar_looks"]), (&2.into(), &3.into()));
    has_every_kind(&report);
}

/// The demo calls tools of every kind, and says which is which.
fn has_every_kind(report: &Value) {
    let calls: Vec<_> =
        report["day"].as_array().unwrap().iter().flat_map(|row| row["calls"].as_array().unwrap()).collect();
    let kinds: BTreeSet<_> = calls.iter().map(|call| (call["tool"].as_str(), call["kind"].as_str())).collect();
    let of = |kind: Option<&str>| -> Vec<&str> {
        kinds.iter().filter(|(_, k)| *k == kind).filter_map(|(tool, _)| *tool).collect()
    };
    assert_eq!(of(Some("typed")), ["delegate_task", "list_tools", "sleep"]);
    assert_eq!(of(Some("http")), ["post_to_x", "search_x", "send_telegram_message"]);
    assert_eq!(of(Some("mcp")), ["calendar__book_meeting", "calendar__list_meetings"]);
    // Declared without anything that runs them, and misspelt.
    let none = ["get_subscription_info", "get_team_members", "search_my_memories", "send_telegram_mesage"];
    assert_eq!(of(None), none);
    let outcomes: Vec<_> = calls.iter().filter(|call| call["kind"] == "mcp").map(|call| &call["outcome"]).collect();
    assert_eq!(json!(outcomes), json!(["ok", "ok", "denied", "ok", "outcome_unknown", "ok"]));
}

#[tokio::test]
async fn the_readme_shows_what_its_commands_print() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    documents::check(&fleet, "README.md");
}

/// The pages with `console` blocks that go by themselves, beside the README.
const GUIDES: [&str; 5] =
    ["docs/tutorial.md", "docs/producers.md", "docs/configuration.md", "docs/operating.md", "docs/troubleshooting.md"];

#[tokio::test]
async fn the_guides_show_what_their_commands_print() {
    for guide in GUIDES {
        let redis = RedisServer::start_with(RedisOptions { tcp: true, ..RedisOptions::default() }).await;
        let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
        documents::check(&fleet, guide);
    }
}

#[test]
fn every_page_with_commands_is_played() {
    let played_elsewhere = ["docs/tools-http.md", "docs/tools-mcp.md", "docs/tools-typed.md"];
    let played: BTreeSet<_> = GUIDES.into_iter().chain(played_elsewhere).map(str::to_owned).collect();
    assert_eq!(documents::pages_with_commands("docs"), played);
}

/// A short version of `the_fleet_follows_its_load`, for every run of the tests: 60 times as fast as a cluster.
#[tokio::test]
async fn a_fleet_scales_out_and_in_without_losing_a_call_and_not_for_capped_work() {
    let seconds = Duration::from_secs;
    let course = scaling::Course {
        speed: 60,
        steps: vec![(seconds(3), 8.0), (seconds(8), 60.0), (seconds(4), 8.0)],
        capped: (seconds(4), 40),
    };
    let outcome = scaling::run(&course).await;
    println!("{}", outcome.summary());
    let (loaded, capped) = outcome.most_workers();
    assert!(loaded >= 3, "60 calls a second of 0.2 s need 12 slots at least: {}", outcome.csv());
    assert_eq!(capped, 1, "{}", outcome.csv());
    assert!(outcome.told >= loaded - 1 && outcome.left == outcome.told, "{}", outcome.summary());
}

/// The run of docs/scaling.md. `TICKFLEET_SCALING_CSV=docs/scaling.csv` keeps its samples.
#[tokio::test]
#[ignore = "takes three minutes and wants a quiet machine"]
async fn the_fleet_follows_its_load() {
    let seconds = Duration::from_secs;
    let steps = [(20, 12.0), (40, 120.0), (30, 40.0), (20, 120.0), (20, 12.0)];
    let course = scaling::Course {
        speed: 15,
        steps: steps.map(|(length, load)| (seconds(length), load)).into(),
        capped: (seconds(30), 200),
    };
    let outcome = scaling::run(&course).await;
    println!("{}", outcome.summary());
    #[allow(clippy::disallowed_methods, reason = "a knob of this run, documented beside it")]
    if let Ok(file) = std::env::var("TICKFLEET_SCALING_CSV") {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        std::fs::write(root.join(file), outcome.csv()).unwrap();
    }
    let (loaded, capped) = outcome.most_workers();
    assert!((8..=12).contains(&loaded) && capped == 1, "{}", outcome.summary());
    // The load itself asks for up, down, up, down: three turns. One stumble of the machine adds two.
    assert!(outcome.turns_of_direction() <= 5, "{}", outcome.summary());
    assert!(outcome.absorbed().iter().all(Option::is_some), "{}", outcome.summary());
    assert_eq!(outcome.left, outcome.told);
}

/// The table of memory in docs/scaling.md.
#[tokio::test]
#[ignore = "measures; it asserts only that nothing costs far more than the document says"]
async fn turns_and_agents_cost_what_the_document_says() {
    let costs = scaling::memory::measure().await;
    for (what, bytes) in &costs {
        println!("{bytes:>6} B  {what}");
        assert!((1..5_000).contains(bytes), "{costs:?}");
    }
}
