//! All processes die at each step of a task of two agents. New processes must reach the same end.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tickfleet_config::{LlmDef, TaskHandlerDef};
use tickfleet_model::day::{day_bounds, zone};
use tickfleet_model::limit::{LimitBound, LimitKey, LimitMatch, LimitMode, LimitWindow, OnReach};
use tickfleet_model::policy::ToolGrant;
use tickfleet_model::{AgentId, Effect, Limit, Policy, SessionName, TenantId};
use tickfleet_store::{Side, StoreOptions};
use tickfleet_tests::fleet::{Fleet, Plan};
use tickfleet_tests::llm::{ModelReply, ModelRequest, ScriptedModel};
use tickfleet_tests::tools::Post;
use tickfleet_tools::{ToolError, TypedTool};

use super::{lease_ms, places, steps};

/// Two requests of each agent, if no process dies.
const ASKED: usize = 4;
const TASK: &str = "ses-news-1";
const ANSWER: &str = "Kelly has seen to it.";
const MESSAGE: &str = "Be kind to our readers.";

fn llm(system: &str) -> TaskHandlerDef {
    TaskHandlerDef::Llm(Box::new(LlmDef {
        max_iterations: 6,
        tokens_max: 500,
        result_bytes_max: 2_000,
        context_bytes_max: 20_000,
        timeout: Duration::from_secs(20),
        ..LlmDef::of_system(system)
    }))
}

fn post(count: &Arc<AtomicUsize>) -> TypedTool {
    let count = Arc::clone(count);
    TypedTool::new("post", "Posts.", Effect::Once, move |_, args: Post| {
        let count = Arc::clone(&count);
        async move {
            count.fetch_add(1, Ordering::SeqCst);
            Ok::<_, ToolError>(json!({"posted": args.content}))
        }
    })
}

/// Each of kelly's requests must contain the message exactly once. `confused` counts the other requests.
async fn model(confused: &Arc<AtomicUsize>) -> ScriptedModel {
    let confused = Arc::clone(confused);
    ScriptedModel::start(move |asked: &ModelRequest| {
        if asked.system == "You are atlas." {
            let work = json!({"target_agent": "kelly", "task_description": "Post the news.", "wait": true});
            let words = json!({"recipient_agent": "kelly", "message_body": MESSAGE});
            return match asked.answers() {
                0 => ModelReply::Calls(vec![("send_mcp_message".into(), words), ("delegate_task".into(), work)]),
                _ => ModelReply::words(ANSWER),
            };
        }
        let is_message = |message: &&Value| message["content"].as_str().is_some_and(|text| text.contains(MESSAGE));
        if asked.messages.iter().filter(is_message).count() != 1 {
            confused.fetch_add(1, Ordering::SeqCst);
        }
        match asked.answers() {
            0 => ModelReply::call("post", json!({"content": "News"})),
            _ => ModelReply::words("Seen to."),
        }
    })
    .await
}

fn governed(policy: &mut Policy) {
    let everyone = ToolGrant { everyone: true, ..ToolGrant::default() };
    policy.permissions.matrix.insert("send_mcp_message".into(), everyone);
    policy.limits = Arc::new(vec![Limit {
        name: "tokens".into(),
        matches: LimitMatch::default(),
        per: [LimitKey::Tenant].into(),
        bound: LimitBound::Tokens(1_000_000),
        every: LimitWindow::Day,
        on_reach: OnReach::Wait,
        mode: LimitMode::Enforce,
        keys_max: 1,
    }]);
}

fn plan(model: &ScriptedModel, posts: &Arc<AtomicUsize>, lease_ms: i64) -> Plan {
    let handlers = [("atlas", llm("You are atlas.")), ("kelly", llm("You are kelly."))];
    Plan {
        schedulers: 0,
        workers: 0,
        agents: ["atlas", "kelly"].map(String::from).into(),
        handlers: handlers.map(|(agent, def)| (AgentId::new(agent).unwrap(), def)).into(),
        models: model.models(),
        tools: vec![post(posts)],
        policy: governed,
        store: StoreOptions { lease_ms, ..StoreOptions::default() },
        ..Plan::default()
    }
}

#[derive(Debug)]
struct TaskRun {
    commits: usize,
    reply: Value,
    posts: usize,
    asked: usize,
    confused: usize,
    counted: u64,
    said: Option<String>,
    killed: bool,
}

async fn play(kill_after: usize) -> TaskRun {
    let posts = Arc::new(AtomicUsize::new(0));
    let confused = Arc::new(AtomicUsize::new(0));
    let model = model(&confused).await;
    let mut fleet = Fleet::start(plan(&model, &posts, lease_ms(kill_after))).await;
    let tenant = TenantId::new("acme").unwrap();
    let atlas = AgentId::new("atlas").unwrap();
    let session = SessionName::new("news").unwrap();
    let kept = json!({"task": TASK, "text": "Have the news posted."}).to_string();
    fleet.store.add_message(&tenant, &session, &atlas, 1, Side::User, &kept).await.unwrap();
    let submit = async |fleet: &Fleet| {
        let task = json!({"task_id": TASK, "tenant": "acme", "target_agent": "atlas",
            "task_description": "Have the news posted.", "reply_to": "box"});
        fleet.xadd("tasks", "task", task.to_string().as_bytes()).await;
    };
    let super::DyingRun { commits, mut replies, killed } = super::play(&mut fleet, 1, kill_after, submit).await;
    let asked = model.asked();
    let posts = posts.load(Ordering::SeqCst);
    let session = fleet.store.session(&tenant, &session).await.unwrap();
    let said = session.exchanges.into_iter().next().and_then(|(_, _, agent)| agent);
    let (today_ms, _) = day_bounds(fleet.store.now_ms().await.unwrap(), zone("UTC").unwrap());
    let counted = fleet.store.usage(&tenant, &[today_ms]).await.unwrap()[0].total.requests;
    let confused = confused.load(Ordering::SeqCst);
    TaskRun { commits, reply: replies.remove(0), posts, asked, confused, counted, said, killed }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_of_two_agents_reaches_the_same_end_after_a_kill_at_any_step() {
    let whole = play(usize::MAX).await;
    assert_eq!((whole.posts, whole.asked, whole.killed), (1, ASKED, false), "{whole:?}");
    let mut unknown = BTreeMap::new();
    for kill_after in places(whole.commits, steps(10)) {
        let played = play(kill_after).await;
        let [result] = played.reply["results"].as_array().unwrap().as_slice() else { panic!("{played:?}") };
        assert_eq!(result["outcome"], "ok", "killed after {kill_after}: {played:?}");
        assert_eq!(result["output"]["answer"], ANSWER, "killed after {kill_after}: {played:?}");
        assert_eq!(played.said.as_deref(), Some(ANSWER), "killed after {kill_after}: {played:?}");
        assert_eq!(played.confused, 0, "killed after {kill_after}, a message was lost or came twice: {played:?}");
        assert_eq!(played.counted, ASKED as u64, "killed after {kill_after}, use is not counted once: {played:?}");
        assert!(played.posts <= 1, "killed after {kill_after}, it was posted twice: {played:?}");
        // One response can be pending when all processes die, so one request may be repeated.
        assert!(played.asked <= ASKED + 1, "killed after {kill_after}, asked too often: {played:?}");
        if played.posts == 0 {
            unknown.insert(kill_after, played);
        }
    }
    // A kill between the begin of the post and its request loses the post. Only few steps lie between them.
    assert!(unknown.len() <= 2, "it was not posted at all: {unknown:?}");
}
