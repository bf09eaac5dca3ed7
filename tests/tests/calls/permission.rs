//! Permission in a fleet: narrowed turns, denials, tools about the fleet, and parallel reads.

use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};
use tickfleet_config::TaskHandlerDef;
use tickfleet_model::policy::ToolGrant;
use tickfleet_model::{AgentId, Effect};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tools::{CallContext, ToolError, TypedTool};
use tokio::sync::Barrier;

fn outcomes(reply: &Value) -> Vec<&str> {
    reply["results"].as_array().unwrap().iter().map(|result| result["outcome"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn allowed_tools_narrow_a_turn_and_never_widen_it() {
    let mut fleet = Fleet::start(Plan {
        policy: |policy| {
            policy.permissions.matrix.remove("fail");
        },
        ..Plan::default()
    })
    .await;
    let calls =
        json!([{"name": "echo"}, {"name": "sleep", "arguments": {"ms": 1}}, {"name": "fail"}, {"name": "nope"}]);
    let turn = fleet.submit_turn(json!({"allowed_tools": ["echo", "fail", "unheard_of"], "calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["turn_id"], turn);
    assert_eq!(outcomes(&reply), ["ok", "denied", "denied", "unknown_tool"]);
    let details = |position: usize| &reply["results"][position]["error"]["details"];
    let narrowed = json!({"allowed_tools": ["echo"], "reason": "narrowed", "rule": "allowed_tools"});
    assert_eq!(details(1), &narrowed);
    let not_granted = json!({"allowed_tools": ["echo"], "reason": "not_granted", "rule": "permissions.fail"});
    assert_eq!(details(2), &not_granted, "a turn never widens what its agent may call");
    assert_eq!(details(3)["allowed_tools"], json!(["echo"]));

    fleet.submit_turn(json!({"allowed_tools": [], "calls": [{"name": "echo"}]})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["denied"], "narrowed to nothing");
    fleet.stop().await;
}

#[tokio::test]
async fn a_denial_names_its_rule() {
    let mut fleet = Fleet::start(Plan {
        disabled: vec!["tool_sleep".into()],
        policy: |policy| {
            let kelly = AgentId::new("kelly").unwrap();
            Arc::make_mut(&mut policy.agents).get_mut(&kelly).unwrap().roles.insert("intern".into());
            let every = ToolGrant { everyone: true, ..ToolGrant::default() };
            let by_name = ToolGrant { deny_agents: [kelly].into(), ..every.clone() };
            let by_role = ToolGrant { deny_roles: ["intern".to_owned()].into(), ..every };
            policy.permissions.matrix.insert("echo".into(), by_name);
            policy.permissions.matrix.insert("fail".into(), by_role);
        },
        ..Plan::default()
    })
    .await;
    fleet.submit(&[("sleep", json!({"ms": 1})), ("echo", json!({})), ("fail", json!({}))]).await;
    let reply = fleet.reply().await;
    let rules: Vec<&Value> = (0..3).map(|at| &reply["results"][at]["error"]["details"]["rule"]).collect();
    assert_eq!(rules, ["permission.disabled_tools", "permissions.echo.deny_agents", "permissions.fail.deny_roles"]);
    fleet.stop().await;
}

#[tokio::test]
async fn list_tools_shows_an_agents_tools_unless_the_agent_is_denied() {
    let mut fleet = Fleet::start(Plan {
        agents: vec!["kelly".into(), "sam".into()],
        policy: |policy| {
            let sam = AgentId::new("sam").unwrap();
            let row = ToolGrant { everyone: true, deny_agents: [sam].into(), ..ToolGrant::default() };
            policy.permissions.matrix.insert("list_tools".into(), row);
            policy.permissions.matrix.remove("delegate_task");
        },
        ..Plan::default()
    })
    .await;
    fleet
        .submit(&[
            ("list_tools", json!({})),
            ("list_tools", json!({"names": ["echo", "delegate_task"], "dialect": "anthropic"})),
        ])
        .await;
    let reply = fleet.reply().await;
    let listed = &reply["results"][0]["output"];
    let names: Vec<&str> = listed["tools"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["check_task", "echo", "fail", "fail_once", "fetch_result", "list_tools", "sleep"]);
    assert_eq!(listed["total"], 7);
    let defined = &reply["results"][1]["output"]["tools"];
    assert_eq!(defined.as_array().unwrap().len(), 1, "what it may not call is not defined either: {defined}");
    assert_eq!((&defined[0]["name"], &defined[0]["input_schema"]["type"]), (&json!("echo"), &json!("object")));

    fleet.submit_turn(json!({"agent": "sam", "calls": [{"name": "list_tools"}]})).await;
    assert_eq!(outcomes(&fleet.reply().await), ["denied"]);
    fleet.submit_turn(json!({"allowed_tools": ["echo", "list_tools"], "calls": [{"name": "list_tools"}]})).await;
    assert_eq!(fleet.reply().await["results"][0]["output"]["total"], 2, "a narrowed turn sees its own tools");
    fleet.stop().await;
}

#[tokio::test]
async fn only_its_delegator_may_check_a_task_and_narrowing_applies_to_it() {
    let runtime = TaskHandlerDef::External { lease: Duration::from_secs(30) };
    let mut fleet = Fleet::start(Plan {
        agents: vec!["kelly".into(), "sam".into(), "eve".into()],
        handlers: [(AgentId::new("sam").unwrap(), runtime)].into(),
        ..Plan::default()
    })
    .await;
    let delegate = json!({"name": "delegate_task", "arguments": {"target_agent": "sam", "task_description": "Count."}});
    fleet.submit_turn(json!({"allowed_tools": ["delegate_task", "echo"], "calls": [delegate]})).await;
    let job = fleet.reply().await["results"][0]["output"]["job_id"].as_str().unwrap().to_owned();
    let ask = json!({"task_id": job});

    fleet.submit(&[("check_task", ask.clone()), ("fetch_result", json!({"id": job}))]).await;
    let reply = fleet.reply().await;
    assert_eq!(reply["results"][0]["output"]["status"], "waiting", "{reply}");
    assert_eq!(outcomes(&reply)[1], "permanent", "there is no result yet");
    let leased = fleet.lease_task("sam", "runtime").await;
    assert_eq!(leased.task["allowed_tools"], json!(["delegate_task", "echo"]));
    fleet.submit(&[("check_task", ask.clone())]).await;
    assert_eq!(fleet.reply().await["results"][0]["output"]["status"], "running");

    let under =
        json!({"agent": "sam", "task_id": job, "calls": [{"name": "echo"}, {"name": "sleep", "arguments": {"ms": 1}}]});
    let turn = fleet.submit_turn(under).await;
    assert_eq!(outcomes(&fleet.reply().await), ["ok", "denied"], "the task's turns are narrowed too");

    let done = leased.message("finish", json!({"tenant": "acme", "output": {"n": 3}}));
    fleet.xadd("tasks", "task", done.to_string().as_bytes()).await;
    let reply = fleet.reply().await;
    assert_eq!((&reply["task_id"], &reply["delegator"]), (&json!(job), &json!("kelly")));

    fleet
        .submit(&[
            ("check_task", ask.clone()),
            ("fetch_result", json!({"id": job})),
            ("fetch_result", json!({"id": turn})),
        ])
        .await;
    let reply = fleet.reply().await;
    let ended = json!({"task_id": job, "status": "ended", "agent": "sam", "outcome": "ok"});
    assert_eq!(reply["results"][0]["output"], ended);
    assert_eq!(reply["results"][1]["output"]["output"], json!({"n": 3}));
    assert_eq!(outcomes(&reply)[2], "permanent", "another agent's turn");

    let curious = json!([{"name": "check_task", "arguments": ask}, {"name": "fetch_result", "arguments": {"id": job}}]);
    fleet.submit_turn(json!({"agent": "eve", "calls": curious})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["permanent", "permanent"]);
    assert!(reply["results"][0]["error"]["message"].as_str().unwrap().starts_with("You have no task"), "{reply}");
    fleet.stop().await;
}

#[derive(Deserialize, JsonSchema)]
struct Meet {
    /// The text to return when all have met.
    word: String,
}

/// A call ends only when `parties` calls run at the same time.
fn meet(parties: usize) -> TypedTool {
    let barrier = Arc::new(Barrier::new(parties));
    TypedTool::new("meet", "Waits for the others.", Effect::Read, move |_: CallContext, args: Meet| {
        let barrier = Arc::clone(&barrier);
        async move {
            barrier.wait().await;
            Ok::<_, ToolError>(args.word)
        }
    })
}

fn flaky() -> TypedTool {
    TypedTool::new("flaky", "Reads on its second try.", Effect::Read, |context: CallContext, args: Meet| async move {
        if context.attempt == 1 { Err(ToolError::Transient("Not yet.".into())) } else { Ok(args.word) }
    })
}

#[tokio::test]
async fn parallel_reads_run_concurrently_and_are_reported_in_order() {
    let mut fleet = Fleet::start(Plan { tools: vec![meet(3), flaky()], ..Plan::default() }).await;
    let meet = |word: &str| json!({"name": "meet", "arguments": {"word": word}});
    let once = json!({"name": "fail_once", "arguments": {"outcomes": ["ok"]}});
    let calls = json!([meet("a"), meet("b"), meet("c"), once, meet("d"), meet("e"), meet("f")]);
    fleet.submit_turn(json!({"parallel_reads": true, "calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok"; 7], "three of them met, before the `once` call and after it: {reply}");
    let words: Vec<&Value> = [0, 1, 2, 4, 5, 6].iter().map(|at| &reply["results"][*at]["output"]).collect();
    assert_eq!(words, ["a", "b", "c", "d", "e", "f"]);

    let flaky = json!({"name": "flaky", "arguments": {"word": "2"}});
    let calls =
        json!([{"name": "echo", "arguments": {"text": "1"}}, flaky, {"name": "echo", "arguments": {"text": "3"}}]);
    fleet.submit_turn(json!({"parallel_reads": true, "calls": calls})).await;
    let reply = fleet.reply().await;
    assert_eq!(outcomes(&reply), ["ok"; 3]);
    assert_eq!((&reply["results"][1]["attempts"], &reply["results"][1]["output"]), (&json!(2), &json!("2")));
    assert_eq!(reply["results"][2]["output"]["text"], "3");
    fleet.stop().await;
}

#[tokio::test]
async fn an_agent_gets_its_selected_tool_version_under_one_name() {
    let find = |effect: &str, needs: &str| json!({"description": effect, "effect": effect, "input_schema": {"type": "object", "required": [needs]}});
    let declared = json!({"tools": {"find": find("read", "old"), "find@2": find("read", "new")}});
    let plan = Plan {
        agents: vec!["kelly".into(), "sam".into(), "eve".into()],
        declared: serde_json::from_value(declared).unwrap(),
        policy: |policy| {
            let every = ToolGrant { everyone: true, ..ToolGrant::default() };
            policy.permissions.matrix.insert("find".into(), every);
            for (agent, selector) in [("sam", "1"), ("eve", ">=3")] {
                let agent = Arc::make_mut(&mut policy.agents).get_mut(&AgentId::new(agent).unwrap()).unwrap();
                agent.tool_versions.insert("find".into(), selector.into());
            }
        },
        ..Plan::default()
    };
    let mut fleet = Fleet::start(plan).await;
    for (agent, missing, id) in [("kelly", "'new'", "tool_find@2"), ("sam", "'old'", "tool_find")] {
        let calls = json!([{"name": "find"}, {"name": "list_tools", "arguments": {"names": ["find"]}}]);
        fleet.submit_turn(json!({"agent": agent, "tool_call_audits": true, "calls": calls})).await;
        let reply = fleet.reply().await;
        let message = reply["results"][0]["error"]["message"].as_str().unwrap();
        assert!(message.contains(missing), "{agent}: {message}");
        let audit = &reply["tool_call_audits"][0];
        assert_eq!((&audit["entity_id"], &audit["meta"]["tool_id"]), (&json!("find"), &json!(id)));
        let shown = &reply["results"][1]["output"]["tools"];
        assert_eq!((shown.as_array().unwrap().len(), &shown[0]["name"]), (1, &json!("find")));
    }
    fleet.submit_turn(json!({"agent": "eve", "calls": [{"name": "find"}]})).await;
    let reply = fleet.reply().await;
    let details = &reply["results"][0]["error"]["details"];
    assert_eq!((&details["reason"], &details["rule"]), (&json!("no_version"), &json!("agents.eve.tool_versions.find")));
    fleet.stop().await;
}

#[tokio::test]
async fn the_tools_key_of_an_agent_leads_to_its_tool_list() {
    let fleet = Fleet::start(Plan {
        agents: vec!["kelly".into(), "sam".into()],
        policy: |policy| {
            policy.permissions.matrix.remove("sleep");
            let row = ToolGrant { agents: [AgentId::new("sam").unwrap()].into(), ..ToolGrant::default() };
            policy.permissions.matrix.insert("fail".into(), row);
        },
        ..Plan::default()
    })
    .await;
    fleet.until("the lists", async |fleet| fleet.ask::<u64>("EXISTS", "tools", &[]).await == 1).await;
    // The record is text: three fields and a schema version, directly followed by JSON.
    let record = async |key: &str| -> Value {
        let text: String = fleet.ask("GET", key, &[]).await;
        let content = text.splitn(4, ' ').nth(3).unwrap();
        serde_json::from_str(content.strip_prefix('1').unwrap()).unwrap()
    };
    let names = async |agent: &str| -> Vec<String> {
        let digest = record(&format!("tools:acme:{agent}")).await["d"].as_str().unwrap().to_owned();
        let list = record(&format!("tools:=:{digest}")).await;
        assert!(list["text"].as_str().is_some_and(|text| text.contains("list_tools")), "{list}");
        list["tools"].as_array().unwrap().iter().map(|tool| tool["name"].as_str().unwrap().to_owned()).collect()
    };
    let kelly = ["check_task", "delegate_task", "echo", "fail_once", "fetch_result", "list_tools"];
    assert_eq!(names("kelly").await, kelly);
    assert!(names("sam").await.contains(&"fail".to_owned()));
    let ttl: i64 = fleet.ask("PTTL", "tools:acme:kelly", &[]).await;
    assert!(ttl > 0 && ttl <= 1_800_000, "{ttl}");
    fleet.stop().await;
}
