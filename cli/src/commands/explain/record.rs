//! From the fields of a record to what they mean. `admit.lua` and `settle.lua` write them.

use std::collections::HashMap;

use serde::Serialize;
use serde_json::Value;
use tickfleet_client::{Reply, ReplyStatus};
use tickfleet_model::{AgentId, CallResult, Caps, Policy, TenantId};
use tickfleet_store::{BudgetFacts, FailedTry, LiveTurn, TurnName};

use super::audit::Audit;
use super::{State, Story};

/// One admission: how many calls, and the counters after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Admission {
    pub(crate) at_ms: i64,
    pub(crate) calls: u32,
    pub(crate) tick_used: u32,
    pub(crate) tick_cap: u32,
    pub(crate) tick_ends_ms: i64,
    pub(crate) day_used: u32,
    pub(crate) day_cap: u32,
}

impl Admission {
    /// Reads `A<now>,<calls>,<tick used>,<tick cap>,<tick end>,<day used>,<day cap>`; entries are separated by `;`.
    pub(crate) fn read_all(log: &str) -> Vec<Self> {
        log.split(';').filter_map(Self::read).collect()
    }

    fn read(entry: &str) -> Option<Self> {
        // Lua writes large numbers as floats.
        let numbers: Vec<f64> = entry.strip_prefix('A')?.split(',').map(|n| n.parse().ok()).collect::<Option<_>>()?;
        let [now, calls, tick_used, tick_cap, tick_ends, day_used, day_cap] = numbers[..] else { return None };
        Some(Self {
            at_ms: now as i64,
            calls: calls as u32,
            tick_used: tick_used as u32,
            tick_cap: tick_cap as u32,
            tick_ends_ms: tick_ends as i64,
            day_used: day_used as u32,
            day_cap: day_cap as u32,
        })
    }
}

/// Which rule keeps a turn waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Rule {
    /// The agent's calls of this tick are used up.
    TickCap,
    /// The agent's calls of this day are used up.
    DayCap,
    /// The calls of all the tenant's agents of this day are used up.
    TenantDayCap,
    /// Other turns of the agent come first.
    BehindOthers,
    /// The next look at the lane decides.
    NextLook,
    /// A failed call waits for its next try.
    Backoff,
}

/// Why and until when a turn waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Wait {
    pub(super) rule: Rule,
    /// When its next call is eligible or looked at, ms of shard time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) turns_ahead: Option<u64>,
    pub(super) tick_used: i64,
    pub(super) day_used: i64,
    /// The caps of this configuration; those in force may differ while a change spreads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tick_cap: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) day_cap: Option<u32>,
    pub(super) tenant_day_used: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant_day_cap: Option<u32>,
    /// The try that comes next, where one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_try: Option<u64>,
}

/// The caps of an agent in this configuration; none where it does not know the agent.
pub(super) fn caps(policy: &Policy, tenant: &TenantId, agent: &str) -> Option<Caps> {
    let (owner, agent) = policy.look_up(tenant, &AgentId::new(agent).ok()?).ok()?;
    Some(policy.caps(owner, agent))
}

/// A story of which nothing is known yet.
fn blank(name: &TurnName, state: State, now_ms: i64) -> Story {
    Story {
        tenant: name.tenant.clone(),
        id: name.turn.clone(),
        state,
        is_task: false,
        position: None,
        agent: None,
        queue: None,
        now_ms,
        accepted_ms: None,
        ended_ms: None,
        deadline_ms: None,
        calls: 0,
        calls_admitted: 0,
        calls_done: 0,
        admissions: Vec::new(),
        tries: Vec::new(),
        delegator: None,
        description: None,
        attendance: None,
        waits: None,
        holder: None,
        retries: 0,
        crashes: 0,
        ended_because: None,
        cancel_asked: None,
        refusal: None,
        results: Vec::new(),
        policy: None,
        audit: Audit::default(),
    }
}

/// A turn that was not admitted, or not yet.
pub(super) fn unadmitted(name: &TurnName, state: State, refusal: Option<String>, now_ms: i64) -> Story {
    let is_task = name.turn.as_str().starts_with('k');
    Story { is_task, refusal, ..blank(name, state, now_ms) }
}

/// A turn that has not ended.
pub(super) fn live(name: &TurnName, live: &LiveTurn, budget: BudgetFacts, caps: Option<Caps>, now_ms: i64) -> Story {
    let fields = &live.fields;
    let state = state(live);
    let (calls, done) = (number(fields, "n").unwrap_or(0), number(fields, "dn").unwrap_or(0));
    let results = (0..done).filter_map(|at: usize| serde_json::from_str(fields.get(&format!("r{at}"))?).ok());
    let results: Vec<CallResult> = results.collect();
    let is_task = fields.get("k").is_some_and(|kind| kind == "task");
    let (delegator, description) =
        fields.get("c0").filter(|_| is_task).map(|call| said_of_task(call)).unwrap_or_default();
    Story {
        is_task,
        delegator,
        description,
        tries: fields.get("lg").map(|log| FailedTry::read_all(log)).unwrap_or_default(),
        agent: fields.get("ag").cloned(),
        queue: fields.get("q").cloned(),
        accepted_ms: number(fields, "ts"),
        deadline_ms: number(fields, "dl"),
        calls,
        calls_admitted: number(fields, "ad").unwrap_or(0),
        calls_done: done,
        admissions: fields.get("lg").map(|log| Admission::read_all(log)).unwrap_or_default(),
        waits: wait(state, live, budget, caps, now_ms),
        holder: live.holder.clone(),
        retries: number(fields, "rt").unwrap_or(0),
        crashes: number(fields, "cr").unwrap_or(0),
        ended_because: fields.get("er").filter(|reason| !reason.is_empty()).cloned(),
        cancel_asked: fields.get("cx").cloned(),
        results,
        ..blank(name, state, now_ms)
    }
}

/// Where it is: the fence tells whether a slice is out, the counts whether calls that are not out were admitted.
fn state(live: &LiveTurn) -> State {
    let fields = &live.fields;
    let count = |name| number::<usize>(fields, name).unwrap_or(0);
    match fields.get("f").map(String::as_str).unwrap_or_default() {
        "" if count("dn") < count("ad") => State::Retry,
        "" => State::Lane,
        fence if fence.starts_with("s:") => State::Ending,
        _ if live.holder.is_some() => State::Running,
        _ => State::Ready,
    }
}

fn wait(state: State, live: &LiveTurn, budget: BudgetFacts, caps: Option<Caps>, now_ms: i64) -> Option<Wait> {
    // A counter means nothing once its end has passed.
    let tick_used = if budget.tick_ends_ms > now_ms { budget.tick_used } else { 0 };
    let day_used = if budget.day_ends_ms > now_ms { budget.day_used } else { 0 };
    let tenant_used = if budget.tenant_day_ends_ms > now_ms { budget.tenant_day_used } else { 0 };
    let tenant_cap = caps.and_then(|c| c.tenant_calls_per_day);
    let reached = |used: i64, cap: Option<u32>| cap.is_some_and(|cap| used >= i64::from(cap));
    let (tick_cap, day_cap) = (caps.map(|c| c.calls_per_tick), caps.map(|c| c.calls_per_day));
    let rule = match state {
        State::Retry => Rule::Backoff,
        State::Lane if reached(day_used, day_cap) => Rule::DayCap,
        State::Lane if reached(tenant_used, tenant_cap) => Rule::TenantDayCap,
        State::Lane if reached(tick_used, tick_cap) => Rule::TickCap,
        State::Lane if budget.ahead_on_lane.is_some_and(|ahead| ahead > 0) => Rule::BehindOthers,
        State::Lane => Rule::NextLook,
        _ => return None,
    };
    Some(Wait {
        rule,
        until_ms: if state == State::Retry { live.timer_ms } else { live.lane_due_ms },
        turns_ahead: budget.ahead_on_lane,
        tick_used,
        day_used,
        tick_cap,
        day_cap,
        tenant_day_used: tenant_used,
        tenant_day_cap: tenant_cap,
        next_try: (state == State::Retry).then(|| number(&live.fields, "at").unwrap_or(0) + 1),
    })
}

/// A turn that has ended.
pub(super) fn finished(name: &TurnName, trace: &HashMap<String, String>, reply: Option<Reply>, now_ms: i64) -> Story {
    let results = reply.as_ref().map(|reply| reply.results.clone()).unwrap_or_default();
    let admissions = trace.get("lg").map(|log| Admission::read_all(log)).unwrap_or_default();
    let is_task = reply.as_ref().is_some_and(|reply| reply.task_id.is_some());
    let refused = reply.as_ref().filter(|reply| reply.status != ReplyStatus::Done);
    let no_calls = reply.as_ref().is_some_and(|reply| reply.results.is_empty());
    let calls_admitted = admissions.iter().map(|a| a.calls as usize).sum();
    Story {
        is_task,
        agent: reply.as_ref().map(|reply| reply.agent.clone()),
        accepted_ms: number(trace, "ts"),
        ended_ms: number(trace, "end"),
        calls: results.len(),
        // A task is one piece of work, which no cap of its agent counts.
        calls_admitted: if is_task { results.len() } else { calls_admitted },
        calls_done: results.len(),
        admissions,
        tries: trace.get("lg").map(|log| FailedTry::read_all(log)).unwrap_or_default(),
        delegator: reply.as_ref().and_then(|reply| reply.delegator.clone()),
        cancel_asked: trace.get("cx").filter(|reason| !reason.is_empty()).cloned(),
        retries: number(trace, "rt").unwrap_or(0),
        crashes: number(trace, "cr").unwrap_or(0),
        // An answer without calls ends in the way of an ending, and nothing was the matter with it.
        ended_because: trace.get("er").filter(|reason| !reason.is_empty() && !no_calls).cloned(),
        refusal: refused.and_then(|reply| reply.error.as_ref()).map(|error| error.message.clone()),
        results,
        ..blank(name, State::Done, now_ms)
    }
}

/// Who gave a task, and what is to be done: from its call, whose arguments are a text, or from what an outside runtime
/// reads.
fn said_of_task(call: &str) -> (Option<String>, Option<String>) {
    let call: Value = serde_json::from_str(call).unwrap_or_default();
    let inner = call.get("arguments").and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok());
    let said: Value = inner.unwrap_or(call);
    let text = |name: &str| said.get(name).and_then(Value::as_str).map(str::to_owned);
    (text("delegator"), text("description").or_else(|| text("task_description")))
}

/// Adds what the audit entries tell of a turn or task that its record does not, or that has none any more.
pub(super) fn describe_by_audit(story: &mut Story) {
    let Some(entry) = story.audit.entries.first() else { return };
    let entry: Value = serde_json::from_str(entry.get()).unwrap_or_default();
    if story.agent.is_none() {
        story.agent = entry.get("actor_id").and_then(Value::as_str).map(str::to_owned);
    }
    if story.is_task {
        let text =
            |name: &str| entry.pointer(&format!("/meta/arguments/{name}")).and_then(Value::as_str).map(str::to_owned);
        story.delegator = story.delegator.take().or_else(|| text("delegator"));
        story.description =
            story.description.take().or_else(|| text("description")).or_else(|| text("task_description"));
    }
}

fn number<T: TryFrom<i64>>(fields: &HashMap<String, String>, name: &str) -> Option<T> {
    let text = fields.get(name)?;
    // Lua writes large numbers as floats.
    let value = text.parse::<i64>().ok().or_else(|| text.parse::<f64>().ok().map(|value| value as i64))?;
    T::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use super::*;

    fn record(fields: &[(&str, &str)]) -> LiveTurn {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        LiveTurn { fields, lane_due_ms: Some(2_000), timer_ms: Some(3_000), ..LiveTurn::default() }
    }

    fn name() -> TurnName {
        TurnName::parse("demo:t1-0").unwrap()
    }

    fn budget(tick_used: i64) -> BudgetFacts {
        BudgetFacts {
            tick_used,
            tick_ends_ms: 2_000,
            day_used: 12,
            day_ends_ms: 9_000,
            tenant_day_used: 30,
            tenant_day_ends_ms: 9_000,
            ahead_on_lane: Some(0),
        }
    }

    fn caps() -> Option<Caps> {
        Some(Caps {
            tick_ms: 5_000,
            calls_per_tick: 10,
            calls_per_day: 100,
            tenant_calls_per_day: None,
            on_day_cap: tickfleet_model::DayCapAction::Reject,
        })
    }

    #[test]
    fn the_log_of_admissions_is_read_and_odd_entries_are_left_out() {
        let read = Admission::read_all("A1000,10,10,10,5000,10,100;A5000.0,2,2,10,10000,12,100;what;A1,2");
        assert_eq!(read.len(), 2);
        let second = &read[1];
        assert_eq!((second.at_ms, second.calls, second.tick_ends_ms, second.day_used), (5_000, 2, 10_000, 12));
    }

    #[test]
    fn a_turn_on_its_lane_waits_for_the_rule_that_its_counters_name() {
        let laned = record(&[("n", "12"), ("ad", "10"), ("dn", "10"), ("ag", "kelly")]);
        let story = live(&name(), &laned, budget(10), caps(), 1_000);
        assert_eq!((story.state, story.waits.unwrap().rule), (State::Lane, Rule::TickCap));
        // The tick has ended: its counter means nothing.
        let story = live(&name(), &laned, budget(10), caps(), 2_500);
        assert_eq!(story.waits.unwrap().rule, Rule::NextLook);
    }

    #[test]
    fn the_tenants_day_is_named_where_it_is_what_is_used_up() {
        let laned = record(&[("n", "12"), ("ad", "10"), ("dn", "10"), ("ag", "kelly")]);
        let caps = caps().map(|caps| Caps { tenant_calls_per_day: Some(30), ..caps });
        let wait = live(&name(), &laned, budget(10), caps, 1_000).waits.unwrap();
        assert_eq!((wait.rule, wait.tenant_day_used), (Rule::TenantDayCap, 30));
    }

    #[test]
    fn fence_and_counts_tell_where_a_turn_is() {
        let out = [("n", "2"), ("ad", "2"), ("f", "17-0")];
        assert_eq!(state(&record(&out)), State::Ready);
        assert_eq!(state(&LiveTurn { holder: Some("w".into()), ..record(&out) }), State::Running);
        assert_eq!(state(&record(&[("n", "2"), ("ad", "2"), ("dn", "1")])), State::Retry);
        assert_eq!(state(&record(&[("n", "2"), ("f", "s:3")])), State::Ending);
    }
}
