//! Derives the state of a turn, and why it waits, from the turn's record.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;
use tickfleet_client::{Approval, Reply, ReplyStatus};
use tickfleet_core::CounterKey;
use tickfleet_core::keys::limits;
use tickfleet_core::turn::state::Finished;
use tickfleet_core::turn::{State as TurnState, WaitReason};
use tickfleet_model::limit::amount;
use tickfleet_model::policy::Pause;
use tickfleet_model::{AgentId, Call, CallResult, Caps, Policy, TenantId};
use tickfleet_protocol::AuditEntry;
use tickfleet_protocol::json::with_numbers_as_text;
use tickfleet_store::{
    BudgetFacts, LiveTurn, TurnName, admissions, breaker_waits, current_breaker_wait, failed_attempts,
};

use super::{ExplainedState, Explanation};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum WaitRule {
    TickCap,
    /// A restart, a failover or a move of the shard may have lost counts, so the tick accepts no more calls.
    TickClosed,
    DayCap,
    TenantDayCap,
    Limit,
    /// Other turns of the agent are ahead in the throttle queue.
    BehindOthers,
    /// The turn can be admitted at the next check of the throttle queue.
    NextCheck,
    /// A failed call waits for its next attempt, or no worker can read the slice.
    Backoff,
    Approval,
    /// The turn waits for other work: work that it began, an equal call, or a call that may change a fact.
    Other,
    Paused,
    /// The tool of the next call accepts no calls, after failures or because it is paused.
    BreakerOpen,
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct TurnWait {
    pub(super) rule: WaitRule,
    /// Shard time at which the next call is eligible or is checked again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) until_ms: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) turns_ahead: Option<u64>,
    pub(super) tick_used: i64,
    pub(super) day_used: i64,
    /// While a configuration change spreads, the cap in force may differ from this configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tick_cap: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) day_cap: Option<u32>,
    pub(super) tenant_day_used: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) tenant_day_cap: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) awaits: Option<String>,
    /// True if the turn waits for an equal call of `awaits`, or for a call that may change a fact.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) awaits_equal: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pause: Option<Pause>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_try: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) limit: Option<LimitWait>,
    /// True if the turn had a concurrency slot of the limit, and returned the slot while its call waited.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) returned_permits: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) approval: Option<Approval>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) breaker: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct RunningCall {
    /// The first call without a result in Redis. Short calls at later positions may have ended.
    pub(super) position: usize,
    pub(super) tool: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) held_ms: Option<i64>,
    pub(super) timeout_ms: u64,
    /// Reported by the running tool, such as `40 %: Reading orders`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) progress: Option<String>,
}

/// `None` if no process holds the turn, or if its next call is unreadable. `timeout_ms` takes the name of a tool.
pub(super) fn running(live: &LiveTurn, timeout_ms: impl FnOnce(&str) -> u64) -> Option<RunningCall> {
    live.holder.as_ref()?;
    let call: Call = serde_json::from_str(live.next_call()?).ok()?;
    let timeout_ms = timeout_ms(&call.tool);
    let position = live.turn.position;
    let progress = live.progress.as_ref().map(|progress| progress.in_words());
    Some(RunningCall { position, tool: call.tool, held_ms: live.held_ms, timeout_ms, progress })
}

/// Adds an operator's pause, but not to a wait for a retry, an approval or other work.
pub(super) fn complete(wait: &mut TurnWait, name: &TurnName, agent: &str, policy: &Policy) {
    let pause = AgentId::new(agent).ok().and_then(|agent| policy.pause(&name.tenant, &agent).cloned());
    let on_lane = !matches!(wait.rule, WaitRule::Backoff | WaitRule::Other | WaitRule::Approval);
    if let Some(pause) = pause.filter(|_| on_lane) {
        (wait.rule, wait.until_ms, wait.pause) = (WaitRule::Paused, None, Some(pause));
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct LimitWait {
    pub(super) name: String,
    /// `tickfleet limits` lists and resets the counter under this name.
    pub(super) counter: String,
    /// In words; `None` if this configuration does not have the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) allows: Option<String>,
    pub(super) used: String,
    /// True if the limit bounds concurrent calls. The end of the wait is then unknown.
    #[serde(skip)]
    pub(super) is_held: bool,
}

pub(super) fn limit(
    policy: &Policy,
    tenant: &TenantId,
    counter: &CounterKey,
    budget: &BudgetFacts,
    now_ms: i64,
) -> Option<LimitWait> {
    let known = policy.limits.iter().find(|limit| *limit.name == *counter.limit);
    let known = known.map(|limit| policy.tenants.get(tenant).map_or(Cow::Borrowed(limit), |owner| owner.limit(limit)));
    let known = known.as_deref();
    // The value is meaningless after the counter's period has ended.
    let used = budget.counter.filter(|counter| counter.ends_ms > now_ms).map_or(0, |counter| counter.used);
    let held = budget.counter.map_or(0, |counter| counter.held);
    let is_held = held > 0 || known.is_some_and(|limit| limit.bound.holds_permits());
    let used = match known.map(|limit| &limit.bound) {
        _ if is_held => held.to_string(),
        Some(bound) if bound.is_of_amounts() => amount::show(used),
        _ => used.to_string(),
    };
    let allows = known.map(ToString::to_string);
    Some(LimitWait { name: counter.limit.to_string(), counter: counter.counter.to_string(), allows, used, is_held })
}

pub(super) fn caps(policy: &Policy, tenant: &TenantId, agent: &str) -> Option<Caps> {
    let (owner, agent) = policy.look_up(tenant, &AgentId::new(agent).ok()?).ok()?;
    Some(policy.caps(owner, agent))
}

fn blank(name: &TurnName, state: ExplainedState, now_ms: i64) -> Explanation {
    let tenant = name.tenant.to_string();
    let id = name.turn.to_string();
    Explanation { tenant, id, state, now_ms, ..Explanation::default() }
}

pub(super) fn unadmitted(name: &TurnName, state: ExplainedState, refusal: Option<String>, now_ms: i64) -> Explanation {
    let is_task = name.turn.as_str().starts_with('k');
    Explanation { is_task, refusal, ..blank(name, state, now_ms) }
}

pub(super) const fn counter(live: &LiveTurn) -> Option<&CounterKey> {
    match &live.turn.state {
        TurnState::Throttled { counter, .. } | TurnState::Waiting { reason: WaitReason::Budget { counter }, .. } => {
            Some(counter)
        }
        _ => None,
    }
}

/// Names of built-in limits begin with `_`.
pub(super) fn is_configured(counter: &CounterKey) -> bool {
    !counter.limit.starts_with('_')
}

pub(super) fn live(
    name: &TurnName,
    live: &LiveTurn,
    budget: BudgetFacts,
    caps: Option<Caps>,
    now_ms: i64,
) -> Explanation {
    let turn = &live.turn;
    let state = state(live);
    let results = live.results.iter().filter_map(|result| serde_json::from_str::<CallResult>(result).ok());
    let task = live.first_call().filter(|_| turn.is_task());
    let (delegator, description) = task.map(delegation_of).unwrap_or_default();
    let ending = if let TurnState::Ending { reason, .. } = &turn.state { Some(reason.clone()) } else { None };
    Explanation {
        is_task: turn.is_task(),
        delegator,
        description,
        tries: failed_attempts(&turn.notes),
        breaker_waits: breaker_waits(&turn.notes),
        agent: Some(turn.head.agent.to_string()),
        queue: Some(live.queue(&name.tenant)),
        accepted_ms: Some(turn.admitted_ms),
        deadline_ms: Some(turn.head.deadline_ms),
        calls: turn.head.calls,
        calls_admitted: turn.debited,
        calls_done: turn.position,
        admissions: admissions(&turn.notes),
        waits: wait(live, budget, caps, now_ms),
        holder: live.holder.clone(),
        retries: u64::from(turn.retries),
        crashes: u64::from(turn.crashes),
        end_reason: ending,
        cancel_asked: live.canceled.clone(),
        results: results.collect(),
        ..blank(name, state, now_ms)
    }
}

const fn state(live: &LiveTurn) -> ExplainedState {
    match &live.turn.state {
        TurnState::Throttled { .. } => ExplainedState::Throttled,
        TurnState::Ready { .. } | TurnState::Running { .. } if live.holder.is_some() => ExplainedState::Running,
        TurnState::Ready { .. } | TurnState::Running { .. } => ExplainedState::Ready,
        TurnState::Retrying { .. } | TurnState::Waiting { .. } => ExplainedState::Retry,
        TurnState::Ending { .. } => ExplainedState::Ending,
    }
}

fn wait(live: &LiveTurn, budget: BudgetFacts, caps: Option<Caps>, now_ms: i64) -> Option<TurnWait> {
    let tick_used = if budget.tick_ends_ms > now_ms { budget.tick_used } else { 0 };
    let day_used = if budget.day_ends_ms > now_ms { budget.day_used } else { 0 };
    let tenant_used = if budget.tenant_day_ends_ms > now_ms { budget.tenant_day_used } else { 0 };
    let tick_cap = caps.map(|c| c.calls_per_tick);
    let day_cap = caps.map(|c| c.calls_per_day);
    let is_tick_used_up = tick_cap.is_some_and(|cap| tick_used >= i64::from(cap));
    let turn = &live.turn;
    let rule = match &turn.state {
        TurnState::Throttled { counter, .. } => match &*counter.limit {
            limits::DAY => WaitRule::DayCap,
            limits::TENANT_DAY => WaitRule::TenantDayCap,
            limits::TICK if is_tick_used_up => WaitRule::TickCap,
            limits::TICK if budget.tick_is_closed && budget.tick_ends_ms > now_ms => WaitRule::TickClosed,
            limits::TICK if budget.ahead_on_lane.is_some_and(|ahead| ahead > 0) => WaitRule::BehindOthers,
            limits::TICK => WaitRule::NextCheck,
            _ => WaitRule::Limit,
        },
        TurnState::Retrying { .. } => WaitRule::Backoff,
        TurnState::Waiting { reason, .. } => match reason {
            WaitReason::Child { .. } | WaitReason::Fact { .. } | WaitReason::EqualCall { .. } => WaitRule::Other,
            WaitReason::Breaker { .. } => WaitRule::BreakerOpen,
            WaitReason::Budget { .. } => WaitRule::Limit,
            WaitReason::Approval { .. } | WaitReason::Reader { .. } => WaitRule::Backoff,
        },
        TurnState::Ready { .. } | TurnState::Running { .. } | TurnState::Ending { .. } => return None,
    };
    let began_work = matches!(turn.state, TurnState::Waiting { reason: WaitReason::Child { .. }, .. });
    let breaker = current_breaker_wait(&turn.notes)
        .filter(|wait| rule == WaitRule::BreakerOpen && wait.position == turn.position);
    Some(TurnWait {
        rule,
        until_ms: if turn.state.is_parked() { live.timer_ms } else { live.throttle_due_ms },
        turns_ahead: budget.ahead_on_lane,
        tick_used,
        day_used,
        tick_cap,
        day_cap,
        tenant_day_used: tenant_used,
        tenant_day_cap: caps.and_then(|c| c.tenant_calls_per_day),
        awaits: turn.state.awaits().map(ToString::to_string),
        awaits_equal: rule == WaitRule::Other && !began_work,
        pause: None,
        next_try: (rule == WaitRule::Backoff).then(|| u64::from(turn.attempts) + 1),
        limit: None,
        returned_permits: rule == WaitRule::Limit && turn.debited > turn.position,
        approval: None,
        breaker: breaker.map(|wait| wait.why),
    })
}

impl TurnWait {
    pub(super) fn or_for_approval(self, open: Option<Approval>) -> Self {
        match open {
            Some(open) => Self {
                rule: WaitRule::Approval,
                next_try: None,
                until_ms: Some(open.until_ms),
                approval: Some(open),
                ..self
            },
            None => self,
        }
    }
}

pub(super) fn finished(name: &TurnName, turn: Finished, now_ms: i64) -> Explanation {
    let reply: Option<Reply> = serde_json::from_str(&turn.reply).ok();
    let results = reply.as_ref().map(|reply| reply.results.clone()).unwrap_or_default();
    let is_task = reply.as_ref().is_some_and(|reply| reply.task_id.is_some());
    let refused = reply.as_ref().filter(|reply| reply.status != ReplyStatus::Done);
    let no_calls = reply.as_ref().is_some_and(|reply| reply.results.is_empty());
    let admissions = admissions(&turn.notes);
    let calls_admitted = admissions.iter().map(|a| a.calls as usize).sum();
    Explanation {
        is_task,
        agent: reply.as_ref().map(|reply| reply.agent.clone()),
        accepted_ms: Some(turn.admitted_ms),
        ended_ms: Some(turn.ended_ms),
        calls: results.len(),
        // A task does not count against the caps of its agent, so its record has no admitted calls.
        calls_admitted: if is_task { results.len() } else { calls_admitted },
        calls_done: results.len(),
        admissions,
        tries: failed_attempts(&turn.notes),
        breaker_waits: breaker_waits(&turn.notes),
        delegator: reply.as_ref().and_then(|reply| reply.delegator.clone()),
        cancel_asked: turn.canceled,
        retries: u64::from(turn.retries),
        crashes: u64::from(turn.crashes),
        // A response without calls also has an end reason, but that reason is not a problem.
        end_reason: turn.reason.filter(|_| !no_calls),
        refusal: refused.and_then(|reply| reply.error.as_ref()).map(|error| error.message.clone()),
        results,
        ..blank(name, ExplainedState::Done, now_ms)
    }
}

fn delegation_of(call: &str) -> (Option<String>, Option<String>) {
    let arguments = serde_json::from_str::<Call>(call).map(|call| call.arguments).unwrap_or_default();
    let arguments: Value = serde_json::from_str(&with_numbers_as_text(&arguments)).unwrap_or_default();
    let text = |name: &str| arguments.get(name).and_then(Value::as_str).map(str::to_owned);
    (text("delegator"), text("description").or_else(|| text("task_description")))
}

pub(super) fn describe_by_audit(explanation: &mut Explanation) {
    let Some(entry) = explanation.audit.entries.first() else { return };
    let Some(entry) = AuditEntry::read(entry.get()) else { return };
    if explanation.agent.is_none() {
        explanation.agent = Some(entry.actor_id.into_owned());
    }
    if explanation.is_task {
        let arguments = entry.meta.arguments.map(|arguments| with_numbers_as_text(arguments.get()));
        let arguments: Value = arguments.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
        let text = |name: &str| arguments.get(name).and_then(Value::as_str).map(str::to_owned);
        explanation.delegator = explanation.delegator.take().or_else(|| text("delegator"));
        explanation.description =
            explanation.description.take().or_else(|| text("description")).or_else(|| text("task_description"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

    use serde_json::json;
    use tickfleet_store::CounterFacts;

    use super::*;

    fn turn(position: usize, state: &Value) -> LiveTurn {
        let turn = json!({
            "h": {"ag": "kelly", "dl": 9_000, "dg": "d", "n": 12},
            "q": {"r": "normal"}, "pl": 1, "t": 500, "b": 10, "p": position, "d": 10, "s": state,
        });
        LiveTurn {
            turn: serde_json::from_value(turn).unwrap(),
            canceled: None,
            entry: None,
            calls: Vec::new(),
            results: Vec::new(),
            timer_ms: Some(3_000),
            throttle_due_ms: Some(2_000),
            holder: None,
            held_ms: None,
            progress: None,
        }
    }

    fn throttled(limit: &str, counter: &str) -> LiveTurn {
        turn(10, &json!({"s": "throttled", "counter": [limit, counter], "since_ms": 500}))
    }

    fn queued() -> LiveTurn {
        throttled(limits::TICK, "demo:kelly")
    }

    fn name() -> TurnName {
        TurnName::parse("demo:t1-0").unwrap()
    }

    fn budget(tick_used: i64) -> BudgetFacts {
        BudgetFacts {
            tick_used,
            tick_ends_ms: 2_000,
            tick_is_closed: false,
            day_used: 12,
            day_ends_ms: 9_000,
            tenant_day_used: 30,
            tenant_day_ends_ms: 9_000,
            ahead_on_lane: Some(0),
            counter: None,
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
    fn a_turn_in_a_limits_throttle_queue_waits_for_that_limit() {
        let waiting = throttled("mails", "demo:u1");
        let explanation = live(&name(), &waiting, budget(10), caps(), 1_000);
        assert_eq!(explanation.waits.unwrap().rule, WaitRule::Limit);
        let counter_key = counter(&waiting).unwrap().clone();
        let counted = |counter| BudgetFacts { counter, ..budget(10) };
        let counter = Some(CounterFacts { used: 5, ends_ms: 2_000, held: 0 });
        let said = limit(&Policy::default(), &name().tenant, &counter_key, &counted(counter), 1_000).unwrap();
        assert_eq!((said.name.as_str(), said.counter.as_str(), said.used.as_str()), ("mails", "demo:u1", "5"));
        assert_eq!(said.allows, None);
        let over = limit(&Policy::default(), &name().tenant, &counter_key, &counted(counter), 2_000).unwrap();
        assert_eq!(over.used, "0", "its window has ended");
        let counter = Some(CounterFacts { held: 3, ..CounterFacts::default() });
        let held = limit(&Policy::default(), &name().tenant, &counter_key, &counted(counter), 2_000).unwrap();
        assert_eq!((held.used.as_str(), held.is_held), ("3", true));
    }

    #[test]
    fn a_throttled_turn_waits_for_its_exhausted_cap() {
        let explanation = live(&name(), &queued(), budget(10), caps(), 1_000);
        assert_eq!(
            (explanation.state, explanation.waits.unwrap().rule),
            (ExplainedState::Throttled, WaitRule::TickCap)
        );
        let explanation = live(&name(), &queued(), budget(10), caps(), 2_500);
        assert_eq!(explanation.waits.unwrap().rule, WaitRule::NextCheck);
    }

    #[test]
    fn a_tick_closed_by_a_redis_restart_explains_the_wait() {
        let closed = BudgetFacts { tick_is_closed: true, ..budget(4) };
        assert_eq!(live(&name(), &queued(), closed, caps(), 1_000).waits.unwrap().rule, WaitRule::TickClosed);
        assert_eq!(live(&name(), &queued(), closed, caps(), 2_500).waits.unwrap().rule, WaitRule::NextCheck);
        assert_eq!(live(&name(), &queued(), budget(4), caps(), 1_000).waits.unwrap().rule, WaitRule::NextCheck);
    }

    #[test]
    fn an_exhausted_tenant_day_cap_explains_the_wait() {
        let caps = caps().map(|caps| Caps { tenant_calls_per_day: Some(30), ..caps });
        let wait = live(&name(), &throttled(limits::TENANT_DAY, "demo"), budget(10), caps, 1_000).waits.unwrap();
        assert_eq!((wait.rule, wait.tenant_day_used), (WaitRule::TenantDayCap, 30));
    }

    #[test]
    fn a_turns_state_follows_its_record() {
        let out = turn(0, &json!({"s": "ready", "upto": 2}));
        assert_eq!(state(&out), ExplainedState::Ready);
        assert_eq!(state(&LiveTurn { holder: Some("w".into()), ..out }), ExplainedState::Running);
        assert_eq!(state(&turn(1, &json!({"s": "retrying", "upto": 2, "due_ms": 3_000}))), ExplainedState::Retry);
        assert_eq!(
            state(&turn(0, &json!({"s": "ending", "reason": {"w": "expired"}, "due_ms": 3_000}))),
            ExplainedState::Ending
        );
    }
}
