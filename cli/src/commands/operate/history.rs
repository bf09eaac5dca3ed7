//! `tickfleet stats --history`: the fleet's figures over time.

use tickfleet_client::Client;
use tickfleet_client::history::{History, HistoryPoint, HistoryQuery, HistoryStep, history};

use crate::failure::Failure;
use crate::output::time_format::{TimeArg, stamp};
use crate::output::{Output, lines, table};

const COLUMNS: [&str; 8] = ["TIME", "OK", "FAILED", "REFUSED", "UNKNOWN", "TURNS", "WAITING", "RUNNING"];

/// Fails if the time is older than the history.
pub(super) async fn run(client: &Client, since: TimeArg, csv: bool, output: &Output) -> Result<(), Failure> {
    let mut now_ms = 0;
    for store in client.stores() {
        now_ms = now_ms.max(store.now_ms().await?);
    }
    let from_ms = since.at(now_ms);
    let fits = |step: &HistoryStep| now_ms - from_ms <= step.kept_ms();
    let step = [HistoryStep::Minute, HistoryStep::Hour].into_iter().find(fits);
    let Some(step) = step.filter(|_| from_ms < now_ms) else {
        return Err(Failure::usage("--history: expected a time within the last 35 days, such as 1h or 7d".to_owned()));
    };
    let query = HistoryQuery { step, from_ms: Some(from_ms), until_ms: None };
    let found = history(client.stores(), &query).await?;
    if csv {
        let head = COLUMNS.map(str::to_lowercase).join(",");
        let rows = found.points.iter().map(|point| cells(point, "").join(","));
        return output.print(&std::iter::once(head).chain(rows).collect::<Vec<_>>().join("\n"));
    }
    output.show(&found, history_text)
}

fn cells(point: &HistoryPoint, unknown: &str) -> [String; 8] {
    let calls = [point.ok, point.failed, point.refused, point.unknown].map(|calls| calls.to_string());
    let samples = [point.turns, point.waiting, point.running];
    let samples = samples.map(|sample| sample.map_or_else(|| unknown.to_owned(), |number| number.to_string()));
    let [ok, failed, refused, unknown_calls] = calls;
    let [turns, waiting, running] = samples;
    [stamp(point.at_ms), ok, failed, refused, unknown_calls, turns, waiting, running]
}

fn history_text(found: &History) -> String {
    let mut shown = table(&COLUMNS);
    for point in &found.points {
        shown.add_row(cells(point, "-"));
    }
    let mut text = if found.points.is_empty() { "No samples in this time range.".to_owned() } else { lines(shown) };
    for change in &found.changes {
        text.push_str(&format!(
            "\nConfiguration changed at {} UTC (generation {}).",
            stamp(change.at_ms),
            change.generation
        ));
    }
    for gap in &found.gaps {
        text.push_str(&format!("\nNo samples from {} to {} UTC.", stamp(gap.from_ms), stamp(gap.until_ms)));
    }
    text
}
