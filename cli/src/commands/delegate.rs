//! `tickfleet delegate`: delegates a task to an agent.

use std::time::Duration;

use clap::Args;
use serde::Serialize;
use serde_json::value::RawValue;
use tickfleet_client::private_inbox;
use tickfleet_model::{AgentId, Context, InboxName, Priority, Task, TaskGrant, TaskId, TenantId, TurnId, limits};

use crate::commands::submit::parse_priority;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::results::{self, Awaited, PriorLetter};
use crate::output::time_format::Deadline;
use crate::setup::Setup;

/// Delegate a task to an agent. The agent needs a task handler in agents.yaml.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet delegate --tenant atlas-ux --to kelly 'Announce the release' --wait
  tickfleet delegate --tenant atlas-ux --from atlas --to archy 'Compare' --input '{\"offers\":3}'")]
pub(crate) struct Delegate {
    /// Task, in words.
    #[arg(value_name = "DESCRIPTION")]
    description: String,
    /// Tenant of the task.
    #[arg(long)]
    tenant: TenantId,
    /// Agent that receives the task.
    #[arg(long, value_name = "AGENT")]
    to: AgentId,
    /// Agent that delegates the task, if any.
    #[arg(long, value_name = "AGENT")]
    from: Option<AgentId>,
    /// Structured input, as JSON.
    #[arg(long, value_name = "JSON", value_parser = parse_json)]
    input: Option<Box<RawValue>>,
    /// Your own id. A task with an id that is already known runs once.
    #[arg(long, value_name = "ID")]
    task_id: Option<TaskId>,
    /// Priority: low, normal, high or urgent.
    #[arg(long, value_parser = parse_priority, default_value = "normal")]
    priority: Priority,
    /// Expiry of the task: a duration (90s, 2h) or a time (RFC 3339). Default: 24 hours.
    #[arg(long, value_name = "WHEN", value_parser = Deadline::parse)]
    deadline: Option<Deadline>,
    /// Calls that turns under this task can make.
    #[arg(long, value_name = "CALLS", default_value_t = limits::TASK_BUDGET_DEFAULT)]
    budget: u32,
    /// Inbox for the reply.
    #[arg(long, value_name = "INBOX")]
    reply_to: Option<InboxName>,
    /// Wait for the reply, up to 60 seconds if no duration is given, and print it.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60", value_parser = results::parse_wait)]
    wait: Option<Duration>,
}

#[derive(Serialize)]
struct DelegateOutput<'a> {
    task_id: &'a TaskId,
    tenant: &'a TenantId,
}

pub(super) fn parse_json(text: &str) -> Result<Box<RawValue>, String> {
    RawValue::from_string(text.to_owned()).map_err(|error| format!("not JSON: {error}"))
}

/// With `--wait`, also fails if the task did not succeed.
pub(crate) async fn run(setup: &Setup, args: &Delegate, output: &Output) -> Result<(), Failure> {
    if args.description.trim().is_empty() {
        return Err(Failure::usage("the description is empty: describe the task"));
    }
    let client = setup.client().await?;
    let deadline_ms = match args.deadline {
        Some(deadline) => Some(deadline.at(client.store(&args.tenant).now_ms().await?)),
        None => None,
    };
    let private = args.reply_to.is_none() && args.wait.is_some();
    let inbox = args.reply_to.clone().or_else(|| private.then(|| private_inbox("cli")));
    let task = Task {
        id: args.task_id.clone(),
        tenant: args.tenant.clone(),
        target: args.to.clone(),
        delegator: args.from.clone(),
        description: args.description.clone(),
        input: args.input.clone(),
        priority: args.priority,
        deadline_ms,
        reply_to: inbox.clone(),
        parent: None,
        grant: TaskGrant { budget: args.budget, ..TaskGrant::default() },
        context: Context::default(),
    };
    let prior_letter = PriorLetter::before(&client, &args.tenant, args.task_id.as_ref().map(TaskId::as_str)).await?;
    let task_id = client.delegate(task).await?;
    if let Some(hint) = setup.unserved(&client, &args.tenant).await? {
        output.note(&hint);
    }
    let (Some(timeout), Some(inbox)) = (args.wait, inbox) else {
        let enqueued = DelegateOutput { task_id: &task_id, tenant: &args.tenant };
        return output.show(&enqueued, |enqueued| {
            let tenant = enqueued.tenant;
            let task = enqueued.task_id;
            format!("{tenant}:{task}\nFollow it: tickfleet explain {tenant}:{task}")
        });
    };
    let id = TurnId::from(task_id);
    let awaited = Awaited { tenant: &args.tenant, id: &id, inbox: &inbox, private, timeout, prior_letter };
    results::wait(&client, &awaited, output).await
}
