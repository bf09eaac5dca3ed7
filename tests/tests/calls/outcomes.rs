//! Produces every outcome of a call, and checks the result and the audit entry.

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tickfleet_core::CounterKey;
use tickfleet_core::keys::limits;
use tickfleet_core::turn::State;
use tickfleet_model::policy::DefaultCaps;
use tickfleet_model::{DayCapAction, Effect};
use tickfleet_store::{TurnName, TurnView};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::inspect::outcomes;
use tickfleet_tools::{ToolError, TypedTool};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const DAY_MS: i64 = 86_400_000;

#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Serialize, JsonSchema)]
struct Text {
    text: String,
}

fn verbose(letters: usize) -> TypedTool {
    TypedTool::new("verbose", "Talks a lot.", Effect::Read, move |_, _: Nothing| async move {
        Ok(Text { text: "é".repeat(letters) })
    })
}

fn gated() -> TypedTool {
    let run = |_, _: Nothing| async move { Ok::<_, ToolError>(Text { text: "done".into() }) };
    TypedTool::new("launch", "Needs a person.", Effect::Once, run).requires_approval()
}

fn stuck() -> TypedTool {
    TypedTool::new("stuck", "Never answers.", Effect::Once, |_, _: Nothing| std::future::pending::<Result<Text, _>>())
        .timeout(Duration::from_millis(100))
}

async fn audits_of(fleet: &Fleet, turn: &str, calls: usize) -> Vec<Value> {
    let all = fleet.audits().await;
    let of = |i: usize| all.iter().filter(|a| a["meta"]["call"] == format!("{turn}/{i}")).cloned().collect::<Vec<_>>();
    let found: Vec<Vec<Value>> = (0..calls).map(of).collect();
    assert!(found.iter().all(|entries| entries.len() == 1), "one audit entry per call: {found:#?}");
    found.into_iter().flatten().collect()
}

/// Result and audit entry of each call must agree. Returns the audit entries.
async fn agree(fleet: &Fleet, reply: &Value, expected: &[&str]) -> Vec<Value> {
    assert_eq!(outcomes(reply), expected, "{reply:#}");
    let turn = reply["turn_id"].as_str().unwrap();
    let audits = audits_of(fleet, turn, expected.len()).await;
    for (i, (audit, result)) in audits.iter().zip(reply["results"].as_array().unwrap()).enumerate() {
        let ok = expected[i] == "ok";
        assert_eq!(result["call"], format!("{turn}/{i}"));
        assert_eq!((&result["success"], result.get("output").is_some()), (&json!(ok), ok));
        assert_eq!(result.get("error").is_some(), !ok);
        assert_eq!((&audit["action"], &audit["meta"]["outcome"]), (&json!("TOOL_CALL"), &json!(expected[i])));
        assert_eq!(audit["level"], if ok { "info" } else { "error" });
        assert_eq!((&audit["actor_id"], &audit["tenant"]), (&json!("kelly"), &json!("acme")));
        assert_eq!(audit["meta"]["success"], ok);
    }
    audits
}

#[tokio::test]
async fn an_ok_call_returns_its_output_and_the_audit_log_redacts_secrets() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let arguments =
        json!({"value": {"api_key": "k-12345", "max_tokens": 5, "note": "Bearer abcdefghijklmnop1234567890"}});
    fleet
        .submit_turn(json!({"tool_call_audits": true, "calls": [{"id": "c", "name": "echo", "arguments": arguments}]}))
        .await;
    let reply = fleet.reply().await;
    let audits = agree(&fleet, &reply, &["ok"]).await;
    assert_eq!(reply["results"][0]["output"], arguments, "the agent gets what the tool gave");
    let meta = &audits[0]["meta"];
    assert_eq!(meta["arguments"]["value"]["api_key"], "[REDACTED]");
    assert_eq!(meta["arguments"]["value"]["max_tokens"], 5);
    let log = serde_json::to_string(&fleet.audits().await).unwrap();
    assert!(!log.contains("k-12345") && !log.contains("abcdefghijklmnop1234567890"), "{log}");
    assert_eq!(reply["tool_call_audits"].as_array().unwrap(), &audits, "the reply carries what the log has");
    fleet.stop().await;
}

#[tokio::test]
async fn an_unknown_tool_result_suggests_only_allowed_tools() {
    let mut fleet = Fleet::start(Plan { disabled: vec!["sleep".into()], ..Plan::default() }).await;
    fleet.submit(&[("ecko", json!({})), ("sleepp", json!({})), ("sleep", json!({"ms": 1}))]).await;
    let reply = fleet.reply().await;
    agree(&fleet, &reply, &["unknown_tool", "unknown_tool", "denied"]).await;
    let message = |i: usize| reply["results"][i]["error"]["message"].as_str().unwrap();
    assert!(message(0).contains(r#"There is no tool called "ecko". Did you mean echo?"#), "{}", message(0));
    assert!(!message(1).contains("Did you mean"), "a tool that it may not call is no suggestion: {}", message(1));
    assert!(message(2).contains("disabled"), "{}", message(2));
    for i in 0..3 {
        let allowed = &reply["results"][i]["error"]["details"]["allowed_tools"];
        let all = ["check_task", "delegate_task", "echo", "fail", "fail_once", "fetch_result", "list_tools"];
        assert_eq!(allowed, &json!(all));
        assert_eq!(reply["results"][i]["attempts"], 0);
    }
    assert_eq!(reply["results"][2]["error"]["details"]["reason"], "tool_disabled");
    fleet.stop().await;
}

#[tokio::test]
async fn an_invalid_arguments_error_names_the_argument() {
    let mut fleet = Fleet::start(Plan::default()).await;
    fleet
        .submit(&[
            ("sleep", json!({"ms": "soon"})),
            ("sleep", json!({})),
            ("sleep", json!({"ms": 1, "token": "xoxb-1"})),
        ])
        .await;
    let reply = fleet.reply().await;
    let audits = agree(&fleet, &reply, &["invalid_arguments"; 3]).await;
    for i in 0..2 {
        let error = &reply["results"][i]["error"];
        assert!(error["message"].as_str().unwrap().contains("ms"), "{error}");
    }
    assert_eq!(audits[2]["meta"]["arguments"]["token"], "[REDACTED]", "arguments that never ran are redacted too");
    fleet.stop().await;
}

#[tokio::test]
async fn permanent_errors_end_at_once_and_transient_errors_after_all_retries() {
    let mut fleet = Fleet::start(Plan::default()).await;
    fleet.submit(&[("fail", json!({})), ("fail", json!({"outcomes": ["transient"]}))]).await;
    let reply = fleet.reply().await;
    let audits = agree(&fleet, &reply, &["permanent", "transient"]).await;
    assert_eq!((&reply["results"][0]["attempts"], &reply["results"][1]["attempts"]), (&json!(1), &json!(4)));
    assert!(reply["results"][1]["error"]["message"].as_str().unwrap().contains("after 4 tries"));
    assert_eq!((&audits[0]["meta"]["retry_count"], &audits[1]["meta"]["retry_count"]), (&json!(0), &json!(3)));
    assert_eq!(fleet.debited("kelly").await, 2, "retries do not debit");
    fleet.stop().await;
}

#[tokio::test]
async fn retry_after_delays_the_retry_and_ends_the_call_when_too_long() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let asked = |ms: u64| json!({"outcomes": ["transient_not_executed", "ok"], "retry_after_ms": ms});
    fleet.submit(&[("fail_once", asked(70))]).await;
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), &reply["results"][0]["attempts"]), (vec!["ok"], &json!(2)));
    let waits = fleet.submit(&[("fail_once", asked(60_000))]).await;
    let retries = async |fleet: &Fleet| fleet.unfinished(&waits).await.is_some_and(|turn| turn.retries == 1);
    fleet.until("the retry waits", retries).await;
    let admitted_ms = fleet.unfinished(&waits).await.unwrap().admitted_ms;
    let due_ms: i64 = fleet.ask("ZSCORE", "timers", &[&format!("turn:acme:{waits}")]).await;
    assert!(due_ms - admitted_ms >= 60_000, "the ladder's own wait is 10 ms");
    fleet.cancel_turn(&waits).await;
    assert_eq!(outcomes(&fleet.reply().await), ["cancelled"]);
    fleet.submit(&[("fail", asked(61_000))]).await;
    let reply = fleet.reply().await;
    assert_eq!((outcomes(&reply), &reply["results"][0]["attempts"]), (vec!["transient"], &json!(1)));
    fleet.stop().await;
}

#[tokio::test]
async fn a_once_call_with_unknown_effect_is_never_retried() {
    let cut_at = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = cut_at.local_addr().unwrap();
    let service = tokio::spawn(async move {
        let mut requests = 0;
        loop {
            let Ok((mut stream, _)) = cut_at.accept().await else { return requests };
            let mut head = vec![0; 4_096];
            let read = stream.read(&mut head).await.unwrap();
            if head[..read].starts_with(b"GET /stop") {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                return requests;
            }
            requests += 1;
        }
    });
    let declared = serde_json::from_value(json!({"tools": {"post": {
        "description": "Posts.", "effect": "once", "input_schema": {"type": "object", "properties": {}},
        "http": {"method": "POST", "base_url": format!("http://{address}"), "path": "/post", "allow_private": ["127.0.0.1"]}
    }}}));
    let mut fleet = Fleet::start(Plan { tools: vec![stuck()], declared: declared.unwrap(), ..Plan::default() }).await;
    fleet
        .submit(&[
            ("stuck", json!({})),
            ("post", json!({})),
            ("fail_once", json!({"outcomes": ["panic"]})),
            ("echo", json!({})),
        ])
        .await;
    let reply = fleet.reply().await;
    agree(&fleet, &reply, &["outcome_unknown", "outcome_unknown", "outcome_unknown", "ok"]).await;
    for i in 0..3 {
        let result = &reply["results"][i];
        assert_eq!(result["attempts"], 1, "{result}");
        assert!(result["error"]["message"].as_str().unwrap().contains("may or may not have taken effect"), "{result}");
    }
    let mut stop = tokio::net::TcpStream::connect(address).await.unwrap();
    stop.write_all(b"GET /stop HTTP/1.1\r\n\r\n").await.unwrap();
    assert_eq!(service.await.unwrap(), 1, "the request left once");
    fleet.stop().await;
}

#[tokio::test]
async fn a_tool_bug_fails_only_its_call_and_reveals_no_internals() {
    let mut fleet = Fleet::start(Plan::default()).await;
    fleet
        .submit(&[
            ("fail", json!({"outcomes": ["panic"]})),
            ("fail", json!({"outcomes": ["internal"]})),
            ("echo", json!({})),
        ])
        .await;
    let reply = fleet.reply().await;
    agree(&fleet, &reply, &["internal", "internal", "ok"]).await;
    for i in 0..2 {
        let said = &reply["results"][i]["error"]["message"];
        assert_eq!(said, "Tool execution failed. The error has been logged for investigation.");
    }
    fleet.stop().await;
}

#[tokio::test]
async fn a_call_that_needs_approval_is_rejected_without_approvers() {
    let mut fleet = Fleet::start(Plan { tools: vec![gated()], ..Plan::default() }).await;
    fleet.submit(&[("launch", json!({})), ("launch", json!({"x": 1}))]).await;
    let reply = fleet.reply().await;
    agree(&fleet, &reply, &["approval_refused", "invalid_arguments"]).await;
    assert_eq!(reply["results"][0]["attempts"], 0);
    fleet.stop().await;
}

#[tokio::test]
async fn calls_expire_at_the_deadline_in_every_queue() {
    let caps = DefaultCaps { tick_ms: 3_600_000, calls_per_tick: 2, ..DefaultCaps::default() };
    let agents = vec!["kelly".into(), "fran".into(), "emma".into()];
    let mut fleet = Fleet::start(Plan { caps, agents, slots: 4, workers: 0, ..Plan::default() }).await;
    let nap = |ms: u64| json!({"id": "c", "name": "sleep", "arguments": {"ms": ms}});
    // No worker takes `ready`, and `lane` exceeds its agent's calls per tick. Both are admitted before they expire.
    let deadline = fleet.in_ms(4_000).await;
    fleet.submit_turn(json!({"turn_id": "ready", "agent": "fran", "deadline": deadline, "calls": [nap(1)]})).await;
    fleet.submit_turn(json!({"turn_id": "lane", "deadline": deadline, "calls": [nap(1), nap(1), nap(1)]})).await;
    let replies = fleet.replies(2).await;
    assert_eq!(outcomes(&replies["ready"]), ["expired"]);
    agree(&fleet, &replies["lane"], &["expired"; 3]).await;
    assert_eq!(replies["lane"]["results"][2]["error"]["code"], "expired");
    fleet.add_worker();
    let deadline = fleet.in_ms(300).await;
    fleet.submit_turn(json!({"turn_id": "queued", "deadline": deadline, "calls": [nap(1)]})).await;
    let deadline = fleet.in_ms(5_000).await;
    let calls = json!([nap(100_000), nap(1)]);
    fleet.submit_turn(json!({"turn_id": "running", "agent": "emma", "deadline": deadline, "calls": calls})).await;
    let replies = fleet.replies(2).await;
    agree(&fleet, &replies["queued"], &["expired"]).await;
    assert_eq!(outcomes(&replies["running"]), ["transient", "expired"], "the first was tried, the second was not");
    fleet.stop().await;
}

#[tokio::test]
async fn a_call_that_waits_for_its_retry_expires_at_the_deadline() {
    // The worker must end before the retry. The retry comes before the deadline, so the call expires in `ready`.
    let retry_delays = tickfleet_model::retry::RetryDelays::new(vec![Duration::from_secs(4)]);
    let mut fleet = Fleet::start(Plan { retry_delays, ..Plan::default() }).await;
    let deadline = fleet.in_ms(8_000).await;
    let calls = json!([
        {"id": "a", "name": "fail", "arguments": {"outcomes": ["transient"]}}, {"id": "b", "name": "echo"},
    ]);
    let turn = fleet.submit_turn(json!({"turn_id": "t", "deadline": deadline, "calls": calls})).await;
    fleet
        .until("it is parked", async |fleet| fleet.unfinished("t").await.is_some_and(|turn| turn.state.is_parked()))
        .await;
    fleet.drain_worker().await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["turn_id"], outcomes(&reply)), (&json!(turn), vec!["expired", "expired"]));
    agree(&fleet, &reply, &["expired"; 2]).await;
    fleet.stop().await;
}

#[tokio::test]
async fn a_canceled_turn_ends_in_every_state() {
    let caps = DefaultCaps { tick_ms: 3_600_000, calls_per_tick: 2, ..DefaultCaps::default() };
    let agents = vec!["kelly".into(), "fran".into()];
    let mut fleet = Fleet::start(Plan { caps, agents, tools: vec![endless()], ..Plan::default() }).await;
    let call = |name: &str, arguments: Value| json!({"id": "c", "name": name, "arguments": arguments});
    let calls = json!([call("endless", json!({})), call("echo", json!({})), call("echo", json!({}))]);
    fleet.submit_turn(json!({"turn_id": "running", "calls": calls})).await;
    fleet.until("it runs", async |fleet| fleet.held().await == 1).await;
    fleet.submit_turn(json!({"turn_id": "queued", "calls": [call("echo", json!({}))]})).await;
    fleet.until("it is queued", async |fleet| fleet.unfinished("queued").await.is_some()).await;
    fleet.cancel_turn("queued").await;
    let reply = fleet.reply().await;
    assert_eq!(reply["turn_id"], "queued");
    agree(&fleet, &reply, &["cancelled"]).await;
    fleet.cancel_turn("running").await;
    let reply = fleet.reply().await;
    assert_eq!(reply["turn_id"], "running");
    agree(&fleet, &reply, &["cancelled"; 3]).await;
    let once = json!({"outcomes": ["hang"]});
    let calls = json!([call("fail_once", once), call("echo", json!({}))]);
    fleet.submit_turn(json!({"turn_id": "once", "agent": "fran", "calls": calls})).await;
    fleet.until_begun("once").await;
    fleet.cancel_turn("once").await;
    let reply = fleet.reply().await;
    agree_for(&reply, &["outcome_unknown", "cancelled"]);
    fleet.stop().await;
}

fn agree_for(reply: &Value, expected: &[&str]) {
    assert_eq!(outcomes(reply), expected, "{reply:#}");
}

fn endless() -> TypedTool {
    TypedTool::new("endless", "Never answers.", Effect::Read, |_, _: Nothing| std::future::pending::<Result<Text, _>>())
}

#[tokio::test]
async fn a_daily_cap_rejection_reports_its_reset_time() {
    let caps = DefaultCaps { tick_ms: 500, max_actions_per_day: 3, ..DefaultCaps::default() };
    let mut fleet = Fleet::start(Plan { caps, ..Plan::default() }).await;
    let calls = || (0..5).map(|_| ("echo", json!({}))).collect::<Vec<_>>();
    fleet.submit(&calls()).await;
    let reply = fleet.reply().await;
    agree(&fleet, &reply, &["ok", "ok", "ok", "daily_cap_reached", "daily_cap_reached"]).await;
    fleet.submit(&calls()[..1]).await;
    let reply = fleet.reply().await;
    agree(&fleet, &reply, &["daily_cap_reached"]).await;
    let error = &reply["results"][0]["error"];
    let resets = error["details"]["resets_at"].as_str().unwrap();
    assert!(resets.ends_with("T00:00:00Z") && error["message"].as_str().unwrap().contains(resets), "{error}");
    assert_eq!(fleet.debited("kelly").await, 3);
    fleet.stop().await;
}

#[tokio::test]
async fn deferred_calls_wait_for_the_next_day_and_can_expire_or_be_cancelled() {
    let caps =
        DefaultCaps { tick_ms: 200, max_actions_per_day: 1, on_day_cap: DayCapAction::Defer, ..DefaultCaps::default() };
    let mut fleet = Fleet::start(Plan { caps, ..Plan::default() }).await;
    let echo = json!([{"id": "c", "name": "echo"}]);
    fleet.submit_turn(json!({"turn_id": "first", "calls": echo})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok"]);
    fleet.submit_turn(json!({"turn_id": "parked", "calls": echo})).await;
    let deadline = fleet.in_ms(700).await;
    fleet.submit_turn(json!({"turn_id": "short", "deadline": deadline, "calls": echo})).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["turn_id"], outcomes(&reply)), (&json!("short"), vec!["expired"]));
    let now_ms = fleet.store.now_ms().await.unwrap();
    let waits_for_tomorrow = async |fleet: &Fleet| {
        let found = fleet.store.turn_view(&TurnName::parse("acme:parked").unwrap()).await.unwrap();
        let TurnView::Live(live) = found else { panic!("{found:?}") };
        let counter = CounterKey::new(limits::DAY, "acme:kelly");
        assert!(matches!(&live.turn.state, State::Throttled { counter: of, .. } if *of == counter), "{live:?}");
        live.throttle_due_ms.is_some_and(|due_ms| due_ms > now_ms && due_ms <= (now_ms / DAY_MS + 1) * DAY_MS)
    };
    fleet.until("the lane is looked at again, at the latest when the day begins", waits_for_tomorrow).await;
    fleet.cancel_turn("parked").await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["turn_id"], outcomes(&reply)), (&json!("parked"), vec!["cancelled"]));
    fleet.stop().await;
}

#[tokio::test]
async fn a_huge_output_is_truncated_and_marked() {
    let mut fleet = Fleet::start(Plan { tools: vec![verbose(200_000)], ..Plan::default() }).await;
    fleet.submit(&[("verbose", json!({}))]).await;
    let reply = fleet.reply().await;
    let audits = agree(&fleet, &reply, &["ok"]).await;
    let output = &reply["results"][0]["output"];
    assert_eq!(output["truncated"], true, "{output}");
    assert!(output.to_string().len() <= 65_536);
    let logged = audits[0]["meta"]["result"].as_str().unwrap();
    assert!(logged.chars().count() <= 1_000, "{}", logged.chars().count());
    fleet.stop().await;
}

#[tokio::test]
async fn the_output_limit_is_configurable_and_shared_by_a_turn() {
    let plan = Plan { tools: vec![verbose(100_000)], output_bytes_max: 256 * 1024, ..Plan::default() };
    let mut fleet = Fleet::start(plan).await;
    let verbose = ("verbose", json!({}));
    fleet.submit(std::slice::from_ref(&verbose)).await;
    let reply = fleet.reply().await;
    agree(&fleet, &reply, &["ok"]).await;
    let output = &reply["results"][0]["output"];
    assert!(output.get("truncated").is_none() && output.to_string().len() > 200_000);
    fleet.submit(&[verbose.clone(), verbose.clone(), verbose.clone(), verbose]).await;
    let reply = fleet.reply().await;
    let results = reply["results"].as_array().unwrap();
    assert!(results.iter().all(|result| result["output"]["truncated"] == true), "{results:?}");
    assert!(results.iter().all(|result| result["output"].to_string().len() <= 128 * 1024));
    fleet.stop().await;
}

#[tokio::test]
async fn dialect_replies_match_their_calls_one_to_one_in_order() {
    let mut fleet = Fleet::start(Plan::default()).await;
    let function = |id: &str, name: &str, arguments: &str| json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}});
    let calls = [function("same", "echo", r#"{"text":"1"}"#), function("same", "nope", "{"), function("x", "echo", "")];
    fleet.submit_turn(json!({"tool_calls": calls})).await;
    let reply = fleet.reply().await;
    agree_for(&reply, &["ok", "unknown_tool", "ok"]);
    let messages = reply["messages"].as_array().unwrap();
    let ids: Vec<&Value> = messages.iter().map(|m| &m["tool_call_id"]).collect();
    assert_eq!(ids, ["same", "same", "x"]);
    assert!(messages.iter().all(|m| m["role"] == "tool" && m["content"].is_string()), "{messages:#?}");
    let block = |id: &str, name: &str| json!({"type": "tool_use", "id": id, "name": name, "input": {}});
    let text = json!({"type": "text", "text": "Let me see."});
    fleet.submit_turn(json!({"content": [block("a", "echo"), text, block("b", "fail"), block("c", "echo")]})).await;
    let reply = fleet.reply().await;
    agree_for(&reply, &["ok", "permanent", "ok"]);
    let [message] = reply["messages"].as_array().unwrap().as_slice() else { panic!("one user message: {reply}") };
    let blocks: Vec<_> = message["content"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| (b["tool_use_id"].as_str().unwrap(), b["is_error"] == true))
        .collect();
    assert_eq!(blocks, [("a", false), ("b", true), ("c", false)]);
    fleet.stop().await;
}
