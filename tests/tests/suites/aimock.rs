//! Agents on npm's `@copilotkit/aimock`, another vendor's stub of model providers.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};
use tickfleet_config::{LlmDef, ModelApi, ModelDef, Prices, ProviderDef, TaskHandlerDef};
use tickfleet_model::{AgentId, Effect};
use tickfleet_tests::fetched::npm::Node;
use tickfleet_tests::fetched::target_dir;
use tickfleet_tests::fleet::{Fleet, PATIENCE, Plan};
use tickfleet_tests::tools::{Post, Posted};
use tickfleet_tools::{ToolError, TypedTool};

const PACKAGE: &str = "@copilotkit/aimock@1.43.0";
const SKIP_VARIABLE: &str = "TICKFLEET_SKIP_AIMOCK";
/// The agent's name, the API, and the prefix of the API's paths.
const FORMS: [(&str, ModelApi, &str); 4] = [
    ("chat", ModelApi::OpenAi, "/v1"),
    ("responses", ModelApi::OpenAiResponses, "/v1"),
    ("claude", ModelApi::Anthropic, ""),
    ("gemini", ModelApi::Gemini, ""),
];
const TASKS: usize = 15;

struct Aimock {
    child: Child,
    url: String,
    _fixtures: tempfile::TempDir,
}

impl Drop for Aimock {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Aimock {
    /// `None` if the test is skipped.
    async fn start(tasks: &[String], more: &[&str]) -> Option<Self> {
        let (node, script) = installed().unwrap()?;
        let fixtures = tempfile::tempdir().unwrap();
        fs::write(fixtures.path().join("tasks.json"), fixtures_for(tasks).to_string()).unwrap();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port().to_string();
        drop(listener);
        let mut command = Command::new(node.node);
        command.arg(script).args(["--port", &port, "--strict", "--log-level", "silent", "--fixtures"]);
        command.arg(fixtures.path()).args(more).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mock = Self { child, url: format!("http://127.0.0.1:{port}"), _fixtures: fixtures };
        let until = tokio::time::Instant::now() + PATIENCE;
        while tokio::net::TcpStream::connect(("127.0.0.1", port.parse::<u16>().unwrap())).await.is_err() {
            assert!(tokio::time::Instant::now() < until, "it does not listen");
            // The stub does not announce that it listens, so this polls.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Some(mock)
    }

    async fn fleet(&self, posted: &Arc<Mutex<Vec<String>>>) -> Fleet {
        let model = |(name, api, path): (&str, ModelApi, &str)| {
            let provider = ProviderDef {
                api,
                model: "gpt-4o".into(),
                base_url: Some(format!("{}{path}", self.url)),
                key: None,
                function_calling: true,
                timeout: Duration::from_secs(20),
                allow_private: ["127.0.0.1".to_owned()].into(),
            };
            (name.to_owned(), ModelDef { provider: Some(provider), prices: Prices::default() })
        };
        let agent = |(name, _, _): (&str, ModelApi, &str)| {
            let def = LlmDef {
                models: vec![name.to_owned()],
                max_iterations: 6,
                tokens_max: 500,
                result_bytes_max: 2_000,
                context_bytes_max: 20_000,
                timeout: Duration::from_secs(60),
                ..LlmDef::of_system("You post.")
            };
            (AgentId::new(name).unwrap(), TaskHandlerDef::Llm(Box::new(def)))
        };
        Fleet::start(Plan {
            agents: FORMS.iter().map(|(name, ..)| (*name).to_owned()).collect(),
            handlers: FORMS.into_iter().map(agent).collect(),
            models: FORMS.into_iter().map(model).collect(),
            tools: vec![post(posted)],
            ..Plan::default()
        })
        .await
    }
}

/// `None` if [`SKIP_VARIABLE`] is `1`.
#[allow(clippy::disallowed_methods, reason = "a knob of the tests, documented beside them")]
fn installed() -> Result<Option<(Node, PathBuf)>> {
    if env::var(SKIP_VARIABLE).is_ok_and(|value| value == "1") {
        eprintln!("{SKIP_VARIABLE}=1: not running against {PACKAGE}");
        return Ok(None);
    }
    let dir = target_dir().join("aimock");
    fs::create_dir_all(&dir).with_context(|| format!("creating {}", dir.display()))?;
    // The system releases the lock even if this process dies.
    let lock = File::create(dir.join("lock"))?;
    lock.lock()?;
    let node = Node::find(SKIP_VARIABLE)?;
    let mark = dir.join("installed");
    if !fs::read_to_string(&mark).is_ok_and(|have| have == PACKAGE) {
        let hint = format!("This test needs {PACKAGE} through npm, once; {SKIP_VARIABLE}=1 does without.");
        node.install(&dir, &[PACKAGE], &hint)?;
        fs::write(&mark, PACKAGE)?;
    }
    Ok(Some((node, dir.join("node_modules/@copilotkit/aimock/dist/cli.js"))))
}

fn fixtures_for(tasks: &[String]) -> Value {
    let call = |task: &String| {
        json!({"match": {"userMessage": task, "hasToolResult": false},
            "response": {"toolCalls": [{"name": "post", "arguments": json!({"content": task}).to_string()}]}})
    };
    let words = |task: &String| json!({"match": {"userMessage": task, "hasToolResult": true}, "response": {"content": format!("{task} is posted.")}});
    let fixtures: Vec<Value> = tasks.iter().flat_map(|task| [call(task), words(task)]).collect();
    json!({ "fixtures": fixtures })
}

fn post(posted: &Arc<Mutex<Vec<String>>>) -> TypedTool {
    let posted = Arc::clone(posted);
    TypedTool::new("post", "Posts.", Effect::Once, move |_, args: Post| {
        let posted = Arc::clone(&posted);
        async move {
            let mut posted = posted.lock().unwrap();
            posted.push(args.content);
            Ok::<_, ToolError>(Posted { number: posted.len() })
        }
    })
}

/// The prefix `<agent>-` of a task names the agent.
async fn carried_out(fleet: &mut Fleet, tasks: &[String]) -> BTreeMap<String, Value> {
    for task in tasks {
        let (agent, _) = task.split_once('-').unwrap();
        let message = json!({"task_id": task, "tenant": "acme", "target_agent": agent, "reply_to": "box",
            "task_description": task});
        fleet.xadd("tasks", "task", message.to_string().as_bytes()).await;
    }
    fleet.replies(tasks.len()).await
}

fn tasks(of_each: usize) -> Vec<String> {
    let of = |(name, ..): &(&str, ModelApi, &str)| (0..of_each).map(|n| format!("{name}-{n:03}")).collect::<Vec<_>>();
    FORMS.iter().flat_map(of).collect()
}

#[tokio::test]
async fn agents_work_with_a_third_party_model_stub_in_all_four_formats() {
    let tasks = tasks(1);
    let Some(mock) = Aimock::start(&tasks, &[]).await else { return };
    let posted = Arc::default();
    let mut fleet = mock.fleet(&posted).await;
    for (task, reply) in carried_out(&mut fleet, &tasks).await {
        let output = &reply["results"][0]["output"];
        assert_eq!(output["answer"], format!("{task} is posted."), "{reply}");
        assert_eq!(output["iterations"], 2, "{reply}");
        assert!(output["usage"]["input_tokens"].as_u64().is_some_and(|tokens| tokens > 0), "{reply}");
    }
    let mut posted = posted.lock().unwrap().clone();
    posted.sort();
    let mut expected = tasks;
    expected.sort();
    assert_eq!(posted, expected);
    fleet.stop().await;
}

#[tokio::test]
async fn provider_errors_cause_retries_but_never_a_duplicate_post() {
    let tasks = tasks(TASKS);
    // Five failures in a row would open the provider's circuit breaker for half a minute. At these rates, this is rare.
    let kinds = ["ratelimit", "malformed", "disconnect", "drop"].map(|kind| [format!("--chaos-{kind}"), "0.05".into()]);
    let rates: Vec<&str> = kinds.iter().flatten().map(String::as_str).collect();
    let Some(mock) = Aimock::start(&tasks, &rates).await else { return };
    let posted = Arc::default();
    let mut fleet = mock.fleet(&posted).await;
    let replies = carried_out(&mut fleet, &tasks).await;
    let answered: BTreeSet<&String> = replies
        .iter()
        .filter(|(task, reply)| reply["results"][0]["output"]["answer"] == format!("{task} is posted."))
        .map(|(task, _)| task)
        .collect();
    let posted = posted.lock().unwrap().clone();
    let reported: BTreeSet<&String> = posted.iter().collect();
    assert_eq!(posted.len(), reported.len(), "something was posted twice: {posted:?}");
    for (task, reply) in &replies {
        let result = &reply["results"][0];
        if answered.contains(task) {
            assert!(reported.contains(task), "{task} was answered as posted");
        } else {
            // Four failed attempts of one step fail the task.
            assert_eq!(result["outcome"], "transient", "{reply}");
        }
    }
    let repeated = replies.values().filter(|reply| reply["results"][0]["attempts"].as_u64() > Some(1)).count();
    eprintln!("{} tasks: {} answered, {repeated} after failed requests", tasks.len(), answered.len());
    assert!(repeated > 0 && answered.len() > tasks.len() / 2, "{repeated} repeated, {} answered", answered.len());
    fleet.stop().await;
}
