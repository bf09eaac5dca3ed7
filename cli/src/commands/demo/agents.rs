//! The second act. A service gives a task to `atlas`, and three agents with a model complete the task. Then the service
//! gives `atlas` a second task, and the worker is killed after kelly's post is published.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow};
use serde::Serialize;
use tickfleet_client::{Client, Reply, private_inbox};
use tickfleet_config::Environment;
use tickfleet_model::{AgentId, InboxName, Outcome, Priority, Task, TaskGrant, TaskId, limits};
use tickfleet_ops::shutdown::Shutdown;
use tickfleet_tools_knowledge::documents::{self, FileFormat};
use tickfleet_tools_knowledge::import::Import;
use tokio::process::{Child, Command};

use super::day::tenant;
use super::model::{Model, ModelOutput};
use super::stand_in::StandIn;
use crate::failure::Failure;
use crate::fleet::{self, ProbeAddress, Roles};
use crate::output::{Output, StatusColor};
use crate::setup::Setup;

/// The longest wait for an answer. The lease of the killed worker must end first, so the wait includes this lease.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time between two checks of the ledger. When the ledger contains the post, the worker is killed.
const LOOK_EVERY: Duration = Duration::from_millis(5);
const POSTS: [&str; 2] =
    ["Argue in one place: research boards are shared now.", "Shared boards, second day: now with tags."];

/// The content of the demo's knowledge base.
const BOARDS: &str = include_str!("boards.md");

#[derive(Debug, Serialize)]
pub(super) struct Agents {
    pub(super) rounds: Vec<Round>,
}

/// One task for `atlas`.
#[derive(Debug, Serialize)]
pub(super) struct Round {
    pub(super) answer: String,
    pub(super) outcome: &'static str,
    /// Number of requests to the model in the round.
    pub(super) asked: usize,
    pub(super) posted: usize,
    pub(super) killed: bool,
}

impl Agents {
    pub(super) fn broken(&self) -> Vec<String> {
        let mut broken = Vec::new();
        for (round, number) in self.rounds.iter().zip(1..) {
            if round.outcome != Outcome::Ok.as_str() {
                broken.push(format!("atlas' task {number} ended as {}", round.outcome));
            }
            if round.posted != 1 {
                broken.push(format!("the post of atlas' task {number} was published {} times", round.posted));
            }
        }
        broken
    }
}

/// Plays the act on the fleet of `setup`, with workers in separate processes.
///
/// # Errors
/// The fleet cannot be started, or no answer arrives.
pub(super) async fn play(
    setup: &Setup,
    dir: &Path,
    (stand_in, model): (&StandIn, &Model),
    output: &Output,
) -> Result<Agents, Failure> {
    let shutdown = Shutdown::on_signals().map_err(Failure::failed)?;
    let probes = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
    let fleet = fleet::start(setup, Roles::SCHEDULER, ProbeAddress::On(probes), shutdown.clone()).await?;
    if !output.json {
        output.print(&opening(output))?;
    }
    let mut running = std::pin::pin!(fleet.wait());
    let played = tokio::select! {
        played = rounds(setup, dir, stand_in, model, output) => played,
        ended = &mut running => {
            ended?;
            return Err(Failure::failed(anyhow!("stopped before the agents had answered")));
        }
    };
    shutdown.drain();
    running.await?;
    played
}

async fn rounds(
    setup: &Setup,
    dir: &Path,
    stand_in: &StandIn,
    model: &Model,
    output: &Output,
) -> Result<Agents, Failure> {
    let environment = &setup.sources().environment;
    let client = setup.client().await?;
    learn(&client).await?;
    let mut rounds = Vec::new();
    let mut worker = worker(environment, dir)?;
    for (post, kills) in POSTS.into_iter().zip([false, true]) {
        let from = model.said(0).len();
        let inbox = private_inbox("agents");
        client.delegate(task(post, &inbox)?).await?;
        let reply = answer(&client, &inbox);
        let reply = if kills {
            let killed = async {
                while stand_in.ledger().times(post) == 0 {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
                // Tokio sends SIGKILL, so the worker cannot shut down cleanly.
                worker.kill().await.context("the worker cannot be killed")?;
                self::worker(environment, dir)
            };
            let (reply, another) = tokio::try_join!(reply, async { killed.await.map_err(Failure::failed) })?;
            worker = another;
            reply
        } else {
            reply.await?
        };
        let said = model.said(from);
        let round = round(&reply, &said, stand_in.ledger().times(post), kills)?;
        if !output.json {
            output.print(&told(&round, &said, output))?;
        }
        rounds.push(round);
    }
    drop(worker.kill().await);
    Ok(Agents { rounds })
}

/// Imports the document that `archy` searches.
async fn learn(client: &Client) -> Result<(), Failure> {
    let tenant = tenant()?;
    let mut import = Import::begin(client.store(&tenant), &tenant, None).await?;
    for draft in documents::read("boards.md", FileFormat::Markdown, BOARDS.as_bytes(), "product") {
        let draft = draft.map_err(|problem| anyhow!("the demo's own document: {problem:?}"))?;
        import.keep(draft).await?;
    }
    Ok(())
}

/// Starts a worker process with only the demo's environment and configuration.
fn worker(environment: &Environment, dir: &Path) -> anyhow::Result<Child> {
    let program = std::env::current_exe().context("cannot find the program's own file")?;
    let mut command = Command::new(program);
    command.env_clear().envs(environment.iter()).env("TICKFLEET_HTTP_ADDRESS", "127.0.0.1:0");
    command.env("TICKFLEET_LOG_LEVEL", "error").arg("worker").arg("--config").arg(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    command.spawn().context("a worker cannot be started")
}

fn task(post: &str, inbox: &InboxName) -> anyhow::Result<Task> {
    Ok(Task {
        id: Some(TaskId::new(private_inbox("job").as_str())?),
        tenant: tenant()?,
        target: AgentId::new("atlas")?,
        delegator: None,
        description: format!("Find out what people ask, then have this published: {post}"),
        input: None,
        priority: Priority::default(),
        deadline_ms: None,
        reply_to: Some(inbox.clone()),
        parent: None,
        grant: TaskGrant { budget: limits::TASK_BUDGET_DEFAULT, ..TaskGrant::default() },
        context: tickfleet_model::Context::default(),
    })
}

/// Waits for the reply to the task of `atlas`. Skips replies to tasks that `atlas` delegates, which the inbox also
/// receives.
async fn answer(client: &Client, inbox: &InboxName) -> Result<Reply, Failure> {
    let mut replies = client.replies(&tenant()?, inbox);
    loop {
        let Some(reply) = replies.next(PATIENCE).await? else {
            return Err(Failure::failed(anyhow!("atlas did not respond within {} s", PATIENCE.as_secs())));
        };
        if reply.delegator.is_none() {
            replies.forget().await?;
            return Ok(reply);
        }
    }
}

fn round(reply: &Reply, said: &[ModelOutput], posted: usize, killed: bool) -> Result<Round, Failure> {
    let result = reply.results.first().ok_or_else(|| Failure::failed(anyhow!("a task without a result")))?;
    let output = result.output.as_ref().and_then(|json| serde_json::from_str::<serde_json::Value>(json.get()).ok());
    let words = output.as_ref().and_then(|output| output["answer"].as_str());
    let error = result.error.as_ref().map(|error| error.message.as_str());
    let answer = words.or(error).unwrap_or_default().to_owned();
    Ok(Round { answer, outcome: result.outcome.as_str(), asked: said.len(), posted, killed })
}

fn opening(output: &Output) -> String {
    let title = "Second act: a service gives atlas a task, and a model runs the agents";
    format!(
        "\n{}\n\nThe workers are now separate processes. The model is scripted: it answers as an OpenAI-like server \
         on a\nport of this machine. What it says:\n",
        output.paint(StatusColor::Strong, title)
    )
}

fn told(round: &Round, said: &[ModelOutput], output: &Output) -> String {
    let mut text = String::new();
    for ModelOutput { agent, what } in said {
        text.push_str(&format!("  {agent:6} {what}\n"));
    }
    let killed =
        if round.killed { "The worker was killed after publishing the post; another one took over. " } else { "" };
    let posted = format!("Published {} time{}.", round.posted, if round.posted == 1 { "" } else { "s" });
    let color = if round.posted == 1 { StatusColor::Good } else { StatusColor::Bad };
    text.push_str(&format!("{killed}Atlas' task: {}. {}\n", round.outcome, output.paint(color, &posted)));
    text
}
