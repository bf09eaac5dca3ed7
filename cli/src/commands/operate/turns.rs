//! `tickfleet turns`: lists unfinished turns and cancels many of them.

use std::time::Duration;

use clap::{Args, Subcommand};
use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::operate::{TurnFilter, TurnState, TurnSummary, list_turns};
use tickfleet_client::verbs::CancelSelection;
use tickfleet_client::{Client, Cursor, Page};
use tickfleet_model::{AgentId, TenantId};
use tickfleet_store::{CancelResult, TurnName};

use crate::commands::operate::audit_note::age;
use crate::commands::operate::verb::MatchesArgs;
use crate::failure::Failure;
use crate::output::time_format::{TimeArg, clock, from_now};
use crate::output::{Output, StatusColor, lines, short, table};
use crate::setup::Setup;
use crate::words::word_of;

const LISTED: u16 = 50;
const PAGE: usize = 1_000;
const PREVIEWED: usize = 10;

/// List unfinished turns, or cancel many of them.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet turns list --tenant demo --agent kelly --state throttled
  tickfleet turns list --tool post_to_x --older-than 10m
  tickfleet turns list --waits-for emails_per_agent
  tickfleet turns cancel --tenant demo --agent kelly --reason 'wrong list'          print the matches
  tickfleet turns cancel --tenant demo --agent kelly --reason 'wrong list' --yes    cancel them")]
pub(crate) struct Turns {
    #[command(subcommand)]
    command: TurnsCommand,
}

#[derive(Debug, Subcommand)]
enum TurnsCommand {
    /// List unfinished turns, in no order.
    List(ListArgs),
    /// Cancel all turns that match a filter. `tickfleet cancel` cancels one by its id.
    Cancel(CancelArgs),
}

#[derive(Debug, Args)]
struct TurnsFilter {
    /// Only turns of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only turns of this agent.
    #[arg(long)]
    agent: Option<AgentId>,
    /// Only turns with an unfinished call of this tool (name or id).
    #[arg(long)]
    tool: Option<String>,
    /// Only turns in this state. A throttled turn waits for a tick, day, limit or the end of a pause; a parked turn for
    /// its next attempt or a task that it started.
    #[arg(long, value_parser = word_of::<TurnState>(&["throttled", "ready", "running", "parked", "ending"]))]
    state: Option<TurnState>,
    /// Only turns that wait for this cap or limit, such as max_calls_per_tick (also turns of a paused agent).
    #[arg(long, value_name = "LIMIT")]
    waits_for: Option<String>,
    /// Only turns that were admitted at least this long ago, such as 10m.
    #[arg(long, value_name = "TIME", value_parser = age)]
    older_than: Option<Duration>,
    /// Only turns that were admitted since this time: 2h (ago) or 2026-03-01T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    since: Option<TimeArg>,
    /// Only turns that were admitted before this time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    until: Option<TimeArg>,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    filter: TurnsFilter,
    /// Turns to list, 1 to 1000. A page can have a few more.
    #[arg(long, default_value_t = LISTED, value_parser = clap::value_parser!(u16).range(1..=1000))]
    limit: u16,
    /// Position of the next page, as the previous page prints it.
    #[arg(long, value_name = "PLACE")]
    from: Option<Cursor>,
}

#[derive(Debug, Args)]
struct CancelArgs {
    #[command(flatten)]
    filter: TurnsFilter,
    #[command(flatten)]
    matches: MatchesArgs,
}

impl TurnsFilter {
    async fn to_filter(&self, setup: &Setup, client: &Client, limit: usize) -> Result<TurnFilter, Failure> {
        let now_ms = client.now_ms().await?;
        Ok(TurnFilter {
            in_workers: false,
            tenant: self.tenant.clone(),
            agent: self.agent.clone(),
            tool: setup.names().tool_filter(client, self.tool.as_deref()).await?,
            state: self.state,
            waits_for: self.waits_for.clone(),
            older_than: self.older_than,
            from_ms: self.since.map(|since| since.at(now_ms)),
            until_ms: self.until.map(|until| until.at(now_ms)),
            limit,
        })
    }

    const fn is_empty(&self) -> bool {
        self.tenant.is_none()
            && self.agent.is_none()
            && self.tool.is_none()
            && self.state.is_none()
            && self.waits_for.is_none()
            && self.older_than.is_none()
            && self.since.is_none()
            && self.until.is_none()
    }
}

impl std::fmt::Display for TurnsFilter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.map(|at| state(at).1.to_owned());
        let time = |time: TimeArg| match time {
            TimeArg::At(ms) => clock(ms),
            TimeArg::Ago(ms) => format!("{} s ago", ms / 1_000),
        };
        let older = self.older_than.map(|age| format!("{} s", age.as_secs()));
        let given = [
            ("tenant", self.tenant.as_ref().map(ToString::to_string)),
            ("agent", self.agent.as_ref().map(ToString::to_string)),
            ("tool", self.tool.clone()),
            ("state", state),
            ("waits_for", self.waits_for.clone()),
            ("older_than", older),
            ("since", self.since.map(time)),
            ("until", self.until.map(time)),
        ];
        let given: Vec<String> =
            given.into_iter().filter_map(|(name, value)| Some(format!("{name}={}", value?))).collect();
        f.write_str(&given.join(" "))
    }
}

pub(crate) async fn run(setup: &Setup, args: &Turns, output: &Output) -> Result<(), Failure> {
    match &args.command {
        TurnsCommand::List(args) => list(setup, args, output).await,
        TurnsCommand::Cancel(args) => cancel(setup, args, output).await,
    }
}

async fn list(setup: &Setup, args: &ListArgs, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let filter = args.filter.to_filter(setup, &client, args.limit.into()).await?;
    let page = list_turns(&client, &filter, args.from.as_ref()).await?;
    if page.items.is_empty() && args.from.is_none() {
        setup.names().check_filter(&client, (&filter).into()).await?;
    }
    output.show(&page, |page| {
        let mut text = turns_text(&page.items, page.now_ms, output);
        if let Some(next) = &page.next {
            text += &format!("\nThere may be more: continue with --from {next}.");
        }
        text
    })
}

fn turns_text(turns: &[TurnSummary], now_ms: i64, output: &Output) -> String {
    if turns.is_empty() {
        return "No turns match.".into();
    }
    let mut rows = table(&["TURN", "AGENT", "STATE", "ADMITTED", "ENDED", "CALLS LEFT"]);
    for turn in turns {
        let (color, word) = state(turn.state);
        let ended = format!("{} of {}", turn.done, turn.calls);
        let (color, ended) = match turn.failed {
            0 => (color, Cell::new(ended)),
            failed => (StatusColor::Doubtful, output.cell(StatusColor::Bad, &format!("{ended}, {failed} failed"))),
        };
        rows.add_row([
            Cell::new(format!("{}:{}", turn.tenant, turn.id)),
            Cell::new(turn.agent.as_deref().unwrap_or_default()),
            output.cell(color, word),
            Cell::new(turn.accepted_ms.map(|at| from_now(at, now_ms)).unwrap_or_default()),
            ended,
            Cell::new(short(&turn.tools.join(", "), 48)),
        ]);
    }
    lines(rows)
}

const fn state(state: TurnState) -> (StatusColor, &'static str) {
    match state {
        TurnState::Throttled => (StatusColor::Doubtful, "throttled"),
        TurnState::Ready => (StatusColor::Doubtful, "ready"),
        TurnState::Running => (StatusColor::Good, "running"),
        TurnState::Parked => (StatusColor::Doubtful, "parked"),
        TurnState::Ending => (StatusColor::Doubtful, "ending"),
    }
}

#[derive(Debug, Default, Serialize)]
struct CancelSummary {
    found: usize,
    cancelled: usize,
    /// False for a preview.
    done: bool,
}

async fn cancel(setup: &Setup, args: &CancelArgs, output: &Output) -> Result<(), Failure> {
    if args.filter.is_empty() {
        return Err(Failure::usage("expected a filter (--tenant, --agent …)"));
    }
    let context = setup.operator(args.matches.by.name()?, output).await?;
    let mut summary = CancelSummary { done: args.matches.yes, ..CancelSummary::default() };
    let filter = args.filter.to_filter(setup, &context.client, PAGE).await?;
    let mut from = None;
    loop {
        let Page { items: turns, next, .. } = list_turns(&context.client, &filter, from.as_ref()).await?;
        if args.matches.yes {
            let name = |turn: &TurnSummary| TurnName { tenant: turn.tenant.clone(), turn: turn.id.clone() };
            let names: Vec<TurnName> = turns.iter().map(name).collect();
            let filter = args.filter.to_string();
            summary.cancelled +=
                cancelled(&context.cancel_turns(&names, CancelSelection::Filter(&filter), &args.matches.reason).await?);
        } else {
            for turn in turns.iter().take(PREVIEWED.saturating_sub(summary.found)) {
                let agent = turn.agent.as_deref().unwrap_or("?");
                output.note(&format!("{}:{} of {agent}, {}", turn.tenant, turn.id, state(turn.state).1));
            }
        }
        summary.found += turns.len();
        from = next;
        if from.is_none() {
            break;
        }
        output.note(&format!("{} found, {} canceled so far; Ctrl-C stops here", summary.found, summary.cancelled));
    }
    if summary.found == 0 {
        context.names.check_filter(&context.client, (&filter).into()).await?;
    }
    show_summary(&summary, output)
}

fn cancelled(answers: &[CancelResult]) -> usize {
    answers.iter().filter(|answer| matches!(answer, CancelResult::Ok | CancelResult::Flagged)).count()
}

fn show_summary(summary: &CancelSummary, output: &Output) -> Result<(), Failure> {
    output.show(summary, |summary| {
        if summary.done {
            return format!("{} turns found, {} canceled", summary.found, summary.cancelled);
        }
        format!("{} turns would be canceled: add --yes to do it", summary.found)
    })
}
