//! `tickfleet submit`: submits a turn from a file, from stdin or from arguments.

use std::io::Read;
use std::time::Duration;

use clap::Args;
use serde::Serialize;
use tickfleet_client::private_inbox;
use tickfleet_model::{AgentId, Call, Context, Dialect, InboxName, Priority, TenantId, Turn, TurnId, limits};
use tickfleet_protocol::{dialect_info, parse_turn, with_owner};

use crate::commands::model_response;
use crate::failure::Failure;
use crate::output::Output;
use crate::output::format::Format;
use crate::output::results::{self, Awaited, PriorLetter};
use crate::output::time_format::Deadline;
use crate::setup::Setup;

/// Submit a turn: the tool calls of one model response.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  tickfleet submit --tenant demo --agent kelly --call 'echo {\"text\":\"hi\"}' --call echo --wait
  tickfleet submit turn.json --wait 30
  cat openai-message.json | tickfleet submit - --tenant demo --agent kelly --wait --json
  tickfleet submit answer.txt --format text --tenant demo --agent kelly --wait

A file contains one turn: {tenant, agent, calls: [{id?, name, arguments}]}, or tool_calls in the form of
OpenAI, or content in the form of Anthropic, or an unmodified message or response of OpenAI, Anthropic or Gemini.
With --format, the file contains only the calls in that dialect, or for text the model's output. Options override
the file. With --wait, the exit code is 1 unless every call ended as ok. Without it, exit code 0 means that the
turn was submitted; `tickfleet explain` shows its progress.")]
pub(crate) struct Submit {
    /// File with one turn as JSON. `-` reads standard input.
    #[arg(value_name = "FILE", conflicts_with = "call")]
    file: Option<String>,
    /// The file contains only the calls, in this dialect.
    #[arg(long, value_enum, requires_all = ["file", "tenant", "agent"])]
    format: Option<Format>,
    /// The model had strict definitions: a null that the schema forbids counts as a missing argument.
    #[arg(long)]
    strict: bool,
    /// Tenant of the turn.
    #[arg(long)]
    tenant: Option<TenantId>,
    /// Agent that makes the calls.
    #[arg(long)]
    agent: Option<AgentId>,
    /// Call: a tool name, followed by its arguments as JSON (default {}). Repeatable; calls run in this order.
    #[arg(long, value_name = "TOOL [JSON]")]
    call: Vec<String>,
    /// Your own id. A turn with an id that is already known runs once.
    #[arg(long, value_name = "ID")]
    turn_id: Option<TurnId>,
    /// Priority: low, normal, high or urgent.
    #[arg(long, value_parser = parse_priority)]
    priority: Option<Priority>,
    /// Expiry of the turn: a duration (90s, 2h) or a time (RFC 3339). Default: 24 hours.
    #[arg(long, value_name = "WHEN", value_parser = Deadline::parse)]
    deadline: Option<Deadline>,
    /// Inbox for the reply.
    #[arg(long, value_name = "INBOX")]
    reply_to: Option<InboxName>,
    /// Wait for the results, up to 60 seconds if no duration is given, and print them. Without an inbox, uses a private
    /// one.
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60", value_parser = results::parse_wait)]
    wait: Option<Duration>,
}

#[derive(Serialize)]
struct SubmitOutput<'a> {
    turn_id: &'a TurnId,
    tenant: &'a TenantId,
    duplicate: bool,
}

pub(crate) fn parse_priority(text: &str) -> Result<Priority, String> {
    Priority::parse(text).ok_or_else(|| "expected low, normal, high or urgent".into())
}

pub(crate) async fn run(setup: &Setup, args: &Submit, output: &Output) -> Result<(), Failure> {
    let mut turn = turn(args)?;
    let client = setup.client().await?;
    turn.id = args.turn_id.clone().or(turn.id);
    turn.priority = args.priority.unwrap_or(turn.priority);
    turn.reply_to = args.reply_to.clone().or(turn.reply_to);
    if let Some(deadline) = args.deadline {
        turn.deadline_ms = Some(deadline.at(client.store(&turn.tenant).now_ms().await?));
    }
    let private = turn.reply_to.is_none() && args.wait.is_some();
    if private {
        turn.reply_to = Some(private_inbox("cli"));
    }
    let tenant = turn.tenant.clone();
    let inbox = turn.reply_to.clone();
    let given = turn.id.clone();
    let prior_letter = PriorLetter::before(&client, &tenant, given.as_ref().map(TurnId::as_str)).await?;
    let submitted = client.submit(turn).await?;
    if let Some(hint) = setup.unserved(&client, &tenant).await? {
        output.note(&hint);
    }
    let (Some(timeout), Some(inbox)) = (args.wait, inbox) else {
        let accepted = SubmitOutput { turn_id: &submitted.turn_id, tenant: &tenant, duplicate: submitted.duplicate };
        return output.show(&accepted, |accepted| accepted_text(accepted));
    };
    let awaited = Awaited { tenant: &tenant, id: &submitted.turn_id, inbox: &inbox, private, timeout, prior_letter };
    results::wait(&client, &awaited, output).await
}

fn accepted_text(accepted: &SubmitOutput<'_>) -> String {
    let tenant = accepted.tenant;
    let turn = accepted.turn_id;
    let again = if accepted.duplicate { " (already submitted; it does not run again)" } else { "" };
    format!("{tenant}:{turn}{again}\nFollow it: tickfleet explain {tenant}:{turn}")
}

fn turn(args: &Submit) -> Result<Turn, Failure> {
    let Some(file) = &args.file else {
        if args.call.is_empty() {
            return Err(Failure::usage("nothing to submit: give --call or a file (- reads stdin)"));
        }
        return from_arguments(args);
    };
    let bytes = read(file)?;
    let bytes = match args.format {
        Some(format) => around_calls(format, &bytes).map_err(|why| Failure::usage(format!("{file} {why}")))?,
        None => match std::str::from_utf8(&bytes).ok().and_then(model_response::turn_of) {
            Some(turn) => turn.map_err(|why| Failure::failed(anyhow::anyhow!("{file} {why}")))?.into_bytes(),
            None => bytes,
        },
    };
    let bytes = with_owner(bytes, args.tenant.as_ref(), args.agent.as_ref());
    let mut turn = parse_turn(&bytes).map_err(|refusal| {
        Failure::failed(anyhow::anyhow!("{file} contains no turn: {} ({})", refusal.message, refusal.code))
    })?;
    turn.tenant = args.tenant.clone().unwrap_or(turn.tenant);
    turn.agent = args.agent.clone().unwrap_or(turn.agent);
    turn.strict |= args.strict;
    Ok(turn)
}

/// Returns a turn with these calls, but without a tenant and an agent.
fn around_calls(format: Format, calls: &[u8]) -> Result<Vec<u8>, String> {
    let text = std::str::from_utf8(calls).map_err(|_| "is not UTF-8")?;
    let word = format.0.as_str();
    let turn = if dialect_info(format.0).in_words {
        format!("{{\"answer\":{}}}", serde_json::Value::from(text))
    } else {
        if !text.trim_start().starts_with('[') {
            return Err(format!(
                "contains no list of calls; without --format {word}, it is read as a whole turn or as a provider's \
                 response"
            ));
        }
        format!("{{\"format\":\"{word}\",\"calls\":{text}}}")
    };
    Ok(turn.into_bytes())
}

fn read(file: &str) -> Result<Vec<u8>, Failure> {
    // Reads more than the maximum, so that a larger turn is rejected for its size and not as incomplete JSON.
    let bound = limits::TURN_BYTES_MAX as u64 + 1_024;
    let mut bytes = Vec::new();
    let read = match file {
        "-" => std::io::stdin().lock().take(bound).read_to_end(&mut bytes),
        path => std::fs::File::open(path).and_then(|file| file.take(bound).read_to_end(&mut bytes)),
    };
    read.map_err(|error| Failure::failed(anyhow::anyhow!("{file} cannot be read: {error}")))?;
    Ok(bytes)
}

fn from_arguments(args: &Submit) -> Result<Turn, Failure> {
    let missing = |what: &str| Failure::usage(format!("--{what} is required with --call"));
    Ok(Turn {
        id: None,
        tenant: args.tenant.clone().ok_or_else(|| missing("tenant"))?,
        agent: args.agent.clone().ok_or_else(|| missing("agent"))?,
        priority: Priority::default(),
        deadline_ms: None,
        reply_to: None,
        dialect: Dialect::Raw,
        task: None,
        context: Context::default(),
        want_audits: false,
        strict: args.strict,
        allowed_tools: None,
        parallel_reads: false,
        pending_approval: false,
        local_calls: false,
        calls: args.call.iter().map(|text| call(text)).collect::<Result<_, _>>()?,
    })
}

fn call(text: &str) -> Result<Call, Failure> {
    let (tool, arguments) = text.trim().split_once(char::is_whitespace).unwrap_or((text.trim(), "{}"));
    let arguments = arguments.trim();
    if tool.is_empty() || tool.len() > limits::TOOL_NAME_BYTES_MAX {
        return Err(Failure::usage(format!("--call {text:?}: expected the name of a tool, then its arguments")));
    }
    if let Err(error) = serde_json::from_str::<serde::de::IgnoredAny>(arguments) {
        return Err(Failure::usage(format!("--call {tool}: the arguments are not JSON: {error}")));
    }
    Ok(Call { provider_id: None, tool: tool.to_owned(), arguments: arguments.to_owned() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_call_is_a_name_and_json() {
        let parsed = |text| call(text).map(|c| (c.tool, c.arguments)).map_err(|f| f.message());
        assert_eq!(parsed("echo"), Ok(("echo".into(), "{}".into())));
        assert_eq!(parsed(" echo  {\"text\": \"a b\"} "), Ok(("echo".into(), "{\"text\": \"a b\"}".into())));
        assert!(parsed("echo text=hi").unwrap_err().unwrap().contains("not JSON"));
        assert!(parsed("  ").is_err());
    }

    #[test]
    fn a_file_may_contain_only_calls() {
        let owned = |format, text: &str| {
            let tenant = TenantId::new("demo").unwrap();
            let agent = AgentId::new("kelly").unwrap();
            let turn = around_calls(format, text.as_bytes()).map(|turn| with_owner(turn, Some(&tenant), Some(&agent)));
            turn.map(|turn| parse_turn(&turn).unwrap())
        };
        let items = r#"[{"type":"reasoning"},{"type":"function_call","call_id":"c","name":"echo","arguments":"{}"}]"#;
        let turn = owned(Format(Dialect::OpenaiResponses), items).unwrap();
        assert_eq!((turn.dialect, turn.calls[0].provider_id.as_deref()), (Dialect::OpenaiResponses, Some("c")));
        let turn = owned(Format(Dialect::Text), "Hi \"you\": {\"tool\":\"echo\"}").unwrap();
        assert_eq!((turn.dialect, turn.calls[0].tool.as_str()), (Dialect::Text, "echo"));
        assert_eq!(owned(Format(Dialect::Text), "No tool is needed.").unwrap().calls, []);
        assert!(owned(Format(Dialect::Mcp), "{}").unwrap_err().contains("no list of calls"));
    }

    #[test]
    fn a_response_gets_a_default_owner_and_keeps_an_explicit_one() {
        let tenant = TenantId::new("demo").unwrap();
        let agent = AgentId::new("kelly").unwrap();
        let with = |text: &str| with_owner(text.into(), Some(&tenant), Some(&agent));
        let turn = parse_turn(&with(r#"{"calls":[{"name":"echo"}]}"#)).unwrap();
        assert_eq!((turn.tenant.as_str(), turn.agent.as_str()), ("demo", "kelly"));
        let turn = parse_turn(&with(r#"{"tenant":"acme","calls":[{"name":"echo"}]}"#)).unwrap();
        assert_eq!((turn.tenant.as_str(), turn.agent.as_str()), ("acme", "kelly"));
        assert_eq!(with("{}"), br#"{"tenant":"demo","agent":"kelly"}"#);
        assert_eq!(with("[1]"), b"[1]");
    }
}
