//! Searches the audit log.

use clap::Args;
use tickfleet_client::Cursor;
use tickfleet_client::audit::{ArgumentConditions, AuditPage, AuditQuery};
use tickfleet_model::TenantId;
use tickfleet_protocol::AuditEntry;

use crate::failure::Failure;
use crate::output::time_format::TimeArg;
use crate::output::{Output, lines, short, table};
use crate::setup::Setup;

/// Search entries, the newest first, and print how far the search went.
#[derive(Debug, Args)]
pub(crate) struct Search {
    /// Only entries of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Only entries of this agent.
    #[arg(long)]
    agent: Option<String>,
    /// Only entries about this tool (name or id): calls, approvals, pauses and switches.
    #[arg(long)]
    tool: Option<String>,
    /// Only entries with this outcome.
    #[arg(long)]
    outcome: Option<String>,
    /// Only entries that contain this text.
    #[arg(long)]
    text: Option<String>,
    /// Only calls whose arguments meet these conditions, such as 'amount > 100 and customer = "c-17"'. Can be repeated.
    #[arg(long = "where", value_name = "CONDITIONS")]
    conditions: Vec<ArgumentConditions>,
    /// Only entries since this time: 2h (ago) or 2026-03-01T12:00:00Z.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    since: Option<TimeArg>,
    /// Only entries before this time.
    #[arg(long, value_name = "TIME", value_parser = TimeArg::parse)]
    until: Option<TimeArg>,
    /// Entries to show per shard.
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    limit: usize,
    /// Entries to read per shard.
    #[arg(long, value_name = "COUNT", default_value_t = 20_000)]
    read: usize,
    /// Continue after this entry, as SHARD:ENTRY from the previous search.
    #[arg(long, value_name = "SHARD:ENTRY")]
    cursor: Option<Cursor>,
}

pub(super) async fn run(setup: &Setup, args: &Search, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let now_ms = client.now_ms().await?;
    let query = AuditQuery {
        tenant: args.tenant.clone(),
        agent: args.agent.clone(),
        tool: setup.names().tool_filter(&client, args.tool.as_deref()).await?,
        outcome: args.outcome.clone(),
        text: args.text.clone(),
        conditions: args.conditions.iter().cloned().fold(ArgumentConditions::default(), ArgumentConditions::and),
        from_ms: args.since.map(|since| since.at(now_ms)),
        until_ms: args.until.map(|until| until.at(now_ms)),
        found_max: args.limit,
        read_max: args.read,
    };
    let page = query.search(&client, args.cursor.as_ref()).await?;
    if page.entries.is_empty() && args.cursor.is_none() {
        setup.names().check_filter(&client, (&query).into()).await?;
    }
    output.show(&page, result_text)
}

fn result_text(result: &AuditPage) -> String {
    let mut table = table(&["TIME", "TENANT", "ENTRY", "MESSAGE"]);
    for found in &result.entries {
        let entry = AuditEntry::read(found.audit.get()).unwrap_or_default();
        let shown = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
        let time = shown(&entry.timestamp);
        table.add_row([time, shown(entry.tenant()), found.id.clone(), short(&shown(&entry.message), 80)]);
    }
    let mut text = lines(table);
    text.push_str(&format!("\n{} entries were read.", result.read));
    match result.cursors.as_slice() {
        [] => text.push_str(" No more entries in this time range."),
        cursors => cursors.iter().for_each(|cursor| text.push_str(&format!(" More: --cursor {cursor}"))),
    }
    text
}
