//! Tests the events of a turn.

use serde_json::{Value, json};

use super::fixture::GatewayFixture;
use super::{Events, Gateway, received};
use crate::support::binary::DevFleet;
use crate::support::python::interpreter;

const FILES: [(&str, &str); 3] = [
    (
        "permissions.yaml",
        "permissions:
  echo: {everyone: true}
  fail: {everyone: true, rules: [{name: ask, require: 'false', otherwise: ask}]}
approvers: {ann: {roles: [finance]}}
",
    ),
    ("agents.yaml", "agents: {kelly: {}, slow: {calls_per_tick: 1}, fran: {}}\n"),
    ("tickfleet.yaml", "caps: {tick: 60s}\n"),
];

fn turn(agent: &str, id: &str, tools: &[&str]) -> Value {
    let calls: Vec<Value> = tools
        .iter()
        .map(|tool| json!({"name": tool, "arguments": if *tool == "echo" { json!({"text": "hi"}) } else { json!({}) }}))
        .collect();
    json!({"agent": agent, "turn_id": id, "calls": calls})
}

fn follow(gateway: &Gateway, key: &str, id: &str) -> Events {
    Events::of(gateway.send(key, "GET", &format!("/v1/turns/{id}/events"), "", ""))
}

/// Submits work while no scheduler runs. Returns the event streams, each with the expected last event.
fn taken_in(one: &Gateway, two: &Gateway, [all, fran]: [&str; 2]) -> Vec<(Events, &'static str)> {
    let sent = |path: &str, body: Value| {
        let answer = one.ask(all, "POST", path, &body);
        assert_eq!(answer.status, 202, "{answer:?}");
        let id = ["task_id", "turn_id"].into_iter().find_map(|id| answer.json()[id].as_str().map(ToOwned::to_owned));
        format!("{path}/{}/events", id.unwrap())
    };
    let task = |agent: &str| json!({"target_agent": agent, "task_description": "look"});
    let mut given = task("fran");
    given["task_id"] = "job".into();
    let mut unnamed = turn("kelly", "x", &["echo"]);
    unnamed.as_object_mut().unwrap().remove("turn_id");
    let of_fran = sent("/v1/tasks", given);
    // Kelly and fran take no tasks, so a scheduler will reject the tasks.
    let all_of_them = [
        (of_fran.clone(), "failed"),
        (sent("/v1/tasks", task("kelly")), "failed"),
        (sent("/v1/turns", unnamed), "reply"),
    ];
    let asked = |path: &str| two.send(fran, "GET", path, "", "");
    let followed = Events::of(asked(&of_fran));
    for path in [&all_of_them[1].0, "/v1/tasks/never/events", "/v1/tasks/k1-0/events", "/v1/turns/t1-0/events"] {
        assert_eq!(received(asked(path)).status, 404, "{path}");
    }
    let mut streams = vec![(followed, "failed")];
    for (path, end) in all_of_them {
        streams.push((Events::of(two.send(all, "GET", &path, "", "")), end));
    }
    for (events, _) in &mut streams {
        events.opened();
    }
    streams
}

fn all_end(streams: Vec<(Events, &str)>) {
    for (mut events, end) in streams {
        events.until(end);
        assert!(events.next().is_none(), "nothing comes after it: {:?}", events.names);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn any_gateway_streams_the_events_of_a_turn_to_permitted_keys() {
    let place = GatewayFixture::new(&FILES).await;
    let key = place.key("all", &[]);
    let fran = place.key("fran", &["--agent", "fran"]);
    let operator = place.key("anna", &["--role", "operator"]);
    let [one, two] = [0, 1].map(|_| place.gateway());

    // No scheduler is running, so the turn stays queued.
    assert_eq!(one.ask(&key, "POST", "/v1/turns", &turn("kelly", "first", &["echo", "echo"])).status, 202);
    let mut here = follow(&one, &key, "first");
    let mut there = follow(&two, &key, "first");
    here.until("queued");
    there.until("queued");
    assert_eq!(received(one.send(&fran, "GET", "/v1/turns/first/events", "", "")).status, 404);
    let taken_in = taken_in(&one, &two, [&key, &fran]);
    let _fleet = place.fleet();
    all_end(taken_in);
    for events in [&mut here, &mut there] {
        let [first, second] = [0, 1].map(|_| events.until("result"));
        assert_eq!((&first["call"], &first["outcome"]), (&json!("first/0"), &json!("ok")), "{first}");
        assert_eq!((&second["call"], &second["tool"]), (&json!("first/1"), &json!("echo")), "{second}");
        assert!(first.get("output").is_none(), "what it brought comes with the reply: {first}");
        let reply = events.until("reply");
        assert_eq!((&reply["status"], &reply["results"][1]["output"]["text"]), (&json!("done"), &json!("hi")));
        assert!(events.next().is_none(), "nothing comes after the reply");
        assert_eq!(events.id, "2");
    }
    let mut again = Events::of(one.send(&key, "GET", "/v1/turns/first/events", "last-event-id: 1\r\n", ""));
    assert_eq!(again.until("result")["call"], "first/1");
    again.until("reply");
    assert_eq!(again.names, ["result", "reply"]);

    // The second call waits for the next tick, and the third call for the tick after that.
    assert_eq!(one.ask(&key, "POST", "/v1/turns", &turn("slow", "capped", &["echo", "echo", "echo"])).status, 202);
    let mut events = follow(&two, &key, "capped");
    let waits = events.until("waiting");
    assert_eq!((&waits["for"], &waits["limit"]), (&json!("limit"), &json!("calls per tick")), "{waits}");
    assert!(waits["until_ms"].is_i64() && events.names.contains(&"result".to_owned()), "{waits}");
    for (key, id) in [(&fran, "capped"), (&fran, "first"), (&key, "never")] {
        assert_eq!(received(two.send(key, "GET", &format!("/v1/turns/{id}/events"), "", "")).status, 404, "{id}");
    }
    let pause = json!({"tenant": "demo", "agent": "slow", "reason": "an incident"});
    assert_eq!(one.ask(&operator, "POST", "/v1/operate/pause", &pause).status, 200);
    let paused = events.until("waiting");
    assert_eq!((&paused["for"], &paused["reason"]), (&json!("pause"), &json!("an incident")), "{paused}");
    assert_eq!(one.ask(&key, "POST", "/v1/turns/capped/cancel", &Value::Null).status, 200);
    let reply = events.until("reply");
    assert_eq!(reply["results"][2]["outcome"], "cancelled", "{reply}");
    assert_eq!(events.names.iter().filter(|name| *name == "result").count(), 3, "{:?}", events.names);
    assert_eq!(one.stop(), Some(0));
}

const INDEX: &str = r#"
from pathlib import Path
from tickfleet import Context, tool

@tool(effect="read", timeout=120)
def index(context: Context) -> str:
    """Indexes until a file is there."""
    context.progress(0.1, "Reading")
    context.progress(0.4, "Reading orders of s3cret-word")
    while not Path(__file__).with_name("go").exists():
        context.cancelled.wait(0.05)
        context.cancelled.check()
    return "done"
"#;

#[tokio::test(flavor = "multi_thread")]
async fn progress_of_a_python_tool_reaches_events_explain_and_mcp() {
    let place = GatewayFixture::new(&FILES).await;
    let folder = place.folder.path();
    std::fs::write(folder.join("indexing.py"), INDEX).unwrap();
    let tools = format!(
        "python:\n  trial: {{module: indexing, path: ['{}'], interpreter: '{}', env: {{WORD: '${{WORD}}'}}, \
         secrets: {{WORD: {{env: TRIAL_WORD}}}}}}\n",
        folder.display(),
        interpreter().display()
    );
    std::fs::write(place.conf.join("tools.yaml"), tools).unwrap();
    std::fs::write(place.conf.join("permissions.yaml"), "permissions:\n  index: {everyone: true}\n").unwrap();
    let key = place.key("all", &[]);
    let args = ["--redis-url", &place.redis.url(), "--config", place.conf.to_str().unwrap()];
    let fleet = DevFleet::start_with(&args, &[("TRIAL_WORD", "s3cret-word")]);
    let gateway = place.gateway();

    assert_eq!(gateway.ask(&key, "POST", "/v1/turns", &turn("kelly", "long", &["index"])).status, 202);
    let mut events = follow(&gateway, &key, "long");
    let progress = loop {
        let running = events.until("running");
        if running["progress"]["fraction"] == 0.4 {
            break running["progress"].clone();
        }
    };
    assert_eq!(progress["call"], "long/0", "{progress}");
    let message = progress["message"].as_str().unwrap();
    assert!(message.starts_with("Reading orders of ") && !message.contains("s3cret"), "{message}");
    let words = format!("40 %: {message}");
    let story = fleet.run(&["explain", "demo:long", "--json"]).json();
    assert_eq!(story["running"]["progress"], words, "{story:#}");
    fleet.run(&["explain", "demo:long"]).exits(0).says(&format!("progress: {words}"));

    let task = gateway.mcp_result(&key, "tools/call", json!({"name": "index", "arguments": {}}));
    let id = task["taskId"].as_str().or(task["task"]["taskId"].as_str()).unwrap_or_else(|| panic!("{task}")).to_owned();
    let task = gateway.mcp_result(&key, "tasks/get", json!({"taskId": id}));
    assert_eq!(task["statusMessage"], format!("runs: {words}"), "{task}");

    std::fs::write(folder.join("go"), "").unwrap();
    assert_eq!(events.until("reply")["results"][0]["output"], "done");
    // The fleet deletes the partial text when it writes the record of the turn.
    let exists: bool = redis::cmd("EXISTS")
        .arg("{tickfleet:0}:parts:turn:demo:long")
        .query_async(&mut place.redis.connection().await)
        .await
        .unwrap();
    assert!(!exists);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_names_the_awaited_approval_and_ends_with_its_gateway() {
    let place = GatewayFixture::new(&FILES).await;
    let _fleet = place.fleet();
    let key = place.key("all", &[]);
    let ann = place.key("ann-phone", &["--role", "approver", "--approver", "ann"]);
    let without = std::fs::read(&place.keys).unwrap();
    let lost = place.key("lost", &[]);
    let [one, two] = [0, 1].map(|_| place.gateway());

    assert_eq!(one.ask(&key, "POST", "/v1/turns", &turn("kelly", "asks", &["fail", "echo"])).status, 202);
    let mut here = follow(&one, &key, "asks");
    let mut there = follow(&two, &key, "asks");
    let waits = there.until("waiting");
    assert_eq!((&waits["for"], &waits["call"], &waits["tool"]), (&json!("approval"), &json!("asks/0"), &json!("fail")));
    assert_eq!((&waits["needs"], waits["until_ms"].is_i64()), (&json!("any approver"), true), "{waits}");
    here.until("waiting");
    let mut heard = follow(&two, &lost, "asks");
    heard.until("waiting");
    std::fs::write(&place.keys, without).unwrap();
    assert!(heard.next().is_none());
    assert_eq!(one.stop(), Some(0));
    assert!(here.next().is_none());
    let approval = format!("/v1/operate/approvals/demo:{}/deny", waits["approval"].as_str().unwrap());
    assert_eq!(two.ask(&ann, "POST", &approval, &json!({"reason": "no"})).status, 200);
    let denied = there.until("result");
    assert_eq!((&denied["call"], &denied["success"]), (&json!("asks/0"), &json!(false)), "{denied}");
    assert_eq!(there.until("result")["outcome"], "ok");
    there.until("reply");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_survives_a_redis_outage_and_reports_a_lost_turn() {
    let mut place = GatewayFixture::new(&[]).await;
    let key = place.key("all", &[]);
    let gateway = place.gateway();
    assert_eq!(gateway.ask(&key, "POST", "/v1/turns", &turn("kelly", "lost", &["echo"])).status, 202);
    assert_eq!(gateway.ask(&key, "POST", "/v1/turns", &turn("kelly", "hurt", &["echo"])).status, 202);
    let [mut events, mut hurt] = ["lost", "hurt"].map(|id| follow(&gateway, &key, id));
    events.until("queued");
    hurt.until("queued");
    let set = redis::cmd("SET").arg("{tickfleet:0}:turn:demo:hurt").arg("x").to_owned();
    let () = set.query_async(&mut place.redis.connection().await).await.unwrap();
    assert!(hurt.until("damaged")["message"].as_str().unwrap().contains("cannot be read"));
    assert!(hurt.next().is_none() && hurt.names == ["queued", "damaged"], "{:?}", hurt.names);
    place.redis.kill9();
    assert!(events.until("away")["message"].as_str().unwrap().contains("cannot reach Redis"));
    // Redis is empty after the restart, so the stream reports that the turn does not exist.
    place.redis.restart().await;
    events.until("not_found");
    assert!(events.next().is_none() && events.names == ["queued", "away", "not_found"], "{:?}", events.names);
}
