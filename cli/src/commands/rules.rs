//! `tickfleet rules`: shows rules, fact conditions and limits with the number of calls that each denied.

use clap::Args;
use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::rules::{RuleCounts, RuleRow, rule_rows, rules_of};
use tickfleet_client::verbs::FilteredNames;
use tickfleet_model::TenantId;

use crate::commands::operate::stats::{DAY_MS, count_new_entries};
use crate::failure::Failure;
use crate::output::{Output, StatusColor, lines, short, table};
use crate::setup::Setup;

const CONDITION_CHARS: usize = 70;

/// Show rules, fact conditions and limits with their modes and the calls that each denied, or would deny in shadow
/// mode.
///
/// The command first counts new audit entries, as `tickfleet stats` does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet rules
  tickfleet rules --mode shadow --days 30      before you enforce them
  tickfleet rules --tenant demo --json

Rules come from the local configuration. Below them are other causes of denials: permission rows, disabled tools, and rules
that were removed from the configuration. Calls that wait for a limit are not denials; `tickfleet limits` and `tickfleet top`
show them. Days are UTC.")]
pub(crate) struct Rules {
    /// Only this mode: enforce, ask or shadow.
    #[arg(long, value_parser = ["enforce", "ask", "shadow"])]
    mode: Option<String>,
    /// Only calls of this tenant.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Days, including today, at most 400.
    #[arg(long, value_name = "COUNT", default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=400))]
    days: u16,
}

#[derive(Serialize)]
struct RulesOutput {
    rules: Vec<RuleRow>,
    calls: u64,
    counted_upto_ms: i64,
    /// True if entries may have been trimmed from the log before they were counted.
    gap: bool,
}

pub(crate) async fn run(setup: &Setup, args: &Rules, output: &Output) -> Result<(), Failure> {
    let client = setup.client().await?;
    let counted = count_new_entries(&client, output).await?;
    let today = counted.now_ms.div_euclid(DAY_MS);
    let here = rules_of(&setup.configuration.policy);
    let span = (today - i64::from(args.days) + 1, today);
    let RuleCounts { mut rules, calls } = rule_rows(client.stores(), here, args.tenant.as_ref(), span).await?;
    if calls == 0 {
        let tenant = FilteredNames { tenant: args.tenant.as_ref(), ..FilteredNames::default() };
        setup.names().check_filter(&client, tenant).await?;
    }
    rules.retain(|row| args.mode.as_deref().is_none_or(|mode| row.here.mode == Some(mode)));
    if counted.gap {
        output.note("entries may have been trimmed before they were counted: some calls may be missing");
    }
    let rules_output = RulesOutput { rules, calls, counted_upto_ms: counted.upto_ms, gap: counted.gap };
    output.show(&rules_output, |rules_output| rules_text(&rules_output.rules, output))
}

fn rules_text(rules: &[RuleRow], output: &Output) -> String {
    if rules.is_empty() {
        return "No rules or limits match, and no other cause has denied a call.".into();
    }
    let mut shown = table(&["RULE", "MODE", "WOULD STOP", "DENIED", "SAYS"]);
    for row in rules {
        let mode = match row.here.mode {
            Some("shadow") => output.cell(StatusColor::Doubtful, "shadow"),
            mode => Cell::new(mode.unwrap_or("other")),
        };
        shown.add_row([
            Cell::new(&row.here.rule),
            mode,
            Cell::new(row.shadow),
            Cell::new(row.denied),
            Cell::new(short(&row.here.says, CONDITION_CHARS)),
        ]);
    }
    lines(shown)
}
