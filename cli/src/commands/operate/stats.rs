//! `tickfleet stats`: calls by day, tenant, agent and tool: how many, how they ended, how long they took.

use std::collections::BTreeSet;

use clap::{Args, ValueEnum};
use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::stats::{By, StatsQuery, StatsRow, count_on, stats};
use tickfleet_model::{AgentId, TenantId};

use crate::failure::Failure;
use crate::output::time_format::from_now;
use crate::output::{Output, lines, short, table};
use crate::setup::Setup;

/// Steps of 1,000 entries that are counted between two signs of life.
const STEPS: usize = 20;
/// Milliseconds of a day.
const DAY_MS: i64 = 86_400_000;

/// Show how many calls ended how, and how long they took: by day, tenant, agent, tool. What the audit log has that nobody has
/// counted yet is counted first, and the counts are kept for 400 days: the first time takes a while on a long log.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet stats                                  today, by tool
  tickfleet stats --days 7 --by day,tool
  tickfleet stats --tenant demo --by agent,tool --csv > calls.csv

Days are UTC. Durations are those of the last try; quantiles are told up to a fifth too long. What leaves the audit log before
somebody has counted it is not in it: run this once an hour, or a day, as retention.audit allows. What models have used, in
tokens and money, shows tickfleet usage.")]
pub(crate) struct Stats {
    /// What rows are told apart by.
    #[arg(long, value_delimiter = ',', default_value = "tool")]
    by: Vec<ByArg>,
    /// Days, with today; at most 400.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=400))]
    days: u16,
    /// Calls of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Of this agent.
    #[arg(long)]
    agent: Option<AgentId>,
    /// Of this tool, by its id.
    #[arg(long)]
    tool: Option<String>,
    /// Print lines of comma-separated values, with a heading.
    #[arg(long)]
    csv: bool,
}

/// What rows are told apart by, on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum ByArg {
    /// The day, UTC.
    Day,
    /// The tenant.
    Tenant,
    /// The agent that made the calls, or carried the task out.
    Agent,
    /// The tool, by its id.
    Tool,
}

impl From<ByArg> for By {
    fn from(by: ByArg) -> Self {
        match by {
            ByArg::Day => Self::Day,
            ByArg::Tenant => Self::Tenant,
            ByArg::Agent => Self::Agent,
            ByArg::Tool => Self::Tool,
        }
    }
}

#[derive(Serialize)]
struct Told {
    rows: Vec<StatsRow>,
    /// Up to when the log of every shard is counted, ms.
    counted_upto_ms: i64,
    /// True if entries may have left the log before they were counted.
    gap: bool,
}

/// Counts on, and shows.
///
/// # Errors
/// Redis.
pub(crate) async fn run(setup: &Setup, args: &Stats, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let (mut told, mut now_ms) = (Told { rows: Vec::new(), counted_upto_ms: i64::MAX, gap: false }, 0);
    for store in client.stores() {
        now_ms = store.now_ms().await?;
        loop {
            let counted = count_on(store, STEPS).await?;
            told.gap |= counted.gap;
            // What is written while this counts is for the next time.
            if !counted.more || counted.upto_ms >= now_ms {
                told.counted_upto_ms = told.counted_upto_ms.min(counted.upto_ms);
                break;
            }
            output.note(&format!(
                "shard {} is counted up to {}; Ctrl-C stops, and the next time goes on here",
                store.shard(),
                from_now(counted.upto_ms, now_ms)
            ));
        }
    }
    let today = now_ms.div_euclid(DAY_MS);
    let query = StatsQuery {
        tenant: args.tenant.clone(),
        agent: args.agent.as_ref().map(ToString::to_string),
        tool: args.tool.clone(),
        from_day: today - i64::from(args.days) + 1,
        until_day: today,
        by: args.by.iter().map(|by| By::from(*by)).collect::<BTreeSet<_>>(),
    };
    told.rows = stats(client.stores(), &query).await?;
    if told.gap {
        output.note("entries may have left the audit log before anybody counted them: some calls may be missing");
    }
    if args.csv {
        return output.print(&csv(&told.rows));
    }
    output.show(&told, |told| in_words(&told.rows))
}

/// The cells that say which row it is.
fn names(row: &StatsRow) -> Vec<String> {
    [&row.day, &row.tenant, &row.agent, &row.tool].into_iter().flatten().cloned().collect()
}

fn head(rows: &[StatsRow]) -> Vec<&'static str> {
    let Some(row) = rows.first() else { return Vec::new() };
    let named = [("day", &row.day), ("tenant", &row.tenant), ("agent", &row.agent), ("tool", &row.tool)];
    named.into_iter().filter(|(_, value)| value.is_some()).map(|(name, _)| name).collect()
}

fn figures(row: &StatsRow) -> [u64; 8] {
    [row.calls, row.ok, row.calls - row.ok.min(row.calls), row.retries, row.mean_ms, row.p50_ms, row.p95_ms, row.p99_ms]
}

const FIGURES: [&str; 8] = ["calls", "ok", "failed", "retries", "mean_ms", "p50_ms", "p95_ms", "p99_ms"];

fn outcomes(row: &StatsRow) -> String {
    row.outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect::<Vec<_>>().join(", ")
}

fn in_words(rows: &[StatsRow]) -> String {
    if rows.is_empty() {
        return "No call has ended in this time.".into();
    }
    let head: Vec<String> = head(rows).into_iter().chain(FIGURES).chain(["outcomes"]).map(heading).collect();
    let mut shown = table(&head.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        let cells = names(row).into_iter().chain(figures(row).map(|figure| figure.to_string())).map(Cell::new);
        shown.add_row(cells.chain([Cell::new(short(&outcomes(row), 60))]).collect::<Vec<_>>());
    }
    lines(shown)
}

fn heading(name: &str) -> String {
    name.to_uppercase().replace('_', " ")
}

/// RFC 4180, with quotes where a cell needs them, and nothing that a table program takes for a formula.
fn csv(rows: &[StatsRow]) -> String {
    let cell = |text: &str| {
        let is_formula = text.starts_with(['=', '+', '-', '@']);
        let text = if is_formula { format!("'{text}") } else { text.to_owned() };
        if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
    };
    let mut text = head(rows).into_iter().chain(FIGURES).chain(["outcomes"]).collect::<Vec<_>>().join(",");
    for row in rows {
        let cells = names(row).into_iter().chain(figures(row).map(|figure| figure.to_string())).chain([outcomes(row)]);
        text += "\n";
        text += &cells.map(|text| cell(&text)).collect::<Vec<_>>().join(",");
    }
    text
}
