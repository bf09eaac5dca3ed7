//! Formats the history of a turn, call or task as text.

use std::fmt::Write as _;

use serde::{Serialize as _, Serializer};
use tickfleet_client::inner::InnerCall;
use tickfleet_client::tasks::{TaskWait, WaitReason};
use tickfleet_core::turn::state::EndReason;
use tickfleet_model::CallResult;
use tickfleet_model::outcome::OutcomeSeverity;
use tickfleet_protocol::AuditEntry;
use tickfleet_protocol::audit::AuditDenial;
use tickfleet_store::{AdmissionNote, BreakerWait, FailedAttempt};

use super::queue_readers::QueueReaders;
use super::record::{LimitWait, TurnWait, WaitRule};
use super::{ExplainedState, Explanation};
use crate::commands::approvals::text as approvals;
use crate::commands::tasks;
use crate::output::results;
use crate::output::time_format::{clock, from_now, span};
use crate::output::{Output, StatusColor, plural, short};

const AUDIT_ENTRIES_SHOWN: usize = 20;
const DESCRIPTION_CHARS: usize = 200;

/// Writing to a `String` cannot fail, so the results of `writeln!` are ignored.
pub(super) fn text(explanation: &Explanation, output: &Output) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", head(explanation, output));
    for line in explanation_lines(explanation) {
        let _ = writeln!(text, "  {line}");
    }
    let shown: Vec<_> = match explanation.position {
        Some(position) => explanation.results.iter().skip(position).take(1).cloned().collect(),
        None => explanation.results.clone(),
    };
    if !shown.is_empty() {
        let _ = writeln!(text, "\n{}", results::results(&shown, output));
    }
    audit(explanation, &mut text);
    text
}

pub(super) fn explanation_lines(explanation: &Explanation) -> Vec<String> {
    let inner = inner(&explanation.inner_calls);
    let below = explanation.task.iter().flat_map(tasks::text::below);
    life(explanation)
        .into_iter()
        .chain(below)
        .chain(inner)
        .chain(rules(explanation))
        .chain(consents(explanation))
        .chain(beside(explanation))
        .collect()
}

fn inner(calls: &[InnerCall]) -> Vec<String> {
    fn push_inner_call(call: &InnerCall, depth: usize, lines: &mut Vec<String>) {
        let tool = call.tool.as_deref().unwrap_or("a tool");
        let tries = match call.attempts {
            1 => "1 try".to_owned(),
            tries => format!("{tries} tries"),
        };
        let how = match (call.outcome, call.duration_ms) {
            (Some(outcome), Some(took)) => {
                format!("{}, {tries}, {}", outcome.as_str(), span(i64::try_from(took).unwrap_or(i64::MAX)))
            }
            (Some(outcome), None) => format!("{}, {tries}", outcome.as_str()),
            (None, _) if call.tool.is_some() => format!("running, {tries} so far"),
            (None, _) => "ended; its record has expired".to_owned(),
        };
        let why = call.error.as_ref().map(|why| format!(": {}", short(why, 120))).unwrap_or_default();
        lines.push(format!("{}{} called {tool}: {how}{why}", "  ".repeat(depth), call.id));
        for inner in &call.inner {
            push_inner_call(inner, depth + 1, lines);
        }
    }
    let mut lines = Vec::new();
    let mut made_by = None;
    for call in calls {
        if made_by.replace(call.made_by) != Some(call.made_by) {
            lines.push(format!("Call /{} called other tools:", call.made_by));
        }
        push_inner_call(call, 1, &mut lines);
    }
    lines
}

fn audit(explanation: &Explanation, text: &mut String) {
    let entries = &explanation.audit.entries;
    if !entries.is_empty() {
        let _ = writeln!(text, "\nAudit:");
        for entry in entries.iter().take(AUDIT_ENTRIES_SHOWN) {
            let _ = writeln!(text, "  {}", audit_line(entry.get()));
        }
        if let Some(more) = entries.len().checked_sub(AUDIT_ENTRIES_SHOWN).filter(|more| *more > 0) {
            let _ = writeln!(text, "  … and {more} more (--json shows all)");
        }
    }
    let read = explanation.audit.read;
    let complete = explanation.audit.complete;
    if !complete && read > 0 {
        let _ = writeln!(
            text,
            "\nAudit: {} found in {read} entries. There may be more: narrow the time with --since and --until.",
            plural(entries.len(), "entry")
        );
    } else if !complete && explanation.state == ExplainedState::RecordExpired {
        text.push_str("\nAudit entries are kept longer than records: search them with --since.\n");
    }
}

fn head(explanation: &Explanation, output: &Output) -> String {
    let (color, word) = match explanation.state {
        ExplainedState::Inbound => (StatusColor::Doubtful, "waits for a scheduler"),
        ExplainedState::Rejected => (StatusColor::Bad, "was rejected"),
        ExplainedState::Throttled if explanation.waits.as_ref().is_some_and(|wait| wait.limit.is_some()) => {
            (StatusColor::Doubtful, "waits for a limit")
        }
        ExplainedState::Throttled => (StatusColor::Doubtful, "waits in its agent's throttle queue"),
        ExplainedState::Ready if matches!(explanation.available_readers, Some(QueueReaders::Caller { .. })) => {
            (StatusColor::Doubtful, "waits for its caller's process")
        }
        ExplainedState::Ready => (StatusColor::Doubtful, "waits for a worker"),
        ExplainedState::Running => (StatusColor::Good, "runs"),
        ExplainedState::Retry if waits_for_work(explanation).is_some() => {
            (StatusColor::Doubtful, "waits for work that it began")
        }
        ExplainedState::Retry if explanation.waits.as_ref().is_some_and(|wait| wait.approval.is_some()) => {
            (StatusColor::Doubtful, "waits for an approval")
        }
        ExplainedState::Retry => (StatusColor::Doubtful, "waits for a retry"),
        ExplainedState::Ending => (StatusColor::Doubtful, "is being ended"),
        ExplainedState::Done => {
            let (color, word) = ended(explanation);
            return headline(explanation, output, color, word);
        }
        ExplainedState::RecordExpired => {
            (StatusColor::Doubtful, "has ended; its record has expired (retention.records)")
        }
    };
    headline(explanation, output, color, word.to_owned())
}

fn headline(explanation: &Explanation, output: &Output, color: StatusColor, word: String) -> String {
    let what = if explanation.is_task { "Task" } else { "Turn" };
    let agent = explanation.agent.as_ref().map(|agent| format!(" of agent {agent}")).unwrap_or_default();
    format!(
        "{what} {}:{}{agent} {}",
        explanation.tenant,
        output.paint(StatusColor::Strong, &explanation.id),
        output.paint(color, &word)
    )
}

/// The color means success only if all calls succeeded.
fn ended(explanation: &Explanation) -> (StatusColor, String) {
    let position = |result: &CallResult| result.call.rsplit('/').next().and_then(|position| position.parse().ok());
    let shown: Vec<&CallResult> = explanation
        .results
        .iter()
        .filter(|result| explanation.position.is_none() || position(result) == explanation.position)
        .collect();
    let failed: Vec<&CallResult> = shown.iter().copied().filter(|result| !result.outcome.is_success()).collect();
    let color = match failed.iter().find(|result| result.outcome.severity() == OutcomeSeverity::Bad) {
        Some(_) => StatusColor::Bad,
        None if !failed.is_empty() || shown.is_empty() => StatusColor::Doubtful,
        None => StatusColor::Good,
    };
    let word = match (failed.as_slice(), shown.len()) {
        ([], _) => "has ended".to_owned(),
        ([one], 1) => format!("has ended: {}", one.outcome.as_str()),
        (failed, all) => format!("has ended: {} of {} did not succeed", failed.len(), plural(all, "call")),
    };
    (color, word)
}

fn steps(explanation: &Explanation) -> impl Iterator<Item = String> {
    let admissions = explanation.admissions.iter().map(|a| (a.at_ms, admission(a)));
    let tries = explanation.tries.iter().map(|t| (t.at_ms, failed_try(t)));
    let breaker_waits = explanation.breaker_waits.iter().map(|wait| (wait.at_ms, breaker_wait(wait)));
    let mut steps: Vec<(i64, String)> = admissions.chain(tries).chain(breaker_waits).collect();
    steps.sort_by_key(|(at_ms, _)| *at_ms);
    steps.into_iter().map(|(_, line)| line)
}

fn life(explanation: &Explanation) -> Vec<String> {
    let mut lines = Vec::new();
    match (explanation.state, &explanation.refusal) {
        (ExplainedState::Inbound, _) => {
            lines.extend(explanation.available_readers.as_ref().map(QueueReaders::describe))
        }
        (ExplainedState::Rejected, Some(reason)) => lines
            .push(format!("Rejected: {reason}. The message is in the dead letters: tickfleet dead list --kind letter")),
        (_, Some(reason)) => lines.push(format!("Rejected: {reason}")),
        _ => {}
    }
    if let Some(at) = explanation.accepted_ms {
        let calls = plural(explanation.calls, "call");
        let queue = explanation.queue.as_ref().map(|queue| format!(", queue {queue}")).unwrap_or_default();
        lines.push(format!("{}  accepted with {calls}{queue}", clock(at)));
    }
    if let Some(description) = &explanation.description {
        let from = explanation.delegator.as_ref().map(|agent| format!(" (from {agent})")).unwrap_or_default();
        lines.push(format!("To do{from}: {}", short(description, DESCRIPTION_CHARS)));
    } else if let Some(agent) = &explanation.delegator {
        lines.push(format!("Delegated by {agent}"));
    }
    lines.extend(steps(explanation));
    if explanation.is_task && explanation.accepted_ms.is_some() {
        lines.push("A task starts without admission; caps count the calls of its turns.".into());
    } else if explanation.admissions.is_empty() && explanation.accepted_ms.is_some() {
        lines.push("No calls admitted, no caps debited.".into());
    }
    lines.extend(explanation.task.iter().flat_map(tasks::text::steps));
    // `steps` has listed the recorded attempts, so count only the others here.
    let noted = explanation.tries.iter().filter(|noted| noted.attempt > 0).count();
    let unnoted = explanation.retries.saturating_sub(u64::try_from(noted).unwrap_or(u64::MAX));
    let trouble = [
        (unnoted, if noted == 0 { "failed try" } else { "more failed try" }, "continued after a wait"),
        (explanation.crashes, "lost worker", "taken over by another process"),
    ];
    for (count, what, then) in trouble.into_iter().filter(|(count, ..)| *count > 0) {
        lines.push(format!("{}, {then}", plural(usize::try_from(count).unwrap_or(usize::MAX), what)));
    }
    if let Some(reason) = &explanation.cancel_asked {
        lines.push(format!("Canceled: {reason}"));
    }
    if let Some(reason) = &explanation.end_reason {
        lines.push(format!("Calls without a result ended: {}", because(reason)));
    }
    match explanation.ended_ms {
        Some(end) => {
            let took = explanation
                .accepted_ms
                .map(|at| format!(", {} after it was accepted", span(end - at)))
                .unwrap_or_default();
            lines.push(format!("{}  ended{took}", clock(end)));
        }
        None => lines.extend(present(explanation)),
    }
    if let Some(policy) = &explanation.policy {
        lines.push(format!("Policy in force: generation {} ({})", policy.generation, policy.digest));
    }
    lines
}

/// Includes rules and conditions in shadow mode.
fn rules(explanation: &Explanation) -> Vec<String> {
    let lines_of = |verdict: &str, call: &str, rule: &str, reason: &str, message: &str| {
        let what = match reason {
            _ if rule.is_empty() => return None,
            "rule_not_met" | "rule_undecided" | "limit_reached" => "The rule ",
            "fact_missing" | "fact_forbidden" | "fact_deadlock" => "The condition on facts ",
            // Here, `rule` is the command or setting that disabled the tool, so the sentence needs no prefix.
            "tool_disabled" => "",
            _ => return None,
        };
        let call = call.rsplit('/').next().unwrap_or_default();
        Some(format!("{what}{rule} {verdict} call /{call}: {message}"))
    };
    let here = |call: &str| explanation.position.is_none_or(|position| call.ends_with(&format!("/{position}")));
    let mut lines = Vec::new();
    for result in explanation.results.iter().filter(|result| here(&result.call)) {
        let Some(error) = &result.error else { continue };
        let detail = |name: &str| error.details.as_ref().and_then(|details| details.get(name)?.as_str());
        if let (Some(rule), Some(reason)) = (detail("rule"), detail("reason")) {
            lines.extend(lines_of("stopped", &result.call, rule, reason, &error.message));
        }
    }
    for entry in &explanation.audit.entries {
        let meta = AuditEntry::read(entry.get()).unwrap_or_default().meta;
        // Without results in the record, the audit log is the only source of errors.
        if let (true, Some(error)) = (explanation.results.is_empty(), &meta.error) {
            let rule = error.detail("rule").unwrap_or_default();
            let reason = error.detail("reason").unwrap_or_default();
            lines.extend(lines_of("stopped", &meta.call, &rule, &reason, &error.message));
        }
        for AuditDenial { rule, reason, message } in &meta.shadow {
            lines.extend(lines_of("(shadow) would have stopped", &meta.call, rule, reason, message));
        }
    }
    lines
}

fn consents(explanation: &Explanation) -> Vec<String> {
    let here = |call: &str| explanation.position.is_none_or(|position| call.ends_with(&format!("/{position}")));
    let denial = |result: &CallResult| {
        let details = result.error.as_ref()?.details.as_ref().filter(|_| here(&result.call))?;
        let of = |name: &str| details.get(name)?.as_str();
        let by = of("by").filter(|_| of("reason") == Some("denied"))?;
        let call = result.call.rsplit('/').next().unwrap_or_default();
        Some(format!("{by} denied call /{call} ({})", of("approval")?))
    };
    let consent = |result: &CallResult| {
        let approval = result.approval.as_ref().filter(|_| here(&result.call))?;
        let by = approval.by.join(" and ");
        let id = &approval.id;
        let call = result.call.rsplit('/').next().unwrap_or_default();
        let others =
            approval.arguments.as_ref().map(|given| format!(", with other arguments: {}", short(given.get(), 200)));
        Some(format!("{by} approved call /{call} ({id}){}", others.unwrap_or_default()))
    };
    explanation.results.iter().filter_map(|result| consent(result).or_else(|| denial(result))).collect()
}

fn beside(explanation: &Explanation) -> Vec<String> {
    let mut lines = Vec::new();
    for result in &explanation.results {
        let position = result.call.rsplit('/').next().unwrap_or_default();
        if explanation.position.is_some_and(|only| only.to_string() != position) {
            continue;
        }
        if let Some(cached) = &result.cached {
            let age = span(i64::try_from(cached.age_ms).unwrap_or(i64::MAX));
            lines.push(format!(
                "Call /{position} got the cached answer of {}, {age} old: its tool was not called",
                cached.call
            ));
        }
        if let Some(call) = &result.repeats {
            lines.push(format!("Call /{position} got the outcome of the equal call {call}: it did not run again"));
        }
        let of_error = |name: &str| result.error.as_ref()?.details.as_ref()?.get(name)?.as_str();
        if of_error("reason") == Some("loop") {
            let until = of_error("until").unwrap_or_default();
            lines.push(format!("The loop breaker denied call /{position}: repeated too often with the same result. It may run again at {until}"));
        }
        lines.extend(result.note.as_ref().map(|note| format!("Call /{position}: note to its agent: {note}")));
    }
    lines
}

fn waits_for_work(explanation: &Explanation) -> Option<&TaskWait> {
    explanation.task.as_ref()?.waits.as_ref().filter(|wait| wait.reason != WaitReason::Retry)
}

fn present(explanation: &Explanation) -> Vec<String> {
    let mut lines = Vec::new();
    if explanation.accepted_ms.is_none() {
        return lines;
    }
    let done = explanation.calls_done;
    let admitted = explanation.calls_admitted;
    let all = explanation.calls;
    let failed = explanation.results.iter().filter(|result| !result.outcome.is_success()).count();
    let failed = if failed > 0 { format!(" ({failed} without success)") } else { String::new() };
    lines.push(format!("Now: {done} of {} ended{failed}, {admitted} admitted", plural(all, "call")));
    match (&explanation.holder, explanation.state) {
        (Some(holder), _) => lines.push(held(explanation, holder)),
        (None, ExplainedState::Ready) => {
            lines.extend(explanation.available_readers.as_ref().map(QueueReaders::describe))
        }
        _ => {}
    }
    match waits_for_work(explanation) {
        Some(wait) => lines.push(format!("It waits: {}", tasks::text::waits(wait, explanation.now_ms))),
        None => lines.extend(explanation.waits.as_ref().map(|wait| waiting(wait, explanation.now_ms))),
    }
    if let Some(deadline) = explanation.deadline_ms {
        lines.push(format!("It expires {} ({})", clock(deadline), from_now(deadline, explanation.now_ms)));
    }
    lines
}

fn held(explanation: &Explanation, holder: &str) -> String {
    let Some(running) = explanation.running.as_ref().filter(|_| !explanation.is_task) else {
        return format!("{holder} runs it");
    };
    let since = |held| format!(" since {} ({} so far)", clock(explanation.now_ms - held), span(held));
    let since = running.held_ms.map(since).unwrap_or_default();
    let timeout = span(i64::try_from(running.timeout_ms).unwrap_or(i64::MAX));
    let progress = running.progress.as_ref().map(|progress| format!("; progress: {progress}")).unwrap_or_default();
    format!(
        "{holder} runs it{since}: at call /{} ({}) or later; a try may take {timeout}{progress}",
        running.position, running.tool
    )
}

fn admission(a: &AdmissionNote) -> String {
    format!(
        "{}  admitted {}: tick {} of {} (its window ends {}), day {} of {}",
        clock(a.at_ms),
        plural(a.calls as usize, "call"),
        a.tick_used,
        a.tick_cap,
        clock(a.tick_ends_ms),
        a.day_used,
        a.day_cap
    )
}

fn failed_try(failed: &FailedAttempt) -> String {
    let cause = if failed.cause.is_empty() { "no cause recorded" } else { &failed.cause };
    if failed.attempt == 0 {
        let at = clock(failed.at_ms);
        let next = span(failed.delay_ms);
        return format!(
            "{at}  checked whether call /{} took effect: {cause}. Checked again after {next}",
            failed.position
        );
    }
    format!(
        "{}  try {} of call /{} failed: {cause} Retried after {}",
        clock(failed.at_ms),
        failed.attempt,
        failed.position,
        span(failed.delay_ms)
    )
}

fn breaker_wait(wait: &BreakerWait) -> String {
    let times = if wait.times == 1 { String::new() } else { format!(", checked {} times", wait.times) };
    format!(
        "{}  call /{} was held back: {}. It waited until {}{times}",
        clock(wait.at_ms),
        wait.position,
        wait.why,
        clock(wait.until_ms)
    )
}

fn waiting(wait: &TurnWait, now_ms: i64) -> String {
    if let Some(approval) = &wait.approval {
        return format!("It waits: {}", approvals::waits(approval, now_ms));
    }
    let of = |used: i64, cap: Option<u32>| cap.map_or_else(|| used.to_string(), |cap| format!("{used} of {cap}"));
    let ahead = wait.turns_ahead.filter(|ahead| *ahead > 0).map(|ahead| {
        format!(", after {} in the throttle queue", plural(usize::try_from(ahead).unwrap_or(usize::MAX), "other turn"))
    });
    let ahead = ahead.unwrap_or_default();
    let why = match wait.rule {
        WaitRule::TickCap => format!("the agent's tick is used up ({} calls)", of(wait.tick_used, wait.tick_cap)),
        WaitRule::TickClosed => format!(
            "Redis restarted or failed over in this tick and may have lost its last calls ({} known)",
            of(wait.tick_used, wait.tick_cap)
        ),
        WaitRule::DayCap => format!("the agent's day is used up ({} calls)", of(wait.day_used, wait.day_cap)),
        WaitRule::TenantDayCap => {
            format!("the tenant's day is used up ({} calls)", of(wait.tenant_day_used, wait.tenant_day_cap))
        }
        WaitRule::Limit => {
            let why = wait.limit.as_ref().map_or_else(|| "a limit is used up".into(), used_up);
            let again =
                if wait.returned_permits { ", and it returned its slot while one of its calls waited" } else { "" };
            format!("{why}{again}")
        }
        WaitRule::BehindOthers => "other turns of the agent are first".into(),
        WaitRule::NextCheck => "it runs at the next check of the queue".into(),
        WaitRule::Approval => "the next call needs an approval".into(),
        WaitRule::Paused => paused(wait, now_ms),
        WaitRule::Other => match &wait.awaits {
            Some(turn) if wait.awaits_equal => {
                format!("a call of {turn} is running, and its outcome decides about this call")
            }
            None if wait.awaits_equal => "earlier turns are decided first".into(),
            Some(turn) => format!("for the end of {turn}, which it began"),
            None => "for work that it began elsewhere".into(),
        },
        WaitRule::BreakerOpen => {
            let why = wait.breaker.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            format!("the tool is unavailable{why}")
        }
        WaitRule::Backoff => format!("a try failed; try {} follows after a wait", wait.next_try.unwrap_or(2)),
    };
    match wait.until_ms {
        Some(until) if wait.rule == WaitRule::Other => {
            format!("It waits: {why}. It is checked again {} ({}) at the latest", clock(until), from_now(until, now_ms))
        }
        Some(until) => {
            format!("It waits: {why}. The next call is eligible {} ({}){ahead}", clock(until), from_now(until, now_ms))
        }
        None => format!("It waits: {why}{ahead}"),
    }
}

fn paused(wait: &TurnWait, now_ms: i64) -> String {
    let Some(pause) = &wait.pause else { return "it is paused".into() };
    let since = clock(pause.since_ms);
    let ago = from_now(pause.since_ms, now_ms);
    let who = format!("paused by {} since {since} ({ago})", pause.by);
    format!("{who}: {}. tickfleet resume ends the pause", pause.reason)
}

fn used_up(limit: &LimitWait) -> String {
    let LimitWait { name, counter, allows, used, is_held } = limit;
    let allows = allows.as_ref().map(|allows| format!("{allows}; ")).unwrap_or_default();
    let by = if counter.is_empty() { String::new() } else { format!(" by {counter}") };
    if *is_held {
        return format!("all slots of the limit {name} are taken ({allows}{used} held{by})");
    }
    format!("the limit {name} is used up ({allows}{used} used{by})")
}

const fn because(reason: &EndReason) -> &'static str {
    match reason {
        EndReason::Expired => "the deadline came first",
        EndReason::Canceled => "it was canceled, or its task has ended",
        EndReason::DailyCapReached { .. } => "the day's calls are used up (on_day_cap: reject)",
        EndReason::TaskBudgetReached => "the budget of its task is used up",
        EndReason::LimitReached { .. } => "a limit was reached (on_reach: reject)",
        EndReason::OverLimit { .. } => "it alone exceeds a limit",
        EndReason::NoAmount { .. } => "a limit counts an amount that the call does not have",
        EndReason::Quarantined { .. } => "the slice crashed too many workers and was quarantined",
        EndReason::AgentRemoved => "the agent is no longer configured",
    }
}

#[allow(clippy::ref_option, reason = "serde gives a reference")]
pub(super) fn as_word<S: Serializer>(reason: &Option<EndReason>, serializer: S) -> Result<S::Ok, S::Error> {
    reason.as_ref().map(EndReason::word).serialize(serializer)
}

fn audit_line(json: &str) -> String {
    let AuditEntry { timestamp, level, message, meta, .. } = AuditEntry::read(json).unwrap_or_default();
    let digest = Some(meta.policy_digest).filter(|digest| !digest.is_empty()).map(|digest| format!(", {digest}"));
    let digest = digest.unwrap_or_default();
    let policy = meta.policy_version.map(|version| format!(" (policy {version}{digest})")).unwrap_or_default();
    format!("{timestamp}  {level:5}  {}{policy}", short(&message, 160))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_model::{Outcome, TurnId};

    use super::*;

    #[test]
    fn counts_use_singular_and_plural_words() {
        assert_eq!(
            [plural(1, "call"), plural(2, "failed try"), plural(0, "call")],
            ["1 call", "2 failed tries", "0 calls"]
        );
    }

    #[test]
    fn nested_calls_are_listed_below_their_parents() {
        let call = |id: &str, made_by, tool: &str, outcome: Option<Outcome>, inner| InnerCall {
            made_by,
            id: TurnId::new(id).unwrap(),
            tool: Some(tool.to_owned()),
            outcome,
            attempts: 1 + u32::from(outcome.is_none()),
            duration_ms: outcome.map(|_| 12),
            error: outcome.filter(|outcome| !outcome.is_success()).map(|_| "No stock.".to_owned()),
            inner,
        };
        let deep = call("t.1.call-1.0.call-1", 0, "look", Some(Outcome::Permanent), Vec::new());
        let lines = inner(&[
            call("t.1.call-1", 1, "order", Some(Outcome::Ok), vec![deep]),
            call("t.1.call-2", 1, "mail", None, Vec::new()),
        ]);
        assert_eq!(
            lines,
            [
                "Call /1 called other tools:",
                "  t.1.call-1 called order: ok, 1 try, 12 ms",
                "    t.1.call-1.0.call-1 called look: permanent, 1 try, 12 ms: No stock.",
                "  t.1.call-2 called mail: running, 2 tries so far",
            ]
        );
    }

    #[test]
    fn a_wait_names_the_rule_the_counters_and_the_time() {
        let wait = TurnWait {
            rule: WaitRule::TickCap,
            until_ms: Some(5_000),
            turns_ahead: Some(2),
            tick_used: 10,
            day_used: 10,
            tick_cap: Some(10),
            day_cap: Some(100),
            tenant_day_used: 0,
            tenant_day_cap: None,
            awaits: None,
            awaits_equal: false,
            pause: None,
            next_try: None,
            limit: None,
            approval: None,
            breaker: None,
            returned_permits: false,
        };
        let said = waiting(&wait, 1_000);
        assert!(
            said.contains("10 of 10 calls") && said.contains("in 4.0 s") && said.contains("2 other turns"),
            "{said}"
        );
        let limit = LimitWait {
            name: "mails".into(),
            counter: "demo:u1".into(),
            allows: Some("5 calls per user in 1h".into()),
            used: "5".into(),
            is_held: false,
        };
        let held = LimitWait { is_held: true, ..limit.clone() };
        let why = Some("lookup failed 5 times in a row".into());
        let said =
            waiting(&TurnWait { rule: WaitRule::BreakerOpen, breaker: why, turns_ahead: None, ..wait.clone() }, 1_000);
        assert!(
            said.starts_with("It waits: the tool is unavailable: lookup failed 5 times in a row. The next call"),
            "{said}"
        );
        let said = waiting(&TurnWait { rule: WaitRule::Limit, limit: Some(limit.clone()), ..wait.clone() }, 1_000);
        assert!(said.contains("the limit mails is used up (5 calls per user in 1h; 5 used by demo:u1)"), "{said}");
        let said =
            waiting(&TurnWait { rule: WaitRule::Limit, limit: Some(held), until_ms: None, ..wait.clone() }, 1_000);
        assert!(
            said.contains("all slots of the limit mails are taken (5 calls per user in 1h; 5 held by demo:u1)"),
            "{said}"
        );
        let again =
            TurnWait { rule: WaitRule::Limit, limit: Some(limit.clone()), returned_permits: true, ..wait.clone() };
        let said = waiting(&again, 1_000);
        assert!(said.contains("demo:u1), and it returned its slot while one of its calls waited"), "{said}");
        let limit = LimitWait { counter: String::new(), allows: None, ..limit };
        let said = waiting(&TurnWait { rule: WaitRule::Limit, limit: Some(limit), ..wait }, 1_000);
        assert!(said.contains("the limit mails is used up (5 used)"), "{said}");
    }
}
