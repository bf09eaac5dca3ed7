//! Evaluates the conditions of calls with the facts that the evaluated policy would have caused. If two events may have
//! happened in either order, both orders are evaluated. A call with two different results is undecidable.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::session::{EvaluationTime, Session};
use super::{FactCall, FactRequirement, FactTurn, FactsOutcome};
use crate::whatif::recorded::LogStart;
use crate::whatif::{Difference, DifferenceKind, Summary};

/// From this number on, sessions without known facts and without calls in progress are dropped.
const KEPT_MIN: usize = 10_000;
const WAITING_MAX: usize = 100_000;
/// After an unknown change, a fact stays unknown for this time. No fact is kept for longer.
const UNKNOWN_MS: i64 = tickfleet_model::policy::FACT_KEPT_MS_MAX;

pub const NO_SESSION: &str =
    "its tool requires session facts, which the entry lacks (audit.policy_inputs, or an older version)";
const NO_ARGUMENTS: &str = "its tool requires facts about arguments that are incomplete in the log";
const OTHERS_UNSAID: &str =
    "a call without its session or arguments in the log may have changed a fact that it requires";
const OPEN_BEFORE: &str = "the facts of its session before the log began are unknown";
const SAME_MOMENT: &str = "a fact that it requires may have changed just before or just after it began";
const DID_NOT_WAIT: &str = "it did not wait for a running call that may have changed a fact that it requires";
const NEVER: &str = "it would wait for a fact, and the log does not show until when";

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TurnEvent {
    End(u64),
    Enter(u64),
}

struct RunningTurn {
    turn: FactTurn,
    /// Index of the next call, or of the call in progress.
    next: usize,
    is_under_way: bool,
    /// Delay (ms) compared to the recorded times.
    shift_ms: i64,
    /// The start of a wait in the replay (ms), and the condition of the wait.
    waits: Option<(i64, String)>,
}

enum ConditionsResult {
    Passes,
    Denied(String),
    /// Turn and position of the awaited call, and the condition.
    Waits(u64, usize, String),
    Unsure(&'static str),
}

enum ConditionResult {
    Yes,
    No,
    Waits(u64, usize),
    Unsure(&'static str),
}

pub struct FactReplay<'a> {
    began: &'a LogStart,
    sessions: HashMap<String, Session>,
    /// Facts with unknown changes, by session or tenant, and by name.
    unknown_until_ms: HashMap<String, i64>,
    turns: HashMap<u64, RunningTurn>,
    next_turn: u64,
    order: u64,
    events: BinaryHeap<Reverse<(i64, u8, u64, TurnEvent)>>,
    waiting: usize,
    kept: usize,
    decided: u64,
    report: Box<dyn FnMut(Difference) + 'a>,
    summary: Summary,
}

impl<'a> FactReplay<'a> {
    /// `began` states the time from which the log is complete.
    #[must_use]
    pub fn new(began: &'a LogStart, report: impl FnMut(Difference) + 'a) -> Self {
        Self {
            began,
            sessions: HashMap::new(),
            unknown_until_ms: HashMap::new(),
            turns: HashMap::new(),
            next_turn: 0,
            order: 0,
            events: BinaryHeap::new(),
            waiting: 0,
            kept: 0,
            decided: 0,
            report: Box::new(report),
            summary: Summary::default(),
        }
    }

    /// Turns must be added in the order of [`FactTurn::at_ms`].
    pub fn turn(&mut self, turn: FactTurn) {
        self.until(turn.at_ms);
        let number = self.next_turn;
        self.next_turn += 1;
        for call in &turn.calls {
            if let Some(name) = &call.session
                && call.may.iter().any(|may| may.sets)
            {
                self.sessions.entry(name.clone()).or_default().add_call(number, call.position, false, &call.may);
            }
        }
        let running = RunningTurn { turn, next: 0, is_under_way: false, shift_ms: 0, waits: None };
        self.schedule_next(number, running, i64::MIN);
    }

    #[must_use]
    pub fn finish(mut self) -> (u64, Summary) {
        self.until(i64::MAX);
        self.summary.count_undecidable(NEVER, self.turns.len() as u64);
        (self.decided, self.summary)
    }

    fn at(&mut self, at_ms: i64, next: TurnEvent) {
        self.order += 1;
        let class = u8::from(matches!(next, TurnEvent::Enter(_)));
        self.events.push(Reverse((at_ms, class, self.order, next)));
    }

    fn until(&mut self, at_ms: i64) {
        while let Some(Reverse((now_ms, ..))) = self.events.peek()
            && *now_ms < at_ms
        {
            let Some(Reverse((now_ms, _, _, next))) = self.events.pop() else { return };
            match next {
                TurnEvent::End(number) => self.end(number, now_ms),
                TurnEvent::Enter(number) => self.enter(number, now_ms),
            }
            self.drop_idle_sessions(now_ms);
        }
    }

    /// Schedules the turn's next call, at `now_ms` or later. A turn without more calls is dropped.
    fn schedule_next(&mut self, number: u64, running: RunningTurn, now_ms: i64) {
        if let Some(call) = running.turn.calls.get(running.next) {
            self.at(call.began.1.saturating_add(running.shift_ms).max(now_ms), TurnEvent::Enter(number));
            self.turns.insert(number, running);
        }
    }

    fn enter(&mut self, number: u64, now_ms: i64) {
        let Some(mut running) = self.turns.remove(&number) else { return };
        // Several awaited calls can wake a turn, but the turn begins only one call.
        let Some(call) = running.turn.calls.get(running.next).filter(|_| !running.is_under_way).cloned() else {
            self.turns.insert(number, running);
            return;
        };
        match self.evaluate(number, &running, &call, now_ms) {
            ConditionsResult::Waits(turn, position, rule) if self.waiting < WAITING_MAX => {
                let live = call.session.as_ref().and_then(|name| self.sessions.get_mut(name));
                let live = live.and_then(|it| it.live.iter_mut().find(|it| (it.turn, it.position) == (turn, position)));
                live.into_iter().for_each(|live| live.waiters.push(number));
                if running.waits.is_none() {
                    self.waiting += 1;
                    running.waits = Some((now_ms, rule));
                }
                self.turns.insert(number, running);
            }
            result => {
                if running.waits.is_some() {
                    self.waiting = self.waiting.saturating_sub(1);
                }
                self.begin(number, running, &call, result, now_ms);
            }
        }
    }

    fn evaluate(&mut self, number: u64, running: &RunningTurn, call: &FactCall, now_ms: i64) -> ConditionsResult {
        if !call.asks() {
            return ConditionsResult::Passes;
        }
        let Some(session) = &call.session else { return ConditionsResult::Unsure(NO_SESSION) };
        // A call that the replay moved is evaluated now. Any other call is evaluated at its recorded time.
        let is_moved = running.shift_ms > 0 || running.waits.is_some();
        let at = if is_moved { (now_ms, now_ms) } else { call.began };
        let time = EvaluationTime { turn: number, at, is_moved };
        let result = self.evaluate_all(running.turn.shard, session, call, time, true);
        let is_apart = self.sessions.get(session).is_some_and(|session| session.is_apart);
        // The fleet evaluated facts at this time without a delay, so the shard knew more than the log shows.
        if !matches!(result, ConditionsResult::Waits(..)) || !call.was_asked || is_moved || is_apart {
            return result;
        }
        let result = self.evaluate_all(running.turn.shard, session, call, time, false);
        match (&call.outcome, result) {
            (FactsOutcome::Stopped(was), ConditionsResult::Denied(rule)) if *was == rule => {
                ConditionsResult::Denied(rule)
            }
            (FactsOutcome::Passed, ConditionsResult::Passes) => {
                self.summary.count_undecidable(DID_NOT_WAIT, 1);
                ConditionsResult::Passes
            }
            _ => ConditionsResult::Unsure(DID_NOT_WAIT),
        }
    }

    /// As in the core, a denial has precedence over a wait.
    fn evaluate_all(
        &mut self,
        shard: u32,
        session: &str,
        call: &FactCall,
        time: EvaluationTime,
        waits: bool,
    ) -> ConditionsResult {
        let mut unsure = None;
        let mut waits_for = None;
        for condition in &call.conditions {
            match self.evaluate_one(shard, session, condition, time, waits) {
                ConditionResult::Yes => {}
                ConditionResult::No if unsure.is_none() => return ConditionsResult::Denied(condition.rule.clone()),
                ConditionResult::No => {}
                ConditionResult::Waits(turn, position) => {
                    waits_for.get_or_insert_with(|| ConditionsResult::Waits(turn, position, condition.rule.clone()));
                }
                ConditionResult::Unsure(why) => {
                    unsure.get_or_insert(why);
                }
            }
        }
        match (unsure, waits_for) {
            (Some(why), _) => ConditionsResult::Unsure(why),
            (None, Some(waits)) => waits,
            (None, None) => ConditionsResult::Passes,
        }
    }

    fn evaluate_one(
        &mut self,
        shard: u32,
        session: &str,
        condition: &FactRequirement,
        time: EvaluationTime,
        waits: bool,
    ) -> ConditionResult {
        let tenant = session.split(':').next().unwrap_or_default();
        let is_unknown = |scope: &str| {
            let until_ms = self.unknown_until_ms.get(&format!("{scope} {}", condition.name));
            until_ms.is_some_and(|until_ms| *until_ms >= time.at.0)
        };
        if is_unknown(tenant) || is_unknown(session) {
            return ConditionResult::Unsure(OTHERS_UNSAID);
        }
        let Some(key) = &condition.key else { return ConditionResult::Unsure(NO_ARGUMENTS) };
        let known = self.sessions.get(session).and_then(|known| known.is_so(key, condition.required, time));
        let is_so = match known {
            Some(Some(is_so)) => is_so,
            Some(None) => return ConditionResult::Unsure(SAME_MOMENT),
            None if time.at.0 < self.began.of(shard).saturating_add(condition.kept_ms) => {
                return ConditionResult::Unsure(OPEN_BEFORE);
            }
            None => false,
        };
        if waits && let Some(known) = self.sessions.get_mut(session) {
            let is_missing = condition.required && !is_so;
            if let Some(live) = known.call_to_wait_for(key, !is_so, is_missing, time.turn) {
                return ConditionResult::Waits(live.turn, live.position);
            }
        }
        if is_so == condition.required { ConditionResult::Yes } else { ConditionResult::No }
    }

    fn begin(&mut self, number: u64, mut running: RunningTurn, call: &FactCall, result: ConditionsResult, now_ms: i64) {
        let late_ms = running.waits.take().map(|(since_ms, rule)| (now_ms - since_ms, rule));
        if matches!(result, ConditionsResult::Passes | ConditionsResult::Denied(_)) && call.asks() {
            self.decided += 1;
        }
        let (passes, rule) = match result {
            ConditionsResult::Passes => (true, None),
            ConditionsResult::Denied(rule) => (false, Some(rule)),
            // An undecidable call keeps its recorded result.
            ConditionsResult::Waits(..) => self.unsure(NEVER, &call.outcome),
            ConditionsResult::Unsure(why) => self.unsure(why, &call.outcome),
        };
        let (is_otherwise, stopped) = self.report_differences(&running.turn, call, (passes, rule), late_ms.as_ref());
        if let Some(session) = call.session.as_ref().filter(|_| is_otherwise) {
            self.sessions.entry(session.clone()).or_default().is_apart = true;
        }
        running.shift_ms += late_ms.map_or(0, |(late_ms, _)| late_ms);
        if stopped {
            self.remove_call(number, call, now_ms);
            running.next += 1;
            return self.schedule_next(number, running, now_ms);
        }
        running.is_under_way = true;
        if let Some(session) = call.session.as_ref().filter(|_| call.outcome != FactsOutcome::NotReached) {
            self.sessions.entry(session.clone()).or_default().add_call(number, call.position, true, &call.may);
        }
        // The log has no end for a call that the fleet stopped, so the call ends now.
        let ends_ms =
            if matches!(call.outcome, FactsOutcome::Stopped(_)) { now_ms } else { call.ended.0 + running.shift_ms };
        self.at(ends_ms.max(now_ms), TurnEvent::End(number));
        self.turns.insert(number, running);
    }

    fn unsure(&mut self, why: &str, outcome: &FactsOutcome) -> (bool, Option<String>) {
        self.summary.count_undecidable(why, 1);
        match outcome {
            FactsOutcome::Stopped(rule) => (false, Some(rule.clone())),
            FactsOutcome::Passed | FactsOutcome::New | FactsOutcome::NotReached => (true, None),
        }
    }

    /// Returns two flags: the decision differs, and the call is stopped.
    fn report_differences(
        &mut self,
        turn: &FactTurn,
        call: &FactCall,
        (passes, rule): (bool, Option<String>),
        late: Option<&(i64, String)>,
    ) -> (bool, bool) {
        let rule = rule.unwrap_or_default();
        let mut report =
            |kind, by: &str, would: String, by_ms| (self.report)(difference(turn, call, kind, by, would, by_ms));
        match (passes, &call.outcome) {
            (false, FactsOutcome::Stopped(was)) if *was == rule => return (false, true),
            (false, FactsOutcome::Stopped(_) | FactsOutcome::New) => {
                report(DifferenceKind::Otherwise, &rule, denied(&rule), None)
            }
            (false, FactsOutcome::Passed | FactsOutcome::NotReached) => {
                report(DifferenceKind::Denied, &rule, denied(&rule), None)
            }
            (true, outcome) => {
                if let Some(held) = &call.held {
                    (self.report)((**held).clone());
                } else if let FactsOutcome::Stopped(was) = outcome {
                    report(DifferenceKind::Allowed, was, "passed".to_owned(), None);
                }
                if let Some((by_ms, rule)) = late.filter(|(by_ms, _)| *by_ms > 0) {
                    let mut report = |kind, by: &str, would: String, by_ms| {
                        (self.report)(difference(turn, call, kind, by, would, by_ms))
                    };
                    report(DifferenceKind::Delayed, rule, format!("begun {by_ms} ms later ({rule})"), Some(*by_ms));
                }
                let is_same = matches!(outcome, FactsOutcome::Passed | FactsOutcome::NotReached) && late.is_none();
                return (!is_same, false);
            }
        }
        (true, true)
    }

    fn end(&mut self, number: u64, now_ms: i64) {
        let Some(mut running) = self.turns.remove(&number) else { return };
        let Some(call) = running.turn.calls.get(running.next).cloned() else { return };
        let took_ms = call.ended.1 - call.ended.0;
        let at = (now_ms, now_ms + took_ms);
        let did = call.did.as_ref().filter(|_| !matches!(call.outcome, FactsOutcome::Stopped(_)));
        match (&call.session, did) {
            (None, _) => self.mark_unknown(&running.turn.tenant, &call, at),
            (Some(session), Some(did)) => {
                for change in did {
                    match &change.key {
                        Some(key) => {
                            let of = self.sessions.entry(session.clone()).or_default();
                            of.change(key, change.change, change.kept_ms, number, at);
                        }
                        None => {
                            self.unknown_until_ms
                                .insert(format!("{session} {}", change.name), at.1.saturating_add(UNKNOWN_MS));
                        }
                    }
                }
            }
            (Some(session), None) => {
                for may in &call.may {
                    match &may.key {
                        Some(key) => {
                            let of = self.sessions.entry(session.clone()).or_default();
                            of.mark_unknown((key, may.sets), UNKNOWN_MS, number, at);
                        }
                        None => self.mark_unknown(session, &call, at),
                    }
                }
            }
        }
        self.remove_call(number, &call, now_ms);
        running.next += 1;
        running.is_under_way = false;
        self.schedule_next(number, running, now_ms);
    }

    fn mark_unknown(&mut self, scope: &str, call: &FactCall, at: (i64, i64)) {
        if call.did.as_ref().is_some_and(Vec::is_empty) {
            return;
        }
        for may in &call.may {
            self.unknown_until_ms.insert(format!("{scope} {}", may.name), at.1.saturating_add(UNKNOWN_MS));
        }
    }

    fn remove_call(&mut self, number: u64, call: &FactCall, now_ms: i64) {
        let session = call.session.as_ref().and_then(|name| self.sessions.get_mut(name));
        let waiters = session.map(|session| session.remove_call(number, call.position)).unwrap_or_default();
        waiters.into_iter().for_each(|waiter| self.at(now_ms, TurnEvent::Enter(waiter)));
    }

    fn drop_idle_sessions(&mut self, now_ms: i64) {
        if self.sessions.len() + self.unknown_until_ms.len() < self.kept.max(KEPT_MIN) {
            return;
        }
        self.sessions.retain(|_, session| session.is_needed(now_ms));
        self.unknown_until_ms.retain(|_, until_ms| *until_ms > now_ms);
        self.kept = 2 * (self.sessions.len() + self.unknown_until_ms.len());
    }
}

fn denied(rule: &str) -> String {
    format!("denied ({rule})")
}

fn difference(
    turn: &FactTurn,
    call: &FactCall,
    kind: DifferenceKind,
    by: &str,
    would: String,
    by_ms: Option<i64>,
) -> Difference {
    Difference {
        kind,
        by: by.to_owned(),
        tenant: turn.tenant.clone(),
        agent: turn.agent.clone(),
        tool: call.tool.clone(),
        call: format!("{}/{}", turn.id, call.position),
        was: call.was.clone(),
        would,
        by_ms,
    }
}
