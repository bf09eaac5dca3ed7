//! `tickfleet top`: the current state of the fleet, in a terminal. Reads only Redis, so no Prometheus is needed.

mod draw;
mod facts;
mod finding;
mod findings;
mod frame;
mod poll_result;
mod poller;
mod screen;
mod tools;
mod trend;

use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use tickfleet_config::units::parse_duration;

use crate::failure::Failure;
use crate::output::Output;
use crate::setup::Setup;
use draw::Style;
use frame::Sort;

pub(crate) use finding::FindingKind;
pub(crate) use frame::Frame;
pub(crate) use poller::Poller;

const EVERY_MIN: Duration = Duration::from_millis(100);
const EVERY_MAX: Duration = Duration::from_secs(60);
const PRINTED_COLUMNS: u16 = 110;

/// Show the fleet live: backlog, rates, slots, live processes, capped agents, tools by outcome. Only reads from
/// Redis.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: q quit · p pause · + - refresh faster, slower · s sort by count, time or name · up, down, e: explain why an agent's
first turn waits · ? help

Examples:
  tickfleet top
  REDIS_URL=rediss://redis.example:6380 tickfleet top --every 5s
  tickfleet top --once                    one frame as text, for a pipe or a ticket
  tickfleet top --json                    one frame as JSON")]
pub(crate) struct Top {
    /// Refresh interval, 100ms to 1m.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = every)]
    every: Duration,
    /// Print one frame as text and exit. Takes two samples for the rates. Implied without a terminal.
    #[arg(long)]
    once: bool,
}

fn every(text: &str) -> Result<Duration, String> {
    let every = parse_duration(text).ok_or("expected a duration, like 500ms or 2s")?;
    if (EVERY_MIN..=EVERY_MAX).contains(&every) { Ok(every) } else { Err("expected 100ms to 1m".into()) }
}

/// Fails if Redis cannot be reached at the start. Later, the view shows the problem and waits.
pub(crate) async fn run(setup: &Setup, args: &Top, output: &Output) -> Result<(), Failure> {
    let mut poller = Poller::new(setup)?;
    let first = poller.poll(setup).await?;
    if output.json || args.once || !std::io::stdout().is_terminal() {
        // The rates need some time between two polls.
        tokio::time::sleep(args.every).await;
        let frame = poller.poll(setup).await?;
        return output.show(&frame, text);
    }
    screen::run(setup, (poller, first), args.every, Style { colour: output.colours() }).await
}

fn text(frame: &Frame) -> String {
    let mut frame = frame.clone();
    frame.sort(Sort::Count);
    draw::printed(&frame, PRINTED_COLUMNS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_poll_interval_is_bounded() {
        assert_eq!(every("500ms"), Ok(Duration::from_millis(500)));
        for wrong in ["10ms", "2m", "fast"] {
            assert!(every(wrong).is_err(), "{wrong}");
        }
    }
}
