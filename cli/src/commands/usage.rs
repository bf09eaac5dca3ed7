//! `tickfleet usage`: shows the model usage of a tenant, by day and agent.

use std::collections::BTreeMap;

use clap::Args;
use serde::Serialize;
use serde_json::Number;
use tickfleet_client::Client;
use tickfleet_model::day::{Tz, UnknownZone, day_bounds, zone};
use tickfleet_model::limit::amount;
use tickfleet_model::{TenantId, limits};
use tickfleet_store::{DayUsage, Used};

use crate::caller::{no_tenant, with_tenant};
use crate::failure::Failure;
use crate::output::{Output, lines, table};
use crate::setup::Setup;

/// Show the model usage of a tenant, in tokens and money, by day and agent.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet usage --tenant demo
  tickfleet usage --tenant demo --days 7 --json

Days are those of the tenant's time zone. Prices come from models.yaml; a price change does not affect earlier
usage.")]
pub(crate) struct Usage {
    /// Tenant to show.
    #[arg(long)]
    tenant: TenantId,
    /// Days, including today, at most 40.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=limits::USAGE_DAYS_MAX))]
    days: u8,
}

#[derive(Debug, Serialize)]
struct UsageRow {
    /// In the tenant's time zone.
    day: String,
    /// `None` for the tenant's total.
    agent: Option<String>,
    requests: u64,
    input_tokens: u64,
    output_tokens: u64,
    cost: Number,
}

pub(crate) async fn run(setup: &Setup, args: &Usage, output: &Output) -> Result<(), Failure> {
    let active = setup.active();
    with_tenant(setup, &active, &args.tenant).await?;
    let policy = &active.load().policy;
    let Some(owner) = policy.tenants.get(&args.tenant) else {
        return Err(no_tenant(&args.tenant, policy.tenants.keys()));
    };
    let zone = zone(policy.time_zone(owner)).map_err(Failure::failed)?;
    let client = setup.client().await?;
    let store = client.store(&args.tenant);
    let mut days = Vec::new();
    let mut at_ms = store.now_ms().await?;
    for _ in 0..args.days {
        let (start_ms, _) = day_bounds(at_ms, zone);
        days.push(start_ms);
        at_ms = start_ms - 1;
    }
    let found = store.usage(&args.tenant, &days).await?;
    let date = |ms: i64| {
        let time = chrono::DateTime::from_timestamp_millis(ms).unwrap_or_default();
        time.with_timezone(&zone).format("%Y-%m-%d").to_string()
    };
    let rows: Vec<UsageRow> = found.iter().flat_map(|day| rows(&date(day.day_ms), day)).collect();
    output.show(&rows, |rows| usage_text(rows))
}

pub(crate) async fn zones(setup: &Setup, client: &Client) -> Result<BTreeMap<TenantId, Tz>, Failure> {
    let policy = &setup.configuration.policy;
    let mut tenants = policy.tenants.clone();
    for store in client.stores() {
        tenants.extend(store.run_time_config().await?.tenants);
    }
    let zoned = tenants.iter().map(|(tenant, owner)| Ok((tenant.clone(), zone(policy.time_zone(owner))?)));
    zoned.collect::<Result<_, UnknownZone>>().map_err(Failure::failed)
}

fn rows(date: &str, day: &DayUsage) -> Vec<UsageRow> {
    let row = |agent: Option<&String>, used: &Used| UsageRow {
        day: date.to_owned(),
        agent: agent.cloned(),
        requests: used.requests,
        input_tokens: used.input_tokens,
        output_tokens: used.output_tokens,
        // A formatted amount is always a valid number, so the fallback is never used.
        cost: amount::show(used.cost).parse().unwrap_or_else(|_| used.cost.into()),
    };
    let agents = day.agents.iter().map(|(agent, used)| row(Some(agent), used));
    std::iter::once(row(None, &day.total)).chain(agents).collect()
}

fn usage_text(rows: &[UsageRow]) -> String {
    let mut table = table(&["DAY", "AGENT", "REQUESTS", "TOKENS IN", "TOKENS OUT", "COST"]);
    for row in rows {
        let agent = match row.agent.as_deref() {
            None => "all",
            Some("~") => "~ (all others)",
            Some(agent) => agent,
        };
        table.add_row([
            row.day.clone(),
            agent.to_owned(),
            row.requests.to_string(),
            row.input_tokens.to_string(),
            row.output_tokens.to_string(),
            row.cost.to_string(),
        ]);
    }
    lines(table)
}
