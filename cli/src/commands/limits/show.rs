use tickfleet_model::limit::counters::OTHERS;
use tickfleet_model::limit::{LimitMode, OnReach};

use super::listing::Listing;
use super::views::{CounterView, LimitView};
use crate::output::time_format::{clock, from_now};
use crate::output::{Output, StatusColor, lines, table};

pub(super) fn text(listing: &Listing, output: &Output) -> String {
    if listing.limits.is_empty() && listing.caps.is_empty() {
        return "unknown limit: it is not in this configuration and has no counters in Redis".into();
    }
    let one = |limit: &LimitView| one(limit, listing.now_ms, output);
    listing.caps.iter().chain(&listing.limits).map(one).collect::<Vec<_>>().join("\n\n")
}

fn one(limit: &LimitView, now_ms: i64, output: &Output) -> String {
    let mut parts = vec![format!("{}: {}", output.paint(StatusColor::Strong, &limit.name), allows(limit))];
    if !limit.counters.is_empty() {
        let mut table = table(&["COUNTER", "USED", "WINDOW ENDS", "WAITING"]);
        for counter in &limit.counters {
            let is_full = counter.full_in > 0;
            let used = used(counter);
            table.add_row([
                name(counter).into(),
                if is_full { output.cell(StatusColor::Doubtful, &used) } else { used.into() },
                if limit.is_held { "when calls end".into() } else { ends(counter, now_ms).into() },
                waiting(counter).into(),
            ]);
        }
        parts.push(lines(table));
    }
    parts.extend(remark(limit));
    parts.join("\n")
}

fn allows(limit: &LimitView) -> String {
    let Some(allows) = &limit.allows else {
        return "its maximum is unknown: it is not in this configuration. Amounts are shown as Redis stores them"
            .into();
    };
    let beyond = match (limit.mode, limit.on_reach) {
        (Some(LimitMode::Shadow), _) => "calls over the limit are only counted (shadow)",
        (_, Some(OnReach::Reject)) => "calls over the limit are rejected",
        _ => "calls over the limit wait",
    };
    format!("{allows}; {beyond}")
}

/// If a limit has only one counter, the name of the counter can be empty.
fn name(counter: &CounterView) -> String {
    let name = match counter.counter.as_str() {
        "" => "(all calls)",
        name => name,
    };
    match (name, counter.shard) {
        (OTHERS, Some(shard)) => format!("{OTHERS} (all others of shard {shard})"),
        (OTHERS, None) => format!("{OTHERS} (all others)"),
        (name, _) => name.to_owned(),
    }
}

fn used(counter: &CounterView) -> String {
    let of = counter.allowed.as_ref().map(|allowed| format!(" of {allowed}")).unwrap_or_default();
    let in_part = counter.full_in > 0 && counter.full_in < counter.shares;
    let part =
        if in_part { format!(", full in {} of {} shards", counter.full_in, counter.shares) } else { String::new() };
    format!("{}{of}{part}", counter.used)
}

fn ends(counter: &CounterView, now_ms: i64) -> String {
    match counter.window_ends_ms {
        Some(ends) => format!("{} ({})", clock(ends), from_now(ends, now_ms)),
        None => "has ended".into(),
    }
}

fn waiting(counter: &CounterView) -> String {
    counter.waiting.map_or_else(|| "each on its own".into(), |turns| turns.to_string())
}

fn remark(limit: &LimitView) -> Option<String> {
    let shown = limit.counters.len() as u64;
    match (limit.complete, limit.total) {
        (false, _) => Some(format!("Only {} counters were read; others may be fuller.", limit.counters_read)),
        (true, 0) if limit.is_held => Some("No slots in use.".into()),
        (true, 0) => Some("No calls counted recently.".into()),
        (true, total) if shown < total => Some(format!("{shown} of {total} counters.")),
        _ => None,
    }
}
