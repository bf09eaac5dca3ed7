//! Tasks as observers and users see them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_client::tasks::{TaskFilter, TaskState, WaitReason, task_page};
use tickfleet_client::{Client, Session, SessionError, SessionId, TaskEvent};
use tickfleet_config::{LlmDef, TaskHandlerDef};
use tickfleet_model::policy::{TEAM_TOOLS, ToolGrant};
use tickfleet_model::{AgentId, Context, TenantId};
use tickfleet_store::{CancelResult, SendResult, TurnName};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::llm::{ModelReply, ModelRequest, ScriptedModel};

fn llm(system: &str, answer_schema: Option<Value>) -> TaskHandlerDef {
    TaskHandlerDef::Llm(Box::new(LlmDef {
        max_iterations: 8,
        tokens_max: 500,
        result_bytes_max: 2_000,
        context_bytes_max: 20_000,
        repeats_max: 5,
        answer_schema,
        timeout: Duration::from_secs(20),
        ..LlmDef::of_system(system)
    }))
}

fn plan(model: &ScriptedModel) -> Plan {
    let handlers = [("atlas", llm("You are atlas.", None)), ("kelly", llm("You are kelly.", None))];
    Plan {
        agents: ["atlas", "kelly"].map(String::from).into(),
        handlers: handlers.map(|(agent, def)| (AgentId::new(agent).unwrap(), def)).into(),
        models: model.models(),
        policy: |policy| {
            let everyone = || ToolGrant { everyone: true, ..ToolGrant::default() };
            policy.permissions.matrix.extend(TEAM_TOOLS.map(|tool| (tool.to_owned(), everyone())));
        },
        ..Plan::default()
    }
}

fn client(fleet: &Fleet) -> Client {
    Client::over(vec![fleet.store.clone()])
}

fn name(task: &str) -> TurnName {
    TurnName::parse(&format!("acme:{task}")).unwrap()
}

async fn enqueue(fleet: &Fleet, id: &str, agent: &str, description: &str) {
    let task = json!({"task_id": id, "tenant": "acme", "target_agent": agent, "task_description": description, "reply_to": "box"});
    fleet.xadd("tasks", "task", task.to_string().as_bytes()).await;
}

fn result(reply: &Value) -> &Value {
    let [result] = reply["results"].as_array().unwrap().as_slice() else { panic!("one result: {reply}") };
    result
}

async fn asked(model: &ScriptedModel, times: usize) {
    while model.asked() < times {
        // The model does not announce requests, so this polls. The test's own limit bounds the wait.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn delegate(to: &str, wait: bool) -> ModelReply {
    ModelReply::call("delegate_task", json!({"target_agent": to, "task_description": "Do it.", "wait": wait}))
}

#[tokio::test]
async fn a_child_task_returns_its_unused_budget_to_its_parent() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match (asked.system.as_str(), asked.answers()) {
        // Without the budget that children return, the third child would be rejected.
        ("You are atlas.", 0..=4) => delegate("kelly", true),
        ("You are atlas.", _) => ModelReply::words(asked.results()[0]),
        _ => ModelReply::words("done"),
    })
    .await;
    let mut fleet = Fleet::start(plan(&model)).await;
    enqueue(&fleet, "job", "atlas", "Delegate five times.").await;
    let reply = fleet.reply().await;
    let answer = result(&reply)["output"]["answer"].as_str().unwrap();
    assert!(answer.contains("\"outcome\":\"ok\""), "{answer}");
    let delegated = model.seen().iter().filter(|asked| asked.system == "You are kelly.").count();
    assert_eq!(delegated, 5);
    fleet.stop().await;
}

#[tokio::test]
async fn a_watcher_sees_all_events_of_a_task_from_any_position() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        0 => ModelReply::Calls(vec![("echo".into(), json!({"text": "hi"})), ("sleep".into(), json!({"ms": 600}))]),
        _ => ModelReply::words("Said hi."),
    })
    .await;
    let fleet = Fleet::start(plan(&model)).await;
    let mut watch = client(&fleet).watch(&name("job"));
    enqueue(&fleet, "job", "kelly", "Say hi.").await;
    let mut seen = Vec::new();
    while let Some(progress) = watch.next().await.unwrap() {
        seen.push(progress);
    }
    let words = |event: &TaskEvent| match event {
        TaskEvent::Accepted { agent, .. } => format!("accepted {agent}"),
        TaskEvent::Plan { calls, .. } => format!("plan {}", calls.len()),
        TaskEvent::Execute { turn } => format!("execute {turn}"),
        TaskEvent::Result { tool, ok, .. } => format!("{tool} {ok}"),
        TaskEvent::Answer { answer, .. } => answer.clone(),
        other => panic!("{other:?}"),
    };
    let reported: Vec<String> = seen.iter().map(|progress| words(&progress.event)).collect();
    let expected = ["accepted kelly", "plan 2", "execute job.step-1", "echo true", "sleep true", "plan 0", "Said hi."];
    assert_eq!(reported, expected);
    let mut later = client(&fleet).watch_from(&name("job"), 2);
    let mut reported = Vec::new();
    while let Some(progress) = later.next().await.unwrap() {
        reported.push(words(&progress.event));
    }
    assert_eq!(reported, expected[4..]);
    let news = |reported: &[String]| -> Vec<String> {
        let is_news = |word: &&String| !word.starts_with("execute") && !word.starts_with("accepted");
        reported.iter().filter(is_news).cloned().collect()
    };
    let mut whole = client(&fleet).watch(&name("job"));
    let mut places = Vec::new();
    while let Some(progress) = whole.next().await.unwrap() {
        places.push(progress.position);
    }
    assert_eq!(places.len(), expected.len());
    for (at, position) in places.into_iter().enumerate().take(expected.len() - 1) {
        let mut rest = client(&fleet).watch_from(&name("job"), position);
        let mut reported = Vec::new();
        while let Some(progress) = rest.next().await.unwrap() {
            reported.push(words(&progress.event));
        }
        assert_eq!(
            news(&reported),
            news(&expected[at + 1..].iter().map(ToString::to_string).collect::<Vec<_>>()),
            "behind {}",
            expected[at]
        );
    }
    fleet.stop().await;
}

#[tokio::test]
async fn a_watch_of_a_rejected_or_failed_task_ends_with_the_reason() {
    let model = ScriptedModel::start(|_: &ModelRequest| ModelReply::Status(401, 0)).await;
    let fleet = Fleet::start(plan(&model)).await;
    let mut refused = client(&fleet).watch(&name("nobody"));
    let mut failed = client(&fleet).watch(&name("job"));
    let task = json!({"task_id": "nobody", "tenant": "acme", "target_agent": "nobody", "task_description": "x"});
    fleet.xadd("tasks", "task", task.to_string().as_bytes()).await;
    enqueue(&fleet, "job", "kelly", "Fail.").await;
    let Some(progress) = refused.next().await.unwrap() else { panic!("an end") };
    assert!(
        matches!(&progress.event, TaskEvent::Failed { outcome, message } if outcome == "rejected" && message.contains("unknown_agent")),
        "{progress:?}"
    );
    let mut last = None;
    while let Some(progress) = failed.next().await.unwrap() {
        last = Some(progress.event);
    }
    assert!(
        matches!(&last, Some(TaskEvent::Failed { outcome, message }) if outcome == "permanent" && message.contains("401")),
        "{last:?}"
    );
    fleet.stop().await;
}

fn standing(state: TaskState) -> TaskFilter {
    TaskFilter { state: Some(state), limit: 10, ..TaskFilter::default() }
}

/// Also reads a tenant without tasks. This tenant's name comes first.
async fn paged(client: &Client, tenant: &TenantId, filter: &TaskFilter) -> Vec<String> {
    let tenants = [TenantId::new("aaa").unwrap(), tenant.clone()].into();
    let one = TaskFilter { limit: 1, ..filter.clone() };
    let mut found = Vec::new();
    let mut from = None;
    loop {
        let page = task_page(client, &tenants, &one, from.as_ref()).await.unwrap();
        found.extend(page.items.into_iter().map(|task| task.id.to_string()));
        let Some(next) = page.next else { return found };
        from = Some(next.to_string().parse().unwrap());
    }
}

#[tokio::test]
async fn cancelling_a_task_ends_its_turn_and_its_subtasks() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.system.as_str() {
        "You are atlas." => delegate("kelly", true),
        _ => ModelReply::call("sleep", json!({"ms": 20_000})),
    })
    .await;
    let mut fleet = Fleet::start(plan(&model)).await;
    enqueue(&fleet, "job", "atlas", "Have it done.").await;
    asked(&model, 2).await;
    let client = client(&fleet);
    let tenant = TenantId::new("acme").unwrap();
    let story = loop {
        let story = client.task(&name("job")).await.unwrap().unwrap();
        let child = story.children.first();
        if child.is_some_and(|child| child.waits.is_some()) && story.waits.is_some() {
            break story;
        }
        // No event reports that the child has parked, so this polls. The test's own limit bounds the wait.
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let child = story.children[0].summary.id.clone();
    let waits = story.waits.clone().unwrap().reason;
    assert_eq!(waits, WaitReason::Child { turn: "job.step-1".into(), task: child.to_string() });
    assert_eq!(story.rounds[0].calls[0].tool, "delegate_task");
    let waiting = standing(TaskState::Waiting);
    let listed = client.tasks(&tenant, &waiting).await.unwrap();
    assert_eq!(listed.iter().map(|task| task.id.as_str()).collect::<Vec<_>>(), [child.as_str(), "job"]);
    assert_eq!(paged(&client, &tenant, &waiting).await, [child.as_str(), "job"]);

    let cancelled = client.cancel_task(&name("job"), "no longer wanted").await.unwrap();
    assert_eq!(cancelled.result, CancelResult::Ok);
    assert_eq!(cancelled.turns[0].turn.as_str(), "job.step-1");
    assert_eq!(cancelled.children[0].task.as_str(), child.as_str());
    assert_eq!(cancelled.children[0].turns.len(), 1);
    assert_eq!(result(&fleet.reply().await)["outcome"], "cancelled");
    let mut watch = client.watch(&TurnName::task(&tenant, &child));
    let mut last = None;
    while let Some(progress) = watch.next().await.unwrap() {
        last = Some(progress.event);
    }
    assert!(matches!(&last, Some(TaskEvent::Failed { outcome, .. }) if outcome == "cancelled"), "{last:?}");
    let ended = TaskFilter { agent: AgentId::new("kelly").ok(), ..standing(TaskState::Ended) };
    let listed = client.tasks(&tenant, &ended).await.unwrap();
    assert_eq!((listed.len(), listed[0].outcome.as_deref()), (1, Some("cancelled")));
    loop {
        let left = fleet.store.turn_view(&name(&format!("{child}.step-1"))).await.unwrap();
        if !matches!(left, tickfleet_store::TurnView::Live(_)) {
            break;
        }
        // No event reports the end of this turn, so this polls. The test's own limit bounds the wait.
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    fleet.stop().await;
}

#[tokio::test]
async fn an_agent_can_check_and_cancel_only_tasks_that_it_delegated() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.system.as_str() {
        "You are kelly." => ModelReply::call("sleep", json!({"ms": 20_000})),
        _ => ModelReply::words("done"),
    })
    .await;
    let mut fleet = Fleet::start(plan(&model)).await;
    let turn = json!({"agent": "atlas", "calls": [{"name": "delegate_task", "arguments": {"target_agent": "kelly", "task_description": "Sleep."}}]});
    fleet.submit_turn(turn).await;
    let job = result(&fleet.reply().await)["output"]["job_id"].as_str().unwrap().to_owned();
    asked(&model, 1).await;
    let call =
        |agent: &str, tool: &str| json!({"agent": agent, "calls": [{"name": tool, "arguments": {"task_id": job}}]});
    let status = loop {
        fleet.submit_turn(call("atlas", "check_task")).await;
        let reply = fleet.reply().await;
        let status = result(&reply)["output"].clone();
        if status["step"] == "execute" {
            break status;
        }
    };
    assert_eq!((&status["iterations"], &status["agent"]), (&json!(1), &json!("kelly")), "{status}");
    fleet.submit_turn(call("kelly", "cancel_task")).await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["outcome"], "permanent", "{reply}");
    fleet.submit_turn(call("atlas", "cancel_task")).await;
    // The task's reply may arrive before the turn's reply, so this collects both.
    let replies: BTreeMap<String, Value> = fleet.replies(2).await;
    assert_eq!(result(&replies[&job])["outcome"], "cancelled", "{replies:?}");
    let ending = replies.values().find(|reply| reply["turn_id"].is_string()).unwrap();
    assert_eq!(result(ending)["output"]["status"], "ending", "{ending}");
    fleet.stop().await;
}

#[tokio::test]
async fn a_session_keeps_its_history_across_several_messages() {
    let model = ScriptedModel::start(|asked: &ModelRequest| {
        let said = asked.messages.iter().filter_map(|message| message["content"].as_str()).collect::<Vec<_>>();
        ModelReply::words(&format!("heard {}", said.join(" / ")))
    })
    .await;
    let fleet = Fleet::start(plan(&model)).await;
    let tenant = TenantId::new("acme").unwrap();
    let kelly = AgentId::new("kelly").unwrap();
    let id = SessionId::new("talk").unwrap();
    let open =
        |agent: &AgentId| Session::open(&client(&fleet), tenant.clone(), agent.clone(), id.clone(), Context::default());
    let answer = async |session: &Session, text: &str| {
        let mut exchange = session.send(text).await.unwrap();
        loop {
            match exchange.next().await.unwrap().unwrap().event {
                TaskEvent::Answer { answer, .. } => break answer,
                TaskEvent::Failed { message, .. } => panic!("{message}"),
                _ => {}
            }
        }
    };
    assert_eq!(answer(&open(&kelly), "one").await, "heard one");
    assert_eq!(answer(&open(&kelly), "two").await, "heard one / heard one / two");
    let history = open(&kelly).history().await.unwrap();
    assert_eq!(history.len(), 2);
    assert_eq!((history[1].user.as_str(), history[1].agent.as_deref()), ("two", Some("heard one / heard one / two")));
    let other = open(&AgentId::new("atlas").unwrap());
    assert!(matches!(other.send("x").await, Err(SessionError::Others(_))));
    assert!(matches!(open(&kelly).send(" ").await, Err(SessionError::Length { .. })));
    // `ses-talk-9` only looks like the ID of an exchange of the session.
    enqueue(&fleet, "ses-talk-9", "kelly", "three").await;
    let mut watch = client(&fleet).watch(&name("ses-talk-9"));
    while let Some(progress) = watch.next().await.unwrap() {
        if let TaskEvent::Answer { answer, .. } = progress.event {
            assert_eq!(answer, "heard three");
        }
    }
    assert_eq!(open(&kelly).history().await.unwrap().len(), 2);
    fleet.stop().await;
}

#[tokio::test]
async fn an_agent_receives_a_message_once_in_its_next_step() {
    let model = ScriptedModel::start(|asked: &ModelRequest| match asked.answers() {
        0 => ModelReply::call("echo", json!({"text": "x"})),
        _ => ModelReply::words("done"),
    })
    .await;
    let mut fleet = Fleet::start(plan(&model)).await;
    let send = json!({"agent": "atlas", "calls": [
        {"name": "send_mcp_message", "arguments": {"recipient_agent": "kelly", "message_body": "The price is 7."}},
        {"name": "send_mcp_message", "arguments": {"recipient_agent": "nobody", "message_body": "x"}},
        {"name": "send_mcp_message", "arguments": {"recipient_agent": "kelly", "message_body": " "}}]});
    fleet.submit_turn(send).await;
    let reply = fleet.reply().await;
    let outcomes: Vec<&Value> = reply["results"].as_array().unwrap().iter().map(|result| &result["outcome"]).collect();
    assert_eq!(outcomes, ["ok", "permanent", "permanent"], "{reply}");
    enqueue(&fleet, "job", "kelly", "Go.").await;
    fleet.reply().await;
    enqueue(&fleet, "job-2", "kelly", "Go.").await;
    fleet.reply().await;
    let reported = |asked: &ModelRequest| {
        let says = |message: &&Value| message["content"].as_str().is_some_and(|text| text.contains("The price is 7."));
        asked.messages.iter().filter(says).count()
    };
    // The first task shows the message in its first step, and then in its history. The second task does not show it.
    let counts: Vec<usize> = model.seen().iter().map(reported).collect();
    assert_eq!(counts, [1, 1, 0, 0]);
    let first = &model.seen()[0];
    assert!(first.messages.iter().any(|message| message["content"].as_str().unwrap().contains("the agent atlas")));
    let send = json!({"agent": "kelly", "calls": [{"name": "send_mcp_message", "arguments": {"recipient_agent": "atlas", "message_body": "Thanks."}}]});
    fleet.submit_turn(send).await;
    fleet.reply().await;
    let read = |agent: &str| json!({"agent": agent, "calls": [{"name": "read_messages", "arguments": {}}]});
    let mut texts = Vec::new();
    for agent in ["kelly", "atlas", "atlas"] {
        fleet.submit_turn(read(agent)).await;
        let reply = fleet.reply().await;
        texts.push(result(&reply)["output"]["messages"].as_array().unwrap().clone());
    }
    assert_eq!(texts.iter().map(Vec::len).collect::<Vec<_>>(), [0, 1, 0], "{texts:?}");
    assert_eq!((&texts[1][0]["from"], &texts[1][0]["text"]), (&json!("kelly"), &json!("Thanks.")));
    fleet.stop().await;
}

#[tokio::test]
async fn a_repeated_message_is_delivered_once_and_a_full_mailbox_rejects_more() {
    let fleet = Fleet::start(Plan { schedulers: 0, workers: 0, ..Plan::default() }).await;
    let tenant = TenantId::new("acme").unwrap();
    let kelly = AgentId::new("kelly").unwrap();
    let store = &fleet.store;
    let reported = async |text: &str| store.send_message(&tenant, &kelly, text, text).await.unwrap();
    let heard = async |by: &str, count| {
        let heard = store.receive_messages(&tenant, &kelly, by, count).await.unwrap();
        heard.into_iter().map(|heard| heard.text).collect::<Vec<_>>()
    };
    let sent = (reported("one").await, reported("one").await, reported("two").await);
    assert_eq!(sent, (SendResult::Done, SendResult::Already, SendResult::Done));
    assert_eq!(heard("a", 1).await, ["one"]);
    assert_eq!(heard("a", 1).await, ["one"], "the answer may have been lost");
    assert_eq!(heard("b", 9).await, ["two"]);
    assert_eq!(reported("one").await, SendResult::Already, "its call was repeated after it was read");
    assert!(heard("c", 9).await.is_empty());
    for n in 0..tickfleet_model::limits::MESSAGES_UNREAD_MAX {
        assert_eq!(reported(&format!("m{n}")).await, SendResult::Done);
    }
    assert_eq!(reported("one more").await, SendResult::Full);
    fleet.stop().await;
}

#[tokio::test]
async fn an_answer_that_violates_its_schema_is_retried_at_most_twice() {
    let schema = json!({"type": "object", "required": ["guidance_message", "tool_call_audits"], "properties": {
        "guidance_message": {"type": "string"}, "tool_call_audits": {"type": "array"}}});
    let model = ScriptedModel::start(|asked: &ModelRequest| {
        let stubborn = asked.messages[0]["content"].as_str().unwrap().starts_with("never");
        match asked.answers() {
            0 => ModelReply::call("echo", json!({"text": "x"})),
            1 => ModelReply::words("Do this next."),
            _ if stubborn => ModelReply::words("{\"guidance_message\": 7}"),
            _ => ModelReply::words("```json\n{\"guidance_message\": \"Do this next.\"}\n```"),
        }
    })
    .await;
    let handler = llm("You guide.", Some(schema));
    let base = plan(&model);
    let mut fleet = Fleet::start(Plan { handlers: [(AgentId::new("kelly").unwrap(), handler)].into(), ..base }).await;
    enqueue(&fleet, "job", "kelly", "Guide.").await;
    let reply = fleet.reply().await;
    let output = &result(&reply)["output"];
    assert_eq!(
        (&output["output"]["guidance_message"], &output["stopped"]),
        (&json!("Do this next."), &json!("answered")),
        "{reply}"
    );
    let audits = &output["output"]["tool_call_audits"];
    assert_eq!((&audits[0]["tool"], &audits[0]["call"]), (&json!("echo"), &json!("job.step-1/0")), "{reply}");
    assert!(
        model.seen()[0].system.contains("guidance_message") && !model.seen()[0].system.contains("tool_call_audits")
    );
    assert!(model.seen()[2].last, "only the form is asked for again");
    enqueue(&fleet, "stubborn", "kelly", "never").await;
    let reply = fleet.reply().await;
    assert_eq!(result(&reply)["outcome"], "permanent", "{reply}");
    let why = result(&reply)["error"]["message"].as_str().unwrap();
    assert!(why.contains("3 answers") && why.contains("guidance_message"), "{why}");
    fleet.stop().await;
}
