use tickfleet_client::tasks::{Round, TaskCall, TaskDetails, TaskState, TaskSummary, TaskWait, WaitReason};

use super::good;
use crate::output::time_format::{clock, from_now};
use crate::output::{StatusColor, short};

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

/// The tasks below it, one line each.
pub(crate) fn below(story: &TaskDetails) -> Vec<String> {
    fn push(story: &TaskDetails, depth: usize, lines: &mut Vec<String>) {
        for child in &story.children {
            let task = &child.summary;
            let agent = task.agent.as_deref().unwrap_or("?");
            lines.push(format!("{}{} {agent} {}", "  ".repeat(depth), task.id, state(task).1));
            push(child, depth + 1, lines);
        }
    }
    let mut lines = Vec::new();
    if !story.children.is_empty() {
        lines.push("Tasks below it:".to_owned());
        push(story, 1, &mut lines);
    }
    lines
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
    let plan = if round.text.trim().is_empty() {
        String::new()
    } else {
        format!(": {}", short(round.text.trim(), TEXT_CHARS))
    };
    lines.push(format!("{step}  {} ({} + {} tokens){plan}", round.model, round.input_tokens, round.output_tokens));
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
