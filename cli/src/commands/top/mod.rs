//! `tickfleet top`: the current state of the fleet, in a terminal. Reads only Redis, so no Prometheus is needed.

mod facts;
mod finding;
mod findings;
mod frame;
mod poll_result;
mod poller;
mod text;
mod tools;

use std::time::Duration;

use clap::Args;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;

pub(crate) use finding::FindingKind;
pub(crate) use frame::Frame;
pub(crate) use poller::Poller;

/// Rates are measured between two polls, at this distance.
const MEASURED: Duration = Duration::from_secs(1);

/// Show the state of the fleet: findings, backlog, rates, slots, live processes, capped agents, tools by outcome. Only
/// reads from Redis.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet top
  watch tickfleet top                     refreshed every two seconds; the console shows the same live
  tickfleet top --json                    as JSON")]
pub(crate) struct Top {}

pub(crate) async fn run(setup: &Setup, output: &Output) -> Result<(), Failure> {
    let mut poller = Poller::new(setup)?;
    poller.poll(setup).await?;
    tokio::time::sleep(MEASURED).await;
    let frame = poller.poll(setup).await?;
    output.show(&frame, text::text)
}
