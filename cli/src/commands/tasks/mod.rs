//! `tickfleet tasks`: lists tasks. [`text`] formats what is known of one task.

pub(crate) mod text;

use std::collections::BTreeSet;
use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use tickfleet_client::tasks::{TaskFilter, TaskState, TaskSummary, task_page};
use tickfleet_client::verbs::FilteredNames;
use tickfleet_client::{Client, Cursor};
use tickfleet_model::{AgentId, Outcome, TenantId};

use crate::commands::operate::audit_note::age;
use crate::failure::Failure;
use crate::output::time_format::{clock, from_now};
use crate::output::{Output, StatusColor, lines, short, table};
use crate::setup::Setup;
use crate::words::word_of;

const LISTED: u16 = 50;
const SHORT_CHARS: usize = 48;

/// List tasks. `tickfleet explain` shows the history of one, `tickfleet cancel` ends it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet tasks list --tenant demo --state waiting
  tickfleet tasks list --state ended --outcome permanent --limit 100")]
pub(crate) struct Tasks {
    #[command(subcommand)]
    command: TasksCommand,
}

#[derive(Debug, Subcommand)]
enum TasksCommand {
    /// List tasks by tenant, the newest first.
    List(ListArgs),
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
    from: Option<Cursor>,
}

fn outcome(text: &str) -> Result<Outcome, String> {
    let words = || Outcome::ALL.map(Outcome::as_str);
    let known = Outcome::parse(text);
    known.ok_or_else(|| format!("expected one of {}", words().join(", ")))
}

pub(crate) async fn run(setup: &Setup, args: &Tasks, output: &Output) -> Result<(), Failure> {
    match &args.command {
        TasksCommand::List(args) => list(setup, &setup.client().await?, args, output).await,
    }
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
    if page.items.is_empty() && args.from.is_none() {
        let agent = filter.agent.as_ref().map(AgentId::as_str);
        let names = FilteredNames { tenant: args.tenant.as_ref(), agent, tool: None, ..FilteredNames::default() };
        setup.names().check_filter(client, names).await?;
    }
    if page.list_restarted {
        output.note("the task of --from has expired: its tenant's list starts over");
    }
    output.show(&page, |page| {
        let mut text = listed(&page.items, page.now_ms, output);
        if let Some(next) = &page.next {
            text += &format!("\nThere may be more: continue with --from {next}.");
        }
        text
    })
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
