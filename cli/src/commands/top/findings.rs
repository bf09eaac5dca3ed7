//! Derives the findings from a frame and its facts. This module does no I/O.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::value::RawValue;
use tickfleet_client::dead::DeadEntry;
use tickfleet_model::number::Number;
use tickfleet_model::policy::Pause;
use tickfleet_model::suggest::list;
use tickfleet_store::{MemoryUsage, worker_of};

use super::facts::FleetFacts;
use super::finding::{Finding, FindingKind, Severity};
use super::frame::Frame;
use super::poll_result::PollResult;
use super::tools::WINDOW_MS;
use crate::checks::Level;
use crate::output::short;
use crate::output::time_format::{from_now, span};

/// In ms. Schedulers check timers every `scheduler.tick_poll`, so a later timer means that no scheduler runs.
const TIMER_LATE_MS_MAX: i64 = 2_000;
const WAITING_STATES: [&str; 4] = ["inbound turns", "inbound tasks", "ready", "delayed"];
/// Work that waits longer than this time (ms) is a finding, even if a tick is longer.
const WAIT_MS_MAX: i64 = 10_000;
/// The last finding of a kind sums up the rest.
const OF_KIND_MAX: usize = 5;
const CAUSE_CHARS: usize = 80;

pub(super) fn findings(frame: &Frame, polled: &PollResult, facts: &FleetFacts, tick_ms: i64) -> Vec<Finding> {
    let late_ms = tick_ms.clamp(1, WAIT_MS_MAX);
    let mut found = Vec::new();
    found.extend(unknown_outcomes(facts));
    found.extend(approvals(facts, frame.heading.now_ms));
    found.extend(failing_tools(frame, facts));
    found.extend(processes(frame, polled));
    found.extend(drained(frame, polled));
    found.extend(stuck(facts));
    found.extend(full_limits(frame, facts, tick_ms));
    found.extend(paused(frame, facts));
    found.extend(waiting(frame, late_ms));
    found.extend(dead_messages(frame));
    found.extend(store(frame, polled, facts));
    found.extend(timers(polled, is_memory_short(polled)));
    found.extend(disabled(facts));
    found.sort_by_key(|finding| (finding.severity, finding.kind));
    found
}

fn finding(
    kind: FindingKind,
    severity: Severity,
    text: impl Into<String>,
    (count, subject): (usize, Option<&str>),
    action: impl Into<String>,
) -> Finding {
    let count = u64::try_from(count).unwrap_or(u64::MAX);
    Finding { kind, severity, text: text.into(), count, subject: subject.map(str::to_owned), action: action.into() }
}

fn counted(count: u64, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// Returns text such as `pay (2), post_to_x (1)`, the most frequent name first. If there is only one name, the text is
/// this name without a count, and the second value is the name.
fn tallied<'a>(names: impl Iterator<Item = &'a str>) -> (String, Option<&'a str>) {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    names.for_each(|name| *counts.entry(name).or_default() += 1);
    let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let subject = if let [(only, _)] = counts.as_slice() { Some(*only) } else { None };
    let more = counts.len().saturating_sub(OF_KIND_MAX);
    let mut shown: Vec<String> =
        counts.iter().take(OF_KIND_MAX).map(|(name, count)| format!("{name} ({count})")).collect();
    if more > 0 {
        shown.push(format!("{more} more"));
    }
    (subject.map_or_else(|| shown.join(", "), str::to_owned), subject)
}

fn unknown_outcomes(facts: &FleetFacts) -> Option<Finding> {
    let count = facts.unknown.len();
    if count == 0 {
        return None;
    }
    let (tools, subject) = tallied(facts.unknown.iter().filter_map(|dead| dead.tool.as_deref()));
    let least = if facts.failures_partial { "at least " } else { "" };
    let calls = counted(count as u64, "call");
    let text = format!("{least}{calls} of the last hour may have taken effect: {tools}");
    let action = "tickfleet dead list --cause outcome_unknown --since 1h";
    Some(finding(FindingKind::UnknownOutcomes, Severity::Bad, text, (count, subject), action))
}

fn approvals(facts: &FleetFacts, now_ms: i64) -> Option<Finding> {
    let count = facts.approvals_count;
    if count == 0 {
        return None;
    }
    let (tools, subject) = tallied(facts.approvals.iter().map(|approval| approval.tool.as_str()));
    let waits = if count == 1 { "waits" } else { "wait" };
    let mut text = format!("{} {waits} for approval: {tools}", counted(count, "call"));
    if let Some(sum) = amount(facts, count) {
        text += &format!(", {sum} in all");
    }
    if let Some(first_ms) = facts.approvals.iter().map(|approval| approval.until_ms).min() {
        text += &format!("; the first expires {}", from_now(first_ms, now_ms));
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let action = "tickfleet approvals list";
    Some(finding(FindingKind::ApprovalsWait, Severity::Doubt, text, (count, subject), action))
}

/// Sums the argument `amount`. `None` if the sum would be incomplete or would mix tools.
fn amount(facts: &FleetFacts, count: u64) -> Option<Number> {
    let first = facts.approvals.first()?;
    let is_whole = facts.approvals.len() as u64 == count && facts.approvals.iter().all(|one| one.tool == first.tool);
    let amount = |arguments: &str| {
        let arguments: BTreeMap<String, &RawValue> = serde_json::from_str(arguments).ok()?;
        Number::parse(arguments.get("amount")?.get())
    };
    if !is_whole {
        return None;
    }
    facts.approvals.iter().try_fold(Number::count(0), |sum, approval| sum.plus(amount(approval.arguments.get())?))
}

fn failing_tools(frame: &Frame, facts: &FleetFacts) -> Vec<Finding> {
    let mut failing: Vec<(u64, Finding)> = Vec::new();
    for row in &frame.tools.rows {
        let failures = || row.outcomes.iter().filter(|(outcome, _)| outcome.has_failed_running());
        let failed: u64 = failures().map(|(_, count)| count).sum();
        if failed == 0 {
            continue;
        }
        let severity = if failed * 2 >= row.calls { Severity::Bad } else { Severity::Doubt };
        let cause = cause_of(&row.tool, facts, frame.heading.now_ms)
            .or_else(|| Some(failures().max_by_key(|(_, n)| **n)?.0.as_str().to_owned()));
        let cause = short(&cause.unwrap_or_default(), CAUSE_CHARS);
        let sample = if frame.tools.sampled { " (a sample)" } else { "" };
        let text = format!(
            "{}: {failed} of {} of the last minute failed{sample}: {cause}",
            row.tool,
            counted(row.calls, "call")
        );
        let action = format!("tickfleet dead list --tool {} --since 1h", row.tool);
        let count = usize::try_from(failed).unwrap_or(usize::MAX);
        failing.push((failed, finding(FindingKind::ToolFails, severity, text, (count, Some(&row.tool)), action)));
    }
    failing.sort_by_key(|(failed, _)| std::cmp::Reverse(*failed));
    let rest: u64 = failing.iter().skip(OF_KIND_MAX).map(|(failed, _)| failed).sum();
    let more = failing.len().saturating_sub(OF_KIND_MAX);
    let mut found: Vec<Finding> = failing.into_iter().take(OF_KIND_MAX).map(|(_, finding)| finding).collect();
    if more > 0 {
        let text = format!("{more} more tools failed in the last minute, {}", counted(rest, "call"));
        let count = usize::try_from(rest).unwrap_or(usize::MAX);
        let action = "tickfleet dead list --by-cause --since 1h";
        found.push(finding(FindingKind::ToolFails, Severity::Doubt, text, (count, None), action));
    }
    found
}

fn cause_of(tool: &str, facts: &FleetFacts, now_ms: i64) -> Option<String> {
    let is_theirs = |dead: &&DeadEntry| match &dead.tool {
        Some(of) => of == tool,
        None => dead.agent.as_deref() == Some(tool),
    };
    let recent = facts.failures.iter().filter(is_theirs).filter(|dead| dead.at_ms > now_ms - WINDOW_MS);
    let mut causes: BTreeMap<String, usize> = BTreeMap::new();
    recent.filter_map(DeadEntry::normalized_error).for_each(|error| *causes.entry(error).or_default() += 1);
    causes.into_iter().max_by_key(|(_, count)| *count).map(|(error, _)| error)
}

fn processes(frame: &Frame, polled: &PollResult) -> Vec<Finding> {
    const KIND: FindingKind = FindingKind::ProcessDead;
    let mut found = Vec::new();
    for (kind, does) in [("scheduler", "no turns are admitted"), ("worker", "no calls run")] {
        let lost: BTreeSet<&str> =
            frame.nodes.iter().filter(|node| node.kind == kind && !node.alive).map(|node| node.name.as_str()).collect();
        if !lost.is_empty() {
            let text = format!("{kind} lost, without a heartbeat: {}", list(lost.iter().copied()));
            let subject = if lost.len() == 1 { lost.first().copied() } else { None };
            found.push(finding(KIND, Severity::Doubt, text, (lost.len(), subject), "tickfleet doctor"));
        }
        for (number, shard) in polled.shards.iter().enumerate() {
            let is_alive = frame.nodes.iter().any(|node| node.shard == number && node.kind == kind && node.alive);
            if shard.policy_generation > 0 && !is_alive && !polled.unread.contains_key(&number) {
                let text = format!("no {kind} is alive on shard {number}: {does}");
                found.push(finding(KIND, Severity::Bad, text, (1, None), format!("tickfleet {kind}")));
            }
        }
    }
    let is_new = |(number, shard): &(usize, &tickfleet_store::ShardView)| {
        shard.policy_generation == 0 && !polled.unread.contains_key(number)
    };
    for (number, _) in polled.shards.iter().enumerate().filter(is_new) {
        let text = format!("shard {number} has never been used: no scheduler has run");
        found.push(finding(KIND, Severity::Bad, text, (1, None), "tickfleet scheduler"));
    }
    found
}

fn drained(frame: &Frame, polled: &PollResult) -> Vec<Finding> {
    const KIND: FindingKind = FindingKind::WorkerDrained;
    let alive = || frame.nodes.iter().filter(|node| node.kind == "worker" && node.alive);
    let mut found = Vec::new();
    for number in 0..polled.shards.len() {
        let mut workers = alive().filter(|node| node.shard == number).peekable();
        if workers.peek().is_some() && workers.all(|node| node.drained) {
            let text = format!("all live workers are drained by an operator: no new calls run on shard {number}");
            found.push(finding(KIND, Severity::Bad, text, (1, None), "tickfleet workers list"));
        }
    }
    let names: BTreeSet<&str> =
        alive().filter(|node| node.drained).map(|node| worker_of(&node.name).unwrap_or(&node.name)).collect();
    let of = |name: &&str| {
        let text = format!("worker {name} is drained: it takes no new calls");
        finding(KIND, Severity::Doubt, text, (1, Some(name)), format!("tickfleet workers resume {name}"))
    };
    found.extend(names.iter().take(OF_KIND_MAX).map(of));
    if let Some(more @ 1..) = names.len().checked_sub(OF_KIND_MAX) {
        let text = format!("{more} more workers are drained");
        found.push(finding(KIND, Severity::Doubt, text, (more, None), "tickfleet workers list"));
    }
    found
}

fn stuck(facts: &FleetFacts) -> Vec<Finding> {
    let mut by_worker: BTreeMap<&str, Vec<&tickfleet_client::held_slices::HeldSlice>> = BTreeMap::new();
    facts.stuck.iter().for_each(|slice| by_worker.entry(&slice.worker).or_default().push(slice));
    let of = |(worker, slices): (&str, Vec<&tickfleet_client::held_slices::HeldSlice>)| {
        let longest = slices.iter().max_by_key(|slice| slice.held_ms)?;
        let more = slices.len() - 1;
        let more = if more > 0 { format!(", and {more} more slices for too long") } else { String::new() };
        let text =
            format!("worker {worker} has run {} of {} for {}{more}", longest.tool, longest.turn, span(longest.held_ms));
        let action = format!("tickfleet explain {}", longest.turn);
        Some(finding(FindingKind::WorkerStuck, Severity::Bad, text, (slices.len(), Some(worker)), action))
    };
    by_worker.into_iter().filter_map(of).collect()
}

/// Leaves out turns of paused agents, because each pause has its own finding.
fn full_limits(frame: &Frame, facts: &FleetFacts, tick_ms: i64) -> Vec<Finding> {
    let is_paused = |tenant: &str, agent: &str| {
        facts.settings.iter().flat_map(|set| set.pauses.keys()).any(|paused| {
            paused.tenant.as_str() == tenant && paused.agent.as_ref().is_none_or(|of| of.as_str() == agent)
        })
    };
    let mut full: Vec<&super::frame::Agent> = frame
        .agents
        .iter()
        .filter(|row| row.oldest_ms.unwrap_or(0).max(row.due_in_ms) > tick_ms)
        .filter(|row| row.limit.is_some() || !is_paused(&row.tenant, &row.agent))
        .collect();
    full.sort_by_key(|row| std::cmp::Reverse(row.turns));
    let of = |row: &&super::frame::Agent| {
        // A wait for the next tick ends soon. A longer wait needs a person's decision.
        let severity = if row.due_in_ms > tick_ms { Severity::Doubt } else { Severity::Info };
        let (what, subject) = match &row.limit {
            Some(limit) => (format!("limit {limit}"), limit.clone()),
            None if row.agent.is_empty() => (format!("the cap of tenant {}", row.tenant), row.tenant.clone()),
            None => (format!("the caps of {}:{}", row.tenant, row.agent), format!("{}:{}", row.tenant, row.agent)),
        };
        let waits = if row.turns == 1 { "waits" } else { "wait" };
        let oldest = row.oldest_ms.map(|age| format!(", the oldest for {}", span(age))).unwrap_or_default();
        let text = format!("{} {waits} for {what}{oldest}", counted(row.turns, "turn"));
        let action = match &row.limit {
            Some(limit) => format!("tickfleet limits --limit {limit}"),
            None => format!("tickfleet explain {}", row.first),
        };
        let count = usize::try_from(row.turns).unwrap_or(usize::MAX);
        finding(FindingKind::LimitFull, severity, text, (count, Some(&subject)), action)
    };
    let mut found: Vec<Finding> = full.iter().take(OF_KIND_MAX).map(of).collect();
    let rest: u64 = full.iter().skip(OF_KIND_MAX).map(|row| row.turns).sum();
    if let Some(more @ 1..) = full.len().checked_sub(OF_KIND_MAX) {
        let text = format!("{} wait for {more} more caps and limits", counted(rest, "turn"));
        let count = usize::try_from(rest).unwrap_or(usize::MAX);
        found.push(finding(FindingKind::LimitFull, Severity::Info, text, (count, None), "tickfleet limits"));
    }
    found
}

fn paused(frame: &Frame, facts: &FleetFacts) -> Vec<Finding> {
    const KIND: FindingKind = FindingKind::Paused;
    let now_ms = frame.heading.now_ms;
    // Every shard stores the pauses of tools for all tenants, so the map removes duplicates.
    let mut pauses: BTreeMap<(String, String), &Pause> = BTreeMap::new();
    for set in &facts.settings {
        for (who, pause) in &set.pauses {
            let (name, arguments) = match &who.agent {
                Some(agent) => (format!("{}:{agent}", who.tenant), format!("{} {agent}", who.tenant)),
                None => (who.tenant.to_string(), who.tenant.to_string()),
            };
            pauses.insert((name, arguments), pause);
        }
        for (who, pause) in &set.tool_pauses {
            let (of, for_whom) = match &who.tenant {
                Some(tenant) => (format!("{tenant} "), format!(" for {tenant}")),
                None => (String::new(), String::new()),
            };
            pauses.insert((format!("{}{for_whom}", who.tool), format!("{of}--tool {}", who.tool)), pause);
        }
    }
    let of = |((name, arguments), pause): (&(String, String), &&Pause)| {
        let by = if pause.by.is_empty() { String::new() } else { format!(" by {}", pause.by) };
        let since = if pause.since_ms > 0 { format!(" for {}", span(now_ms - pause.since_ms)) } else { String::new() };
        let why =
            if pause.reason.is_empty() { String::new() } else { format!(" ({})", short(&pause.reason, CAUSE_CHARS)) };
        let text = format!("{name} is paused{by}{since}{why}: its calls wait");
        finding(KIND, Severity::Doubt, text, (1, Some(name)), format!("tickfleet resume {arguments}"))
    };
    let mut found: Vec<Finding> = pauses.iter().take(OF_KIND_MAX).map(of).collect();
    let known = pauses.len();
    let more =
        known.saturating_sub(OF_KIND_MAX).max(if known == 0 { usize::try_from(frame.paused).unwrap_or(0) } else { 0 });
    if more > 0 {
        let else_ = if known > 0 { " more" } else { "" };
        let text = format!("{more}{else_} tenants, agents or tools are paused: their calls wait");
        found.push(finding(KIND, Severity::Doubt, text, (more, None), "tickfleet pauses"));
    }
    found
}

fn waiting(frame: &Frame, late_ms: i64) -> Vec<Finding> {
    let late = frame.backlog.iter().filter(|state| WAITING_STATES.contains(&state.state));
    let of = |state: &super::frame::WorkInState| {
        let oldest_ms = state.oldest_ms.filter(|oldest_ms| *oldest_ms > late_ms)?;
        let (severity, action) = match state.state {
            "delayed" => (Severity::Info, "tickfleet turns list --state parked"),
            "ready" => (Severity::Doubt, "tickfleet workers list"),
            _ => (Severity::Doubt, "tickfleet doctor"),
        };
        let waits = if state.count == 1 { "waits" } else { "wait" };
        let what = state.unit.trim_end_matches('s');
        let text =
            format!("{} {waits} ({}), the oldest for {}", counted(state.count, what), state.state, span(oldest_ms));
        let count = usize::try_from(state.count).unwrap_or(usize::MAX);
        Some(finding(FindingKind::Waiting, severity, text, (count, None), action))
    };
    late.filter_map(of).collect()
}

fn dead_messages(frame: &Frame) -> Option<Finding> {
    let count = frame.backlog.iter().find(|state| state.state == "dead")?.count;
    let text = match count {
        0 => return None,
        1 => "1 message was rejected, or crashed its readers".to_owned(),
        _ => format!("{count} messages were rejected, or crashed their readers"),
    };
    let count = usize::try_from(count).unwrap_or(usize::MAX);
    let action = "tickfleet dead list --kind letter";
    Some(finding(FindingKind::DeadMessages, Severity::Doubt, text, (count, None), action))
}

fn is_memory_short(polled: &PollResult) -> bool {
    let memory = MemoryUsage { used: polled.server.used_memory, max: polled.server.maxmemory };
    memory.is_nearly_full() || polled.shards.iter().any(|shard| shard.pressure)
}

fn store(frame: &Frame, polled: &PollResult, facts: &FleetFacts) -> Vec<Finding> {
    const KIND: FindingKind = FindingKind::Store;
    let unread = |shard: usize, what: &str, why: &str| {
        let subject = format!("shard {shard}");
        let text = format!("{subject} {what}: {why}");
        finding(KIND, Severity::Bad, text, (1, Some(&subject)), "tickfleet doctor")
    };
    let mut found: Vec<Finding> =
        polled.unread.iter().map(|(shard, why)| unread(*shard, "does not respond", why)).collect();
    for (shard, why) in &facts.unread {
        found.push(match shard {
            Some(shard) => unread(*shard as usize, "was read only in part", why),
            None => finding(
                KIND,
                Severity::Doubt,
                format!("the servers of {} could not be checked: {why}", frame.heading.redis),
                (1, None),
                "tickfleet doctor",
            ),
        });
    }
    let is_short = is_memory_short(polled);
    if is_short {
        let text = "memory is nearly full: new work is rejected, accepted work continues in small batches";
        found.push(finding(KIND, Severity::Bad, text, (1, None), "tickfleet doctor"));
    }
    for problem in facts.servers.iter().filter(|problem| !(is_short && problem.what == "memory")) {
        let severity = if problem.level == Level::Fail { Severity::Bad } else { Severity::Info };
        let text = format!("{}: {}", problem.what, problem.says);
        found.push(finding(KIND, severity, text, (1, None), "tickfleet doctor"));
    }
    found
}

/// Short memory also delays timers. Therefore no finding about timers is returned if `is_memory_short`.
fn timers(polled: &PollResult, is_memory_short: bool) -> Vec<Finding> {
    let late = polled.shards.iter().enumerate().filter(|(_, shard)| shard.timer_late_ms > TIMER_LATE_MS_MAX);
    let of = |(number, shard): (usize, &tickfleet_store::ShardView)| {
        let late = span(shard.timer_late_ms);
        let text = format!("the earliest timer of shard {number} is {late} late: no scheduler fires");
        finding(FindingKind::Other, Severity::Bad, text, (1, None), "tickfleet doctor")
    };
    late.filter(|_| !is_memory_short).map(of).collect()
}

fn disabled(facts: &FleetFacts) -> Vec<Finding> {
    let tools: BTreeSet<&String> = facts.settings.iter().flat_map(|set| &set.tools_off).collect();
    let of = |tool: &&String| {
        let text = format!("tool {tool} is disabled for all agents");
        finding(FindingKind::Other, Severity::Info, text, (1, Some(tool)), format!("tickfleet tools enable {tool}"))
    };
    tools.iter().take(OF_KIND_MAX).map(of).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use std::time::Instant;

    use serde_json::json;
    use tickfleet_client::held_slices::HeldSlice;
    use tickfleet_model::policy::{Paused, PausedTool};
    use tickfleet_model::{AgentId, Outcome, TenantId};
    use tickfleet_store::{
        EndedCall, NodeView, RunTimeSettings, ServerLoad, ShardView, Slots, StreamView, ThrottleQueueView,
    };

    use super::super::frame::Heading;
    use super::super::tools::{Tools, Window};
    use super::*;
    use crate::checks::CheckResult;

    const NOW_MS: i64 = 10_000_000;

    fn node(name: &str) -> NodeView {
        let slots = name.starts_with('w').then_some(Slots { busy: 2, all: 16 });
        NodeView { name: name.into(), heartbeat_age_ms: Some(1), lease_left_ms: 10, slots, drained: false }
    }

    fn shard() -> ShardView {
        ShardView {
            now_ms: NOW_MS,
            policy_generation: 1,
            nodes: vec![node("s-a"), node("w-host-1-a-0")],
            ..ShardView::default()
        }
    }

    #[allow(clippy::disallowed_methods, reason = "a frame has a time")]
    fn polled(shards: Vec<ShardView>) -> PollResult {
        PollResult { at: Instant::now(), server: ServerLoad::default(), shards, unread: BTreeMap::new() }
    }

    fn of(polled: &PollResult, tools: Tools, facts: &FleetFacts) -> Vec<Finding> {
        let frame = Frame::of(Heading { redis: "redis://x".into(), now_ms: NOW_MS }, None, polled, tools);
        findings(&frame, polled, facts, 5_000)
    }

    fn of_shard(shard: ShardView) -> Vec<Finding> {
        of(&polled(vec![shard]), Tools::default(), &FleetFacts::default())
    }

    fn kinds(found: &[Finding]) -> Vec<(FindingKind, Severity)> {
        found.iter().map(|finding| (finding.kind, finding.severity)).collect()
    }

    fn failure(entry: u32, cause: &str, error: &str) -> DeadEntry {
        DeadEntry {
            id: format!("call-0-{}-{entry}", NOW_MS - 1_000).parse().unwrap(),
            at_ms: NOW_MS - 1_000,
            tenant: None,
            agent: Some("kelly".into()),
            name: None,
            tool: Some("pay".into()),
            from: None,
            cause: cause.into(),
            error: Some(error.into()),
            may_have_run: true,
            needs_message: None,
        }
    }

    #[test]
    fn a_healthy_fleet_has_no_findings() {
        let stream = |waiting, oldest_waiting_ms| StreamView {
            name: "ready:normal".into(),
            waiting,
            held: 1,
            oldest_waiting_ms,
            oldest_held_ms: 90_000,
            added: Some(1),
        };
        assert_eq!(of_shard(ShardView { streams: vec![stream(3, 4_000)], ..shard() }), []);
        let late = of_shard(ShardView { streams: vec![stream(3, 6_000)], ..shard() });
        assert_eq!(kinds(&late), [(FindingKind::Waiting, Severity::Doubt)]);
        assert_eq!((late[0].text.as_str(), late[0].count), ("3 slices wait (ready), the oldest for 6.0 s", 3));
    }

    #[test]
    fn a_dead_or_drained_process_is_a_finding_and_zero_alive_is_bad() {
        let gone = |name: &str| NodeView { lease_left_ms: -1, ..node(name) };
        let drained = |name: &str| NodeView { drained: true, ..node(name) };
        let with = |nodes| of_shard(ShardView { nodes, ..shard() });
        let lost = with(vec![node("s-a"), node("w-host-1-a-0"), gone("w-host-2-b-0")]);
        assert_eq!(kinds(&lost), [(FindingKind::ProcessDead, Severity::Doubt)]);
        assert_eq!(lost[0].subject.as_deref(), Some("w-host-2-b-0"));
        let none = with(vec![node("s-a"), gone("w-host-2-b-0")]);
        assert_eq!(none[0].text, "no worker is alive on shard 0: no calls run");
        assert_eq!((none[0].severity, none[0].action.as_str()), (Severity::Bad, "tickfleet worker"));
        let one_works = with(vec![node("s-a"), node("w-host-1-a-0"), drained("w-host-2-b-0")]);
        assert_eq!(kinds(&one_works), [(FindingKind::WorkerDrained, Severity::Doubt)]);
        assert_eq!(one_works[0].action, "tickfleet workers resume w-host-2");
        let all = with(vec![node("s-a"), drained("w-host-2-b-0")]);
        assert_eq!((all[0].severity, all.len()), (Severity::Bad, 2), "{all:?}");
        assert_eq!(of_shard(ShardView::default())[0].text, "shard 0 has never been used: no scheduler has run");
    }

    #[test]
    fn unknown_outcomes_come_first_and_a_failing_tool_has_its_main_cause() {
        let mut window = Window::default();
        let call = |outcome| EndedCall { at_ms: NOW_MS - 1_000, tool: "pay".into(), outcome, duration_ms: 1 };
        window.add(
            [[Outcome::Transient; 3], [Outcome::Ok, Outcome::Ok, Outcome::Denied]]
                .concat()
                .into_iter()
                .map(call)
                .collect(),
            None,
            NOW_MS,
        );
        let failures = vec![
            failure(1, "transient", "unavailable: 503 from the bank"),
            failure(2, "transient", "unavailable: 503 from the bank"),
            failure(3, "permanent", "refused"),
        ];
        let facts = FleetFacts { failures, unknown: vec![failure(4, "outcome_unknown", "")], ..FleetFacts::default() };
        let found = of(&polled(vec![shard()]), window.tools(NOW_MS), &facts);
        assert_eq!(
            kinds(&found),
            [(FindingKind::UnknownOutcomes, Severity::Bad), (FindingKind::ToolFails, Severity::Bad)]
        );
        assert_eq!(found[0].text, "1 call of the last hour may have taken effect: pay");
        assert_eq!(found[1].text, "pay: 3 of 6 calls of the last minute failed: unavailable: 503 from the bank");
        assert_eq!((found[1].count, found[1].subject.as_deref()), (3, Some("pay")));
        let partial = FleetFacts { failures_partial: true, ..facts };
        assert!(of(&polled(vec![shard()]), Tools::default(), &partial)[0].text.starts_with("at least 1 call"));
    }

    #[test]
    fn each_pause_names_who_paused_what_and_how_to_end_it() {
        let demo = TenantId::new("demo").unwrap();
        let pause = Pause { by: "anna".into(), reason: "too fast".into(), since_ms: NOW_MS - 60_000 };
        let agent = Paused { tenant: demo.clone(), agent: Some(AgentId::new("kelly").unwrap()) };
        let tool = PausedTool { tenant: None, tool: "pay".into() };
        let set = RunTimeSettings {
            pauses: [(agent, pause.clone())].into(),
            tool_pauses: [(tool, pause)].into(),
            tools_off: ["post_to_x".to_owned()].into(),
            ..RunTimeSettings::default()
        };
        let settings = vec![set.clone(), RunTimeSettings { pauses: BTreeMap::new(), ..set }];
        let facts = FleetFacts { settings, ..FleetFacts::default() };
        let queue = ThrottleQueueView {
            tenant: "demo".into(),
            agent: "kelly".into(),
            limit: None,
            first: "demo:t".into(),
            turns: 2,
            oldest_ms: Some(60_000),
            due_in_ms: 0,
            tick_used: 0,
            day_used: 0,
        };
        let limit = ThrottleQueueView { limit: Some("mails".into()), due_in_ms: 90_000, ..queue.clone() };
        let view = ShardView { paused: 2, throttle_queues: vec![queue, limit], ..shard() };
        let found = of(&polled(vec![view]), Tools::default(), &facts);
        let texts: Vec<(&str, &str)> = found.iter().map(|one| (one.text.as_str(), one.action.as_str())).collect();
        assert_eq!(
            texts,
            [
                ("2 turns wait for limit mails, the oldest for 1 min 0 s", "tickfleet limits --limit mails"),
                (
                    "demo:kelly is paused by anna for 1 min 0 s (too fast): its calls wait",
                    "tickfleet resume demo kelly"
                ),
                ("pay is paused by anna for 1 min 0 s (too fast): its calls wait", "tickfleet resume --tool pay"),
                ("tool post_to_x is disabled for all agents", "tickfleet tools enable post_to_x"),
            ]
        );
        let unread = of_shard(ShardView { paused: 2, ..shard() });
        assert_eq!(unread[0].text, "2 tenants, agents or tools are paused: their calls wait");
    }

    #[test]
    fn an_unreadable_shard_or_server_is_a_finding() {
        let unread = BTreeMap::from([(1, "timed out".to_owned())]);
        let seen = PollResult { unread, ..polled(vec![shard(), ShardView::default()]) };
        let facts = FleetFacts {
            unread: BTreeMap::from([(None, "no rights".to_owned()), (Some(0), "cut off".to_owned())]),
            servers: vec![CheckResult::fail("eviction", "maxmemory-policy is allkeys-lru", "")],
            ..FleetFacts::default()
        };
        let found = of(&seen, Tools::default(), &facts);
        let texts: Vec<&str> = found.iter().map(|one| one.text.as_str()).collect();
        assert_eq!(
            texts,
            [
                "shard 1 does not respond: timed out",
                "shard 0 was read only in part: cut off",
                "eviction: maxmemory-policy is allkeys-lru",
                "the servers of redis://x could not be checked: no rights",
            ]
        );
        assert_eq!(found[0].subject.as_deref(), Some("shard 1"));
    }

    #[test]
    fn full_memory_replaces_late_timers_and_a_stuck_slice_names_its_worker() {
        let late = ShardView { timer_late_ms: 9_000, ..shard() };
        assert_eq!(kinds(&of_shard(late.clone())), [(FindingKind::Other, Severity::Bad)]);
        let short = of_shard(ShardView { pressure: true, ..late });
        assert_eq!(kinds(&short), [(FindingKind::Store, Severity::Bad)]);
        let slice = HeldSlice {
            worker: "w-host-1".into(),
            turn: "demo:t".into(),
            tool: "pay".into(),
            tools: vec!["pay".into()],
            held_ms: 600_000,
        };
        let facts = FleetFacts { stuck: vec![slice.clone(), slice], ..FleetFacts::default() };
        let found = of(&polled(vec![shard()]), Tools::default(), &facts);
        assert_eq!(
            found[0].text,
            "worker w-host-1 has run pay of demo:t for 10 min 0 s, and 1 more slices for too long"
        );
        let dead = of_shard(ShardView { dead: 2, ..shard() });
        assert_eq!(dead[0].text, "2 messages were rejected, or crashed their readers");
        assert_eq!(
            serde_json::to_value(&dead[0]).unwrap(),
            json!({
                "kind": "dead_messages", "severity": "doubt", "text": dead[0].text, "count": 2, "subject": null,
                "action": "tickfleet dead list --kind letter",
            })
        );
    }
}
