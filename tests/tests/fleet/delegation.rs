//! Delegated tasks with every kind of handler. Each task ends with one record and one reply.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_config::{HttpTaskDef, TaskHandlerDef};
use tickfleet_model::retry::RetryDelays;
use tickfleet_model::{AgentId, Effect, Policy, limits};
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{CallContext, ToolError, TypedTool};

mod descendants;
mod outside;
mod repeated;

/// A task as a typed handler reads it.
#[derive(Deserialize, JsonSchema)]
struct Work {
    description: String,
}

#[derive(Serialize, JsonSchema)]
struct Done {
    attempt: u32,
}

/// With `ok <n>`, attempts before n fail with a transient error. With `never`, the handler does not return.
fn flaky() -> TypedTool {
    TypedTool::new("flaky", "Fails for a while.", Effect::Idempotent, |context: CallContext, work: Work| async move {
        let ok_from: u32 = match work.description.split(' ').nth(1).and_then(|n| n.parse().ok()) {
            Some(from) => from,
            None => std::future::pending().await,
        };
        if context.attempt < ok_from {
            return Err(ToolError::Transient("Not yet.".into()));
        }
        Ok(Done { attempt: context.attempt })
    })
}

fn handlers(list: &[(&str, TaskHandlerDef)]) -> BTreeMap<AgentId, TaskHandlerDef> {
    list.iter().map(|(agent, def)| (AgentId::new(*agent).unwrap(), def.clone())).collect()
}

fn typed(name: &str) -> TaskHandlerDef {
    TaskHandlerDef::Typed(name.into())
}

fn external(lease_ms: u64) -> TaskHandlerDef {
    TaskHandlerDef::External { lease: Duration::from_millis(lease_ms) }
}

/// archy and link are external runtimes. terry takes no tasks.
fn plan(lease_ms: u64) -> Plan {
    Plan {
        agents: ["kelly", "fran", "emma", "archy", "link", "terry", "tina"].map(String::from).into(),
        handlers: handlers(&[
            ("kelly", external(60_000)),
            ("fran", typed("note")),
            ("emma", typed("flaky")),
            ("archy", external(lease_ms)),
            ("link", external(60_000)),
        ]),
        task_tools: vec![flaky()],
        tools: vec![guarded("read_files"), guarded("send_mail")],
        policy: capabilities,
        ..Plan::default()
    }
}

fn guarded(name: &'static str) -> TypedTool {
    #[derive(Deserialize, JsonSchema)]
    struct Nothing {}
    let run = |_, _: Nothing| async move { Ok::<_, ToolError>(Done { attempt: 1 }) };
    TypedTool::new(name, "Needs a capability.", Effect::Read, run).requires(name)
}

fn capabilities(policy: &mut Policy) {
    let delegate = policy.permissions.matrix.get_mut("delegate_task").unwrap();
    delegate.deny_agents.insert(AgentId::new("tina").unwrap());
    for (agent, has) in [
        ("archy", &["read_files", "send_mail"][..]),
        ("kelly", &["read_files"]),
        ("link", &["read_files", "send_mail"]),
    ] {
        let of = Arc::make_mut(&mut policy.agents).get_mut(&AgentId::new(agent).unwrap()).unwrap();
        of.capabilities = has.iter().map(|c| (*c).to_owned()).collect();
    }
}

fn delegate(target: &str, description: &str) -> Value {
    json!({"id": "c", "name": "delegate_task", "arguments": {"target_agent": target, "task_description": description}})
}

fn result(reply: &Value) -> &Value {
    let [result] = reply["results"].as_array().unwrap().as_slice() else { panic!("one result: {reply}") };
    assert_eq!((&result["tool"], &reply["status"]), (&json!("delegate_task"), &json!("done")), "{reply}");
    result
}

#[tokio::test]
async fn a_delegated_task_sends_its_answer_in_a_separate_reply() {
    let mut fleet = Fleet::start(plan(1_000)).await;
    let turn = fleet.submit_turn(json!({"correlation_id": "r-1", "calls": [delegate("fran", "Call Bob.")]})).await;
    let replies = fleet.replies(2).await;
    let confirmed = &replies[&turn]["results"][0]["output"];
    assert_eq!((&confirmed["status"], &confirmed["target_agent"]), (&json!("queued"), &json!("fran")), "{confirmed}");
    let job = confirmed["job_id"].as_str().unwrap();
    let reply = &replies[job];
    assert_eq!((&reply["agent"], &reply["correlation_id"]), (&json!("fran"), &json!("r-1")));
    assert_eq!(
        (&reply["delegator"], &reply["delegated_by"]),
        (&json!("kelly"), &json!(format!("{turn}/0"))),
        "{reply}"
    );
    let audit = fleet.audits().await;
    let done = audit.iter().find(|entry| entry["meta"]["turn"] == *job).unwrap();
    assert_eq!((&done["actor_type"], &done["actor_id"]), (&json!("agent"), &json!("kelly")), "{done}");
    assert_eq!(done["meta"]["agent"], "fran");
    assert!(done["message"].as_str().unwrap().starts_with("kelly delegated a task to fran: ok"), "{done}");
    assert_eq!(
        result(reply)["output"],
        json!({"acknowledged": true, "agent": "fran", "task_description": "Call Bob."})
    );
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_repeated_delegation_creates_one_task() {
    let mut few_ms = plan(60_000);
    few_ms.store.retain_ms = 50;
    few_ms.store.dedupe_ms = 50;
    let mut fleet = Fleet::start(few_ms).await;
    let turn = json!({"turn_id": "t", "calls": [delegate("archy", "Look."), delegate("archy", "Look.")]});
    let mut jobs = Vec::new();
    for _ in 0..2 {
        fleet.submit_turn(turn.clone()).await;
        let reply = fleet.reply().await;
        assert_eq!(outcomes(&reply), ["ok", "ok"]);
        jobs.push([0, 1].map(|i| reply["results"][i]["output"]["job_id"].clone()));
        fleet.until("the id is forgotten", async |fleet| fleet.ask::<u64>("EXISTS", "id:acme:t", &[]).await == 0).await;
    }
    assert_eq!(jobs[0], jobs[1], "the same call makes the same task");
    assert_ne!(jobs[0][0], jobs[0][1], "another position is another task");
    assert_eq!(fleet.ask::<u64>("XLEN", "external:acme:archy", &[]).await, 2);
    for _ in 0..2 {
        let leased = fleet.lease_task("archy", "r1").await;
        fleet.say(leased.message("finish", json!({"output": null}))).await;
        assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    }
    fleet.stop().await;
}

#[tokio::test]
async fn an_invalid_delegation_is_rejected_before_it_reaches_an_agent() {
    let mut fleet = Fleet::start(plan(1_000)).await;
    let cases = [
        (json!({"target_agent": "nobody"}), "unknown_agent"),
        (json!({"target_agent": "terry"}), "no_task_handler"),
        (json!({"delegator": "fran"}), "delegation_cycle"),
        (json!({"delegator": "nobody"}), "unknown_agent"),
        (json!({"delegator": "tina"}), "may_not_delegate"),
        (json!({"deadline": "2999-01-01T00:00:00Z"}), "invalid_deadline"),
        (json!({"task_description": "  "}), "invalid_field"),
        (json!({"task_description": 7}), "invalid_field"),
        (json!({"budget": -1}), "invalid_field"),
        (json!({"to": "fran"}), "unknown_field"),
        (json!({"op": "delegat"}), "invalid_field"),
        (json!({"parent_task_id": "no-such-task"}), "unknown_parent"),
        (json!({"tenant": "nobody"}), "unknown_tenant"),
    ];
    for (index, (task, code)) in cases.into_iter().enumerate() {
        fleet.delegate("fran", task.clone()).await;
        // An unknown tenant has no inbox, so only the dead letter states the reason.
        if code != "unknown_tenant" {
            let reply = fleet.reply_in("acme:box", PATIENCE).await;
            let reply = reply.unwrap_or_else(|| panic!("{task}: no reply"));
            let said = (&reply["status"], &reply["error"]["code"]);
            assert_eq!(said, (&json!("rejected"), &json!(code)), "{task}: {reply}");
        }
        fleet.until("its dead letter", async |fleet| fleet.dead().await.len() == index + 1).await;
    }
    fleet.no_more_replies().await;
    let calls = [delegate("nobody", "x"), delegate("terry", "x"), delegate("kelly", "x"), delegate("fran", " ")];
    fleet.submit_turn(json!({"calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["permanent"; 4]);
    let said = |i: usize| reply["results"][i]["error"]["message"].as_str().unwrap();
    assert!(said(0).contains("agents that take tasks: archy, emma, fran, kelly, link"), "{}", said(0));
    assert!(said(2).contains("kelly"), "{}", said(2));
    fleet.stop().await;
}

#[tokio::test]
async fn a_failing_handler_is_retried_until_its_attempts_are_used_up() {
    let mut fleet = Fleet::start(plan(1_000)).await;
    fleet.delegate("emma", json!({"task_id": "third", "task_description": "ok 3"})).await;
    fleet.delegate("emma", json!({"task_id": "tenth", "task_description": "ok 10"})).await;
    let replies = fleet.replies(2).await;
    assert_eq!(result(&replies["third"])["output"], json!({"attempt": 3}));
    let failed = result(&replies["tenth"]);
    assert_eq!((&failed["outcome"], &failed["attempts"]), (&json!("transient"), &json!(4)), "{failed}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_task_expires_at_its_deadline_and_can_be_canceled_while_its_handler_runs() {
    let mut fleet = Fleet::start(Plan { workers: 0, ..plan(1_000) }).await;
    let deadline = fleet.in_ms(200).await;
    fleet.delegate("fran", json!({"task_id": "late", "deadline": deadline})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["expired"]);
    fleet.delegate("fran", json!({"task_id": "later", "deadline": "2020-01-01T00:00:00Z"})).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["task_id"], outcomes(&reply)), (&json!("later"), vec!["expired"]));
    fleet.add_worker();
    fleet.delegate("emma", json!({"task_id": "endless", "task_description": "never"})).await;
    fleet.until("it runs", async |fleet| fleet.held().await == 1).await;
    fleet.say(json!({"op": "cancel", "task_id": "endless"})).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["task_id"], outcomes(&reply)), (&json!("endless"), vec!["cancelled"]));
    fleet.stop().await;
}

#[tokio::test]
async fn a_task_canceled_before_it_arrives_ends_without_running() {
    let mut fleet = Fleet::start(plan(60_000)).await;
    for (agent, task) in [("fran", "inside"), ("archy", "outside")] {
        fleet.say(json!({"op": "cancel", "task_id": task, "reason": "api_key=abc123"})).await;
        fleet.delegate(agent, json!({"task_id": task})).await;
        let reply = fleet.reply().await;
        assert_eq!((&reply["task_id"], outcomes(&reply)), (&json!(task), vec!["cancelled"]), "{reply}");
        let message = result(&reply)["error"]["message"].as_str().unwrap();
        assert!(message.contains("(reason: api_key=[REDACTED])") && message.contains("not executed"), "{message}");
    }
    assert_eq!(fleet.ask::<u64>("EXISTS", "external:acme:archy", &[]).await, 0);
    fleet.say(json!({"op": "cancel", "tenant": "nobody", "task_id": "x"})).await;
    fleet.until("its dead letter", async |fleet| fleet.dead().await.len() == 1).await;
    assert_eq!(fleet.ask::<u64>("EXISTS", "early:nobody", &[]).await, 0);
    fleet.no_more_replies().await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_task_canceled_between_attempts_is_not_reported_as_not_executed() {
    let mut slow = plan(60_000);
    slow.retry_delays = RetryDelays::new(vec![Duration::from_secs(60)]);
    let mut fleet = Fleet::start(slow).await;
    fleet.delegate("emma", json!({"task_id": "tried", "task_description": "ok 3"})).await;
    fleet
        .until("its first try failed", async |fleet| {
            fleet.unfinished("tried").await.is_some_and(|turn| turn.attempts == 1)
        })
        .await;
    fleet.say(json!({"op": "cancel", "task_id": "tried", "reason": "enough"})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["cancelled"]);
    let message = result(&reply)["error"]["message"].as_str().unwrap();
    assert!(message.contains("(reason: enough)") && message.contains("The first try failed"), "{message}");
    assert!(!message.contains("not executed"), "{message}");
    fleet.stop().await;
}

async fn service(first: u16) -> (String, Arc<Mutex<Vec<String>>>) {
    use axum::http::StatusCode;
    let seen: Arc<Mutex<Vec<String>>> = Arc::default();
    let answer = async move |State(seen): State<Arc<Mutex<Vec<String>>>>, body: String| {
        let mut seen = seen.lock().unwrap();
        seen.push(body);
        let status = if seen.len() == 1 { first } else { 200 };
        (StatusCode::from_u16(status).unwrap(), axum::Json(json!({"summary": "done"})))
    };
    let app = axum::Router::new().route("/tasks/{id}", axum::routing::post(answer)).with_state(seen.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
    (base, seen)
}

fn over_http(base: &str, effect: Effect, not_executed: &[u16]) -> Plan {
    let http = json!({
        "method": "POST", "base_url": base, "path": "/tasks/{{task_id}}", "allow_private": ["127.0.0.1"],
        "not_executed": not_executed,
        "body": {"agent": "{{agent}}", "what": "{{description}}", "input": "{{input}}", "by": "{{delegator}}"}
    });
    let def = HttpTaskDef { http: serde_json::from_value(http).unwrap(), effect, timeout: None };
    Plan { handlers: handlers(&[("fran", TaskHandlerDef::Http(Box::new(def)))]), ..plan(1_000) }
}

#[tokio::test]
async fn a_service_is_called_once_per_task_over_http() {
    let (base, seen) = service(200).await;
    let mut fleet = Fleet::start(over_http(&base, Effect::Once, &[])).await;
    fleet.delegate("fran", json!({"task_id": "j", "input": {"n": 1}, "delegator": "kelly"})).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["output"], json!({"summary": "done"}), "{reply:#}");
    let expected = json!({"agent": "fran", "what": "Look into it.", "input": {"n": 1}, "by": "kelly"});
    let bodies: Vec<Value> = seen.lock().unwrap().iter().map(|body| serde_json::from_str(body).unwrap()).collect();
    assert_eq!(bodies, [expected]);
    fleet.stop().await;
}

#[tokio::test]
async fn a_service_receives_the_task_input_byte_for_byte() {
    let (base, seen) = service(200).await;
    let mut fleet = Fleet::start(over_http(&base, Effect::Once, &[])).await;
    let input = r#"{"z":90071992547409931234,"a":[1e400,-1E+999,1.10],"m":{"y":"é","x":null}}"#;
    let task = format!(
        r#"{{"op":"delegate","tenant":"acme","target_agent":"fran","task_description":"Look.","reply_to":"box","input":{input}}}"#
    );
    fleet.xadd("tasks", "task", task.as_bytes()).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["outcome"], "ok", "{reply:#}");
    let bodies = seen.lock().unwrap().clone();
    assert!(bodies[0].contains(&format!(r#""input":{input}"#)), "{bodies:?}");
    fleet.stop().await;
}

#[tokio::test]
async fn the_effect_of_a_service_decides_whether_it_is_retried() {
    for (effect, not_executed, outcome, calls) in [
        (Effect::Once, &[][..], "outcome_unknown", 1),
        (Effect::Once, &[503], "ok", 2),
        (Effect::Idempotent, &[], "ok", 2),
        (Effect::Read, &[], "ok", 2),
    ] {
        let (base, seen) = service(503).await;
        let mut fleet = Fleet::start(over_http(&base, effect, not_executed)).await;
        fleet.delegate("fran", json!({"task_id": "j"})).await;
        let reply = fleet.reply().await;
        let reported = (result(&reply)["outcome"].clone(), seen.lock().unwrap().len());
        assert_eq!(reported, (json!(outcome), calls), "{effect:?} {not_executed:?}: {reply:#}");
        fleet.stop().await;
    }
}

#[tokio::test]
async fn a_delegated_task_has_no_more_rights_or_budget_than_its_delegator() {
    let mut fleet = Fleet::start(plan(60_000)).await;
    fleet.delegate("archy", json!({"task_id": "top", "budget": 8, "delegator": "kelly"})).await;
    let top = fleet.lease_task("archy", "r1").await;
    let calls =
        json!([{"name": "read_files"}, {"name": "send_mail"}, delegate("kelly", "back"), delegate("link", "on")]);
    fleet.submit_turn(json!({"turn_id": "work", "agent": "archy", "task_id": "top", "calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok", "denied", "permanent", "ok"], "{reply:#}");
    let cycle = reply["results"][2]["error"]["message"].as_str().unwrap();
    assert!(cycle.contains("kelly → archy"), "{cycle}");
    let child = fleet.lease_task("link", "r2").await;
    assert_eq!((&child.task["budget"], &child.task["parent_task_id"]), (&json!(4), &json!("top")));
    fleet
        .submit_turn(json!({"turn_id": "more", "agent": "archy", "task_id": "top", "calls": [{"name": "echo"}]}))
        .await;
    assert_eq!(fleet.reply().await["results"][0]["error"]["code"], "task_budget_reached");
    fleet.delegate("kelly", json!({"parent_task_id": child.id(), "budget": 1})).await;
    assert_eq!(fleet.reply().await["error"]["code"], "delegation_cycle");
    fleet.delegate("fran", json!({"parent_task_id": child.id(), "budget": 5})).await;
    assert_eq!(fleet.reply().await["error"]["code"], "budget_exceeds_parent");
    let calls = json!([{"name": "send_mail"}]);
    fleet.submit_turn(json!({"turn_id": "below", "agent": "link", "task_id": child.id(), "calls": calls})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["denied"]);
    for (leased, name) in [(child, "child"), (top, "top")] {
        fleet.say(leased.message("finish", json!({"output": name}))).await;
        assert_eq!(result(&fleet.reply().await)["output"], name);
    }
    fleet.stop().await;
}

#[tokio::test]
async fn tasks_are_delegated_five_levels_deep_at_most() {
    let agents: Vec<String> = (0..7).map(|i| format!("a{i}")).collect();
    let bound: Vec<(&str, TaskHandlerDef)> = agents.iter().map(|a| (a.as_str(), external(60_000))).collect();
    let handlers = handlers(&bound);
    let mut fleet = Fleet::start(Plan { agents: agents.clone(), handlers, ..Plan::default() }).await;
    fleet.delegate("a0", json!({"task_id": "d0", "budget": 1_000})).await;
    let mut leased = vec![fleet.lease_task("a0", "r").await];
    for level in 0..6 {
        let agent = &agents[level];
        let next = &agents[level + 1];
        let task = leased[level].id().to_owned();
        fleet.submit_turn(json!({"agent": agent, "task_id": task, "calls": [delegate(next, "down")]})).await;
        let reply = fleet.reply().await;
        if level == 5 {
            let said = reply["results"][0]["error"]["message"].as_str().unwrap();
            assert!(said.contains("5 levels deep at most"), "{said}");
            break;
        }
        assert_eq!(outcomes(&reply), ["ok"], "level {level}: {reply:#}");
        leased.push(fleet.lease_task(next, "r").await);
    }
    for leased in &leased {
        fleet.say(leased.message("finish", json!({"output": null}))).await;
        assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    }
    fleet.stop().await;
}

#[tokio::test]
async fn a_python_script_submits_turns_and_tasks_with_the_standard_library() {
    let fleet = Fleet::start(plan(60_000)).await;
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/snippets/redis/producer.py");
    let run = async |work: &[&str]| -> Value {
        let mut command = tokio::process::Command::new("python3");
        let url = fleet.server.url();
        command.args([script, "--url", &url, "--tenant", "acme", "--agent", "kelly"]).args(work);
        let output = command.output().await.expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let reply = run(&["--calls", r#"[{"id": "1", "name": "echo", "arguments": {"text": "grüß"}}]"#]).await;
    assert_eq!(reply["results"][0]["output"], json!({"text": "grüß"}));
    let reply = run(&["--delegate", "fran", "Call Bob."]).await;
    assert_eq!(result(&reply)["output"]["acknowledged"], true);
    fleet.stop().await;
}
