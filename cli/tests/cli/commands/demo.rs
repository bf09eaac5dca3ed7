//! `tickfleet demo` plays a day and reports counts.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::support::binary::{CommandOutput, command, tickfleet};
use crate::support::python;

#[test]
fn the_demo_plays_its_day_and_every_promise_holds() {
    let interpreter = python::interpreter();
    let report = tickfleet(&["demo", "--json", "--interpreter", interpreter.to_str().unwrap()]).exits(0).json();
    assert_eq!(report["left_out"]["python"], Value::Null, "{report:#}");
    plays_its_day(&report);
}

#[test]
fn the_demo_goes_without_its_tool_in_python_where_there_is_no_python_and_says_why() {
    let report = watched(&["demo", "--json", "--stay", "--interpreter", "/nowhere/python3"]);
    let why = report["left_out"]["python"].as_str().unwrap();
    assert!(why.starts_with("/nowhere/python3: it cannot be started") && !why.contains('\n'), "{why}");
    plays_its_day(&report);
}

#[test]
fn a_machine_without_redis_server_plays_the_demo_in_memory() {
    let empty = tempfile::tempdir().unwrap();
    let mut demo = command(&["demo", "--json", "--interpreter", "/nowhere/python3"]);
    demo.env("PATH", empty.path()).env_remove("TICKFLEET_REDIS_SERVER");
    plays_its_day(&CommandOutput::of(&mut demo, "").exits(0).json());
}

fn watched(args: &[&str]) -> Value {
    let mut demo = command(args).spawn().unwrap();
    let mut stdout = demo.stdout.take().unwrap();
    let report = std::thread::spawn(move || {
        let mut report = String::new();
        stdout.read_to_string(&mut report).unwrap();
        report
    });
    let mut reported = BufReader::new(demo.stderr.take().unwrap()).lines().map(Result::unwrap);
    let link = reported.find_map(|line| Some(line.strip_prefix("Watch it in a browser: http://")?.to_owned())).unwrap();
    let (address, key) = link.split_once("/console/#key=").unwrap();
    assert!(asked(address, key, "/v1/operate/me").contains("\"view\""));
    let stays = reported.find(|line| line.contains("its console stays")).unwrap();
    assert!(stays.ends_with(&link), "{stays}");
    let story = asked(address, key, "/v1/operate/explain?id=atlas-ux:0910-binky");
    assert!(story.starts_with("HTTP/1.1 200") && story.contains("delegate_task"), "{story}");
    kill(Pid::from_raw(demo.id().try_into().unwrap()), Signal::SIGINT).unwrap();
    let rest: Vec<_> = reported.collect();
    assert_eq!(demo.wait().unwrap().code(), Some(0), "{rest:?}");
    serde_json::from_str(&report.join().unwrap()).unwrap()
}

fn asked(address: &str, key: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// Checks the counts of the day. Without sandbox support, one call is missing. Without Python, two calls are missing.
fn plays_its_day(report: &Value) {
    assert_eq!((&report["ok"], &report["broken"]), (&true.into(), &json!([])));
    let sandbox = report["left_out"].get("shell");
    assert!(sandbox.is_none_or(|why| why.as_str().unwrap().contains("does not support")), "{sandbox:?}");
    let sandboxed = u32::from(sandbox.is_none());
    let python = u32::from(report["left_out"].get("python").is_none());
    let calls = json!(138 + sandboxed + 2 * python);
    assert_eq!((&report["calls"], &report["results"]), (&calls, &calls));
    assert_eq!(report["turns"], 51 + sandboxed + 2 * python);
    assert_eq!((&report["tasks"], &report["duplicates"]), (&3.into(), &1.into()));
    let outcomes = json!({
        "ok": 114 + sandboxed + python, "unknown_tool": 1, "denied": 4, "invalid_arguments": 5,
        "permanent": 2 + python, "transient": 1, "outcome_unknown": 3, "expired": 1, "cancelled": 2,
        "daily_cap_reached": 4, "rejected": 1,
    });
    assert_eq!(report["outcomes"], outcomes, "{:#}", report["day"]);
    let capped = report["caps"].as_array().unwrap().iter().map(|capped| json!([capped["agent"], capped["windows"]]));
    let windows = json!([["archy", [10, 10, 5]], ["cornwall", [10, 2]], ["sunday", [10, 10, 5]]]);
    assert_eq!(json!(capped.collect::<Vec<_>>()), windows);
    assert!(report["windows"].as_u64() > Some(36), "a tick and a day of each agent: {}", report["windows"]);
    has_every_kind(report);
}

const TYPED: [&str; 8] = [
    "delegate_task",
    "get_subscription_info",
    "get_team_members",
    "list_tools",
    "post_to_x",
    "search_my_memories",
    "search_x",
    "sleep",
];

fn has_every_kind(report: &Value) {
    let calls: Vec<_> =
        report["day"].as_array().unwrap().iter().flat_map(|row| row["calls"].as_array().unwrap()).collect();
    let kinds: BTreeSet<_> = calls.iter().map(|call| (call["tool"].as_str(), call["kind"].as_str())).collect();
    let of = |kind: Option<&str>| -> Vec<&str> {
        kinds.iter().filter(|(_, k)| *k == kind).filter_map(|(tool, _)| *tool).collect()
    };
    assert_eq!(of(Some("typed")), TYPED);
    assert_eq!(of(Some("http")), ["send_telegram_message"]);
    for (kind, tool) in [("shell", "count_words"), ("python", "sales_figures")] {
        let tools: &[&str] = if report["left_out"].get(kind).is_none() { &[tool] } else { &[] };
        assert_eq!(of(Some(kind)), tools);
    }
    assert_eq!(of(Some("mcp")), ["calendar__book_meeting", "calendar__list_meetings"]);
    let none = ["send_telegram_mesage"];
    assert_eq!(of(None), none);
    let reported: Vec<_> = calls.iter().filter(|call| call["kind"] == "python").map(|call| &call["error"]).collect();
    let advice = json!("No figures for 2026-11. Closed months: 2026-08, 2026-09, 2026-10.");
    assert!(reported.is_empty() || json!(reported) == json!([advice, null]), "{reported:?}");
    let outcomes: Vec<_> = calls.iter().filter(|call| call["kind"] == "mcp").map(|call| &call["outcome"]).collect();
    assert_eq!(json!(outcomes), json!(["ok", "ok", "denied", "ok", "outcome_unknown", "ok"]));
}
