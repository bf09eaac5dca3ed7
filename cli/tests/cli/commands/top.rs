//! `tickfleet top` with a real fleet: printed once, as JSON, and in a terminal.

use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet, tickfleet, until_all_printed};

const TERMINAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/commands/terminal.py");

fn submit(fleet: &DevFleet, calls: usize) {
    let calls: Vec<&str> = std::iter::repeat_n(["--call", "echo {\"text\":\"x\"}"], calls).flatten().collect();
    fleet.run(&[&["submit", "--tenant", "demo", "--agent", "kelly"], &calls[..]].concat()).exits(0);
}

fn in_a_terminal(fleet: &DevFleet, more: &[&str], steps: &Value) -> Value {
    let top = fleet.command(&[&["top", "--every", "200ms"], more].concat());
    let mut python = Command::new("python3");
    python.arg(TERMINAL).args(["110", "30"]).arg(steps.to_string());
    python.arg(top.get_program()).args(top.get_args()).envs(top.get_envs().filter_map(|(k, v)| Some((k, v?))));
    python.env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    CommandOutput::of(&mut python, "").exits(0).json()
}

#[tokio::test]
async fn top_prints_a_frame_with_capped_agents_tools_and_live_processes() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    submit(&fleet, 60);
    // Right after a tick begins, fewer than ten of its calls have run.
    let frame = loop {
        let frame = fleet.run(&["top", "--json", "--every", "200ms"]).exits(0).json();
        let agent = &frame["agents"][0];
        let is_capped = agent["tick_used"] == 10 && agent["due_in_ms"].as_i64() > Some(0);
        if frame["tools"]["seen"].as_u64() >= Some(10) && is_capped {
            break frame;
        }
    };
    let agent = &frame["agents"][0];
    assert_eq!((&agent["tenant"], &agent["agent"], &agent["turns"]), (&"demo".into(), &"kelly".into(), &json!(1)));
    assert_eq!(
        (&agent["tick_used"], &agent["tick_max"], &agent["day_max"]),
        (&json!(10), &json!(10), &json!(1_000)),
        "{frame:#}"
    );
    assert!(agent["first"].as_str().unwrap().starts_with("demo:"), "{frame:#}");
    assert!((1..=5_000).contains(&agent["due_in_ms"].as_i64().unwrap()), "{frame:#}");
    assert_eq!(frame["tools"]["rows"][0]["tool"], "echo");
    assert_eq!(frame["tools"]["rows"][0]["outcomes"]["ok"], frame["tools"]["seen"]);
    assert_eq!(frame["slots"]["all"], 32, "what the worker said with its heartbeat: {frame:#}");
    let kinds: Vec<&str> =
        frame["nodes"].as_array().unwrap().iter().map(|node| node["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["scheduler", "worker"]);
    assert!(frame["nodes"][1]["heartbeat_age_ms"].as_i64().unwrap() < 10_000, "{frame:#}");
    let kinds: Vec<&str> =
        frame["findings"].as_array().unwrap().iter().map(|finding| finding["kind"].as_str().unwrap()).collect();
    // This Redis has no append-only file and no maxmemory, so there is a finding about the store.
    assert!(kinds.iter().all(|kind| ["limit_full", "store"].contains(kind)), "{frame:#}");
    assert!(kinds.contains(&"store"), "{frame:#}");

    // A frame may be taken before the next ten calls run. The remaining calls last for several ticks.
    let printed = ["demo:kelly", "Capped agents: 1", "1 scheduler, 1 worker alive", "of 32 busy"];
    until_all_printed(&printed, || fleet.run(&["top", "--once", "--every", "200ms"]));
}

#[tokio::test]
async fn top_runs_in_a_terminal_and_restores_it() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    submit(&fleet, 100);
    let steps = json!([
        {"see": "Capped agents: 1"},
        {"see": "demo:kelly +1 "},
        {"see": "echo +\\d+ +\\d+ "},
        {"changes": "\\d\\d:\\d\\d:\\d\\d\\.\\d+ UTC"},
        {"key": "+"}, {"see": "every 100ms"},
        {"key": "s"}, {"see": "sort: time"},
        {"see": "calls/s .*≤.*capped .*≤"},
        {"key": "e"}, {"see": "accepted with 100 calls"}, {"key": "x"}, {"gone": "any other key closes"},
        {"key": "p"}, {"see": "paused"},
        {"key": "?"}, {"see": "any key closes this"}, {"key": "\u{1b}"}, {"gone": "any key closes this"},
        {"key": "p"}, {"gone": "paused"},
        {"changes": "kelly +1 .* +in \\d\\.\\d s"},
        {"key": "q"},
    ]);
    let said = in_a_terminal(&fleet, &[], &steps);
    let given_back = |said: &Value| {
        assert_eq!(said["exit"], 0, "{said:#}");
        for what in ["restored", "left_alternate_screen", "cursor_shown"] {
            assert_eq!(said[what], true, "{what}: {said:#}");
        }
    };
    given_back(&said);
    for end in [json!({"signal": 15}), json!({"signal": 1}), json!({"key": "\u{3}"}), json!({"key": "\u{1b}"})] {
        given_back(&in_a_terminal(&fleet, &[], &json!([{"see": "1 scheduler, 1 worker alive"}, end])));
    }
}

#[tokio::test]
async fn top_reports_an_unreachable_redis_and_an_unused_fleet() {
    let mut redis = RedisServer::start().await;
    let url = redis.url();
    tickfleet(&["top", "--once", "--every", "100ms", "--redis-url", &url]).exits(0).says("shard 0 has never been used");
    redis.kill9();
    tickfleet(&["top", "--once", "--redis-url", &url]).exits(3).prints_error("cannot be reached");
    redis.restart().await;
    tickfleet(&["top", "--once", "--every", "100ms", "--redis-url", &url]).exits(0).says("no policy yet");
}
