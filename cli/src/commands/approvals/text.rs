use std::fmt::Write as _;

use comfy_table::Cell;
use tickfleet_client::Approval;
use tickfleet_client::approvals::RequiredApprovers;

use crate::output::time_format::{clock, from_now};
use crate::output::{Output, StatusColor, lines, readable_json, short, table};

const ARGUMENTS_CHARS: usize = 48;

pub(super) fn listed(found: &[Approval], now_ms: i64) -> String {
    if found.is_empty() {
        return "No approvals waiting.".into();
    }
    let mut rows = table(&["APPROVAL", "AGENT", "TOOL", "ARGUMENTS", "NEEDS", "ENDS"]);
    for approval in found {
        rows.add_row([
            Cell::new(format!("{}:{}", approval.tenant, approval.id)),
            Cell::new(&approval.agent),
            Cell::new(&approval.tool),
            Cell::new(short(approval.arguments.get(), ARGUMENTS_CHARS)),
            Cell::new(needs(approval)),
            Cell::new(from_now(approval.until_ms, now_ms)),
        ]);
    }
    let mut text = lines(rows);
    let is_short = |found: &Approval| {
        !found.arguments_exact || short(found.arguments.get(), ARGUMENTS_CHARS) != found.arguments.get()
    };
    if found.iter().any(is_short) {
        text.push_str(
            "\nSome arguments are shortened or have secrets removed: tickfleet approvals show ID shows them exactly",
        );
    }
    text
}

fn needs(approval: &Approval) -> String {
    let all: Vec<String> = approval.needs.iter().map(RequiredApprovers::in_words).collect();
    all.join(" and ")
}

fn why(approval: &Approval) -> String {
    let each = approval.asked_by.iter().map(|asked| format!("{} ({})", asked.place, short(&asked.why, usize::MAX)));
    let all: Vec<String> = each.collect();
    all.join("; ")
}

pub(crate) fn waits(approval: &Approval, now_ms: i64) -> String {
    let Approval { id, tenant, requested_ms, until_ms, .. } = approval;
    if approval.state == "approved" {
        return format!("approval {tenant}:{id} was granted; its call continues now");
    }
    let agreed = match approval.agreed.as_slice() {
        [] => String::new(),
        some => format!("; so far agreed: {}", some.iter().map(|vote| vote.by.as_str()).collect::<Vec<_>>().join(", ")),
    };
    format!(
        "approval {tenant}:{id} requested {}, by {}. Approvers: {}{agreed}. Expires {} ({})",
        clock(*requested_ms),
        why(approval),
        needs(approval),
        clock(*until_ms),
        from_now(*until_ms, now_ms)
    )
}

pub(super) fn story(approval: &Approval, now_ms: i64, output: &Output) -> String {
    let mut text = String::new();
    let (color, word) = match approval.state.as_str() {
        "waiting" => (StatusColor::Doubtful, "waiting for approvers"),
        "approved" => (StatusColor::Good, "approved; its call has not begun yet"),
        "used" => (StatusColor::Good, "approved and used by its call"),
        "denied" => (StatusColor::Bad, "was denied"),
        "expired" => (StatusColor::Bad, "has expired"),
        "void" => (StatusColor::Doubtful, "no longer valid: its call has ended or changed"),
        other => (StatusColor::Doubtful, other),
    };
    let id = output.paint(StatusColor::Strong, &format!("{}:{}", approval.tenant, approval.id));
    let _ = writeln!(text, "Approval {id} {}", output.paint(color, word));
    let call = (&approval.agent, &approval.tool, &approval.version);
    let _ = writeln!(text, "  {} calls {} {} (call {}:{})", call.0, call.1, call.2, approval.tenant, approval.call);
    let what = match (approval.arguments_exact, approval.ended_ms) {
        (true, _) => "Arguments",
        (false, None) => "Arguments, shortened and without secrets",
        (false, Some(_)) => "Arguments, shortened and without secrets (the exact ones were dropped when it ended)",
    };
    let _ = writeln!(text, "  {what}: {}", readable_json(approval.arguments.get(), "    "));
    if let Some(narrowed) = &approval.narrowed {
        let _ = writeln!(text, "  Changed: {}", readable_json(narrowed.get(), "    "));
    }
    let _ = writeln!(text, "  Requested {} by {}", clock(approval.requested_ms), why(approval));
    let _ = writeln!(text, "  Needs {}", needs(approval));
    if !approval.may_narrow.is_empty() {
        let _ = writeln!(text, "  The approver may change {}", approval.may_narrow.join(", "));
    }
    for (word, vote) in
        approval.agreed.iter().map(|vote| ("agreed", vote)).chain(approval.denied.iter().map(|s| ("denied it", s)))
    {
        let at = vote.at_ms.map(clock).unwrap_or_default();
        let because =
            if vote.reason.is_empty() { String::new() } else { format!(": {}", short(&vote.reason, usize::MAX)) };
        let _ = writeln!(text, "  {at}  {} {word}{because}", vote.by);
    }
    match approval.ended_ms {
        Some(ended) => drop(writeln!(text, "  {}  ended", clock(ended))),
        None => {
            let until = (clock(approval.until_ms), from_now(approval.until_ms, now_ms));
            let what = if approval.state == "approved" { "Valid until" } else { "Expires" };
            let _ = writeln!(text, "  {what} {} ({})", until.0, until.1);
        }
    }
    text
}

pub(super) fn decided(tenant: &str, (id, call): (&str, &str), state: &str, missing: u32) -> String {
    match (state, missing) {
        ("approved", _) => format!("{tenant}:{id} approved: {call} continues"),
        ("denied", _) => format!("{tenant}:{id} denied: {call} ends, and its agent receives the reason"),
        (_, 1) => format!("{tenant}:{id}: recorded; 1 more approver has to agree"),
        (_, more) => format!("{tenant}:{id}: recorded; {more} more approvers have to agree"),
    }
}
