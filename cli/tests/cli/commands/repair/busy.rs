//! All kinds of work for a fleet. During this work, `doctor` must find no faults.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::BoxFuture;
use redis::streams::StreamReadReply;
use serde_json::{Value, json};
use tickfleet_client::model::approval::NarrowedValues;
use tickfleet_client::model::{Redactor, TenantId};
use tickfleet_client::{ApprovalError, ApprovalVerdict, Client, StoreOptions, SubmitError, parse_turn};
use tickfleet_protocol::{TaskMessage, parse_task_message};
use tickfleet_store::{Submission, TurnName};
use tokio::task::JoinHandle;

const AGENTS: &str = "agents:
  kelly: {calls_per_tick: 1000, max_actions_per_day: 100000}
  fran: {calls_per_tick: 1000, max_actions_per_day: 100000}
  dwight: {calls_per_tick: 1000, max_actions_per_day: 100000}
  terry: {calls_per_tick: 1000, max_actions_per_day: 100000}
  slow: {calls_per_tick: 5, max_actions_per_day: 300}
  lead: {calls_per_tick: 1000, max_actions_per_day: 100000, roles: [executive]}
  typed: {max_actions_per_day: 100000, task_handler: {typed: note}}
  archy: {task_handler: {external: {lease_ms: 1000}}}
";
const PERMISSIONS: &str = "permissions:
  echo: {everyone: true, rules: [{name: large, require: args.value <= 500, otherwise: ask, approval: {by: [finance], expires: 2s}}]}
  sleep: {everyone: true}
  fail: {everyone: true}
  fail_once: {everyone: true}
  delegate_task: {everyone: true}
approvers: {ann: {roles: [finance]}}
";
const LIMITS: &str = "limits:
  together: {match: {tools: [sleep, echo, fail]}, per: [agent], concurrent: 3}
  hourly: {match: {tools: [fail]}, per: [agent], max: 100000, every: 1h}
";
const TOOLS: &str = "tools:
  fail_once:
    description: Stands for a payment.
    effect: once
    effect_key: [/retry_after_ms]
    input_schema:
      type: object
      required: [retry_after_ms]
      properties: {retry_after_ms: {type: integer, description: Which.}, outcomes: {type: array, description: How it goes.}}
";
const SETTINGS: &str = "worker: {retry_delays: [300ms, 600ms]}\n";

pub fn configure(dir: &Path) {
    let files = [
        ("agents.yaml", AGENTS),
        ("permissions.yaml", PERMISSIONS),
        ("limits.yaml", LIMITS),
        ("tools.yaml", TOOLS),
        ("tenants.yaml", "tenants: {demo: {max_actions_per_day: 100000}}\n"),
        ("tickfleet.yaml", SETTINGS),
    ];
    for (name, text) in files {
        std::fs::write(dir.join(name), text).unwrap();
    }
}

pub struct BackgroundLoad {
    stopped: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<usize>>,
}

impl BackgroundLoad {
    pub async fn start(url: &str) -> Self {
        let client = Client::connect(url, StoreOptions::default()).await.unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let hand = |name: &'static str| LoadClient {
            name,
            client: client.clone(),
            stopped: Arc::clone(&stopped),
            tenant: TenantId::new("demo").unwrap(),
        };
        let runtime = runtime(hand("runtime"), url.to_owned());
        let tasks: [BoxFuture<'static, usize>; 5] = [
            Box::pin(produce(hand("one"))),
            Box::pin(produce(hand("two"))),
            Box::pin(cancel(hand("three"))),
            Box::pin(approve(hand("ann"))),
            Box::pin(runtime),
        ];
        Self { stopped, tasks: tasks.into_iter().map(tokio::spawn).collect() }
    }

    pub async fn stop(self) -> Vec<usize> {
        self.stopped.store(true, Ordering::Relaxed);
        let done = futures::future::try_join_all(self.tasks).await;
        done.unwrap()
    }
}

struct LoadClient {
    name: &'static str,
    client: Client,
    stopped: Arc<AtomicBool>,
    tenant: TenantId,
}

impl LoadClient {
    async fn keeps_working(&self, ms: u64) -> bool {
        // This pause sets the pace of the work.
        tokio::time::sleep(Duration::from_millis(ms)).await;
        !self.stopped.load(Ordering::Relaxed)
    }

    async fn submit(&self, agent: &str, id: &str, calls: Value, life_ms: i64) {
        let now_ms = self.client.store(&self.tenant).now_ms().await.unwrap();
        let deadline = chrono::DateTime::from_timestamp_millis(now_ms + life_ms).unwrap().to_rfc3339();
        let turn = json!({
            "tenant": self.tenant.as_str(), "agent": agent, "turn_id": id, "deadline": deadline, "calls": calls
        });
        let turn = parse_turn(turn.to_string().as_bytes()).unwrap();
        match self.client.submit(turn).await {
            Ok(_) | Err(SubmitError::QueueFull) => {}
            Err(error) => panic!("{id}: {error}"),
        }
    }

    async fn delegate(&self, agent: &str, id: &str) {
        let task =
            json!({"tenant": self.tenant.as_str(), "target_agent": agent, "task_description": "Look.", "task_id": id});
        let Ok(TaskMessage::Delegate(task)) = parse_task_message(task.to_string().as_bytes()) else {
            panic!("no task")
        };
        self.client.delegate(*task).await.unwrap();
    }
}

fn call(name: &str, arguments: Value) -> Value {
    json!({"name": name, "arguments": arguments})
}

fn pay(which: usize, outcomes: Value) -> Value {
    call("fail_once", json!({"retry_after_ms": which, "outcomes": outcomes}))
}

async fn produce(hand: LoadClient) -> usize {
    let mut number = 0;
    let nap = |ms: u64| call("sleep", json!({ "ms": ms }));
    let small = call("echo", json!({"value": 1}));
    while hand.keeps_working(20).await {
        number += 1;
        let id = format!("{}-{number}", hand.name);
        let (agent, calls, life_ms) = match number % 9 {
            0 => ("kelly", json!([nap(5), small, nap(5)]), 60_000),
            1 => ("fran", json!([call("fail", json!({"outcomes": ["transient", "ok"]})), small]), 60_000),
            // Calls of several turns have the same effect key.
            2 => ("dwight", json!([pay(100 + number % 50, json!(["transient_not_executed", "ok"]))]), 60_000),
            3 => ("dwight", json!([pay(5_000 + number, json!(["transient_not_executed", "ok"]))]), 400),
            4 => ("terry", json!([nap(5), call("echo", json!({"value": 900 + number})), nap(5)]), 60_000),
            5 => ("slow", json!([small, small, small]), 2_000),
            6 => {
                let task = json!({"target_agent": "typed", "task_description": "Look.", "wait": true});
                ("lead", json!([call("delegate_task", task), small]), 60_000)
            }
            7 => ("kelly", json!([nap(200), nap(200), nap(200)]), 300),
            _ => ("fran", json!([call("fail", json!({"outcomes": ["permanent"]})), nap(1)]), 60_000),
        };
        hand.submit(agent, &id, calls, life_ms).await;
        if number % 5 == 0 {
            hand.delegate(["archy", "typed"][number / 5 % 2], &format!("task-{id}")).await;
        }
    }
    number
}

async fn cancel(hand: LoadClient) -> usize {
    let mut number = 0;
    while hand.keeps_working(30).await {
        number += 1;
        let id = format!("cancel-{number}");
        let call = match number % 4 {
            0 => call("sleep", json!({"ms": 2_000})),
            1 => call("fail", json!({"outcomes": ["transient"]})),
            // When the cancellation arrives, this call may be parked and hold a claim on the effect key.
            2 => pay(10_000 + number, json!(["transient_not_executed"])),
            _ => call("echo", json!({"value": 900})),
        };
        hand.submit(["kelly", "terry"][number % 2], &id, json!([call]), 60_000).await;
        if number % 5 == 0 {
            hand.delegate("archy", &format!("task-{id}")).await;
        }
        let wanted = if number % 6 == 0 { number } else { number.saturating_sub(4) };
        let earlier = format!("cancel-{wanted}");
        for name in [format!("demo:{earlier}"), format!("demo:task-{earlier}")] {
            hand.client.cancel(&TurnName::parse(&name).unwrap(), "no longer wanted").await.unwrap();
        }
    }
    number
}

async fn approve(hand: LoadClient) -> usize {
    let mut decided = 0;
    let roles = BTreeSet::from(["finance".to_owned()]);
    let redactor = Redactor::default();
    while hand.keeps_working(50).await {
        for approval in hand.client.approvals(&hand.tenant, 10).await.unwrap() {
            let number = approval.id.bytes().map(usize::from).sum::<usize>();
            if number.is_multiple_of(4) {
                continue;
            }
            let verdict = ApprovalVerdict {
                by: hand.name,
                roles: &roles,
                agrees: !number.is_multiple_of(3),
                reason: "so it is",
                narrow: NarrowedValues::default(),
                seen: None,
                redactor: &redactor,
            };
            match hand.client.decide_approval(&hand.tenant, &approval.id, &verdict).await {
                Ok(_) => decided += 1,
                Err(ApprovalError::Store(error)) => panic!("{error}"),
                Err(_) => {}
            }
        }
    }
    decided
}

async fn runtime(hand: LoadClient, url: String) -> usize {
    let mut connection = redis::Client::open(url).unwrap().get_multiplexed_async_connection().await.unwrap();
    let stream = "{tickfleet:0}:external:demo:archy";
    let mut taken = 0;
    while hand.keeps_working(20).await {
        let mut command = redis::cmd("XREADGROUP");
        command.arg(&["GROUP", "workers", "r1", "COUNT", "3", "STREAMS", stream, ">"]);
        // The group does not exist before the first task, so the first reads fail.
        let Ok(Some(found)) = command.query_async::<Option<StreamReadReply>>(&mut connection).await else { continue };
        for entry in found.keys.into_iter().flat_map(|key| key.ids) {
            taken += 1;
            let text: String = redis::from_redis_value(entry.map["task"].clone()).unwrap();
            let task: Value = serde_json::from_str(&text).unwrap();
            let says = |op: &str, more: Value| {
                let mut message =
                    json!({"op": op, "tenant": hand.tenant.as_str(), "task_id": task["task_id"], "lease": entry.id});
                message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
                message.to_string()
            };
            let error = json!({"code": "away", "message": "The model did not answer."});
            let message = match taken % 4 {
                0 => says("finish", json!({"output": 1})),
                1 => says("fail", json!({"error": error, "retryable": true})),
                2 => says("heartbeat", json!({})),
                _ => continue,
            };
            let message = Submission {
                tenant: hand.tenant.clone(),
                turn: None,
                digest: String::new(),
                reply_to: None,
                payload: message.into(),
            };
            hand.client.store(&hand.tenant).enqueue_task(&message).await.unwrap();
        }
    }
    taken
}
