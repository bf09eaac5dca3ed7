//! Waiting for a reply, and showing it.

use std::time::Duration;

use comfy_table::Cell;
use shared::client::{Client, Reply, ReplyStatus};
use shared::config::units::parse_duration;
use shared::model::{CallResult, InboxName, Outcome, TenantId, TurnId};

use crate::failure::Failure;
use crate::output::{Mood, Output, lines, short, table};

/// Characters of an output or error that a table shows.
const OUTPUT_CHARS: usize = 200;

/// Reads how long to wait: `30` are seconds, `2m` is two minutes.
///
/// # Errors
/// What was expected, for the command line.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u64>().ok().map(Duration::from_secs);
    seconds.or_else(|| parse_duration(text)).ok_or_else(|| "expected seconds (30) or a duration (2m)".into())
}

/// What is waited for.
pub(crate) struct Awaited<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) id: &'a TurnId,
    pub(crate) inbox: &'a InboxName,
    /// Whether the inbox was made for this question alone, and goes with it.
    pub(crate) private: bool,
    pub(crate) timeout: Duration,
}

/// Waits for the reply and prints it.
///
/// # Errors
/// [`Failure::Told`] where a call did not succeed; a failure that names the way on where no reply came in time.
pub(crate) async fn wait(client: &Client, awaited: &Awaited<'_>, output: &Output) -> Result<(), Failure> {
    let spinner = output.spinner(format!("waiting for {}", awaited.id));
    let mut replies = client.replies(awaited.tenant, awaited.inbox);
    let reply = replies.await_reply(awaited.id, awaited.timeout).await;
    spinner.finish_and_clear();
    let Some(reply) = reply? else {
        let seconds = awaited.timeout.as_secs();
        return Err(Failure::failed(anyhow::anyhow!(
            "no reply within {seconds} s; it goes on: tickfleet explain {}:{}",
            awaited.tenant,
            awaited.id
        )));
    };
    // The reply is here: an inbox that cannot be tidied ages away.
    let tidied = if awaited.private { replies.forget().await } else { replies.finish().await };
    if let Err(error) = tidied {
        output.note(&format!("the inbox could not be tidied: {error}"));
    }
    print(&reply, output)
}

/// Prints a reply.
///
/// # Errors
/// [`Failure::Told`] where a call did not succeed.
pub(crate) fn print(reply: &Reply, output: &Output) -> Result<(), Failure> {
    output.show(reply, |reply| text(reply, output))?;
    if reply.is_success() { Ok(()) } else { Err(Failure::Told) }
}

/// The reply for people.
fn text(reply: &Reply, output: &Output) -> String {
    let mut text = String::new();
    if let Some(error) = &reply.error {
        let word = if reply.status == ReplyStatus::Conflict { "conflict" } else { "rejected" };
        let hint = to_do(&error.code).map(|hint| format!("{hint}\n")).unwrap_or_default();
        text = format!("{}: {} ({})\n{hint}", output.paint(Mood::Bad, word), error.message, error.code);
    }
    if !reply.results.is_empty() {
        text.push_str(&results(&reply.results, output));
    } else if reply.status == ReplyStatus::Done {
        text.push_str("The answer calls no tool.\n");
    }
    text
}

/// What whoever submitted it can do about a refusal whose cause is not in the message.
fn to_do(code: &str) -> Option<&'static str> {
    match code {
        "unknown_agent" => Some(
            "The fleet decides by its own configuration: its agents stand in agents.yaml of the folder that its \
             processes were started with (--config), or are the built-in ones, which tickfleet tools names.",
        ),
        "unknown_tenant" => Some("tickfleet tenant list shows the tenants; tickfleet tenant set makes one."),
        _ => None,
    }
}

/// A table of results.
pub(crate) fn results(results: &[CallResult], output: &Output) -> String {
    let mut table = table(&["CALL", "TOOL", "OUTCOME", "TRIES", "MS", "OUTPUT OR ERROR"]);
    for result in results {
        table.add_row([
            Cell::new(&result.call),
            Cell::new(short(&result.tool, 64)),
            output.cell(mood(result.outcome), result.outcome.as_str()),
            Cell::new(result.attempts),
            Cell::new(result.duration_ms),
            Cell::new(said(result)),
        ]);
    }
    lines(table)
}

fn said(result: &CallResult) -> String {
    let text = match (&result.output, &result.error) {
        (Some(output), _) => output.get(),
        (None, Some(error)) => &error.message,
        (None, None) => "",
    };
    short(text, OUTPUT_CHARS)
}

/// What an outcome means to the reader.
pub(crate) const fn mood(outcome: Outcome) -> Mood {
    match outcome {
        Outcome::Ok => Mood::Good,
        Outcome::OutcomeUnknown | Outcome::DailyCapReached | Outcome::Expired | Outcome::Cancelled => Mood::Doubtful,
        _ => Mood::Bad,
    }
}
