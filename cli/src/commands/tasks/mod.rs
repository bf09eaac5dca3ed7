//! `tickfleet tasks`: lists tasks, shows the history of a task, or cancels a task. [`text`] formats the output.

pub(crate) mod text;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use tickfleet_client::Client;
use tickfleet_client::end_many::turn_exists;
use tickfleet_client::tasks::{TaskCursor, TaskFilter, TaskState, TaskSummary, task_page};
use tickfleet_client::verbs::FilteredNames;
use tickfleet_model::{AgentId, Outcome, TenantId, TurnId};
use tickfleet_store::TurnName;

use crate::args::word_of;
use crate::commands::limits::reason;
use crate::commands::operate::audit_note::age;
use crate::commands::operate::parse_turn_name;
use crate::failure::Failure;
use crate::output::time_format::{clock, from_now};
use crate::output::{Output, StatusColor, lines, short, table};
use crate::setup::Setup;

const LISTED: u16 = 50;
const SHORT_CHARS: usize = 48;

/// List tasks, show the history of a task, or cancel it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet tasks list --tenant demo --state waiting
  tickfleet tasks list --state ended --outcome permanent --limit 100
  tickfleet tasks show demo:d-1f0c…            its steps, calls, waits and subtasks
  tickfleet tasks cancel demo d-1f0c… --reason 'the user left'")]
pub(crate) struct Tasks {
    #[command(subcommand)]
    command: TasksCommand,
}

#[derive(Debug, Subcommand)]
enum TasksCommand {
    /// List tasks by tenant, the newest first.
    List(ListArgs),
    /// Show the history of a task and its subtasks.
    Show(TaskArgs),
    /// Cancel a task, its running turn and its subtasks.
    Cancel(CancelArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only tasks of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only tasks of this agent.
    #[arg(long)]
    agent: Option<AgentId>,
    /// Only tasks in this state.
    #[arg(long, value_parser = word_of::<TaskState>(&["waiting", "running", "ended"]))]
    state: Option<TaskState>,
    /// Only tasks with this outcome: ok, permanent, cancelled …
    #[arg(long, value_parser = outcome)]
    outcome: Option<Outcome>,
    /// Only tasks that were accepted at least this long ago, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = age)]
    older_than: Option<Duration>,
    /// Tasks to list, 1 to 500.
    #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u16).range(1..=500))]
    limit: u16,
    /// Position of the next page, as the previous page prints it.
    #[arg(long, value_name = "PLACE")]
    from: Option<TaskCursor>,
}

fn outcome(text: &str) -> Result<Outcome, String> {
    let words = || Outcome::ALL.map(Outcome::as_str);
    let known = Outcome::parse(text);
    known.ok_or_else(|| format!("expected one of {}", words().join(", ")))
}

#[derive(Debug, Args)]
struct TaskArgs {
    /// The tenant, or tenant:id.
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// Id of the task.
    #[arg(value_name = "ID")]
    id: Option<TurnId>,
}

#[derive(Debug, Args)]
struct CancelArgs {
    #[command(flatten)]
    task: TaskArgs,
    /// Reason for the record and for the delegator.
    #[arg(long, default_value = "cancelled by an operator", value_parser = reason)]
    reason: String,
}

pub(crate) async fn run(setup: &Setup, args: &Tasks, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    match &args.command {
        TasksCommand::List(args) => list(setup, &client, args, output).await,
        TasksCommand::Show(one) => {
            let name = parse_turn_name(&one.tenant, one.id.as_ref())?;
            let story = client.task(&name).await?.ok_or_else(|| unknown(&name))?;
            let now_ms = client.store(&name.tenant).now_ms().await?;
            output.show(&story, |story| text::story(story, now_ms, output))
        }
        TasksCommand::Cancel(args) => {
            let name = parse_turn_name(&args.task.tenant, args.task.id.as_ref())?;
            if !turn_exists(&client, &name).await? {
                let tenant = FilteredNames { tenant: Some(&name.tenant), ..FilteredNames::default() };
                setup.names().check_filter(&client, tenant).await?;
                return Err(unknown(&name));
            }
            let cancelled = client.cancel_task(&name, &args.reason).await?;
            output.show(&cancelled, text::cancelled)
        }
    }
}

fn unknown(name: &TurnName) -> Failure {
    Failure::failed(anyhow::anyhow!(
        "unknown task {name}: never accepted, or its record expired (retention.records). tickfleet explain {name} also searches the audit log"
    ))
}

async fn list(setup: &Setup, client: &Client, args: &ListArgs, output: &Output) -> Result<(), Failure> {
    let filter = TaskFilter {
        agent: args.agent.clone(),
        state: args.state,
        outcome: args.outcome.map(|outcome| outcome.as_str().to_owned()),
        older_than: args.older_than,
        limit: args.limit.into(),
    };
    let tenants = match &args.tenant {
        Some(tenant) => BTreeSet::from([tenant.clone()]),
        None => setup.names().tenants(client).await?,
    };
    let page = task_page(client, &tenants, &filter, args.from.as_ref()).await?;
    if page.tasks.is_empty() && args.from.is_none() {
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        let names = FilteredNames { tenant: args.tenant.as_ref(), agent, tool: None, ..FilteredNames::default() };
        setup.names().check_filter(client, names).await?;
    }
    let now_ms = match tenants.first() {
        Some(tenant) => client.store(tenant).now_ms().await?,
        None => 0,
    };
    if page.list_restarted {
        output.note("the task of --from has expired: its tenant's list starts over");
    }
    output.show(&page.tasks, |tasks| listed(tasks, now_ms, output))?;
    if let Some(next) = page.next {
        output.note(&format!("there may be more: continue with --from {next}"));
    }
    Ok(())
}

fn listed(tasks: &[TaskSummary], now_ms: i64, output: &Output) -> String {
    if tasks.is_empty() {
        return "No tasks match.".into();
    }
    let mut rows = table(&["TASK", "AGENT", "STATE", "ACCEPTED", "WHAT"]);
    for task in tasks {
        let (color, word) = text::state(task);
        rows.add_row([
            Cell::new(format!("{}:{}", task.tenant, task.id)),
            Cell::new(task.agent.as_deref().unwrap_or_default()),
            output.cell(color, &word),
            Cell::new(task.accepted_ms.map(|at| from_now(at, now_ms)).unwrap_or_default()),
            Cell::new(command(task)),
        ]);
    }
    lines(rows)
}

fn command(task: &TaskSummary) -> String {
    match (&task.description, task.ended_ms) {
        (Some(description), _) => short(description, SHORT_CHARS),
        (None, Some(ended)) => format!("ended {}", clock(ended)),
        (None, None) => String::new(),
    }
}

pub(crate) const fn good(is_good: bool) -> StatusColor {
    if is_good { StatusColor::Good } else { StatusColor::Bad }
}
