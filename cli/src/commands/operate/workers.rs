//! `tickfleet workers`: lists workers, and drains or resumes a worker.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::verbs::{DrainWorkerRequest, VerbError};
use tickfleet_client::workers::{self, WorkerSummary};

use crate::commands::limits::{by_environment, reason, who};
use crate::failure::Failure;
use crate::output::time_format::{clock, from_now, span};
use crate::output::{Output, StatusColor, lines, table};
use crate::setup::Setup;

/// List workers, drain a worker, or resume it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet workers list
  tickfleet workers show w-host-7-1a4                what each slot runs
  tickfleet workers drain w-host-7-1a4 --reason 'the machine gets a new kernel'
  tickfleet workers resume w-host-7-1a4 --reason 'it is back'

A drained worker finishes its current work and stays alive; other workers take the rest. The flag reaches it with its next
heartbeat, within a quarter of worker.lease. The worker stays drained until it is resumed or exits. A restarted process is
not drained.")]
pub(crate) struct Workers {
    #[command(subcommand)]
    command: WorkersCommand,
}

#[derive(Debug, Subcommand)]
enum WorkersCommand {
    /// List live workers, and drained workers that are gone.
    List,
    /// Show a worker and what its slots run.
    Show {
        /// Worker id from the list, or a name from `tickfleet top`.
        #[arg(value_name = "NAME")]
        worker: String,
    },
    /// Drain a worker: it takes no new work, finishes its current work, and stays alive.
    Drain(WorkerArgs),
    /// Resume a drained worker.
    Resume(WorkerArgs),
}

#[derive(Debug, Args)]
struct WorkerArgs {
    /// Worker id from the list, or a name from `tickfleet top`.
    #[arg(value_name = "NAME")]
    worker: String,
    /// Reason for the audit log and the list.
    #[arg(long, value_parser = reason)]
    reason: String,
    /// Your name for the audit log. If missing, the variable USER.
    #[arg(long, value_name = "NAME", value_parser = who)]
    by: Option<String>,
}

#[derive(Debug, Serialize)]
struct DrainResult<'a> {
    worker: &'a str,
    /// False if the worker was already in the requested state.
    changed: bool,
}

/// # Errors
/// The name for the audit log is missing, the worker is unknown, too many workers are drained, or Redis does not
/// respond.
pub(crate) async fn run(setup: &Setup, args: &Workers, output: &Output) -> Result<(), Failure> {
    let (args, drains) = match &args.command {
        WorkersCommand::List => {
            let (found, now_ms) = workers::workers(setup.client().await?.stores()).await?;
            return output.show(&found, |found| workers_text(found, now_ms, output));
        }
        WorkersCommand::Show { worker } => {
            let client = setup.client().await?;
            let Some((found, now_ms)) = workers::worker(client.stores(), worker).await? else {
                return Err(VerbError::Unknown(workers::no_worker(client.stores(), worker).await?).into());
            };
            return output.show(&found, |found| worker_text(found, now_ms, output));
        }
        WorkersCommand::Drain(args) => (args, true),
        WorkersCommand::Resume(args) => (args, false),
    };
    let context = setup.operator(args.by.clone().map_or_else(by_environment, Ok)?, output).await?;
    let request = DrainWorkerRequest { worker: args.worker.clone(), reason: args.reason.clone() };
    let changed = request.run(&context, drains).await.map_err(|error| match error {
        VerbError::Conflict(message) => VerbError::Conflict(format!("{message} (tickfleet workers list)")),
        other => other,
    })?;
    let worker = args.worker.as_str();
    output.show(&DrainResult { worker, changed }, |_| match (drains, changed) {
        (true, true) => {
            format!("{worker} finishes its current work and takes no new work as soon as it receives the drain")
        }
        (true, false) => format!("{worker} was drained already"),
        (false, true) => format!("{worker} takes new work again as soon as it receives the change"),
        (false, false) => format!("{worker} was not drained"),
    })
}

fn worker_text(worker: &WorkerSummary, now_ms: i64, output: &Output) -> String {
    let mut text = workers_text(std::slice::from_ref(worker), now_ms, output);
    let running = worker.running.as_deref().unwrap_or_default();
    if running.is_empty() {
        return format!("{text}\n\nNo slot is busy.");
    }
    let mut rows = table(&["TURN", "TOOL", "SINCE"]);
    for call in running {
        rows.add_row([call.turn.clone(), call.tool.clone(), from_now(call.since_ms, now_ms)]);
    }
    text.push_str("\n\n");
    text.push_str(&lines(rows));
    text
}

fn workers_text(found: &[WorkerSummary], now_ms: i64, output: &Output) -> String {
    if found.is_empty() {
        return "No workers.".into();
    }
    let mut rows = table(&["WORKER", "STATE", "BUSY", "LAST HEARD", "DRAINED", "BY", "WHY"]);
    for worker in found {
        let (color, state) = match (worker.alive, worker.drained.is_some(), worker.heard) {
            (false, ..) => (StatusColor::Bad, "gone"),
            (true, false, true) => (StatusColor::Good, "works"),
            (true, true, true) if worker.busy == 0 => (StatusColor::Doubtful, "drained"),
            (true, true, true) => (StatusColor::Doubtful, "drains"),
            (true, _, false) => (StatusColor::Doubtful, "not reported yet"),
        };
        let busy = if worker.alive { format!("{} of {}", worker.busy, worker.slots) } else { String::new() };
        let heard = worker.beat_age_ms.map(|age| format!("{} ago", span(age))).unwrap_or_default();
        let drained = worker.drained.as_ref();
        let since = drained.map(|note| format!("{} ({})", clock(note.since_ms), from_now(note.since_ms, now_ms)));
        rows.add_row([
            Cell::new(&worker.name),
            output.cell(color, state),
            Cell::new(busy),
            Cell::new(heard),
            Cell::new(since.unwrap_or_default()),
            Cell::new(drained.map(|note| note.by.as_str()).unwrap_or_default()),
            Cell::new(drained.map(|note| note.reason.as_str()).unwrap_or_default()),
        ]);
    }
    lines(rows)
}
