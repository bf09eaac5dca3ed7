use std::fmt::Write as _;

use tickfleet_client::tasks::{
    CancelStatus, CancelledTask, Round, TaskCall, TaskDetails, TaskState, TaskSummary, TaskWait, WaitReason,
};

use super::good;
use crate::output::time_format::{clock, from_now, span};
use crate::output::{Output, StatusColor, short};

const TEXT_CHARS: usize = 160;

pub(crate) fn state(task: &TaskSummary) -> (StatusColor, String) {
    match (task.state, &task.outcome) {
        (TaskState::Waiting, _) => (StatusColor::Doubtful, "waiting".into()),
        (TaskState::Running, _) => (StatusColor::Good, "running".into()),
        (TaskState::Ended, Some(outcome)) => (good(outcome == "ok"), format!("ended: {outcome}")),
        (TaskState::Ended, None) => (StatusColor::Doubtful, "ended".into()),
        (TaskState::RecordExpired, _) => (StatusColor::Doubtful, "record expired".into()),
    }
}

/// Writing to a `String` cannot fail, so the results of `writeln!` are ignored.
pub(super) fn story(story: &TaskDetails, now_ms: i64, output: &Output) -> String {
    let mut text = String::new();
    one(story, now_ms, output, &mut text);
    if !story.children.is_empty() {
        let _ = writeln!(text, "\nTasks below it:");
        for child in &story.children {
            tree(child, 1, output, &mut text);
        }
    }
    text
}

fn one(story: &TaskDetails, now_ms: i64, output: &Output, text: &mut String) {
    let task = &story.summary;
    let (color, word) = state(task);
    let agent = task.agent.as_ref().map(|agent| format!(" of agent {agent}")).unwrap_or_default();
    let _ = writeln!(
        text,
        "Task {}:{}{agent} {}",
        task.tenant,
        output.paint(StatusColor::Strong, task.id.as_str()),
        output.paint(color, &word)
    );
    if let Some(description) = &task.description {
        let from = task.delegator.as_ref().map(|agent| format!(" (from {agent})")).unwrap_or_default();
        let _ = writeln!(text, "  To do{from}: {}", short(description, TEXT_CHARS));
    }
    if let Some(at) = task.accepted_ms {
        let _ = writeln!(text, "  {}  accepted", clock(at));
    }
    for line in steps(story) {
        let _ = writeln!(text, "  {line}");
    }
    if let Some(reason) = &story.cancelled {
        let _ = writeln!(text, "  Cancelled: {}", short(reason, TEXT_CHARS));
    }
    if let Some(wait) = &story.waits {
        let _ = writeln!(text, "  It waits: {}", waits(wait, now_ms));
    }
    if let Some(error) = &story.error {
        let _ = writeln!(text, "  It did not succeed: {error}");
    }
    match (task.ended_ms, task.deadline_ms) {
        (Some(end), _) => {
            let took = task.accepted_ms.map(|at| format!(", {} after it was accepted", span(end - at)));
            let _ = writeln!(text, "  {}  ended{}", clock(end), took.unwrap_or_default());
        }
        (None, Some(deadline)) => {
            let _ = writeln!(text, "  It expires {} ({})", clock(deadline), from_now(deadline, now_ms));
        }
        (None, None) => {}
    }
}

pub(crate) fn steps(story: &TaskDetails) -> Vec<String> {
    let mut lines = Vec::new();
    for round in &story.rounds {
        plan(round, &mut lines);
        if round.calls.is_empty() {
            continue;
        }
        if let Some(turn) = &round.turn {
            let at = round.executed_ms.map(|at| format!(", admitted {}", clock(at))).unwrap_or_default();
            lines.push(format!("execute   turn {turn}{at}"));
        }
        if round.calls.iter().all(|call| call.ok.is_some()) {
            let at = round.validated_ms.map(|at| format!(", ended {}", clock(at))).unwrap_or_default();
            lines.push(format!("validate  {}{at}", results(&round.calls)));
        }
        lines.extend(round.calls.iter().map(called));
        lines.extend(round.notes.iter().map(|note| format!("          note: {}", short(note, TEXT_CHARS))));
    }
    if let Some((input, out, cost)) = used(story) {
        let cost = if cost > 0 { format!(", cost {}", money(cost)) } else { String::new() };
        lines.push(format!("Tokens: {input} in, {out} out{cost}"));
    }
    lines
}

fn plan(round: &Round, lines: &mut Vec<String>) {
    let step = if round.calls.is_empty() { "answer  " } else { "plan    " };
    let said = if round.text.trim().is_empty() {
        String::new()
    } else {
        format!(": {}", short(round.text.trim(), TEXT_CHARS))
    };
    lines.push(format!("{step}  {} ({} + {} tokens){said}", round.model, round.input_tokens, round.output_tokens));
}

fn results(calls: &[TaskCall]) -> String {
    let good = calls.iter().filter(|call| call.ok == Some(true)).count();
    format!("{good} of {} calls succeeded", calls.len())
}

fn called(call: &TaskCall) -> String {
    let (mark, result) = match (call.ok, &call.content) {
        (Some(true), Some(content)) => ("ok", content.as_str()),
        (Some(false), Some(content)) => ("failed", content.as_str()),
        _ => ("out", ""),
    };
    let result = if result.is_empty() { String::new() } else { format!(" → {}", short(result, TEXT_CHARS)) };
    format!("          {mark}: {} {}{result}", call.tool, short(&call.arguments, TEXT_CHARS))
}

fn used(story: &TaskDetails) -> Option<(u64, u64, u64)> {
    let sum = |of: fn(&Round) -> u64| story.rounds.iter().map(of).sum::<u64>();
    (!story.rounds.is_empty()).then(|| (sum(|r| r.input_tokens), sum(|r| r.output_tokens), sum(|r| r.cost_micros)))
}

fn money(micros: u64) -> String {
    tickfleet_model::limit::amount::show(micros)
}

pub(crate) fn waits(wait: &TaskWait, now_ms: i64) -> String {
    let until = wait.until_ms.map(|ms| format!(" ({})", from_now(ms, now_ms))).unwrap_or_default();
    match &wait.reason {
        WaitReason::Turn { turn } => format!("for its turn {turn}, which is running"),
        WaitReason::Capped { turn, limit } => format!("for its turn {turn}; {limit} used up{until}"),
        WaitReason::Child { turn, task } => format!("for the task {task}, which a call of its turn {turn} waits for"),
        WaitReason::Approval { turn, approval, tool } => {
            format!("for an approval of {tool}, a call of its turn {turn} ({approval}){until}")
        }
        WaitReason::Retry => format!("for a retry{until}"),
    }
}

fn tree(story: &TaskDetails, depth: usize, output: &Output, text: &mut String) {
    let task = &story.summary;
    let (color, word) = state(task);
    let agent = task.agent.as_deref().unwrap_or("?");
    let _ = writeln!(text, "{}{} {agent} {}", "  ".repeat(depth), task.id, output.paint(color, &word));
    for child in &story.children {
        tree(child, depth + 1, output, text);
    }
}

pub(super) fn cancelled(cancelled: &CancelledTask) -> String {
    let mut text = String::new();
    ended(cancelled, 0, &mut text);
    text
}

fn ended(cancelled: &CancelledTask, depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    let _ = writeln!(text, "{indent}task {}: {}", cancelled.task, word(cancelled.result));
    for turn in &cancelled.turns {
        let _ = writeln!(text, "{indent}  turn {}: {}", turn.turn, word(turn.result));
    }
    for child in &cancelled.children {
        ended(child, depth + 1, text);
    }
}

const fn word(word: CancelStatus) -> &'static str {
    match word {
        CancelStatus::Ok => "it ends now",
        CancelStatus::Flagged => "it ends as soon as its worker or runtime receives the cancellation",
        CancelStatus::Ended => "it had already ended",
        CancelStatus::Waiting => "no such id yet; if it arrives within 24 h, it ends without running",
        CancelStatus::Full => "no such id yet, and too many early cancels are pending: not recorded",
        CancelStatus::Unknown => "it was admitted, but its record is lost",
    }
}
