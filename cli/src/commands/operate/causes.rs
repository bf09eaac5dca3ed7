//! `tickfleet dead list --by-cause`: groups entries that failed for the same cause.

use comfy_table::Cell;
use serde::Serialize;
use tickfleet_client::Client;
use tickfleet_client::dead::{self, Cause, Causes, DeadFilter, DeadKind};
use tickfleet_client::verbs::FleetNames;

use crate::failure::Failure;
use crate::output::invoked::quoted;
use crate::output::time_format::from_now;
use crate::output::{Output, is_default, lines, short, table};

#[derive(Serialize)]
struct CausesOutput {
    causes: Vec<Cause>,
    read: usize,
    /// The number of entries with causes that are not listed.
    #[serde(skip_serializing_if = "is_default")]
    others: u64,
}

pub(super) async fn show(
    (client, names): (&Client, &FleetNames),
    filter: &DeadFilter,
    now_ms: i64,
    output: &Output,
) -> Result<(), Failure> {
    let mut causes = Causes::default();
    let mut from = dead::causes(client, filter, None, &mut causes).await?;
    while let Some(at) = from {
        output.note(&format!("{} entries read so far", causes.read));
        from = dead::causes(client, filter, Some(&at), &mut causes).await?;
    }
    if causes.is_empty() {
        names.check_filter(client, filter.into()).await?;
    }
    let read = causes.read;
    let others = causes.others;
    output.show(&CausesOutput { causes: causes.most(filter.limit), read, others }, |groups| causes_text(groups, now_ms))
}

fn causes_text(groups: &CausesOutput, now_ms: i64) -> String {
    let Some(most) = groups.causes.first() else { return "No dead letters match.".into() };
    let mut rows = table(&["COUNT", "KIND", "CAUSE", "TOOL", "NEWEST", "OLDEST", "ERROR", "EXAMPLE"]);
    for cause in &groups.causes {
        rows.add_row([
            Cell::new(cause.count),
            Cell::new(cause.kind.as_str()),
            Cell::new(&cause.cause),
            Cell::new(cause.tool.as_deref().unwrap_or_default()),
            Cell::new(from_now(cause.newest_ms, now_ms)),
            Cell::new(from_now(cause.oldest_ms, now_ms)),
            Cell::new(short(cause.normalized_error.as_deref().unwrap_or_default(), 80)),
            Cell::new(cause.example.to_string()),
        ]);
    }
    let mut text = lines(rows);
    if groups.others > 0 {
        text += &format!("\n{} more have other causes: narrow the filter.", groups.others);
    }
    text + &format!("\nReview and replay the first cause:\n  {}", replay(most))
}

fn replay(cause: &Cause) -> String {
    let mut text = format!("tickfleet dead replay --kind {} --cause {}", cause.kind.as_str(), cause.cause);
    for (option, value) in [("--tool", &cause.tool), ("--normalized-error", &cause.normalized_error)] {
        if let Some(value) = value {
            text += &format!(" {option} {}", quoted(value));
        }
    }
    // Dead letters never have an error message, so their filter needs no `--without-error`.
    if cause.normalized_error.is_none() && cause.kind != DeadKind::Letter {
        text += " --without-error";
    }
    text + " --reason '…'"
}
