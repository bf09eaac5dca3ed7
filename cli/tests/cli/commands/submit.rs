//! Submits turns and tasks from flags, a file and standard input, in any dialect.

use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet, command, submit, tickfleet};

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

    fleet.run(&["doctor"]).exits(0).says("1 alive").says("matches this configuration");
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
    broken.exits(1).prints_error("contains no turn").prints_error("malformed_json");
}

#[tokio::test]
async fn an_id_makes_a_submit_idempotent_and_other_content_is_a_conflict() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let first = fleet.run(&submit(&["--call", "echo", "--turn-id", "mine", "--wait", "--json"]));
    let again = fleet.run(&submit(&["--call", "echo", "--turn-id", "mine", "--wait", "--json"]));
    assert_eq!(first.exits(0).json(), again.exits(0).json(), "the record answers for the reply that was read");
    fleet.run(&submit(&["--call", "sleep", "--turn-id", "mine"])).exits(1).prints_error("other content");
}

#[tokio::test]
async fn a_delegated_task_that_fails_reports_its_reason() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let to = |agent| ["delegate", "--tenant", "atlas-ux", "--to", agent, "Announce it", "--wait", "--json"];
    // Kelly needs a model, but none is configured, so the task fails.
    let reply = fleet.run(&to("kelly")).exits(1).json();
    assert_eq!(reply["results"][0]["outcome"], "permanent", "{reply}");
    assert_eq!(reply["results"][0]["error"]["code"], "not_configured", "{reply}");
    fleet.run(&["explain", reply["task_id"].as_str().unwrap()]).exits(0).says("Task").says("has ended");
    assert_eq!(fleet.run(&to("tina")).exits(1).json()["error"]["code"], "no_task_handler");
    fleet.run(&["doctor"]).exits(0).says("tickfleet dead list");
}

#[tokio::test]
async fn a_producer_with_a_different_shard_count_is_rejected() {
    let redis = RedisServer::start().await;
    let fleet = DevFleet::start(&["--redis-url", &redis.url()]);
    let said = CommandOutput::of(fleet.command(&submit(&["--call", "echo"])).env("TICKFLEET_REDIS_SHARDS", "4"), "");
    said.exits(1).prints_error("4 shards").prints_error("written with 1");
    let doctor = CommandOutput::of(fleet.command(&["doctor"]).env("TICKFLEET_REDIS_SHARDS", "4"), "");
    doctor.exits(1).says("set redis.shards to 1");
}

#[test]
fn exit_codes_distinguish_usage_errors_failures_and_a_missing_redis() {
    let nowhere = ["--redis-url", "redis://127.0.0.1:1/"];
    for asked in [&["doctor"][..], &["explain", "demo:x"], &["tenant", "list"], &["cancel", "demo:x"]] {
        tickfleet(&[asked, &nowhere].concat()).exits(3).prints_error("cannot be reached");
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
    tickfleet(&submit(&[])).exits(2).prints_error("give --call or a file");
    let long = "x".repeat(1_001);
    tickfleet(&["cancel", "demo:x", "--reason", &long]).exits(2).prints_error("at most 1000 are allowed");
    let away = CommandOutput::of(command(&["dev"]).env("REDIS_URL", nowhere[1]), "").exits(3);
    away.prints_error("REDIS_URL (or --redis-url) names this Redis. Unset it");
    tickfleet(&submit(&["--call", "echo text=hi"])).exits(2).prints_error("not JSON");
    tickfleet(&["doctor", "--redis-url", "localhost"]).exits(2).prints_error("redis://");
    tickfleet(&["acl", "--role", "nobody"]).exits(2).prints_error("one of tickfleet, scheduler, worker");
    let chat = tickfleet(&["acl", "--role", "producer", "--user", "chat", "--json"]).exits(0).json();
    assert_eq!(chat["user"], "chat");
    tickfleet(&["--help"]).exits(0).says("Examples:").says("Exit codes:");
}

#[test]
fn completions_are_printed_for_shells() {
    for shell in ["bash", "zsh", "fish"] {
        tickfleet(&["completions", shell]).exits(0).says("tickfleet").says("explain");
    }
}
