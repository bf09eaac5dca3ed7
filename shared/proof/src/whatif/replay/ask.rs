//! Evaluates a turn's next calls under the policy, with the counters as they would be.

use tickfleet_core::keys::limits;
use tickfleet_core::turn::limit::{Debit, Evaluator, Planned, Refusal, Rules, WindowKind};
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::{Context, Query, Value, Version, View};

use super::{Live, Replay, WAIT_MS_MAX, agent_of};
use crate::whatif::TICK;
use crate::whatif::counters::{NotKnown, Side, Whose};
use crate::whatif::turns::{Decision, Turn, What};

/// Time after which a turn that waits for a permit is evaluated again, ms.
const LOOK_MS: i64 = 5_000;

/// The decision about the calls of a turn that are not admitted yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Verdict {
    /// This many of them are dispatched as a slice.
    Dispatch(usize),
    /// They wait. `behind`: others wait for the same limit and come first.
    Wait { behind: bool },
    /// This many of them end for this reason.
    Refuse(EndReason, usize),
    /// All of them end for this reason: a cap is used up.
    End(EndReason),
}

/// The result of evaluating a turn's next calls.
pub(super) struct Said {
    pub(super) verdict: Verdict,
    /// The cap or limit that stops them, or cuts them short.
    pub(super) by: String,
    /// The throttle queue in which they then wait, and the earliest end of that wait, ms.
    pub(super) lane: String,
    pub(super) until_ms: i64,
    /// The debits of the calls when they are dispatched.
    pub(super) sides: Vec<Side>,
    /// Limits that cannot be evaluated.
    pub(super) unknown: Vec<NotKnown>,
    /// The beginnings of the agent's current tick and day, ms; `i64::MAX` if their use is known from a recorded
    /// admission.
    pub(super) known_ms: (i64, i64),
    /// True if the used part of the task's budget is known.
    pub(super) knows_task: bool,
}

impl Said {
    /// Returns true if this is a limit that cannot be evaluated: calls that it stopped stay stopped.
    pub(super) fn is_unknown(&self, by: &str) -> bool {
        self.unknown.iter().any(|unknown| unknown.by == by)
    }
}

/// The core's decision about the next `wanted` calls, and the index of the side that stops them or cuts them short.
fn decide(wanted: usize, sides: &[Side], now_ms: i64) -> (Verdict, Option<usize>) {
    let mut view = View::default();
    for side in sides {
        view.insert(Query::Counter(side.debit.counter.clone()), Value::Counter(Some(side.state)));
    }
    let context = Context {
        now_ms,
        epoch: 1,
        epoch_began_ms: 0,
        pressure: false,
        version: Version::new("-"),
        conflicts: Vec::new(),
    };
    let evaluator = Evaluator {
        view: &view,
        context: &context,
        waits: None,
        is_exact: true,
        permits_only: false,
        lease_ends_ms: None,
    };
    let debits: Vec<Debit> = sides.iter().map(|side| side.debit.clone()).collect();
    let stop = evaluator.fit(&debits, wanted).ok().and_then(|fit| fit.stop);
    // The rest after rejected calls is evaluated separately.
    let rules = |from| if from == 0 { Rules::Debits(debits.clone()) } else { Rules::Withheld };
    let Ok(plan) = evaluator.plan(wanted, rules) else { return (Verdict::Wait { behind: true }, stop) };
    let verdict = match (plan.refused.into_iter().next(), plan.next) {
        (
            Some(Refusal {
                reason: reason @ (EndReason::DailyCapReached { .. } | EndReason::TaskBudgetReached), ..
            }),
            _,
        ) => Verdict::End(reason),
        (Some(Refusal { reason, calls, .. }), _) => Verdict::Refuse(reason, calls),
        (None, Planned::Dispatch { calls, .. }) => Verdict::Dispatch(calls),
        (None, _) => {
            let behind = stop.and_then(|at| sides.get(at)).is_some_and(|side| side.is_limit() && side.state.queued);
            Verdict::Wait { behind }
        }
    };
    (verdict, stop)
}

/// Returns true if the result matches the recorded decision, or if unknown limits or calls may explain the difference.
fn agrees(live: &Live, on: &Decision, verdict: &Verdict, unknown: &[NotKnown]) -> bool {
    let is_unknown = |by: &str| unknown.iter().any(|unknown| unknown.by == by);
    match (&on.what, verdict) {
        (What::Wait(by, _), Verdict::Dispatch(_)) => is_unknown(by),
        (What::Refuse(_, Some(by)), Verdict::Dispatch(_) | Verdict::Wait { .. }) => is_unknown(by),
        (What::Wait(..), Verdict::Wait { .. }) => true,
        (What::Refuse(..), Verdict::Refuse(..) | Verdict::End(_)) => true,
        (What::Go(calls, _), Verdict::Dispatch(fits)) => {
            let went = calls - (live.next - on.first).min(*calls);
            *fits == went || *fits > went && (!live.turn.is_whole || !unknown.is_empty())
        }
        _ => false,
    }
}

impl Replay<'_> {
    /// Sets the counters of an agent to the recorded note of an admission. Returns the value of `Said::known_ms`.
    fn anchor(&mut self, turn: &Turn, sides: &mut [Side], on: Option<&Decision>) -> (i64, i64) {
        let name = agent_of(turn);
        if let Some(What::Go(_, note)) = on.map(|on| &on.what)
            && !self.apart.contains(&name)
        {
            // The shard's values apply as long as everything was decided as in the fleet.
            let before = |used: u32| u64::from(used.saturating_sub(note.calls));
            for side in sides.iter_mut() {
                match &*side.debit.row.name {
                    limits::TICK if side.state.ends_ms == note.tick.2 => {
                        side.state.used = side.state.used.max(before(note.tick.0));
                    }
                    limits::DAY => side.state.used = side.state.used.max(before(note.day.0)),
                    _ => {}
                }
            }
            self.anchored.insert(name.clone());
        }
        let is_known = self.anchored.contains(&name);
        let began_ms = |limit| of_cap(sides, limit).map_or(i64::MAX, |side| side.state.began_ms);
        let has_tenant_cap = of_cap(sides, limits::TENANT_DAY).is_some();
        let known_tick_ms = if is_known { i64::MAX } else { began_ms(limits::TICK) };
        let known_day_ms = if is_known && !has_tenant_cap { i64::MAX } else { began_ms(limits::DAY) };
        (known_tick_ms, known_day_ms)
    }

    /// Evaluates the next `wanted` calls. `on` is the decision of the fleet at this moment. `lane` is the throttle
    /// queue in which the turn is first.
    pub(super) fn ask(
        &mut self,
        whose: &Whose<'_>,
        live: &Live,
        (on, wanted): (Option<&Decision>, usize),
        lane: Option<&str>,
        now_ms: i64,
    ) -> Said {
        let turn = &live.turn;
        let mut caps = self.fleet.policy.caps(whose.owner, whose.policy);
        let paused_ms = self.pauses.until(turn, on, now_ms);
        if paused_ms.is_some() {
            // As in schedulers.
            caps.calls_per_tick = 0;
        }
        let (fleet, task) = (self.fleet, self.tasks.of(turn));
        let mut sides = self.books.caps(&fleet, whose, (turn, wanted), (&caps, task), now_ms);
        let known_ms = self.anchor(turn, &mut sides, on);
        // Store the counters without a debit: the calls may have to wait although there is room.
        self.books.keep(&sides);
        let (of_limits, unknown) = self.books.sides(&fleet, whose, turn, live.next, now_ms);
        sides.extend(of_limits);
        for side in &mut sides {
            side.debit.amounts.truncate(wanted);
            // Turns that wait for a cap wait for the agent's tick.
            let is_lane = side.is_limit() || &*side.debit.row.name == limits::TICK;
            side.state.queued = is_lane && lane != Some(side.lane.as_str()) && self.lanes.contains_key(&side.lane);
        }
        // The order in which the core sorts them.
        sides.sort_by_key(|side| side.debit.first());
        let (mut verdict, mut stop) = decide(wanted, &sides, now_ms);
        let gave_back = sides.iter().any(|side| side.given_back > 0);
        if gave_back && !on.is_some_and(|on| agrees(live, on, &verdict, &unknown)) {
            for side in sides.iter_mut().filter(|side| side.given_back > 0) {
                side.state.used = side.state.used.saturating_sub(side.given_back);
                self.books.free(&side.counter);
            }
            (verdict, stop) = decide(wanted, &sides, now_ms);
        }
        let fits = if let Verdict::Dispatch(calls) = verdict { calls } else { 0 };
        let (by, lane, until_ms) = match stop.and_then(|at| sides.get(at)).or_else(|| next_cap(&sides, fits)) {
            Some(side) => {
                (side.by.clone(), side.lane.clone(), until_ms(side, (caps.calls_per_tick, paused_ms), now_ms))
            }
            None => (TICK.to_owned(), agent_of(turn), now_ms),
        };
        Said { verdict, by, lane, until_ms, sides, unknown, known_ms, knows_task: task.is_some() }
    }
}

/// The side of this cap.
fn of_cap<'a>(sides: &'a [Side], limit: &str) -> Option<&'a Side> {
    sides.iter().find(|side| &*side.debit.row.name == limit)
}

/// The cap that stops any calls after these: the day, if they use it up, otherwise the tick.
fn next_cap(sides: &[Side], calls: usize) -> Option<&Side> {
    let is_full = |side: &&Side| side.state.used.saturating_add(side.debit.sum(calls)) >= side.debit.row.max;
    let days = [limits::DAY, limits::TENANT_DAY];
    let full = days.into_iter().filter_map(|day| of_cap(sides, day)).find(is_full);
    full.or_else(|| of_cap(sides, limits::TICK))
}

/// The earliest end of a wait for a counter, ms.
fn until_ms(side: &Side, (calls_per_tick, paused_ms): (u32, Option<i64>), now_ms: i64) -> i64 {
    match (&*side.debit.row.name, side.debit.row.window) {
        (limits::TASK, _) => now_ms,
        (limits::TICK, _) => match paused_ms {
            Some(until_ms) => side.state.ends_ms.max(until_ms),
            // No tick has room: the call would wait until it expires.
            None if calls_per_tick == 0 => now_ms + WAIT_MS_MAX + 1,
            None => side.state.ends_ms,
        },
        (_, WindowKind::Held) => now_ms + LOOK_MS,
        _ => side.state.ends_ms,
    }
}
