//! Formats the demo's day for people.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use comfy_table::{Cell, ContentArrangement};
use tickfleet_client::{Reply, ReplyStatus};
use tickfleet_model::Outcome;
use tickfleet_model::policy::Policy;

use super::CAPPED;
use super::day::Planned;
use super::kinds::{Kind, Kinds, SkippedKinds};
use super::report::{CallRow, CappedTurn, Report, Row};
use super::words::{counted, whole_sentences};
use crate::output::invoked::into_path;
use crate::output::results::outcome_color;
use crate::output::time_format::span;
use crate::output::{Output, StatusColor, lines, short, table};

/// With this maximum, the lines of the table have at most 110 characters.
const MESSAGE_CHARS_MAX: usize = 87;
const COLUMNS: [&str; 7] = ["TIME", "AGENT", "KIND", "TOOL", "RESULT", "TRIES", "WAITED"];

pub(super) fn opening(
    day: &[Planned],
    policy: &Policy,
    kinds: &Kinds,
    left_out: &SkippedKinds,
    invitation: &str,
    output: &Output,
) -> String {
    let agents: BTreeSet<_> = day.iter().map(|planned| &planned.turn.agent).collect();
    let known = agents.iter().filter(|agent| policy.agents.contains_key(**agent)).count();
    let strangers = match agents.len() - known {
        0 => String::new(),
        1 => " and one unknown".to_owned(),
        more => format!(" and {more} unknown"),
    };
    let title =
        format!("Demo: a day at Atlas UX, {} turns of {known} agents{strangers}; 1 s = 1 simulated hour", day.len());
    let (who, cap) = CAPPED;
    let invitation = if invitation.is_empty() { String::new() } else { format!("{invitation}\n\n") };
    format!(
        "{}\n\n\
         In this process: a store in memory, one scheduler, one worker, and a stand-in for Telegram, X, a model and\n\
         a calendar (an MCP server) on a port of this machine, which fails now and then. Agents, tools and\n\
         permissions are those of config/, plus the calendar, a word count and sales figures. Faster than the\n\
         defaults, so that a day fits: ticks of 1 s (not 5 s) with 10 calls per agent in each, retries after 0.2,\n\
         0.4 and 0.8 s (not 1, 3 and 9 s). {who} may make {cap} calls a day.\n\n\
         Kinds of tools, governed alike:\n{}\n{invitation}\
         Replies as they come, each with the time at which its turn was submitted:\n",
        output.paint(StatusColor::Strong, &title),
        tools_by_kind(day, kinds, left_out, output)
    )
}

fn tools_by_kind(day: &[Planned], kinds: &Kinds, left_out: &SkippedKinds, output: &Output) -> String {
    let called: BTreeSet<&str> = day.iter().flat_map(|p| &p.turn.calls).map(|call| call.tool.as_str()).collect();
    let mut text = String::new();
    for kind in Kind::ALL {
        let what = match kind {
            Kind::Typed => "Rust functions in the worker",
            Kind::Python => "functions in Python interpreters",
            Kind::Http => "requests described in YAML",
            Kind::Mcp => "an MCP server's, pinned just now",
            Kind::Shell => "commands in a sandbox",
        };
        let tools: Vec<&str> = called.iter().copied().filter(|tool| kinds.get(tool) == Some(kind)).collect();
        let tools = left_out.get(&kind).map_or_else(|| tools.join(", "), |why| format!("left out: {why}"));
        let word = output.paint(StatusColor::Strong, &format!("{:6}", kind.as_str()));
        let _ = writeln!(text, "  {word}  {what:32}  {tools}");
    }
    text
}

pub(super) fn live(day: &[Planned], reply: &Reply, output: &Output) -> String {
    let id = reply.id().map(ToString::to_string).unwrap_or_default();
    let planned = day.iter().find(|planned| planned.turn_id() == id);
    let (at, story) = match planned {
        Some(planned) => (planned.at.as_str(), planned.story.as_str()),
        None => ("", "answers the task that was delegated"),
    };
    let outcomes = reply.results.iter().map(|result| result.outcome);
    let mut came = counted(outcomes.map(|outcome| (outcome.as_str().to_owned(), outcome_color(outcome))), output);
    if reply.status != ReplyStatus::Done && reply.results.is_empty() {
        came = output.paint(StatusColor::Bad, "rejected");
    }
    format!("{at:5}  {} {story}: {came}", output.paint(StatusColor::Strong, &reply.agent))
}

pub(super) fn account(report: &Report, output: &Output) -> String {
    let mut text = format!("\n{}\n", output.paint(StatusColor::Strong, "The day, call by call"));
    text.push_str(&day_table(&report.day, output));
    let parts = [("Calls by outcome", outcomes(report, output)), ("Caps in action", caps(report))];
    for (title, body) in parts {
        let _ = write!(text, "\n{}\n{body}", output.paint(StatusColor::Strong, title));
    }
    let _ = write!(text, "\n{}", verdict(report, output));
    text
}

pub(super) fn next() -> String {
    let path = into_path().map(|export| format!("  {export}\n")).unwrap_or_default();
    format!("\nWhere to go next\n{path}{NEXT}")
}

const NEXT: &str =
    "  tickfleet dev                    a fleet with the same agents, to play with from another terminal; there:
  tickfleet explain TENANT:TURN    why a turn waits and until when, or how it ended
  tickfleet tools --tenant atlas-ux --agent fran
                                   what an agent may call, and why not the rest
  tickfleet demo --json            this account, for programs
";

/// A column would be too narrow for the message to the agent, so the message is below its call.
fn day_table(day: &[Row], output: &Output) -> String {
    let mut table = table(&COLUMNS);
    // A wrapped row has several lines, and `interleaved` would place messages below the wrong call.
    table.set_content_arrangement(ContentArrangement::Disabled);
    let mut messages = vec![String::new()];
    for row in day {
        for (index, (call, times)) in groups(&row.calls).into_iter().enumerate() {
            let first = |text: &str| if index == 0 { Cell::new(text) } else { Cell::new("") };
            let tool = if times == 1 { short(&call.tool, 64) } else { format!("{} x{times}", short(&call.tool, 60)) };
            let waited = if row.waited_ms > 0 { span(row.waited_ms) } else { "-".to_owned() };
            table.add_row([
                first(&row.at),
                first(&row.agent),
                Cell::new(call.kind.map_or("-", Kind::as_str)),
                Cell::new(tool),
                output.cell(outcome_color(call.outcome), call.outcome.as_str()),
                Cell::new(if call.attempts == 0 { "-".to_owned() } else { call.attempts.to_string() }),
                first(&waited),
            ]);
            messages.push(why(call));
        }
    }
    interleaved(&lines(table), &messages)
}

fn interleaved(table: &str, messages: &[String]) -> String {
    let indent = table.lines().next().and_then(|head| head.find(COLUMNS[2])).unwrap_or_default() + 2;
    let mut text = String::new();
    for (row, message) in table.lines().zip(messages) {
        let _ = writeln!(text, "{row}");
        if !message.is_empty() {
            let _ = writeln!(text, "{:indent$}{message}", "");
        }
    }
    text
}

fn groups(calls: &[CallRow]) -> Vec<(&CallRow, usize)> {
    let alike = |a: &CallRow, b: &CallRow| {
        (&a.tool, a.outcome, a.attempts, &a.code) == (&b.tool, b.outcome, b.attempts, &b.code)
    };
    calls.chunk_by(alike).filter_map(|group| Some((group.first()?, group.len()))).collect()
}

fn why(call: &CallRow) -> String {
    let code = call.code.as_deref().filter(|code| *code != call.outcome.as_str());
    let message = call.error.as_deref().unwrap_or_default();
    whole_sentences(&code.map_or_else(|| message.to_owned(), |code| format!("{code}: {message}")), MESSAGE_CHARS_MAX)
}

fn outcomes(report: &Report, output: &Output) -> String {
    let mut text = String::new();
    for outcome in Outcome::ALL {
        if let Some(count) = report.outcomes.get(outcome.as_str()) {
            let _ = writeln!(text, "  {count:>4}  {}", output.paint(outcome_color(outcome), outcome.as_str()));
        }
    }
    let _ = writeln!(text, "  {:>4}  results for {} calls", report.results, report.calls);
    text
}

fn caps(report: &Report) -> String {
    let one = |capped: &CappedTurn| {
        let windows: Vec<String> = capped.windows.iter().map(ToString::to_string).collect();
        let agent = &capped.agent;
        let calls = capped.calls;
        let waited = span(capped.waited_ms);
        format!("  {agent} made {calls} calls in one turn: {}, the last ones after {waited}\n", windows.join(" + "))
    };
    let mut text: String = report.caps.iter().map(one).collect();
    let refused = report.outcomes.get(Outcome::DailyCapReached.as_str()).copied().unwrap_or(0);
    let _ = writeln!(text, "  {} used all {} calls of its day; {refused} more were rejected", CAPPED.0, CAPPED.1);
    text
}

fn verdict(report: &Report, output: &Output) -> String {
    if report.ok {
        let kept = "Every call got exactly one result, no cap was exceeded, and nothing happened twice.";
        let more = format!(
            "{} tasks were delegated and answered; {} turn was submitted twice and carried out once.",
            report.tasks, report.duplicates
        );
        return format!("{}\n{more}\n", output.paint(StatusColor::Good, kept));
    }
    let broken: String = report.broken.iter().map(|promise| format!("  {promise}\n")).collect();
    format!("{}\n{broken}", output.paint(StatusColor::Bad, "Failed checks:"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_to_an_agent_appears_below_its_call() {
        let messages = ["", "", "No."].map(str::to_owned);
        let text = interleaved("TIME  KIND\n1     http\n2     mcp", &messages);
        assert_eq!(text, "TIME  KIND\n1     http\n2     mcp\n        No.\n");
    }
}
