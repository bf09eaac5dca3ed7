//! Evaluates caps and limits at each recorded decision, with the counter values under the policy. If the result is the
//! same, the turn continues as recorded. Otherwise, the replay lets the calls wait, or dispatches them at once.

mod delay_groups;
mod dispatch;
mod evaluate;
mod pauses;
mod permit_gaps;
mod unknown;
mod waiting;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

use tickfleet_model::limit::LimitBound;
use tickfleet_model::policy::UnknownCaller;
use tickfleet_model::{AgentId, Limit, TenantId, limits};

use self::delay_groups::DelayGroups;
use self::evaluate::{AdmissionVerdict, TurnEvaluation};
use self::pauses::Pauses;
use self::unknown::{cut_by_others, waits_for_unknown};
pub use super::counters::Fleet;
use super::counters::{CounterDebit, CounterLedger, SHARE, TurnCaller};
use super::recorded::{LogStart, OperatorActions};
use super::tasks::Tasks;
use super::turns::{Decision, DispatchDecision, ROOM, Turn};
use super::{DAY, Difference, Summary, TASK, TICK};

/// Maximum number of waiting turns. Further turns count as undecidable.
const WAITING_MAX: usize = 100_000;
/// A turn that waits longer would have expired.
const WAIT_MS_MAX: i64 = limits::DEADLINE_DEFAULT_MS;

/// The log does not name the limit that stopped the other calls of a turn.
const LIMIT: &str = "a limit";

const NOT_ADMITTED: &str = "its admission is not in the log (audit.admissions)";
const OPEN_BEFORE: &str = "the window that stopped it began before the log";
const NO_TASK: &str = "the budget of its task rejected it, and the used part is not in the log";
const GAVE_BACK: &str = "the log does not show when waiting calls of these limits held slots";
/// The log does not show the order of turns that a limit and a cap delay.
const LIMITS_BESIDE_CAPS: &str = "a limit and a cap both delayed calls of its agent, or of agents that wait for the \
                                  same limit: this cannot be evaluated again";
const TOO_MANY: &str = "more calls would wait than this command tracks";

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ReplayEvent {
    Reset(String),
    Free(String, u64),
    /// Calls that returned permits acquire permits again.
    Take(String, u64),
    /// A call without its permit begins (`true`) or stops (`false`) waiting for a permit of this counter.
    Line(String, bool),
    /// The turn's number, and the index of the recorded decision.
    Decision(u64, usize),
    Room(String),
}

/// Time (ms), class, tie and order of creation determine the order of events.
type Event = (i64, u8, i64, u64, ReplayEvent);

struct ReplayTurn {
    turn: Turn,
    next: usize,
    /// Set while the turn waits only in the replay, or for a different time than in the fleet.
    divergence: Option<Divergence>,
    left: usize,
    busy_ms: i64,
    /// The turn waits in this throttle queue in the fleet and in the replay.
    parked: Option<String>,
}

struct Divergence {
    by: String,
    queue: String,
    since_ms: i64,
}

/// False if the log does not state the maximum (`allowed` is 0).
const fn is_full(used: u32, allowed: u32) -> bool {
    allowed > 0 && used >= allowed
}

pub struct Replay<'a> {
    fleet: Fleet<'a>,
    ledger: CounterLedger,
    tasks: Tasks,
    pauses: Pauses,
    turns: HashMap<u64, ReplayTurn>,
    next_turn: u64,
    order: u64,
    events: BinaryHeap<Reverse<Event>>,
    /// Turns that wait only in the replay, by throttle queue, in order of arrival.
    queues: HashMap<String, BTreeMap<u64, ()>>,
    waiting: usize,
    /// By throttle queue: turns that wait both in the fleet and in the replay.
    parked: HashMap<String, u64>,
    /// Agents with a decision that differs in the replay, so the recorded counter values no longer apply to them.
    apart: HashSet<String>,
    delay_groups: DelayGroups,
    /// Agents with a recorded admission that states the values of their counters.
    anchored: HashSet<String>,
    began: &'a LogStart,
    report: Box<dyn FnMut(Difference) + 'a>,
    summary: Summary,
}

impl<'a> Replay<'a> {
    /// `began` is the time from which the log is complete. If a window began before this time, its used part is
    /// unknown.
    #[must_use]
    pub fn new(
        fleet: Fleet<'a>,
        operated: &OperatorActions,
        began: &'a LogStart,
        report: impl FnMut(Difference) + 'a,
    ) -> Self {
        let mut replay = Self {
            fleet,
            ledger: CounterLedger::default(),
            tasks: Tasks::default(),
            pauses: Pauses::of(&operated.pauses),
            turns: HashMap::new(),
            next_turn: 0,
            order: 0,
            events: BinaryHeap::new(),
            queues: HashMap::new(),
            waiting: 0,
            parked: HashMap::new(),
            apart: HashSet::new(),
            delay_groups: DelayGroups::default(),
            anchored: HashSet::new(),
            began,
            report: Box::new(report),
            summary: Summary::default(),
        };
        for reset in &operated.resets {
            let counter = format!("{} {}@{}", reset.shard, reset.limit, reset.counter);
            replay.at(reset.at_ms, 0, 0, ReplayEvent::Reset(counter));
        }
        replay
    }

    /// Turns must be added in the order of [`Turn::at_ms`].
    pub fn turn(&mut self, turn: Turn) {
        self.summary.count_undecidable(NOT_ADMITTED, turn.unknown);
        let Some(at_ms) = turn.at_ms() else { return };
        self.until(at_ms);
        let number = self.next_turn;
        self.next_turn += 1;
        for (index, decision) in turn.decisions.iter().enumerate() {
            match &decision.what {
                DispatchDecision::Wait(by, _) | DispatchDecision::Refuse(_, Some(by)) => self.record_delay(&turn, by),
                DispatchDecision::Go(calls, note)
                    if decision.first + calls < turn.calls.len()
                        && (is_full(note.tick.0, note.tick.1) || is_full(note.day.0, note.day.1)) =>
                {
                    self.record_delay(&turn, TICK);
                }
                DispatchDecision::Go(..) | DispatchDecision::Refuse(_, None) => {}
            }
            // Within a millisecond, dispatches of all calls of a turn come first: they filled the limits that cut other
            // dispatches. Waits and rejections come last.
            let (class, tie) = match &decision.what {
                DispatchDecision::Go(calls, note) => {
                    let is_cut = decision.first + calls < turn.calls.len() && !note.is_full();
                    (1 + u8::from(is_cut), i64::from(note.tick.0))
                }
                DispatchDecision::Wait(..) => (3, 0),
                DispatchDecision::Refuse(..) => (4, 0),
            };
            self.at(decision.at_ms, class, tie, ReplayEvent::Decision(number, index));
        }
        let left = turn.decisions.len();
        self.turns.insert(number, ReplayTurn { turn, next: 0, divergence: None, left, busy_ms: 0, parked: None });
    }

    #[must_use]
    pub fn finish(mut self) -> Summary {
        self.until(i64::MAX);
        self.summary
    }

    fn at(&mut self, at_ms: i64, class: u8, tie: i64, next: ReplayEvent) {
        self.order += 1;
        self.events.push(Reverse((at_ms, class, tie, self.order, next)));
    }

    fn until(&mut self, at_ms: i64) {
        while let Some(Reverse((now_ms, ..))) = self.events.peek()
            && *now_ms < at_ms
        {
            let Some(Reverse((now_ms, _, _, _, next))) = self.events.pop() else { return };
            self.ledger.advance_to(now_ms);
            match next {
                ReplayEvent::Reset(counter) => {
                    self.ledger.counters.remove(&counter);
                }
                ReplayEvent::Free(counter, places) => {
                    self.ledger.return_permits(&counter, places, now_ms);
                    if self.queues.contains_key(&counter) {
                        self.at(now_ms, 5, 0, ReplayEvent::Room(counter));
                    }
                }
                ReplayEvent::Take(counter, places) => self.ledger.take_permits(&counter, places),
                ReplayEvent::Line(counter, stands) => self.count_queued(counter, stands),
                ReplayEvent::Decision(turn, index) => self.decision(turn, index, now_ms),
                ReplayEvent::Room(queue) => self.dispatch_waiting(&queue, now_ms),
            }
            self.ledger.drop_ended(now_ms);
        }
    }

    fn decision(&mut self, number: u64, index: usize, now_ms: i64) {
        let Some(mut live) = self.turns.remove(&number) else { return };
        live.left -= 1;
        self.unpark(&mut live);
        let decision = live.turn.decisions[index].clone();
        self.tasks.apply_before(&live.turn, &decision);
        // Skip the decision if the turn waits in the replay, or if the calls were already decided.
        let behind = match &decision.what {
            DispatchDecision::Go(calls, _) | DispatchDecision::Refuse(calls, _) => decision.first + calls,
            DispatchDecision::Wait(..) => decision.first + 1,
        };
        if live.divergence.is_none() && live.next >= decision.first && live.next < behind {
            live.next = live.next.max(decision.first);
            self.compare(number, &mut live, &decision, (now_ms, true));
        } else if live.divergence.is_none() && live.next < decision.first {
            // The calls before `decision.first` expired or were canceled.
            live.next = decision.first;
            self.compare(number, &mut live, &decision, (now_ms, true));
        }
        self.tasks.apply_after(&live.turn, &decision);
        if live.left > 0 || live.divergence.is_some() {
            self.turns.insert(number, live);
        }
    }

    /// `is_first` is false if the decision's first calls were already compared.
    fn compare(&mut self, number: u64, live: &mut ReplayTurn, decision: &Decision, (now_ms, is_first): (i64, bool)) {
        // Skip the calls of an unknown agent or tenant. The replay of the guards (permission, arguments, rules,
        // consent) reports the difference.
        let Ok(caller) = caller_of(&self.fleet, &live.turn) else {
            live.next = live.turn.calls.len();
            return;
        };
        let wanted = live.turn.calls.len() - live.next;
        let mut evaluation = self.evaluate(&caller, live, (Some(decision), wanted), None, now_ms);
        let cut = cut_by_others(live, decision, &evaluation);
        if is_first && !matches!(decision.what, DispatchDecision::Wait(..)) {
            self.count_unknown(&evaluation);
        }
        if let Some(went) = cut {
            evaluation = self.evaluate(&caller, live, (Some(decision), went), None, now_ms);
        }
        let verdict = evaluation.verdict.clone();
        match (&decision.what, verdict) {
            (DispatchDecision::Wait(by, until_ms), _)
                if waits_for_unknown(live, decision, &evaluation)
                    || self.is_wait_confirmed(live, by, *until_ms, &evaluation) =>
            {
                self.park(live, Self::queue_of(live, by, &evaluation));
            }
            (DispatchDecision::Refuse(calls, by), verdict)
                if self.is_refused(live.turn.shard, by.as_deref(), &evaluation) =>
            {
                let end = decision.first + calls;
                live.next = match verdict {
                    AdmissionVerdict::Refuse(_, ends) => (live.next + ends).min(end),
                    _ => end,
                };
                // Other calls of the same rejection are evaluated separately.
                if live.next < end {
                    self.compare(number, live, decision, (now_ms, false));
                }
            }
            (DispatchDecision::Go(calls, _), AdmissionVerdict::Dispatch(fits))
                if fits >= *calls && !live.turn.is_whole =>
            {
                // The log lacks the turn's other calls, so only the recorded number is dispatched.
                self.dispatch(live, *calls, evaluation, now_ms);
            }
            (_, AdmissionVerdict::Dispatch(fits)) => {
                let recorded = self.recorded(live, decision, &evaluation, cut);
                self.dispatch_fitting(number, live, (fits, recorded), evaluation, now_ms);
            }
            (_, AdmissionVerdict::Refuse(reason, calls)) => {
                let upto = live.next + calls;
                self.end(live, upto, &evaluation.by, reason.word());
                if live.next < live.turn.calls.len() {
                    let by = evaluation.by;
                    let queue = evaluation.queue;
                    self.wait(number, live, Divergence { by, queue, since_ms: now_ms }, now_ms + 1);
                }
            }
            (_, AdmissionVerdict::End(reason)) => {
                let all = live.turn.calls.len();
                self.end(live, all, &evaluation.by, reason.word());
            }
            (_, AdmissionVerdict::Wait { .. }) => {
                let apart = Divergence { by: evaluation.by, queue: evaluation.queue, since_ms: now_ms };
                self.wait(number, live, apart, evaluation.until_ms);
            }
        }
    }

    /// The number of calls that the fleet dispatched. For a wait, this is the number that the fleet later dispatched
    /// together (`cut`), or 0.
    fn recorded(
        &mut self,
        live: &ReplayTurn,
        decision: &Decision,
        evaluation: &TurnEvaluation,
        cut: Option<usize>,
    ) -> usize {
        if let DispatchDecision::Go(calls, _) = &decision.what {
            return *calls - (live.next - decision.first).min(*calls);
        }
        cut.inspect(|_| self.count_unknown(evaluation)).unwrap_or(0)
    }

    fn count_unknown(&mut self, evaluation: &TurnEvaluation) {
        evaluation.unknown.iter().for_each(|unknown| self.summary.count_undecidable_limit(&unknown.by, unknown.why, 1));
    }

    /// The calls after the first `fits` wait. The fleet dispatched `recorded` calls.
    fn dispatch_fitting(
        &mut self,
        number: u64,
        live: &mut ReplayTurn,
        (fits, recorded): (usize, usize),
        evaluation: TurnEvaluation,
        now_ms: i64,
    ) {
        let by = evaluation.by.clone();
        let queue = evaluation.queue.clone();
        let until_ms = evaluation.until_ms;
        self.dispatch(live, fits, evaluation, now_ms);
        if fits < recorded || recorded == 0 && live.next < live.turn.calls.len() {
            self.wait(number, live, Divergence { by, queue, since_ms: now_ms }, until_ms);
        } else if fits == recorded && live.next < live.turn.calls.len() && live.left > 0 {
            // The turn's other calls wait for the limit until the dispatched calls end.
            self.park(live, queue);
        }
    }

    /// True if the calls wait at least as long under the policy, or if the wait is undecidable.
    fn is_wait_confirmed(&mut self, live: &ReplayTurn, by: &str, until_ms: i64, evaluation: &TurnEvaluation) -> bool {
        if by == ROOM {
            return true;
        }
        if self.is_share(by) {
            self.summary.count_undecidable_limit(by, SHARE, 1);
            return true;
        }
        match evaluation.verdict {
            // Under the policy, these calls end instead of waiting, even if other limits are unknown.
            AdmissionVerdict::Refuse(..) | AdmissionVerdict::End(_) => false,
            _ if evaluation.is_unknown(by) => true,
            AdmissionVerdict::Wait { behind: true } => true,
            AdmissionVerdict::Wait { behind: false } => {
                until_ms == 0 || evaluation.until_ms >= until_ms || evaluation.by != by && self.apart.is_empty()
            }
            // A new turn queues behind turns that wait for the same limit, even if the limit has room.
            AdmissionVerdict::Dispatch(_) => {
                let is_waited_for = |counter_debit: &CounterDebit| {
                    counter_debit.by == by && counter_debit.is_limit() && self.parked.contains_key(&counter_debit.queue)
                };
                evaluation.counter_debits.iter().any(is_waited_for) || self.was_open(live.turn.shard, by, evaluation)
            }
        }
    }

    fn is_share(&self, by: &str) -> bool {
        let is_it = |limit: &Limit| matches!(limit.bound, LimitBound::Share(_)) && super::limit(&limit.name) == by;
        self.fleet.policy.limits.iter().any(is_it)
    }

    fn queue_of(live: &ReplayTurn, by: &str, evaluation: &TurnEvaluation) -> String {
        let counter_debit = evaluation.counter_debits.iter().find(|counter_debit| counter_debit.by == by);
        counter_debit.map_or_else(|| agent_of(&live.turn), |counter_debit| counter_debit.queue.clone())
    }

    /// The turn waits in the fleet and in the replay. Later turns queue behind this turn.
    fn park(&mut self, live: &mut ReplayTurn, queue: String) {
        self.count_queued(queue.clone(), true);
        live.parked = Some(queue);
    }

    fn unpark(&mut self, live: &mut ReplayTurn) {
        if let Some(queue) = live.parked.take() {
            self.count_queued(queue, false);
        }
    }

    /// `waits` is false if the turn leaves the queue.
    fn count_queued(&mut self, queue: String, waits: bool) {
        if waits {
            *self.parked.entry(queue).or_default() += 1;
        } else if let Some(count) = self.parked.get_mut(&queue) {
            *count -= 1;
            if *count == 0 {
                self.parked.remove(&queue);
            }
        }
    }

    /// True if neither a cap nor a limit was the reason. Also true if `by` rejects the calls in the replay, or if the
    /// result is undecidable.
    fn is_refused(&mut self, shard: u32, by: Option<&str>, evaluation: &TurnEvaluation) -> bool {
        let Some(by) = by else { return true };
        if by == TASK && !evaluation.knows_task {
            self.summary.count_undecidable(NO_TASK, 1);
            return true;
        }
        match evaluation.verdict {
            AdmissionVerdict::Refuse(..) | AdmissionVerdict::End(_) => evaluation.by == by,
            _ if evaluation.is_unknown(by) => true,
            AdmissionVerdict::Dispatch(_) => self.was_open(shard, by, evaluation),
            AdmissionVerdict::Wait { .. } => false,
        }
    }

    /// True if the window of `by` began before the log, so that its used part is unknown.
    fn was_open(&mut self, shard: u32, by: &str, evaluation: &TurnEvaluation) -> bool {
        let began_ms = self.began.of(shard);
        let open = match by {
            DAY => evaluation.known_ms.1 < began_ms,
            TICK => evaluation.known_ms.0 < began_ms,
            _ => evaluation.counter_debits.iter().any(|counter_debit| {
                counter_debit.by == by && counter_debit.is_limit() && counter_debit.state.began_ms < began_ms
            }),
        };
        if open {
            self.summary.count_undecidable(OPEN_BEFORE, 1);
        }
        open
    }
}

fn caller_of<'p>(fleet: &Fleet<'p>, turn: &Turn) -> Result<TurnCaller<'p>, UnknownCaller> {
    let tenant = TenantId::new(turn.tenant.as_str()).map_err(|_| UnknownCaller::Tenant)?;
    let agent = AgentId::new(turn.agent.as_str()).map_err(|_| UnknownCaller::Agent)?;
    let (owner, policy) = fleet.policy.look_up(&tenant, &agent)?;
    Ok(TurnCaller { tenant, agent, owner, policy })
}

fn agent_of(turn: &Turn) -> String {
    format!("{}:{}", turn.tenant, turn.agent)
}
