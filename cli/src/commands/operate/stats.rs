//! `tickfleet stats`: calls by day, tenant, agent and tool.

use std::collections::BTreeSet;

use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::Client;
use tickfleet_client::stats::{StatsDimension, StatsQuery, StatsRow, count_on, stats};
use tickfleet_client::usage::{ModelUse, ModelUseTotal, add_use};
use tickfleet_client::verbs::FilteredNames;
use tickfleet_model::limit::amount;
use tickfleet_model::{AgentId, TenantId};

use super::history;
use crate::commands::usage::zones;
use crate::failure::Failure;
use crate::output::time_format::{TimeArg, from_now};
use crate::output::{Output, lines, short, table};
use crate::setup::Setup;
use crate::words::word_of;

/// Steps between two progress messages. A step counts 1,000 entries.
const STEPS: usize = 20;
pub(crate) const DAY_MS: i64 = 86_400_000;

/// Count calls by outcome and duration, grouped by day, tenant, agent or tool.
///
/// The command first counts new audit entries, which takes a while on a long log. Counts are kept for 400 days.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet stats                                  today, by tool
  tickfleet stats --days 7 --by day,tool
  tickfleet stats --days 7 --by tenant,agent       with model usage in tokens and money
  tickfleet stats --tenant demo --by agent,tool --csv > calls.csv
  tickfleet stats --by tenant                      today's cost of each tenant
  tickfleet stats --history 1h                     the last hour, by minute

Days are UTC. Durations are those of the last attempt; quantiles are up to 20 % too high. Entries that leave the audit log
before they are counted are missing, so run this command more often than retention.audit. Rows without tools include model
usage, by days of the tenant's time zone, which is kept for 40 days.")]
pub(crate) struct Stats {
    /// Grouping of the rows.
    #[arg(long, value_delimiter = ',', default_value = "tool", value_parser = word_of::<StatsDimension>(&["day", "tenant", "agent", "tool"]))]
    by: Vec<StatsDimension>,
    /// Days, including today, at most 400.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=400))]
    days: u16,
    /// Only calls of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only calls of this agent.
    #[arg(long)]
    agent: Option<AgentId>,
    /// Only calls of this tool (name or id).
    #[arg(long)]
    tool: Option<String>,
    /// Print comma-separated values with a header.
    #[arg(long)]
    csv: bool,
    /// Show the fleet's figures since this time instead: 1h (ago) or 2026-03-01T12:00:00Z. By minute for the last 24
    /// hours, otherwise by hour for the last 35 days.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse, conflicts_with_all = ["by", "days", "tenant", "agent", "tool"])]
    history: Option<TimeArg>,
}

#[derive(Serialize)]
struct StatsOutput {
    rows: Vec<StatsRow>,
    /// `None` if rows are grouped by tool.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<ModelUseTotal>,
    counted_upto_ms: i64,
    /// True if entries may have left the log before they were counted.
    gap: bool,
}

pub(crate) struct CountProgress {
    /// The time of the shard that is furthest behind.
    pub(crate) upto_ms: i64,
    /// True if entries may have left the log before they were counted.
    pub(crate) gap: bool,
    pub(crate) now_ms: i64,
}

pub(crate) async fn count_new_entries(client: &Client, output: &Output) -> Result<CountProgress, Failure> {
    let mut all = CountProgress { upto_ms: i64::MAX, gap: false, now_ms: 0 };
    for store in client.stores() {
        all.now_ms = store.now_ms().await?;
        loop {
            let counted = count_on(store, STEPS).await?;
            all.gap |= counted.gap;
            // Entries that were written during this count are left for the next count.
            if !counted.more || counted.upto_ms >= all.now_ms {
                all.upto_ms = all.upto_ms.min(counted.upto_ms);
                break;
            }
            output.note(&format!(
                "shard {} counted up to {}; stop with Ctrl-C, the next run continues here",
                store.shard(),
                from_now(counted.upto_ms, all.now_ms)
            ));
        }
    }
    Ok(all)
}

pub(crate) async fn run(setup: &Setup, args: &Stats, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    if let Some(since) = args.history {
        return history::run(&client, since, args.csv, output).await;
    }
    let counted = count_new_entries(&client, output).await?;
    let mut stats_output =
        StatsOutput { rows: Vec::new(), models: None, counted_upto_ms: counted.upto_ms, gap: counted.gap };
    let today = counted.now_ms.div_euclid(DAY_MS);
    let query = StatsQuery {
        tenant: args.tenant.clone(),
        agent: args.agent.as_ref().map(ToString::to_string),
        tool: setup.names().tool_filter(&client, args.tool.as_deref()).await?,
        from_day: today - i64::from(args.days) + 1,
        until_day: today,
        by: args.by.iter().copied().collect::<BTreeSet<_>>(),
    };
    stats_output.rows = stats(client.stores(), &query).await?;
    if stats_output.rows.is_empty() {
        let StatsQuery { tenant, agent, tool, .. } = &query;
        let names = FilteredNames {
            tenant: tenant.as_ref(),
            agent: agent.as_deref(),
            tool: tool.as_deref(),
            ..FilteredNames::default()
        };
        setup.names().check_filter(&client, names).await?;
    }
    stats_output.models = add_use(&client, &zones(setup, &client).await?, &query, &mut stats_output.rows).await?;
    if stats_output.models.is_some_and(|models| !models.complete) {
        output.note("not all model usage was read: it is kept for 40 days, and large fleets are read in part; narrow with --tenant and --days");
    }
    if stats_output.gap {
        output.note("entries may have been trimmed before they were counted: some calls may be missing");
    }
    if args.csv {
        return output.print(&csv(&stats_output.rows));
    }
    output.show(&stats_output, |stats_output| rows_text(&stats_output.rows))
}

fn names(row: &StatsRow) -> Vec<String> {
    row.key().into_iter().flatten().collect()
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

const USED: [&str; 4] = ["requests", "input_tokens", "output_tokens", "cost"];

fn used(row: &StatsRow) -> Vec<String> {
    let stats_output = |used: &ModelUse| {
        [used.requests, used.input_tokens, used.output_tokens]
            .map(|count| count.to_string())
            .into_iter()
            .chain([amount::show(used.cost)])
            .collect()
    };
    row.used.as_ref().map(stats_output).unwrap_or_default()
}

fn outcomes(row: &StatsRow) -> String {
    row.outcomes.iter().map(|(outcome, count)| format!("{outcome} {count}")).collect::<Vec<_>>().join(", ")
}

fn rows_text(rows: &[StatsRow]) -> String {
    if rows.is_empty() {
        return "No calls ended in this time range.".into();
    }
    let is_used = rows.iter().any(|row| row.used.is_some_and(|used| used != ModelUse::default()));
    let models = if is_used { &USED[..] } else { &[] };
    let head: Vec<String> =
        head(rows).into_iter().chain(FIGURES).chain(models.iter().copied()).chain(["outcomes"]).map(heading).collect();
    let mut shown = table(&head.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        let cells = names(row).into_iter().chain(figures(row).map(|figure| figure.to_string()));
        let cells = cells.chain(used(row).into_iter().filter(|_| is_used)).map(Cell::new);
        shown.add_row(cells.chain([Cell::new(short(&outcomes(row), 60))]).collect::<Vec<_>>());
    }
    lines(shown)
}

fn heading(name: &str) -> String {
    name.to_uppercase().replace('_', " ")
}

/// RFC 4180. Escapes text that a spreadsheet would treat as a formula.
fn csv(rows: &[StatsRow]) -> String {
    let cell = |text: &str| {
        let is_formula = text.starts_with(['=', '+', '-', '@']);
        let text = if is_formula { format!("'{text}") } else { text.to_owned() };
        if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text }
    };
    // New columns come last, so that existing readers keep working.
    let models = if rows.iter().any(|row| row.used.is_some()) { &USED[..] } else { &[] };
    let head = head(rows).into_iter().chain(FIGURES).chain(["outcomes"]).chain(models.iter().copied());
    let mut text = head.collect::<Vec<_>>().join(",");
    for row in rows {
        let cells = names(row).into_iter().chain(figures(row).map(|figure| figure.to_string())).chain([outcomes(row)]);
        let cells = cells.chain(used(row));
        text += "\n";
        text += &cells.map(|text| cell(&text)).collect::<Vec<_>>().join(",");
    }
    text
}
