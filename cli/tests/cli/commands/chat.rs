//! `tickfleet chat` and `tickfleet tasks` with a real fleet. A fake model runs the agent.

use std::path::Path;
use std::process::{Command, Stdio};

use axum::Router;
use axum::body::Bytes;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::binary::{CommandOutput, DevFleet};

const TERMINAL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cli/commands/terminal.py");

/// The fake model requests the call in the user's message, and answers when it has the result.
pub(crate) async fn model() -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/v1", listener.local_addr().unwrap());
    let app = Router::new().fallback(|body: Bytes| async move {
        let request: Value = serde_json::from_slice(&body).unwrap();
        let messages = request["messages"].as_array().unwrap();
        let asked = messages.iter().rev().find(|message| message["role"] == "user").unwrap();
        let asked = asked["content"].as_str().unwrap();
        let is_answered = messages.last().unwrap()["role"] == "tool";
        let call = |name: &str, arguments: Value| {
            let function = json!({"name": name, "arguments": arguments.to_string()});
            json!({"role": "assistant", "content": null, "tool_calls": [{"id": "c", "type": "function", "function": function}]})
        };
        let message = match asked {
            _ if is_answered => json!({"role": "assistant", "content": "All done."}),
            asked if asked.starts_with("sleep") => call("sleep", json!({"ms": 20_000})),
            asked if asked.starts_with("echo") => call("echo", json!({"text": asked})),
            asked => {
                let before = messages.iter().filter(|message| message["role"] == "user").count() - 1;
                json!({"role": "assistant", "content": format!("You said {asked:?} after {before} others.")})
            }
        };
        let calls = message.get("tool_calls").is_some();
        let choice = json!({"index": 0, "message": message, "finish_reason": if calls { "tool_calls" } else { "stop" }});
        json!({"id": "x", "object": "chat.completion", "model": "stand-in", "choices": [choice],
            "usage": {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}})
        .to_string()
    });
    drop(tokio::spawn(async move { axum::serve(listener, app).await }));
    base
}

pub(crate) fn configure(folder: &Path, model: &str) {
    let files = [
        ("agents.yaml", "agents:\n  atlas: {task_handler: {llm: {system: You are atlas.}}}\n".to_owned()),
        ("permissions.yaml", "permissions:\n  echo: {everyone: true}\n  sleep: {everyone: true}\n".to_owned()),
        (
            "models.yaml",
            format!(
                "models:\n  default: {{api: openai, model: stand-in, base_url: {model:?}, allow_private: [127.0.0.1]}}\n"
            ),
        ),
    ];
    for (name, text) in files {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

fn in_a_terminal(fleet: &DevFleet, folder: &str, steps: &Value) -> Value {
    let chat = fleet.command(&["--config", folder, "chat", "--agent", "atlas", "--session", "talk"]);
    let mut python = Command::new("python3");
    python.arg(TERMINAL).args(["110", "60"]).arg(steps.to_string());
    python.arg(chat.get_program()).args(chat.get_args()).envs(chat.get_envs().filter_map(|(k, v)| Some((k, v?))));
    python.env("TERM", "xterm-256color").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    CommandOutput::of(&mut python, "").exits(0).json()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_chat_shows_steps_resumes_and_cancels_a_task_on_ctrl_c() {
    let redis = RedisServer::start().await;
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), &model().await);
    let config = folder.path().to_str().unwrap();
    let fleet = DevFleet::start(&["--config", config, "--redis-url", &redis.url()]);

    let chat = ["--config", config, "chat", "--agent", "atlas", "--session", "talk", "--once"];
    let said = fleet.run(&[&chat[..], &["echo this"]].concat()).exits(0);
    said.says("plan").says("execute   turn ses-talk-1.step-1").says("ok        echo").says("atlas> All done.");
    let said = fleet.run(&[&chat[..], &["hello", "--json"]].concat()).exits(0);
    let events: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let words: Vec<&str> = events.iter().map(|event| event["event"].as_str().unwrap()).collect();
    assert_eq!(words, ["accepted", "plan", "answer"]);
    assert_eq!(events[2]["answer"], "You said \"hello\" after 1 others.");

    let steps = json!([
        {"see": "continuing after 2 exchanges"}, {"see": "you>"},
        {"key": "echo once more\n"}, {"see": "All done"},
        {"key": "sleep\n"}, {"see": "turn ses-talk-4.step-1"},
        {"signal": 2}, {"see": "Canceling the task"}, {"see": "cancelled:"},
        {"key": "\u{4}"}, {"see": "To continue"},
    ]);
    let said = tokio::task::block_in_place(|| in_a_terminal(&fleet, config, &steps));
    assert_eq!((&said["exit"], &said["restored"]), (&json!(0), &json!(true)), "{said:#}");

    let list = ["--config", config, "tasks", "list", "--tenant", "demo"];
    let tasks = fleet.run(&[&list[..], &["--json"]].concat()).exits(0).json();
    let ids: Vec<&str> = tasks["items"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["ses-talk-4", "ses-talk-3", "ses-talk-2", "ses-talk-1"]);
    assert_eq!(tasks["items"][0]["outcome"], "cancelled");
    fleet.run(&[&list[..], &["--state", "ended", "--limit", "1"]].concat()).exits(0).says("ended: cancelled");
    let explained = fleet.run(&["--config", config, "explain", "demo:ses-talk-1"]).exits(0);
    explained.says("plan      default").says("validate  1 of 1 calls succeeded").says("answer    default");
    explained.says("execute   turn ses-talk-1.step-1").says("Tokens: 20 in, 4 out");
    let stats = ["--config", config, "stats", "--by", "agent"];
    let reported = fleet.run(&[&stats[..], &["--json"]].concat()).exits(0).json();
    let used = &reported["rows"][0]["used"];
    let requests = used["requests"].as_u64().unwrap();
    assert!(
        requests >= 5 && used["input_tokens"] == 10 * requests && used["output_tokens"] == 2 * requests,
        "{reported:#}"
    );
    assert_eq!(reported["models"]["requests"], requests, "{reported:#}");
    fleet.run(&stats).exits(0).says("TOKENS").says("COST");
    let csv = fleet.run(&[&stats[..], &["--csv"]].concat()).exits(0);
    csv.says(",outcomes,requests,input_tokens,output_tokens,cost").says(&format!(",{requests},{},", 10 * requests));
    fleet.run(&["--config", config, "cancel", "demo:ses-talk-1"]).exits(0).says("it had already ended");
}

#[tokio::test]
async fn a_chat_with_an_invalid_agent_or_session_fails_with_a_reason() {
    let folder = tempfile::Builder::new().prefix("tf-").tempdir().unwrap();
    let fleet = DevFleet::start_in(folder.path(), &[], &[]);
    let refused = fleet.run(&["chat", "--agent", "petra", "--once", "hello"]).exits(1);
    refused.says("no_task_handler");
    fleet.run(&["chat", "--agent", "petra", "--session", "a:b"]).exits(2);
}
