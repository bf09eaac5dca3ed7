//! Redis is killed and restarts without its last seconds of data. The other processes continue, and a service counts
//! effects.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex};

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tickfleet_testkit::RedisServer;

use crate::support::process::{Process, pause};

const INBOX: &str = "{tickfleet:0}:replies:demo:box";

/// A request marked `slow` gets a response only when the gate opens.
#[derive(Default)]
struct Ledger {
    done: Mutex<BTreeMap<String, u32>>,
    open: Mutex<bool>,
    opened: Condvar,
}

impl Ledger {
    fn start() -> (Arc<Self>, String) {
        let ledger = Arc::new(Self::default());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let serving = Arc::clone(&ledger);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let ledger = Arc::clone(&serving);
                std::thread::spawn(move || ledger.serve(stream));
            }
        });
        (ledger, address)
    }

    fn serve(&self, mut stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        let mut length = 0;
        while reader.read_line(&mut line).unwrap_or(0) > 2 {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        let mark = serde_json::from_slice::<Value>(&body).unwrap()["mark"].as_str().unwrap().to_owned();
        *self.done.lock().unwrap().entry(mark.clone()).or_default() += 1;
        if mark.starts_with("slow") {
            let open = self.open.lock().unwrap();
            drop(self.opened.wait_while(open, |open| !*open).unwrap());
        }
        let answer = format!("{{\"did\":\"{mark}\"}}");
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
        // The write fails if the worker was killed.
        let _ = write!(stream, "{head}\r\ncontent-length: {}\r\n\r\n{answer}", answer.len());
    }

    fn done(&self) -> BTreeMap<String, u32> {
        self.done.lock().unwrap().clone()
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

async fn replies(redis: &RedisServer) -> BTreeMap<String, Vec<Value>> {
    let mut connection: MultiplexedConnection = redis.connection().await;
    let mut range = redis::cmd("XRANGE");
    let found: Vec<(String, BTreeMap<String, String>)> =
        range.arg(INBOX).arg("-").arg("+").query_async(&mut connection).await.unwrap();
    let mut replies: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for (_, fields) in found {
        let reply: Value = serde_json::from_str(&fields["reply"]).unwrap();
        replies.entry(reply["turn_id"].as_str().unwrap().to_owned()).or_default().push(reply);
    }
    replies
}

#[tokio::test]
async fn calls_run_once_although_redis_lost_its_last_seconds() {
    let (ledger, address) = Ledger::start();
    let mut redis = RedisServer::start().await;
    let dir = tempfile::tempdir().unwrap();
    let url = redis.url();
    let dir = dir.path();
    let strike = json!({"tools": {"strike": {
        "description": "Strikes.",
        "effect": "once",
        "input_schema": {"type": "object", "properties": {"mark": {"type": "string"}}, "required": ["mark"]},
        "http": {"method": "POST", "base_url": format!("http://{address}"), "path": "/", "body": {"mark": "{{mark}}"},
            "allow_private": [address]},
    }}});
    fs::write(dir.join("tools.yaml"), strike.to_string()).unwrap();
    fs::write(dir.join("permissions.yaml"), "permissions: {strike: {everyone: true}}").unwrap();
    fs::write(dir.join("tickfleet.yaml"), "caps: {max_calls_per_tick: 1000}\n").unwrap();
    let lease = [("TICKFLEET_WORKER_LEASE", "5s")];
    let _worker = Process::start_with("worker", dir, &url, &lease);
    let marks = ["quick-0", "quick-1", "quick-2", "quick-3", "slow-0", "slow-1"];
    let mut connection = redis.connection().await;
    for mark in marks {
        let call = json!({"name": "strike", "arguments": {"mark": mark}});
        let turn = json!({"tenant": "demo", "agent": "kelly", "reply_to": "box", "turn_id": mark, "calls": [call]});
        let mut add = redis::cmd("XADD");
        add.arg("{tickfleet:0}:turns").arg("*").arg("turn").arg(turn.to_string());
        let _: String = add.query_async(&mut connection).await.unwrap();
    }
    // Redis will restart with this state: all turns are in the inbound stream, and no scheduler has read them.
    let () = redis::cmd("SAVE").query_async(&mut connection).await.unwrap();
    let _scheduler = Process::start_with("scheduler", dir, &url, &lease);
    while ledger.done().len() < marks.len() || replies(&redis).await.len() < 4 {
        pause();
    }
    redis.kill9();
    redis.restart().await;
    // The worker reports from its journal which calls it ran. The service still delays two calls.
    while replies(&redis).await.len() < 4 {
        pause();
    }
    ledger.open();
    while replies(&redis).await.len() < marks.len() {
        pause();
    }
    let done = ledger.done();
    for (turn, reported) in replies(&redis).await {
        assert_eq!((reported.len(), done[&turn]), (1, 1), "{turn}: {reported:#?}");
        let result = &reported[0]["results"][0];
        let outcome = result["outcome"].as_str().unwrap();
        if turn.starts_with("quick") {
            assert_eq!((outcome, &result["output"]["did"]), ("ok", &json!(turn)), "{reported:#?}");
        } else {
            assert!(matches!(outcome, "ok" | "outcome_unknown"), "{reported:#?}");
        }
    }
}
