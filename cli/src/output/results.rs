//! Waits for a reply and shows it.

use std::time::Duration;

use comfy_table::Cell;
use serde_json::json;
use tickfleet_client::{Client, RecordedReply, Replies, Reply, ReplyStatus};
use tickfleet_config::units::parse_duration;
use tickfleet_model::outcome::OutcomeSeverity;
use tickfleet_model::{CallResult, InboxName, Outcome, TenantId, TurnId};
use tickfleet_protocol::{content_blocks, content_text};
use tickfleet_store::{DeadLetter, StoreError, TurnName};

use crate::failure::Failure;
use crate::output::dead_letters;
use crate::output::{Output, StatusColor, lines, short, table};

const OUTPUT_CHARS: usize = 200;
const DEAD_EVERY: Duration = Duration::from_secs(1);

/// `30` is 30 seconds, `2m` is two minutes.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<u64>().ok().map(Duration::from_secs);
    seconds.or_else(|| parse_duration(text)).ok_or_else(|| "expected seconds (30) or a duration (2m)".into())
}

pub(crate) struct Awaited<'a> {
    pub(crate) tenant: &'a TenantId,
    pub(crate) id: &'a TurnId,
    pub(crate) inbox: &'a InboxName,
    /// True if only this command uses the inbox. The inbox is then deleted after the reply.
    pub(crate) private: bool,
    pub(crate) timeout: Duration,
    pub(crate) prior_letter: PriorLetter,
}

/// An earlier message with the same ID may have a dead letter. That letter is not a new rejection.
pub(crate) struct PriorLetter {
    before: Option<DeadLetter>,
}

impl PriorLetter {
    /// A generated ID (`given` is `None`) has no earlier dead letter.
    pub(crate) async fn before(client: &Client, tenant: &TenantId, given: Option<&str>) -> Result<Self, Failure> {
        let name = given.and_then(|id| TurnId::new(id).ok());
        let before = match name.map(|turn| TurnName { tenant: tenant.clone(), turn }) {
            // Without permission to read the dead stream, the command submits, but detects no rejection there.
            Some(name) => dead_letters::about(client.store(tenant), &name).await.unwrap_or_default(),
            None => None,
        };
        Ok(Self { before })
    }

    async fn refusal(&self, client: &Client, awaited: &Awaited<'_>) -> Option<Reply> {
        let name = TurnName { tenant: awaited.tenant.clone(), turn: awaited.id.clone() };
        let letter = dead_letters::about(client.store(awaited.tenant), &name).await.ok()??;
        // The fleet accepted this message, so the letter is about another message with the same ID.
        if !matches!(client.reply(&name).await.ok()?, RecordedReply::Unknown) {
            return None;
        }
        if self.before.as_ref().is_some_and(|before| before.entry == letter.entry) {
            return None;
        }
        let message = match letter.reason.as_str() {
            "unknown_tenant" => format!("tenant {:?} is not configured", awaited.tenant.as_str()),
            _ => "the fleet rejected it and could not write a reply; the code names the reason".into(),
        };
        let reply = json!({
            "turn_id": awaited.id, "tenant": awaited.tenant, "agent": "", "status": "rejected", "dialect": "raw",
            "error": {"code": letter.reason, "message": message}, "results": [],
        });
        serde_json::from_value(reply).ok()
    }
}

pub(crate) async fn wait(client: &Client, awaited: &Awaited<'_>, output: &Output) -> Result<(), Failure> {
    let spinner = output.spinner(format!("waiting for {}", awaited.id));
    let mut replies = client.replies(awaited.tenant, awaited.inbox);
    let reply = await_reply(client, awaited, &mut replies).await;
    spinner.finish_and_clear();
    let Some(reply) = reply? else {
        let seconds = awaited.timeout.as_secs();
        return Err(Failure::failed(anyhow::anyhow!(
            "no reply within {seconds} s; it continues: tickfleet explain {}:{}",
            awaited.tenant,
            awaited.id
        )));
    };
    // An inbox that is not removed expires later, so a failure is only noted.
    let tidied = if awaited.private { replies.forget().await } else { replies.finish().await };
    if let Err(error) = tidied {
        output.note(&format!("the inbox could not be cleaned up: {error}"));
    }
    print(&reply, output)
}

/// If the fleet cannot write a reply, returns the rejection from the dead stream.
async fn await_reply(
    client: &Client,
    awaited: &Awaited<'_>,
    replies: &mut Replies,
) -> Result<Option<Reply>, StoreError> {
    let mut left = awaited.timeout;
    loop {
        let time = left.min(DEAD_EVERY);
        if let Some(reply) = replies.await_reply(awaited.id, time).await? {
            return Ok(Some(reply));
        }
        if let Some(refusal) = awaited.prior_letter.refusal(client, awaited).await {
            // The fleet writes dead letter and reply at the same time. The reply is preferred, because it has more
            // details.
            let reply = replies.await_reply(awaited.id, Duration::from_millis(1)).await?;
            return Ok(Some(reply.unwrap_or(refusal)));
        }
        left -= time;
        if left.is_zero() {
            return Ok(None);
        }
    }
}

pub(crate) fn print(reply: &Reply, output: &Output) -> Result<(), Failure> {
    output.show(reply, |reply| text(reply, output))?;
    if reply.is_success() { Ok(()) } else { Err(Failure::Reported) }
}

fn text(reply: &Reply, output: &Output) -> String {
    let mut text = String::new();
    if let Some(error) = &reply.error {
        let word = if reply.status == ReplyStatus::Conflict { "conflict" } else { "rejected" };
        let hint = to_do(&error.code).map(|hint| format!("{hint}\n")).unwrap_or_default();
        text = format!("{}: {} ({})\n{hint}", output.paint(StatusColor::Bad, word), error.message, error.code);
    }
    if !reply.results.is_empty() {
        text.push_str(&results(&reply.results, output));
    } else if reply.status == ReplyStatus::Done {
        text.push_str("The answer calls no tool.\n");
    }
    text
}

fn to_do(code: &str) -> Option<&'static str> {
    match code {
        "unknown_agent" => Some(
            "The fleet decides by its own configuration: its agents are declared in agents.yaml of the folder that its processes were started with (--config), or are the built-in agents, which tickfleet tools lists.",
        ),
        "unknown_tenant" => Some("tickfleet tenant list shows the tenants; tickfleet tenant set creates one."),
        _ => None,
    }
}

pub(crate) fn results(results: &[CallResult], output: &Output) -> String {
    let mut table = table(&["CALL", "TOOL", "OUTCOME", "TRIES", "MS", "OUTPUT OR ERROR"]);
    for result in results {
        table.add_row([
            Cell::new(&result.call),
            Cell::new(short(&result.tool, 64)),
            output.cell(outcome_color(result.outcome), result.outcome.as_str()),
            Cell::new(result.attempts),
            Cell::new(result.duration_ms),
            Cell::new(output_text(result)),
        ]);
    }
    lines(table)
}

fn output_text(result: &CallResult) -> String {
    let blocks = content_blocks(result).map(|blocks| content_text(&blocks));
    let text = match (&blocks, &result.output, &result.error) {
        (Some(text), ..) => text,
        (None, Some(output), _) => output.get(),
        (None, None, Some(error)) => &error.message,
        (None, None, None) => "",
    };
    short(text, OUTPUT_CHARS)
}

pub(crate) const fn outcome_color(outcome: Outcome) -> StatusColor {
    match outcome.severity() {
        OutcomeSeverity::Good => StatusColor::Good,
        OutcomeSeverity::Doubtful => StatusColor::Doubtful,
        OutcomeSeverity::Bad => StatusColor::Bad,
    }
}
