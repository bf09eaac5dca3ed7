use std::path::Path;

use tickfleet_proof::whatif::{Counts, DifferenceKind};

use crate::commands::whatif::Evaluation;
use crate::output::{lines, table};

const NAMES_MAX: usize = 10;

pub(super) fn text(evaluation: &Evaluation, policy: &Path, printed_max: usize) -> String {
    let summary = &evaluation.summary;
    let mut text = format!("{} calls were evaluated again under {}.\n", summary.calls, policy.display());
    if summary.by_facts > 0 {
        text.push_str(&format!("{} of them depend on facts of their sessions.\n", summary.by_facts));
    }
    if summary.by_policy.len() > 1 {
        let policies = summary.by_policy.iter().map(|(digest, calls)| format!("{digest} ({calls} calls)"));
        let policies: Vec<String> = policies.take(NAMES_MAX).collect();
        text.push_str(&format!("Several policies were in force: {}.\n", policies.join(", ")));
    }
    if summary.differences == 0 {
        text.push_str("No decision would change.\n");
    } else {
        let word = if summary.differences == 1 { "difference" } else { "differences" };
        text.push_str(&format!("{} {word}:\n\n", summary.differences));
        let mut kinds = table(&["CALLS", ""]);
        for (kind, calls) in &summary.by_kind {
            let longer = match kind {
                DifferenceKind::Delayed => format!(", {} s in all", summary.delayed_ms / 1_000),
                _ => String::new(),
            };
            kinds.add_row([calls.to_string(), format!("{}{longer}", kind.words())]);
        }
        text.push_str(&lines(kinds));
        for (title, counts) in [
            ("BY", &summary.by_rule),
            ("TOOL", &summary.by_tool),
            ("AGENT", &summary.by_agent),
            ("TENANT", &summary.by_tenant),
        ] {
            text.push_str("\n\n");
            text.push_str(&listed(title, counts));
        }
        text.push_str("\n\n");
        text.push_str(&differences(evaluation, printed_max));
        text.push('\n');
    }
    if !summary.not_decidable.is_empty() {
        text.push_str("\nNot decidable:\n");
        for (why, calls) in &summary.not_decidable {
            text.push_str(&format!("  {calls} calls: {why}\n"));
        }
    }
    text.push_str("\nNot evaluated: calls that were unfinished when the log was read, and model requests.\n");
    text
}

fn listed(title: &str, counts: &Counts) -> String {
    let mut found: Vec<(&String, &u64)> = counts.iter().collect();
    found.sort_by(|one, other| other.1.cmp(one.1).then(one.0.cmp(other.0)));
    let mut shown = table(&["CALLS", title]);
    for (name, calls) in found.iter().take(NAMES_MAX) {
        shown.add_row([calls.to_string(), (*name).clone()]);
    }
    let more = found.len().saturating_sub(NAMES_MAX);
    let rest = if more > 0 { format!("\nand {more} more") } else { String::new() };
    format!("{}{rest}", lines(shown))
}

fn differences(evaluation: &Evaluation, printed_max: usize) -> String {
    let mut shown = table(&["CALL", "AGENT", "TOOL", "WAS", "WOULD BE"]);
    for one in evaluation.differences.iter().take(printed_max) {
        let call = format!("{}:{}", one.tenant, one.call);
        let agent = one.agent.clone();
        shown.add_row([call, agent, one.tool.clone(), one.was.clone(), one.would.clone()]);
    }
    let more = evaluation.summary.differences.saturating_sub(printed_max as u64);
    let rest =
        if more > 0 { format!("\nand {more} more: --differences FILE writes all of them") } else { String::new() };
    format!("{}{rest}", lines(shown))
}
