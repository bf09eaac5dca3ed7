//! `tickfleet gateway` as a process.

mod away;
mod bounds;
mod browser;
mod conversations;
pub mod fixture;
mod fuzzed;
mod ids;
pub mod mcp;
mod mcp_approvals;
mod mcp_conformance;
mod mcp_kills;
mod metadata;
mod metrics;
mod progress;
mod provider;
mod secrets;
mod sign_in;
mod tls;
mod tokens;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use fixture::GatewayFixture;

use crate::support::binary::{command, tickfleet};
use crate::support::process::until;

const ANSWER: Duration = Duration::from_secs(60);

/// Headers of responses to requests without a valid key.
const REFUSAL: [&str; 4] =
    ["www-authenticate: bearer", "nosniff", "cache-control: no-store", "default-src 'none'; frame-ancestors 'none'"];

pub struct Gateway {
    child: Option<Child>,
    address: String,
    keys: PathBuf,
    log: Arc<Mutex<Vec<Value>>>,
}

#[derive(Debug)]
pub struct HttpResponse {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl HttpResponse {
    pub(super) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    pub(super) fn code(&self) -> String {
        self.json()["error"]["code"].as_str().unwrap().to_owned()
    }
}

impl Gateway {
    pub fn start(url: &str, keys: &Path) -> Self {
        Self::start_with(url, keys, &[])
    }

    pub(super) fn start_with(url: &str, keys: &Path, more: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", url, keys, more)
    }

    pub(super) fn start_at(address: &str, url: &str, keys: &Path, more: &[&str]) -> Self {
        let args = ["gateway", "--address", address, "--keys", keys.to_str().unwrap()];
        let mut command = command(&[&args, more].concat());
        command.env("REDIS_URL", url).env("TICKFLEET_LOG_FORMAT", "json").stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines.find_map(|line| {
            let line: Value = serde_json::from_str(&line.unwrap()).ok()?;
            (line["message"] == "gateway ready").then(|| line["address"].as_str().unwrap().to_owned())
        });
        // Keep reading the log: if the pipe closes, the gateway ends.
        let log: Arc<Mutex<Vec<Value>>> = Arc::default();
        let kept = Arc::clone(&log);
        drop(std::thread::spawn(move || {
            lines.for_each(|line| {
                kept.lock().unwrap().extend(line.ok().and_then(|line| serde_json::from_str(&line).ok()))
            });
        }));
        Self { child: Some(child), address: address.unwrap(), keys: keys.to_owned(), log }
    }

    pub(super) fn at(address: &str) -> Self {
        Self { child: None, address: address.to_owned(), keys: PathBuf::new(), log: Arc::default() }
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(ANSWER)).unwrap();
        stream
    }

    fn send(&self, key: &str, method: &str, path: &str, head: &str, body: &str) -> TcpStream {
        let mut stream = self.connect();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\n{head}content-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    pub(super) fn ask(&self, key: &str, method: &str, path: &str, body: &Value) -> HttpResponse {
        self.ask_with(key, method, path, "", body)
    }

    pub(super) fn ask_with(&self, key: &str, method: &str, path: &str, head: &str, body: &Value) -> HttpResponse {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        self.ask_raw(key, method, path, head, &body)
    }

    pub(super) fn ask_raw(&self, key: &str, method: &str, path: &str, head: &str, body: &str) -> HttpResponse {
        received(self.send(key, method, path, head, body))
    }

    pub(super) fn get(&self, key: &str, path: &str) -> HttpResponse {
        self.ask(key, "GET", path, &Value::Null)
    }

    pub fn key(&self, arguments: &[&str]) -> String {
        let key = add_key(&self.keys, arguments);
        until("the key is read", || self.get(&key, "/v1/turns/nothing").status, |status| *status != 401);
        key
    }

    fn stop(mut self) -> Option<i32> {
        let child = self.child.as_mut().unwrap();
        kill(Pid::from_raw(child.id().try_into().unwrap()), Signal::SIGTERM).unwrap();
        child.wait().unwrap().code()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            // Fails only if the process has already ended.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn says(answer: &HttpResponse, status: u16, heads: &[&str]) {
    assert_eq!(answer.status, status, "{answer:?}");
    for head in heads {
        assert!(answer.head.contains(head), "{head}: {answer:?}");
    }
}

fn received(mut stream: TcpStream) -> HttpResponse {
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    HttpResponse { status, head: head.to_ascii_lowercase(), body: body.to_owned() }
}

pub fn add_key(file: &Path, arguments: &[&str]) -> String {
    let made = tickfleet(&[&["gateway", "key"], arguments].concat()).exits(0);
    let mut rows = std::fs::read_to_string(file).unwrap_or_default();
    rows.push_str(&made.stdout);
    std::fs::write(file, rows).unwrap();
    made.stderr.split_whitespace().find(|word| word.starts_with("tfk_")).unwrap().to_owned()
}

pub(super) struct Events {
    lines: std::io::Lines<BufReader<TcpStream>>,
    pub(super) names: Vec<String>,
    pub(super) id: String,
}

impl Events {
    pub(super) fn of(stream: TcpStream) -> Self {
        Self { lines: BufReader::new(stream).lines(), names: Vec::new(), id: String::new() }
    }

    pub(super) fn opened(&mut self) {
        let status = self.lines.next().unwrap().unwrap();
        assert!(status.contains(" 200 "), "{status}");
    }

    /// (name, data). `None` at the end of the stream.
    pub(super) fn next(&mut self) -> Option<(String, Value)> {
        let mut name = String::new();
        let mut data = None;
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if let Some(text) = line.strip_prefix("event: ") {
                text.clone_into(&mut name);
            } else if let Some(text) = line.strip_prefix("id: ") {
                text.clone_into(&mut self.id);
            } else if let Some(text) = line.strip_prefix("data: ") {
                data = Some(serde_json::from_str(text).unwrap());
            } else if line.is_empty()
                && let Some(data) = data.take()
            {
                self.names.push(name.clone());
                return Some((name, data));
            }
        }
        None
    }

    pub(super) fn until(&mut self, wanted: &str) -> Value {
        while let Some((name, data)) = self.next() {
            if name == wanted {
                return data;
            }
        }
        panic!("no event {wanted} came: {:?}", self.names);
    }
}

fn echo(text: &str) -> Value {
    json!({"agent": "kelly", "calls": [{"name": "echo", "arguments": {"text": text}}]})
}

fn resting(id: &str, ms: u64) -> Value {
    json!({"agent": "kelly", "turn_id": id, "calls": [{"name": "sleep", "arguments": {"ms": ms}}]})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_submits_waits_repeats_and_cancels_over_http() {
    let place = GatewayFixture::new(&[]).await;
    let fleet = place.fleet();
    let key = place.key("shop", &[]);
    let [one, two] = [0, 1].map(|_| place.gateway());

    let answer = one.ask(&key, "POST", "/v1/turns?wait=60", &echo("hi"));
    assert_eq!((answer.status, &answer.json()["results"][0]["output"]["text"]), (200, &json!("hi")), "{answer:?}");

    let head = "idempotency-key: order-17\r\n";
    let accepted = one.ask_with(&key, "POST", "/v1/turns", head, &echo("once"));
    assert_eq!((accepted.status, accepted.json()["duplicate"].clone()), (202, json!(false)), "{accepted:?}");
    let again = two.ask_with(&key, "POST", "/v1/turns?wait=60", head, &echo("once"));
    assert_eq!((again.status, again.json()["results"][0]["call"].clone()), (200, json!("order-17/0")), "{again:?}");
    let conflict = two.ask_with(&key, "POST", "/v1/turns", head, &echo("other"));
    assert_eq!((conflict.status, conflict.code().as_str()), (409, "conflict"));
    assert_eq!(two.get(&key, "/v1/turns/order-17?wait=60").status, 200);

    assert_eq!(one.ask(&key, "POST", "/v1/turns", &resting("long", 60_000)).status, 202);
    let waits = two.send(&key, "GET", "/v1/turns/long?wait=60", "", "");
    let reason = json!({"reason": "the user left"});
    let cancelled = two.ask(&key, "POST", "/v1/turns/long/cancel", &reason);
    assert_eq!(cancelled.status, 200, "{cancelled:?}");
    let ended = received(waits);
    assert_eq!((ended.status, ended.json()["results"][0]["outcome"].clone()), (200, json!("cancelled")), "{ended:?}");

    let late = json!({"agent": "nobody", "turn_id": "refused", "calls": [{"name": "echo"}]});
    let refused = one.ask(&key, "POST", "/v1/turns?wait=60", &late);
    assert_eq!((refused.status, refused.code().as_str()), (422, "unknown_agent"), "{refused:?}");
    assert_eq!(one.get(&key, "/v1/turns/refused").status, 422);
    assert_eq!(one.get(&key, "/v1/turns/never").status, 404);
    // A turn that violates the protocol gets the same reply as over Redis: every call has a result.
    let calls = json!([{"type": "function", "id": "call_1", "function": {"name": "echo", "arguments": "{}"}}]);
    let odd = json!({"agent": "kelly", "turn_id": "odd", "priority": "asap", "tool_calls": calls});
    let refused = one.ask(&key, "POST", "/v1/turns", &odd);
    assert_eq!((refused.status, refused.code().as_str()), (400, "invalid_field"), "{refused:?}");
    assert_eq!(refused.json()["messages"][0]["tool_call_id"], "call_1", "{refused:?}");

    let tools = one.get(&key, "/v1/agents/kelly/tools?format=anthropic");
    assert!(tools.json().as_array().unwrap().iter().any(|tool| tool["name"] == "echo"), "{tools:?}");

    // The stopping gateway reports that the turn is in progress, and the client uses the other gateway.
    assert_eq!(one.ask(&key, "POST", "/v1/turns", &resting("later", 60_000)).status, 202);
    let waits = one.send(&key, "GET", "/v1/turns/later?wait=60", "", "");
    until_waiting(&one, &key);
    assert_eq!(one.stop(), Some(0));
    assert_eq!(received(waits).status, 202);
    let inboxes: Vec<String> =
        redis::cmd("KEYS").arg("*replies:demo:*").query_async(&mut place.redis.connection().await).await.unwrap();
    assert!(inboxes.is_empty(), "a gateway that ended leaves no inbox: {inboxes:?}");
    let long = json!({"reason": "x".repeat(1_001)});
    assert_eq!(two.ask(&key, "POST", "/v1/turns/later/cancel", &long).status, 400);
    assert_eq!(two.ask(&key, "POST", "/v1/turns/later/cancel", &Value::Null).status, 200);
    assert_eq!(two.get(&key, "/v1/turns/later?wait=60").status, 200);
    assert_eq!(two.stop(), Some(0));
    drop(fleet);
}

/// The gateway accepts connections in order. A response on a later connection proves that the previous one was
/// accepted.
fn until_waiting(gateway: &Gateway, key: &str) {
    for _ in 0..3 {
        assert_eq!(gateway.get(key, "/v1/turns/later").status, 202);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_gives_access_only_to_its_verbs_and_until_it_is_removed() {
    let place = GatewayFixture::new(&[]).await;
    let _fleet = place.fleet();
    let all = place.key("all", &[]);
    let gateway = place.gateway();
    let reader = gateway.key(&["--id", "reader", "--tenant", "demo", "--verb", "read"]);
    let mine = json!({"agent": "kelly", "turn_id": "mine", "calls": [{"name": "echo"}]});
    assert_eq!(gateway.ask(&all, "POST", "/v1/turns?wait=60", &mine).status, 200);
    for (path, body) in [
        ("/v1/turns", echo("hi")),
        ("/v1/tasks", json!({"target_agent": "kelly", "task_description": "x"})),
        ("/v1/agents/kelly/chat", json!({"message": "x"})),
        ("/v1/turns/runs/cancel", Value::Null),
        ("/v1/tasks/runs/cancel", Value::Null),
    ] {
        assert_eq!(gateway.ask(&reader, "POST", path, &body).code(), "forbidden", "{path}");
    }
    assert_eq!(gateway.get(&reader, "/v1/turns/mine").status, 200);
    let none = gateway.get("", "/v1/turns/mine");
    says(&none, 401, &REFUSAL);
    assert_eq!(gateway.get("tfk_wrong", "/v1/turns/mine").status, 401);
    assert_eq!(received(gateway.send("", "GET", "/v1/openapi.json", "", "")).status, 200);
    std::fs::write(&place.keys, "").unwrap();
    until("the key is gone", || gateway.get(&all, "/v1/turns/mine").status, |status| *status == 401);
    let key = gateway.key(&["--id", "again", "--tenant", "demo"]);
    assert_eq!(gateway.ask(&key, "POST", "/v1/turns", &echo(&"x".repeat(2 << 20))).code(), "too_large");
    assert_eq!(gateway.get(&key, "/v1/turns/mine").status, 200);
}

const NOTING_AGENTS: [(&str, &str); 2] = [
    ("agents.yaml", "agents: {atlas: {task_handler: {typed: note}}, petra: {task_handler: {typed: note}}}\n"),
    ("permissions.yaml", "permissions: {echo: {everyone: true}}\n"),
];

#[tokio::test(flavor = "multi_thread")]
async fn task_state_reply_and_events_are_visible_only_to_permitted_keys() {
    let place = GatewayFixture::new(&NOTING_AGENTS).await;
    let fleet = place.fleet();
    let key = place.key("all", &["--agent", "atlas"]);
    let all = place.key("everybody", &[]);
    let gateway = place.gateway();
    let task = json!({"target_agent": "petra", "task_id": "of-petra", "task_description": "rest"});
    assert_eq!(gateway.ask(&all, "POST", "/v1/tasks?wait=60", &task).status, 200);
    let task = json!({"target_agent": "atlas", "task_id": "job", "task_description": "rest"});
    let ended = gateway.ask(&key, "POST", "/v1/tasks?wait=60", &task);
    assert_eq!((ended.status, ended.json()["task_id"].clone()), (200, json!("job")), "{ended:?}");
    assert_eq!(gateway.get(&key, "/v1/tasks").json()[0]["id"], "job");
    assert_eq!(gateway.get(&key, "/v1/tasks/job").json()["state"], "ended");
    assert_eq!(gateway.get(&key, "/v1/turns/job?wait=60").json()["task_id"], "job", "its reply");
    let events = gateway.get(&key, "/v1/tasks/job/events");
    assert!(events.head.contains("content-type: text/event-stream"), "{events:?}");
    assert!(
        events.body.contains("event: accepted")
            || events.body.contains("event: failed")
            || events.body.contains("event: answer"),
        "{events:?}"
    );
    for refused in ["limit=0", "from=x", "agent=:"] {
        assert_eq!(gateway.get(&key, &format!("/v1/tasks?{refused}")).status, 400, "{refused}");
    }
    assert_eq!(gateway.get(&key, "/v1/tasks/none/events").status, 404);
    // No scheduler runs, so the queued task that reuses another agent's ID is not rejected yet.
    drop(fleet);
    let task = json!({"tenant": "demo", "target_agent": "atlas", "task_id": "of-petra", "task_description": "rest"});
    let mut message = redis::cmd("XADD");
    message.arg("{tickfleet:0}:tasks").arg("*").arg("task").arg(task.to_string());
    let () = message.query_async(&mut place.redis.connection().await).await.unwrap();
    assert_eq!(gateway.ask(&key, "POST", "/v1/tasks", &task).status, 409);
    assert_eq!(gateway.get(&key, "/v1/tasks/of-petra/events").status, 404);
}
