//! `tickfleet workers`: lists workers, and drains or resumes a worker.

use clap::{Args, Subcommand};
use comfy_table::Cell;
use tickfleet_client::held_slices::{HeldSlice, held_slices};
use tickfleet_client::verbs::{DrainWorkerRequest, ResumeWorkerRequest};
use tickfleet_client::workers::{self, WorkerSummary};

use crate::commands::operate::verb::{self, VerbArgs};
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

A restarted process is not drained.")]
pub(crate) struct Workers {
    #[command(subcommand)]
    command: WorkersCommand,
}

#[derive(Debug, Subcommand)]
enum WorkersCommand {
    /// List live workers, drained workers that are gone, and what runs in each slot.
    List,
    Drain(VerbArgs<DrainWorkerRequest>),
    Resume(VerbArgs<ResumeWorkerRequest>),
}

pub(crate) async fn run(setup: &Setup, args: &Workers, output: &Output) -> Result<(), Failure> {
    match &args.command {
        WorkersCommand::List => list(setup, output).await,
        WorkersCommand::Drain(args) => verb::run(setup, args, output).await,
        WorkersCommand::Resume(args) => verb::run(setup, args, output).await,
    }
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
