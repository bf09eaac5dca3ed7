//! Kills gateways repeatedly in the middle of tasks, while MCP clients continue. No task may be lost or run twice.
//! `TICKFLEET_MCP_KILLS=1000` sets the number of kills.

use std::collections::BTreeSet;
use std::env;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};

use super::Gateway;
use super::fixture::GatewayFixture;
use super::mcp::{head, request, with_meta};
use crate::support::process::pause;

/// Each client has one task in progress.
const CLIENTS: usize = 6;
/// For a shorter call, the gateway would return the result instead of a task.
const TASK_MS: u64 = 4_000;

struct McpLoad {
    key: String,
    addresses: Mutex<[String; 2]>,
    over: AtomicBool,
    /// `broken` counts the requests without a complete response.
    asked: AtomicUsize,
    broken: AtomicUsize,
    ended: Mutex<BTreeSet<String>>,
}

impl McpLoad {
    fn try_ask(&self, which: usize, method: &str, params: &Value) -> Option<Value> {
        let address = self.addresses.lock().unwrap()[which % 2].clone();
        let body = request(method, params).to_string();
        let mut stream = TcpStream::connect(address).ok()?;
        stream.set_read_timeout(Some(Duration::from_secs(60))).ok()?;
        let head = format!(
            "host: x\r\nconnection: close\r\nauthorization: Bearer {}\r\ncontent-length: {}\r\n{}",
            self.key,
            body.len(),
            head(method, params)
        );
        write!(stream, "POST /v1/agents/kelly/mcp HTTP/1.1\r\n{head}\r\n{body}").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        // The kill may have truncated the response, so invalid JSON is ignored.
        serde_json::from_str(body).ok()
    }

    fn ask(&self, first: usize, method: &str, params: &Value) -> Value {
        for which in first.. {
            self.asked.fetch_add(1, Ordering::Relaxed);
            if let Some(answer) = self.try_ask(which, method, params) {
                assert!(answer["error"].is_null(), "{method} {params}: {answer}");
                return answer["result"].clone();
            }
            self.broken.fetch_add(1, Ordering::Relaxed);
            pause();
        }
        unreachable!("numbers do not end")
    }

    fn client(&self, client: usize) {
        for number in 0.. {
            if self.over.load(Ordering::Relaxed) {
                return;
            }
            let turn = format!("task-{client}-{number}");
            let mut reported = self.ask(client + number, "tools/call", &sleeping(&turn));
            while reported["resultType"] == "task" || reported["status"] == "working" {
                let task = with_meta(json!({"taskId": reported["taskId"]}));
                pause();
                reported = self.ask(client + number, "tasks/get", &task);
            }
            let result = if reported["result"].is_null() { &reported } else { &reported["result"] };
            assert_eq!(result["isError"], false, "{turn}: {reported}");
            assert!(self.ended.lock().unwrap().insert(turn));
        }
    }
}

/// A client that chooses the ID of a call can send the call again.
fn sleeping(turn: &str) -> Value {
    let call = json!({"name": "sleep", "arguments": {"ms": TASK_MS}, "_meta": {"tickfleet/turn_id": turn}});
    with_meta(call)
}

/// Before each kill, the other gateway must be running again.
fn kill_gateways(front: &McpLoad, gateways: &mut [Gateway; 2], kills: usize, place: &GatewayFixture) {
    // The first kill must happen while all clients wait for their first results.
    let mut since = 0;
    for kill in 0..kills {
        let which = kill % 2;
        // Some kills then hit waiting gateways, and others hit gateways with clients that poll their tasks.
        while front.asked.load(Ordering::Relaxed) < since + CLIENTS {
            pause();
        }
        gateways[which] = {
            let next = place.gateway();
            front.addresses.lock().unwrap()[which].clone_from(&next.address);
            next
        };
        since = front.asked.load(Ordering::Relaxed);
    }
    front.over.store(true, Ordering::Relaxed);
}

#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them")]
async fn killed_gateways_lose_no_task_and_run_none_twice() {
    let kills = env::var("TICKFLEET_MCP_KILLS").map_or(12, |kills| kills.parse().unwrap());
    let place = GatewayFixture::new(&[
        ("agents.yaml", "agents: {kelly: {calls_per_tick: 100, max_actions_per_day: 100000}}\n"),
        ("permissions.yaml", "permissions: {sleep: {everyone: true}}\n"),
        // A thousand kills would reach the cap of the built-in tenant. This tenant has no cap.
        ("tenants.yaml", "tenants: {demo: {}}\n"),
    ])
    .await;
    let fleet = place.fleet();
    let key = place.key("all", &[]);
    let mut gateways = [0, 1].map(|_| place.gateway());
    let addresses = Mutex::new(gateways.each_ref().map(|gateway| gateway.address.clone()));
    let front = McpLoad {
        key,
        addresses,
        over: AtomicBool::new(false),
        asked: AtomicUsize::new(0),
        broken: AtomicUsize::new(0),
        ended: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let front = &front;
            scope.spawn(move || front.client(client));
        }
        kill_gateways(&front, &mut gateways, kills, &place);
    });

    let ended = front.ended.into_inner().unwrap();
    let broken = front.broken.into_inner();
    println!("{kills} gateways killed, {} tasks ended, {broken} requests broke off", ended.len());
    assert!(ended.len() >= CLIENTS && broken > 0, "{} tasks, {broken} requests broke off", ended.len());
    let search = ["audit", "search", "--text", "sleep", "--limit", "100000", "--json"];
    let found = fleet.run(&[&search, &["--config", place.conf.to_str().unwrap()][..]].concat()).exits(0).json();
    let ran = found["entries"].as_array().unwrap().iter().map(|entry| entry["audit"]["meta"]["turn"].as_str().unwrap());
    let mut ran: Vec<String> = ran.map(str::to_owned).collect();
    ran.sort();
    assert_eq!(ran, ended.into_iter().collect::<Vec<_>>(), "each task has one entry of its call");
}
