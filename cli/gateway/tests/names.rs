//! Sends every kind of name that a request can contain, with a key that does not cover the name. A field of the OpenAPI
//! document that is not classified fails the test.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use support::{TestGateway, key};
use tickfleet_client::{Session, SessionId};
use tickfleet_config::TaskHandlerDef;
use tickfleet_gateway::{META, openapi};
use tickfleet_model::policy::TenantPolicy;
use tickfleet_model::{AgentId, Context, InboxName, TenantId};
use tickfleet_protocol::{DELEGATE_FIELDS, TURN_FIELDS};
use tickfleet_store::{Observer, StoreOptions, TurnName};
use tickfleet_tests::fleet::{Fleet, Plan};

const TURNS: &str = "POST /v1/turns";
const TASKS: &str = "POST /v1/tasks";
const CHAT: &str = "POST /v1/agents/{agent}/chat";
const AG_UI: &str = "POST /v1/agents/{agent}/ag-ui";
const MCP: &str = "POST /v1/agents/{agent}/mcp";

/// The values of these fields have no owner, so any key can send any value.
const DATA: &[(&str, &[&str])] = &[
    (
        TURNS,
        &[
            "priority",
            "deadline",
            "calls",
            "tool_calls",
            "content",
            "answer",
            "format",
            "strict",
            "stop_reason",
            "allowed_tools",
            "parallel_reads",
            "tool_call_audits",
            "pending_approval",
            "local_calls",
            "user_context",
            "session_data",
            "correlation_id",
            "traceparent",
            "tracestate",
        ],
    ),
    (
        TASKS,
        &[
            "task_description",
            "op",
            "input",
            "priority",
            "deadline",
            "budget",
            "capabilities",
            "allowed_tools",
            "user_context",
            "session_data",
            "correlation_id",
            "traceparent",
            "tracestate",
        ],
    ),
    (CHAT, &["message"]),
    (AG_UI, &["runId", "messages", "messages.role", "messages.content"]),
    (MCP, &["_meta traceparent"]),
    ("POST /v1/turns/{turn_id}/cancel", &["reason"]),
    ("POST /v1/turns/{turn_id}/claim", &["claimant"]),
    ("POST /v1/turns/{turn_id}/conclude", &["op", "lease", "output", "error", "retryable", "not_executed", "unknown"]),
    ("POST /v1/tasks/{task_id}/cancel", &["reason"]),
    ("POST /v1/operate/approvals/{approval}/approve", &["reason", "set", "narrowed"]),
    ("POST /v1/operate/approvals/{approval}/deny", &["reason"]),
    ("POST /v1/operate/cancel", &["reason", "early"]),
    ("POST /v1/operate/dead/drop", &["reason"]),
    ("POST /v1/operate/dead/replay", &["reason", "allow_duplicate_effects"]),
    // Tools and agents are looked up within the key's tenant, so their names have no other owner.
    ("POST /v1/operate/pause", &["reason", "agent", "tool"]),
    ("POST /v1/operate/resume", &["reason", "agent", "tool"]),
    ("POST /v1/operate/tools/disable", &["reason"]),
    ("POST /v1/operate/tools/enable", &["reason"]),
    ("POST /v1/operate/workers/drain", &["reason"]),
    ("POST /v1/operate/workers/resume", &["reason"]),
];

struct Probe {
    operation: &'static str,
    field: &'static str,
    key: ProbeKey,
    path: String,
    headers: Vec<(&'static str, &'static str)>,
    body: Value,
    refused: ExpectedRejection,
}

#[derive(Clone, Copy)]
enum ProbeKey {
    /// Covers only the agent kelly of acme.
    Kelly,
    /// Has all operator verbs in the tenant bolt.
    Bolt,
}

#[derive(Debug)]
enum ExpectedRejection {
    Status(u16),
    /// The response is a list, and its only result has this word.
    Answer(&'static str),
    Rpc,
}

fn probe(operation: &'static str, field: &'static str, body: Value, status: u16) -> Probe {
    let path = operation.split(' ').nth(1).unwrap().replace("{agent}", "kelly");
    let is_waited = [TURNS, TASKS].contains(&operation);
    let path = if is_waited { format!("{path}?wait=30") } else { path };
    let key = if path.contains("/operate/") { ProbeKey::Bolt } else { ProbeKey::Kelly };
    Probe { operation, field, key, path, headers: Vec::new(), body, refused: ExpectedRejection::Status(status) }
}

fn turn(member: &str, value: Value) -> Value {
    with(json!({"agent": "kelly", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]}), member, value)
}

fn task(member: &str, value: Value) -> Value {
    with(json!({"target_agent": "kelly", "task_description": "work"}), member, value)
}

fn with(mut body: Value, member: &str, value: Value) -> Value {
    body[member] = value;
    body
}

fn call(meta: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
        "params": {"name": "echo", "arguments": {"text": "hi"}, "_meta": meta}})
}

fn rpc(field: &'static str, body: Value) -> Probe {
    let headers = vec![("accept", "application/json, text/event-stream"), ("mcp-protocol-version", "2025-11-25")];
    Probe { headers, refused: ExpectedRejection::Rpc, ..probe(MCP, field, body, 200) }
}

fn probes(letter: &str) -> Vec<Probe> {
    let header = |operation, id| Probe {
        headers: vec![("idempotency-key", id)],
        ..probe(
            operation,
            "header idempotency-key",
            if operation == TURNS { turn("priority", json!("low")) } else { task("priority", json!("low")) },
            400,
        )
    };
    let at = |operation: &'static str, field, id: &str, body, status| {
        let found = probe(operation, field, body, status);
        let path = operation.split(' ').nth(1).unwrap();
        let begin = path.find('{').unwrap();
        let end = path.find('}').unwrap();
        Probe { path: format!("{}{id}{}", &path[..begin], &path[end + 1..]), ..found }
    };
    let reason = |member: &str, value: Value| with(json!({"reason": "a test"}), member, value);
    let letters = |operation, field, body, word| Probe {
        refused: ExpectedRejection::Answer(word),
        ..probe(operation, field, body, 200)
    };
    let foreign_letter = json!(["letter-0-1-0"]);
    let mut probes = vec![
        probe(TURNS, "agent", turn("agent", json!("fran")), 403),
        probe(TURNS, "tenant", turn("tenant", json!("bolt")), 403),
        probe(TURNS, "turn_id", turn("turn_id", json!("frans-turn")), 409),
        probe(TURNS, "turn_id", turn("turn_id", json!("frans-task.step-1")), 400),
        probe(TURNS, "turn_id", turn("turn_id", json!("frans-turn.0.call-1")), 400),
        probe(TURNS, "turn_id", turn("turn_id", json!("t1764130000000-0")), 400),
        header(TURNS, "frans-task.step-1"),
        probe(TURNS, "task_id", turn("task_id", json!("frans-task")), 422),
        probe(TURNS, "reply_to", turn("reply_to", json!("frans-box")), 400),
        probe(TURNS, "session_id", turn("session_id", json!("frans-talk")), 403),
        probe(TASKS, "target_agent", task("target_agent", json!("fran")), 403),
        probe(TASKS, "tenant", task("tenant", json!("bolt")), 403),
        probe(TASKS, "task_id", task("task_id", json!("frans-task")), 409),
        probe(TASKS, "task_id", task("task_id", json!("ses-frans-talk-2")), 400),
        probe(TASKS, "task_id", task("task_id", json!(format!("d-{}", "0".repeat(32)))), 400),
        header(TASKS, "k1764130000000-0"),
        probe(TASKS, "delegator", task("delegator", json!("fran")), 403),
        probe(TASKS, "parent_task_id", with(task("parent_task_id", json!("frans-task")), "budget", json!(1)), 404),
        probe(
            TASKS,
            "parent_task_id",
            with(task("parent_task_id", json!("frans-task")), "delegator", json!("kelly")),
            404,
        ),
        probe(TASKS, "reply_to", task("reply_to", json!("frans-box")), 400),
        probe(TASKS, "session_id", task("session_id", json!("frans-talk")), 403),
        probe(CHAT, "session_id", json!({"message": "hi", "session_id": "frans-talk"}), 409),
        probe(
            AG_UI,
            "threadId",
            json!({"threadId": "frans-talk", "runId": "r", "messages": [{"role": "user", "content": "hi"}]}),
            409,
        ),
        rpc("_meta tickfleet/turn_id", call(json!({"tickfleet/turn_id": "frans-task.step-1"}))),
        rpc("_meta tickfleet/session_id", call(json!({"tickfleet/session_id": "fresh"}))),
        at("GET /v1/agents/{agent}/tools", "path agent", "fran", Value::Null, 403),
        at(CHAT, "path agent", "fran", json!({"message": "hi"}), 403),
        at(AG_UI, "path agent", "fran", json!({}), 403),
        at("GET /v1/turns/{turn_id}", "path turn_id", "frans-turn", Value::Null, 404),
        at("GET /v1/turns/{turn_id}/events", "path turn_id", "frans-turn", Value::Null, 404),
        at("POST /v1/turns/{turn_id}/cancel", "path turn_id", "frans-task", Value::Null, 404),
        at("POST /v1/turns/{turn_id}/claim", "path turn_id", "frans-turn", json!({"claimant": "p"}), 404),
        at(
            "POST /v1/turns/{turn_id}/conclude",
            "path turn_id",
            "frans-turn",
            json!({"op": "finish", "lease": "1-0", "output": 1}),
            404,
        ),
        at("GET /v1/tasks/{task_id}", "path task_id", "frans-task", Value::Null, 404),
        at("GET /v1/tasks/{task_id}/events", "path task_id", "frans-task", Value::Null, 404),
        at("POST /v1/tasks/{task_id}/cancel", "path task_id", "frans-task", Value::Null, 404),
        at("GET /v1/operate/tasks/{task}", "path task", "acme:frans-task", Value::Null, 403),
        at("GET /v1/operate/approvals/{approval}", "path approval", "acme:a1", Value::Null, 403),
        at("POST /v1/operate/approvals/{approval}/approve", "path approval", "acme:a1", json!({"reason": "x"}), 403),
        at("POST /v1/operate/approvals/{approval}/deny", "path approval", "acme:a1", json!({"reason": "x"}), 403),
        at("GET /v1/operate/dead/{id}", "path id", "letter-0-1-0", Value::Null, 404),
        probe("POST /v1/operate/cancel", "ids", reason("ids", json!(["acme:frans-task"])), 403),
        letters("POST /v1/operate/dead/drop", "ids", reason("ids", foreign_letter.clone()), "not_found"),
        letters("POST /v1/operate/dead/replay", "ids", reason("ids", foreign_letter), "not_found"),
        letters(
            "POST /v1/operate/dead/replay",
            "message",
            with(reason("ids", json!([letter])), "message", with(turn("turn_id", json!("x")), "tenant", json!("acme"))),
            "invalid",
        ),
        probe("POST /v1/operate/pause", "tenant", reason("tenant", json!("acme")), 403),
        probe("POST /v1/operate/resume", "tenant", reason("tenant", json!("acme")), 403),
        probe("POST /v1/operate/tools/disable", "tool", reason("tool", json!("echo")), 403),
        probe("POST /v1/operate/tools/enable", "tool", reason("tool", json!("echo")), 403),
        probe("POST /v1/operate/workers/drain", "worker", reason("worker", json!("w")), 403),
        probe("POST /v1/operate/workers/resume", "worker", reason("worker", json!("w")), 403),
    ];
    let talk = probe("GET /v1/agents/{agent}/chat/{session_id}", "path session_id", Value::Null, 409);
    probes.push(Probe { path: "/v1/agents/kelly/chat/frans-talk".into(), ..talk });
    let whose = probe("GET /v1/agents/{agent}/chat/{session_id}", "path agent", Value::Null, 403);
    probes.push(Probe { path: "/v1/agents/fran/chat/frans-talk".into(), ..whose });
    probes
}

/// Names of nested members contain a dot.
fn members(document: &Value, schema: &Value, before: &str, found: &mut BTreeSet<String>) {
    if let Some(name) = schema["$ref"].as_str() {
        return members(document, document.pointer(&name[1..]).unwrap(), before, found);
    }
    for several in ["oneOf", "anyOf", "allOf"].iter().filter_map(|word| schema[word].as_array()) {
        several.iter().for_each(|part| members(document, part, before, found));
    }
    if schema["items"].is_object() {
        members(document, &schema["items"], before, found);
    }
    for (name, part) in schema["properties"].as_object().into_iter().flatten() {
        found.insert(format!("{before}{name}"));
        members(document, part, &format!("{before}{name}."), found);
    }
}

fn fields() -> BTreeSet<(String, String)> {
    let document = openapi();
    let mut all = BTreeSet::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let name = format!("{} {path}", method.to_uppercase());
            let mut found = BTreeSet::new();
            for content in operation["requestBody"]["content"].as_object().into_iter().flatten() {
                members(&document, &content.1["schema"], "", &mut found);
            }
            for parameter in operation["parameters"].as_array().into_iter().flatten() {
                let place = parameter["in"].as_str().unwrap();
                let word = parameter["name"].as_str().unwrap();
                // An event's id is a number, and names nothing that has an owner.
                if place == "path" || place == "header" && word != "last-event-id" {
                    found.insert(format!("{place} {word}"));
                }
            }
            all.extend(found.into_iter().map(|field| (name.clone(), field)));
        }
    }
    all.extend(META.iter().map(|(member, _)| (MCP.to_owned(), format!("_meta {member}"))));
    all
}

#[test]
fn the_document_has_every_field_of_a_turn_and_of_a_task() {
    let fields = fields();
    for (operation, wire) in [(TURNS, &TURN_FIELDS[..]), (TASKS, &DELEGATE_FIELDS[..])] {
        for field in wire {
            assert!(fields.contains(&(operation.to_owned(), (*field).to_owned())), "{operation}: {field} is not there");
        }
    }
}

#[test]
fn every_body_field_is_plain_data_or_tested_with_a_foreign_key() {
    let tried: BTreeSet<(String, String)> =
        probes("letter-0-1-0").iter().map(|probe| (probe.operation.to_owned(), probe.field.to_owned())).collect();
    let data: BTreeSet<(String, String)> = DATA
        .iter()
        .flat_map(|(operation, fields)| fields.iter().map(|field| ((*operation).to_owned(), (*field).to_owned())))
        .collect();
    let fields = fields();
    let unclassified: Vec<_> =
        fields.iter().filter(|field| !tried.contains(*field) && !data.contains(*field)).collect();
    assert!(unclassified.is_empty(), "say in DATA that these name nothing, or try them in `probes`: {unclassified:#?}");
    let gone: Vec<_> = data.iter().filter(|field| !fields.contains(*field)).collect();
    assert!(gone.is_empty(), "these are no fields any more: {gone:#?}");
}

fn plan() -> Plan {
    let external = TaskHandlerDef::External { lease: Duration::from_secs(600) };
    Plan {
        agents: ["kelly", "fran"].map(String::from).into(),
        handlers: ["kelly", "fran"].iter().map(|agent| (AgentId::new(agent).unwrap(), external.clone())).collect(),
        policy: |policy| {
            policy.tenants.insert(TenantId::new("bolt").unwrap(), TenantPolicy::default());
        },
        ..Plan::default()
    }
}

async fn end(fleet: &Fleet, front: &TestGateway, key: &str, tasks: &[&str]) {
    for task in tasks {
        front.ask(key, "POST", &format!("/v1/tasks/{task}/cancel"), &Value::Null).await;
        let name = TurnName::parse(&format!("acme:{task}")).unwrap();
        fleet.until("it has ended", async |fleet| fleet.store.task_grant(&name).await.unwrap().is_none()).await;
    }
}

#[tokio::test]
async fn a_name_outside_the_keys_scope_is_rejected_in_every_field() {
    let fleet = Fleet::start(plan()).await;
    let services = ["submit", "read", "cancel"];
    let (all_row, all) = key("all", "acme", &["*"], &services);
    let (kelly_row, kelly) = key("kelly", "acme", &["kelly"], &services);
    let (bolt_row, bolt) = key("bolt", "bolt", &["*"], &["view", "operate", "approve"]);
    let front = TestGateway::of(&fleet, &[all_row, kelly_row, bolt_row]).await;

    let task = json!({"target_agent": "fran", "task_description": "work", "task_id": "frans-task", "budget": 5});
    assert_eq!(front.ask(&all, "POST", "/v1/tasks", &task).await.status, 202);
    let turn =
        json!({"agent": "fran", "turn_id": "frans-turn", "calls": [{"name": "echo", "arguments": {"text": "hers"}}]});
    assert_eq!(front.ask(&all, "POST", "/v1/turns?wait=30", &turn).await.status, 200);
    let acme = TenantId::new("acme").unwrap();
    let talk = SessionId::new("frans-talk").unwrap();
    let talk = Session::open(&front.client, acme.clone(), AgentId::new("fran").unwrap(), talk, Context::default());
    talk.send("hello").await.unwrap();
    let junk =
        json!({"tenant": "bolt", "agent": "nobody", "turn_id": "x", "reply_to": "box", "calls": [{"name": "echo"}]})
            .to_string();
    fleet.xadd("turns", "turn", junk.as_bytes()).await;
    fleet.until("it is put aside", async |fleet| fleet.ask::<u64>("XLEN", "dead", &[]).await == 1).await;
    let letter = front.ask(&bolt, "GET", "/v1/operate/dead", &Value::Null).await.json()["items"][0]["id"].clone();

    let frans = TurnName::parse("acme:frans-task").unwrap();
    fleet.until("her task is under way", async |fleet| fleet.store.task_grant(&frans).await.unwrap().is_some()).await;
    let record = async || fleet.ask::<String>("GET", "turn:acme:frans-task", &[]).await;
    let before = record().await;
    let mut wrong = Vec::new();
    for probe in probes(letter.as_str().unwrap()) {
        let Probe { operation, field, key, path, headers, body, refused } = probe;
        let key = match key {
            ProbeKey::Kelly => &kelly,
            ProbeKey::Bolt => &bolt,
        };
        let method = operation.split(' ').next().unwrap();
        let answer = front.ask_with(key, method, &path, &headers, &body).await;
        let is_refused = match refused {
            ExpectedRejection::Status(status) => answer.status == status,
            ExpectedRejection::Answer(word) => answer.status == 200 && answer.json()[0]["result"] == word,
            ExpectedRejection::Rpc => answer.status == 200 && answer.json()["error"]["code"] == -32602,
        };
        if !is_refused {
            wrong.push(format!("{operation} {field} ({body}): expected {refused:?}, found {answer:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(record().await, before, "nobody has used up anything of her task");
    let inboxes: Vec<String> = fleet.ask("ZRANGE", "inboxes:acme", &["0", "-1"]).await;
    assert!(inboxes.iter().all(|inbox| inbox.starts_with("r-gw-")), "{inboxes:?}");
    for (path, methods) in openapi()["paths"].as_object().unwrap() {
        let parameters = methods["get"]["parameters"].as_array().cloned().unwrap_or_default();
        if parameters.iter().any(|parameter| parameter["in"] == "query" && parameter["name"] == "tenant") {
            let answer = front.ask(&bolt, "GET", &format!("{path}?tenant=acme"), &Value::Null).await;
            assert_eq!(answer.status, 403, "{path}: {answer:?}");
        }
    }
    end(&fleet, &front, &all, &["frans-task", "ses-frans-talk-1"]).await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_key_can_delegate_under_a_parent_task_of_a_covered_agent() {
    let fleet = Fleet::start(plan()).await;
    let (row, kelly) = key("kelly", "acme", &["kelly"], &["submit", "read"]);
    let (all_row, all) = key("all", "acme", &["*"], &["submit", "read", "cancel"]);
    let front = TestGateway::of(&fleet, &[row, all_row]).await;
    let parent = json!({"target_agent": "kelly", "task_description": "work", "task_id": "parent", "budget": 5});
    // When the child arrives, the parent may still wait for a scheduler.
    assert_eq!(front.ask(&kelly, "POST", "/v1/tasks", &parent).await.status, 202);
    let child = json!({"target_agent": "fran", "task_description": "part", "task_id": "child", "parent_task_id": "parent", "budget": 2});
    let answer = front.ask(&all, "POST", "/v1/tasks", &child).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let child = TurnName::parse("acme:child").unwrap();
    fleet.until("it is written", async |fleet| fleet.store.task_grant(&child).await.unwrap().is_some()).await;
    let (_, grant, _) = fleet.store.task_grant(&child).await.unwrap().unwrap();
    assert_eq!(grant.chain, [AgentId::new("kelly").unwrap()], "the parent's agent delegates it");
    end(&fleet, &front, &all, &["parent", "child"]).await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_turn_over_the_inbox_limit_is_rejected_immediately() {
    let store = StoreOptions { lease_ms: 2_000, inboxes_max: 2, ..StoreOptions::default() };
    let fleet = Fleet::start(Plan { store, ..plan() }).await;
    let (row, kelly) = key("kelly", "acme", &["kelly"], &["submit", "read"]);
    let fronts = [
        TestGateway::of(&fleet, std::slice::from_ref(&row)).await,
        TestGateway::of(&fleet, std::slice::from_ref(&row)).await,
        TestGateway::of(&fleet, std::slice::from_ref(&row)).await,
    ];
    let turn = json!({"agent": "kelly", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]});
    let task = json!({"target_agent": "kelly", "task_description": "work"});
    for front in &fronts[..2] {
        let answer = front.ask(&kelly, "POST", "/v1/turns?wait=30", &turn).await;
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    for (path, body) in [("/v1/turns", &turn), ("/v1/tasks", &task)] {
        let answer = fronts[2].ask(&kelly, "POST", path, body).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (429, &json!("too_many_inboxes")), "{answer:?}");
    }
    let acme = TenantId::new("acme").unwrap();
    let mut own = tickfleet_client::parse_turn(with(turn, "tenant", json!("acme")).to_string().as_bytes()).unwrap();
    own.reply_to = Some(InboxName::new("one-more").unwrap());
    let refused = fronts[0].client.submit(own).await.unwrap_err();
    assert!(refused.to_string().contains("too_many_inboxes"), "{refused}");
    assert_eq!(fleet.ask::<u64>("ZCARD", &format!("inboxes:{acme}"), &[]).await, 2);
    fleet.stop().await;
}

#[derive(Default)]
struct QueryCounter(AtomicUsize);

impl Observer for QueryCounter {
    fn answered(&self, _: &'static str, took: Option<Duration>) {
        if took.is_some() {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn failed(&self, _: &'static str) {}

    fn primary_search_ended(&self, _: &str, _: Option<&str>) {}

    fn redirected(&self, _: &'static str) {}
}

#[tokio::test]
async fn an_uncovered_agents_record_is_indistinguishable_from_a_missing_one() {
    let fleet = Fleet::start(plan()).await;
    let services = ["submit", "read", "cancel"];
    let (all_row, all) = key("all", "acme", &["*"], &services);
    let (kelly_row, kelly) = key("kelly", "acme", &["kelly"], &services);
    let rows = [all_row, kelly_row];
    let front = TestGateway::of(&fleet, &rows).await;
    let questions = Arc::new(QueryCounter::default());
    let observed = TestGateway::observed(&fleet, &rows, questions.clone()).await;

    let turn =
        json!({"agent": "fran", "turn_id": "frans-turn", "calls": [{"name": "echo", "arguments": {"text": "hers"}}]});
    assert_eq!(front.ask(&all, "POST", "/v1/turns?wait=30", &turn).await.status, 200);
    for id in ["frans-task", "frans-next"] {
        let task = json!({"target_agent": "fran", "task_description": "work", "task_id": id, "budget": 5});
        assert_eq!(front.ask(&all, "POST", "/v1/tasks", &task).await.status, 202);
        let name = TurnName::parse(&format!("acme:{id}")).unwrap();
        fleet.until("it is under way", async |fleet| fleet.store.task_grant(&name).await.unwrap().is_some()).await;
    }
    let asked = async |method: &str, path: &str, id: &str| {
        let before = questions.0.load(Ordering::SeqCst);
        let answer = observed.ask(&kelly, method, &path.replace("{id}", id), &Value::Null).await;
        (answer.status, answer.body.replace(id, "ID"), questions.0.load(Ordering::SeqCst) - before)
    };
    for (method, path) in [
        ("GET", "/v1/turns/{id}"),
        ("GET", "/v1/turns/{id}/events"),
        ("POST", "/v1/turns/{id}/cancel"),
        ("GET", "/v1/tasks/{id}"),
        ("GET", "/v1/tasks/{id}/events"),
        ("POST", "/v1/tasks/{id}/cancel"),
    ] {
        let nobodys = asked(method, path, "nobodys").await;
        assert_eq!((nobodys.0, nobodys.2 > 0), (404, true), "{method} {path}");
        for id in ["frans-turn", "frans-task"] {
            assert_eq!(asked(method, path, id).await, nobodys, "{method} {path} of {id}");
        }
    }

    let wait = async |id: &str| {
        let answer = front.ask(&kelly, "GET", &format!("/v1/turns/{id}?wait=60"), &Value::Null).await;
        (answer.status, answer.body.replace(id, "ID"), front.draining.is_cancelled())
    };
    let drain = async {
        end(&fleet, &front, &all, &["frans-next"]).await;
        assert_eq!(front.ask(&all, "GET", "/v1/turns/frans-next?wait=60", &Value::Null).await.status, 200);
        // Only this ends the waits.
        front.draining.cancel();
    };
    let (nobodys, ended, under_way, ends, ()) =
        tokio::join!(wait("nobodys"), wait("frans-turn"), wait("frans-task"), wait("frans-next"), drain);
    assert_eq!((nobodys.0, nobodys.2), (404, true));
    for found in [ended, under_way, ends] {
        assert_eq!(found, nobodys);
    }
    end(&fleet, &observed, &all, &["frans-task"]).await;
    fleet.stop().await;
}

#[tokio::test]
async fn conflicting_ids_and_duplicate_headers_are_rejected() {
    let fleet = Fleet::start(plan()).await;
    let (row, kelly) = key("kelly", "acme", &["kelly"], &["submit", "read"]);
    let front = TestGateway::of(&fleet, &[row]).await;
    let turn = turn("turn_id", json!("one"));
    let task = task("task_id", json!("one-task"));
    for (path, body, field, id) in [("/v1/turns", &turn, "turn_id", "one"), ("/v1/tasks", &task, "task_id", "one-task")]
    {
        let other = front.ask_with(&kelly, "POST", path, &[("idempotency-key", "other")], body).await;
        assert_eq!(other.status, 400, "{other:?}");
        assert!(other.body.contains("Idempotency-Key") && other.body.contains(field), "{other:?}");
        let twice = [("idempotency-key", id), ("idempotency-key", id)];
        assert_eq!(front.ask_with(&kelly, "POST", path, &twice, body).await.status, 400);
        let alike = front.ask_with(&kelly, "POST", path, &[("idempotency-key", id)], body).await;
        assert_eq!(alike.status, 202, "{alike:?}");
    }
    let bearer = format!("Bearer {kelly}");
    let tenants: &[(&str, &str)] = &[("tickfleet-tenant", "acme"), ("tickfleet-tenant", "bolt")];
    let keys: &[(&str, &str)] = &[("authorization", &bearer)];
    let none = Value::Null;
    let get =
        async |headers: &[(&str, &str)]| front.ask_with(&kelly, "GET", "/v1/turns/one?wait=30", headers, &none).await;
    for headers in [tenants, keys] {
        let answer = get(headers).await;
        assert_eq!((answer.status, answer.body.contains("more than one")), (400, true), "{answer:?}");
    }
    assert_eq!((get(&tenants[..1]).await.status, get(&tenants[1..]).await.status), (200, 403));
    let name = TurnName::parse("acme:one-task").unwrap();
    fleet.until("the task is under way", async |fleet| fleet.store.task_grant(&name).await.unwrap().is_some()).await;
    fleet.store.cancel(&name, "a test").await.unwrap();
    fleet.until("it has ended", async |fleet| fleet.store.task_grant(&name).await.unwrap().is_none()).await;
    fleet.stop().await;
}

async fn paged(front: &TestGateway, key: &str, limit: usize) -> (Vec<String>, Vec<String>) {
    let mut tasks = Vec::new();
    let mut positions = Vec::<String>::new();
    loop {
        let from = positions.last().map(|last| format!("&from={last}")).unwrap_or_default();
        let page = front.ask(key, "GET", &format!("/v1/tasks?limit={limit}{from}"), &Value::Null).await;
        assert_eq!((page.status, page.header("tickfleet-list-restarted")), (200, None), "{page:?}");
        tasks.extend(page.json().as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()));
        let Some(next) = page.header("tickfleet-next") else { return (tasks, positions) };
        assert!(positions.len() < 10, "the list does not end: {positions:?}");
        positions.push(next.to_owned());
    }
}

#[tokio::test]
async fn a_task_list_contains_exactly_the_tasks_the_key_covers() {
    let fleet = Fleet::start(plan()).await;
    let services = ["submit", "read", "cancel"];
    let (all_row, all) = key("all", "acme", &["*"], &services);
    let (kelly_row, kelly) = key("kelly", "acme", &["kelly"], &services);
    let rows = [all_row, kelly_row];
    let front = TestGateway::of(&fleet, &rows).await;
    let delegated = async |agent: &str, id: &str| {
        let task = json!({"target_agent": agent, "task_description": "work", "task_id": id, "budget": 5});
        assert_eq!(front.ask(&all, "POST", "/v1/tasks", &task).await.status, 202);
        let name = TurnName::parse(&format!("acme:{id}")).unwrap();
        fleet.until("it is under way", async |fleet| fleet.store.task_grant(&name).await.unwrap().is_some()).await;
    };
    for (agent, id) in [("kelly", "kellys-old"), ("fran", "frans-old"), ("kelly", "kellys-new"), ("fran", "frans-new")]
    {
        delegated(agent, id).await;
    }
    // Between two tasks of kelly, fran has more tasks than one page reads.
    let newest: f64 = fleet.ask("ZSCORE", "tasks:acme", &["kellys-new"]).await;
    let old = (newest - 100_000.0).to_string();
    let between = (newest - 50_000.0).to_string();
    fleet.ask::<u64>("ZADD", "tasks:acme", &[&old, "kellys-old"]).await;
    let others: Vec<String> = (0..2_100).map(|number| format!("frans-{number}")).collect();
    let scored: Vec<&str> = others.iter().flat_map(|id| [between.as_str(), id.as_str()]).collect();
    assert_eq!(fleet.ask::<u64>("ZADD", "tasks:acme", &scored).await, 2_100);

    for limit in [1, 2, 20] {
        let (tasks, positions) = paged(&front, &kelly, limit).await;
        assert_eq!(tasks, ["kellys-new", "kellys-old"], "{limit} a page");
        let is_hers = |position: &String| tasks.iter().any(|id| position.split(':').nth(1) == Some(id));
        assert!(!positions.is_empty() && positions.iter().all(is_hers), "{limit} a page: {positions:?}");
    }
    let (tasks, _) = paged(&front, &all, 1).await;
    assert_eq!(tasks, ["frans-new", "kellys-new", "frans-old", "kellys-old"]);

    let questions = Arc::new(QueryCounter::default());
    let observed = TestGateway::observed(&fleet, &rows, questions.clone()).await;
    let listed = async |key: &str, id: &str| {
        let before = questions.0.load(Ordering::SeqCst);
        let page = observed.ask(key, "GET", &format!("/v1/tasks?from=acme:{id}"), &Value::Null).await;
        let headers = ["tickfleet-list-restarted", "tickfleet-next"].map(|name| page.header(name).map(str::to_owned));
        (page.status, headers, page.body, questions.0.load(Ordering::SeqCst) - before)
    };
    let nobodys = listed(&kelly, "nobodys").await;
    assert_eq!((nobodys.0, nobodys.1[0].as_deref()), (200, Some("true")));
    assert_eq!(listed(&kelly, "frans-new").await, nobodys);
    assert_eq!(listed(&all, "frans-new").await.1[0], None);

    let ids: Vec<&str> = others.iter().map(String::as_str).collect();
    fleet.ask::<u64>("ZREM", "tasks:acme", &ids).await;
    end(&fleet, &front, &all, &["kellys-old", "frans-old", "kellys-new", "frans-new"]).await;
    fleet.stop().await;
}

#[tokio::test]
async fn null_counts_as_absent_in_every_optional_field_of_a_body() {
    let fleet = Fleet::start(plan()).await;
    let (kelly_row, kelly) = key("kelly", "acme", &["kelly"], &["submit", "read", "cancel"]);
    let (bolt_row, bolt) = key("bolt", "bolt", &["*"], &["view", "operate", "approve"]);
    let front = TestGateway::of(&fleet, &[kelly_row, bolt_row]).await;
    let nulls = |fields: &[&str], mut body: Value| {
        for field in fields {
            let members = body.as_object_mut().unwrap();
            members.entry(*field).or_insert(Value::Null);
        }
        body
    };
    let turn = json!({"agent": "kelly", "calls": [{"name": "echo", "arguments": {"text": "hi"}}]});
    let task = json!({"target_agent": "kelly", "task_description": "work", "task_id": "job"});
    let replay = json!({"ids": ["letter-0-1-0"], "reason": "a test", "message": null, "allow_duplicate_effects": null});
    let run = json!({"threadId": "t", "runId": "r", "messages": [{"role": null, "content": null}]});
    for (key, path, body, status) in [
        (&kelly, "/v1/turns?wait=30", nulls(&TURN_FIELDS, turn), 200),
        (&kelly, "/v1/tasks", nulls(&DELEGATE_FIELDS, task), 202),
        (&kelly, "/v1/tasks/none/cancel", json!({"reason": null}), 404),
        (&bolt, "/v1/operate/resume", json!({"tenant": null, "agent": null, "tool": null, "reason": "a test"}), 200),
        (&bolt, "/v1/operate/dead/replay", replay, 200),
        (&bolt, "/v1/operate/approvals/bolt:none/approve", json!({"reason": null, "set": null, "narrowed": null}), 404),
    ] {
        let answer = front.ask(key, "POST", path, &body).await;
        assert_eq!(answer.status, status, "{path} {body}: {answer:?}");
    }
    let answer = front.ask(&kelly, "POST", "/v1/agents/kelly/ag-ui", &run).await;
    assert!(answer.status == 400 && answer.body.contains("expected a user message"), "{answer:?}");
    let name = TurnName::parse("acme:job").unwrap();
    fleet.until("the task is under way", async |fleet| fleet.store.task_grant(&name).await.unwrap().is_some()).await;
    end(&fleet, &front, &kelly, &["job"]).await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_duplicate_json_key_in_an_operators_body_is_rejected() {
    let fleet = Fleet::start(plan()).await;
    let (row, bolt) = key("bolt", "bolt", &["*"], &["view", "operate", "approve"]);
    let front = TestGateway::of(&fleet, &[row]).await;
    let path = "/v1/operate/approvals/bolt:none/approve";
    for set in [r#"{"/a": 1, "/a": 2}"#, r#"{"/a": 1, "/\u0061": 2}"#, r#"{"/a": {"b": 1, "b": 2}}"#] {
        let body = format!(r#"{{"reason": "a test", "set": {set}}}"#);
        let answer = front.ask_in(&bolt, "POST", path, &[], &body).await;
        assert!(answer.status == 400 && answer.body.contains("occurs twice"), "{set}: {answer:?}");
    }
    let once = r#"{"reason": "a test", "set": {"/a": 1, "/b": {"a": 1}}}"#;
    assert_eq!(front.ask_in(&bolt, "POST", path, &[], once).await.status, 404);
    fleet.stop().await;
}

#[tokio::test]
async fn an_invalid_last_event_id_is_rejected() {
    let fleet = Fleet::start(plan()).await;
    let (row, kelly) = key("kelly", "acme", &["kelly"], &["submit", "read", "cancel"]);
    let front = TestGateway::of(&fleet, &[row]).await;
    let task = json!({"target_agent": "kelly", "task_description": "work", "task_id": "job"});
    assert_eq!(front.ask(&kelly, "POST", "/v1/tasks", &task).await.status, 202);
    let name = TurnName::parse("acme:job").unwrap();
    fleet.until("it is under way", async |fleet| fleet.store.task_grant(&name).await.unwrap().is_some()).await;
    for path in ["/v1/tasks/job/events", "/v1/turns/job/events"] {
        for id in ["4294967296", "9223372036854775808", "18446744073709551615", "99999999999999999999", "-1", "x"] {
            let answer = front.ask_with(&kelly, "GET", path, &[("last-event-id", id)], &Value::Null).await;
            assert_eq!(answer.status, 400, "{path} {id}: {answer:?}");
            let expected = "Last-Event-ID: expected the id of an event, a number from 0 to 4294967295";
            assert!(answer.body.contains(expected), "{path} {id}: {answer:?}");
        }
    }
    end(&fleet, &front, &kelly, &["job"]).await;
    fleet.stop().await;
}
