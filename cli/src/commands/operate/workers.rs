//! `tickfleet workers`: lists workers, and drains or resumes a worker.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::held_slices::{HeldSlice, held_slices};
use tickfleet_client::verbs::{DrainWorkerRequest, VerbError};
use tickfleet_client::workers::{self, WorkerSummary};

use crate::commands::limits::reason;
use crate::commands::operate::audit_note::By;
use crate::failure::Failure;
use crate::output::time_format::{clock, from_now, span};
use crate::output::{Output, StatusColor, lines, table};
use crate::setup::Setup;

/// Only the slices that have run longest are shown.
const SLICES_SHOWN: usize = 50;

/// List workers, drain a worker, or resume it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet workers list
  tickfleet workers drain w-host-7-1a4 --reason 'the machine gets a new kernel'
  tickfleet workers resume w-host-7-1a4

A drained worker finishes its current work and stays alive; other workers take the rest. The flag reaches it with its next
heartbeat, within a quarter of worker.lease. The worker stays drained until it is resumed or exits. A restarted process is
not drained.")]
pub(crate) struct Workers {
    #[command(subcommand)]
    command: WorkersCommand,
}

#[derive(Debug, Subcommand)]
enum WorkersCommand {
    /// List live workers, drained workers that are gone, and what runs in each slot.
    List,
    /// Drain a worker: it takes no new work, finishes its current work, and stays alive.
    Drain(WorkerArgs),
    /// Resume a drained worker.
    Resume(ResumeArgs),
}

#[derive(Debug, Args)]
struct WorkerArgs {
    /// Worker id from the list, or a name from `tickfleet top`.
    #[arg(value_name = "NAME")]
    worker: String,
    /// Reason for the audit log and the list.
    #[arg(long, value_parser = reason)]
    reason: String,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, Args)]
struct ResumeArgs {
    /// Worker id from the list, or a name from `tickfleet top`.
    #[arg(value_name = "NAME")]
    worker: String,
    /// Reason for the audit log.
    #[arg(long, value_parser = reason)]
    reason: Option<String>,
    #[command(flatten)]
    by: By,
}

#[derive(Debug, Serialize)]
struct DrainResult<'a> {
    worker: &'a str,
    changed: bool,
}

pub(crate) async fn run(setup: &Setup, args: &Workers, output: &Output) -> Result<(), Failure> {
    let (worker, reason, by, drains) = match &args.command {
        WorkersCommand::List => return list(setup, output).await,
        WorkersCommand::Drain(WorkerArgs { worker, reason, by }) => (worker, Some(reason), by, true),
        WorkersCommand::Resume(ResumeArgs { worker, reason, by }) => (worker, reason.as_ref(), by, false),
    };
    let context = setup.operator(by.name()?, output).await?;
    let request = DrainWorkerRequest { worker: worker.clone(), reason: reason.cloned().unwrap_or_default() };
    let changed = request.run(&context, drains).await.map_err(|error| match error {
        VerbError::Conflict(message) => VerbError::Conflict(format!("{message} (tickfleet workers list)")),
        other => other,
    })?;
    let worker = worker.as_str();
    output.show(&DrainResult { worker, changed }, |_| match (drains, changed) {
        (true, true) => {
            format!("{worker} finishes its current work and takes no new work as soon as it receives the drain")
        }
        (true, false) => format!("{worker} was drained already"),
        (false, true) => format!("{worker} takes new work again as soon as it receives the change"),
        (false, false) => format!("{worker} was not drained"),
    })
}

async fn list(setup: &Setup, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let (found, now_ms) = workers::workers(client.stores()).await?;
    let mut slices = Vec::new();
    // JSON output has no running slices. Programs read them from the list of turns.
    for store in client.stores().iter().filter(|_| !output.json()) {
        slices.extend(held_slices(store, None, SLICES_SHOWN).await?);
    }
    slices.sort_by_key(|slice| std::cmp::Reverse(slice.held_ms));
    output.show(&found, |found| {
        let text = workers_text(found, now_ms, output);
        if slices.is_empty() { text } else { format!("{text}\n\n{}", slices_text(&slices, now_ms)) }
    })
}

fn slices_text(slices: &[HeldSlice], now_ms: i64) -> String {
    let mut rows = table(&["WORKER", "RUNS", "OF", "SINCE"]);
    for slice in slices.iter().take(SLICES_SHOWN) {
        let since = format!("{} ({} so far)", clock(now_ms - slice.held_ms), span(slice.held_ms));
        rows.add_row([&slice.worker, &slice.tool, &slice.turn, &since]);
    }
    let more = slices.len().saturating_sub(SLICES_SHOWN);
    let more = if more > 0 { format!("\n{more} more slots run for a shorter time.") } else { String::new() };
    lines(rows) + &more
}

fn workers_text(found: &[WorkerSummary], now_ms: i64, output: &Output) -> String {
    if found.is_empty() {
        return "No workers.".into();
    }
    let mut rows = table(&["WORKER", "STATE", "BUSY", "HEARTBEAT", "DRAINED", "BY", "REASON"]);
    for worker in found {
        let (color, state) = match (worker.alive, worker.drained.is_some(), worker.drain_applied) {
            (false, ..) => (StatusColor::Bad, "offline"),
            (true, false, true) => (StatusColor::Good, "works"),
            (true, true, true) if worker.busy == 0 => (StatusColor::Doubtful, "drained"),
            (true, true, true) => (StatusColor::Doubtful, "drains"),
            (true, _, false) => (StatusColor::Doubtful, "not reported yet"),
        };
        let busy = if worker.alive { format!("{} of {}", worker.busy, worker.slots) } else { String::new() };
        let heartbeat = worker.heartbeat_age_ms.map(|age| format!("{} ago", span(age))).unwrap_or_default();
        let drained = worker.drained.as_ref();
        let since = drained.map(|note| format!("{} ({})", clock(note.since_ms), from_now(note.since_ms, now_ms)));
        rows.add_row([
            Cell::new(&worker.name),
            output.cell(color, state),
            Cell::new(busy),
            Cell::new(heartbeat),
            Cell::new(since.unwrap_or_default()),
            Cell::new(drained.map(|note| note.by.as_str()).unwrap_or_default()),
            Cell::new(drained.map(|note| note.reason.as_str()).unwrap_or_default()),
        ]);
    }
    lines(rows)
}
