//! What the policy says of a turn's next calls, with the counters as they would be.

use tickfleet_model::Caps;
use tickfleet_model::decision::Reason;
use tickfleet_model::decision::admission::{Chain, Rules, Verdict, decide};
use tickfleet_model::decision::budget::{AgentBudgets, Budget, TaskBudget};
use tickfleet_model::decision::limits::Debit;

use super::{Live, Replay, WAIT_MS_MAX, agent_of};
use crate::whatif::counters::{NotKnown, Side, Whose};
use crate::whatif::turns::{Decision, Turn, What};
use crate::whatif::{DAY, TASK, TICK};

/// What the policy says of a turn's next calls.
pub(super) struct Said {
    pub(super) verdict: Verdict,
    /// What stops them, or cuts them short.
    pub(super) by: String,
    /// On which lane they wait then, and until when at least, ms.
    pub(super) lane: String,
    pub(super) until_ms: i64,
    pub(super) sides: Vec<Side>,
    /// Limits that could not be asked.
    pub(super) unknown: Vec<NotKnown>,
    /// Since when the tick and the day of the agent are known, ms.
    pub(super) known_ms: (i64, i64),
    /// Whether it is known how much of the budget of the turn's task was used.
    pub(super) knows_task: bool,
    /// The agent's budgets and the tenant's day, once what may go has gone.
    pub(super) debited: (AgentBudgets, Budget),
}

impl Said {
    /// Whether that is a limit that could not be asked: what it stopped stays stopped.
    pub(super) fn is_unknown(&self, by: &str) -> bool {
        self.unknown.iter().any(|unknown| unknown.by == by)
    }
}

/// The counters of a turn's chain, but those of limits.
#[derive(Clone, Copy)]
struct Counters {
    agent: AgentBudgets,
    tenant_day: Budget,
    task: Option<TaskBudget>,
}

impl Counters {
    /// What the policy says, and which limit stops the calls, or cuts them short. What is admitted is debited.
    fn decide(&mut self, wanted: usize, rules: Rules, sides: &mut [Side]) -> (Verdict, Option<usize>) {
        let mut debits: Vec<Debit> = sides.iter().map(|side| side.debit.clone()).collect();
        let Self { agent, tenant_day, task } = self;
        let mut chain = Chain { agent, tenant_day, task: task.as_mut(), limits: &mut debits, cut: None };
        let verdict = decide(wanted, rules, &mut chain);
        let stop = match verdict {
            Verdict::WaitFor(at, _) => Some(at),
            Verdict::Wait(_) | Verdict::End(..) => None,
            Verdict::Refuse(..) | Verdict::Dispatch(_) => chain.cut,
        };
        for (side, debit) in sides.iter_mut().zip(debits) {
            side.debit = debit;
        }
        (verdict, stop)
    }
}

/// Whether the policy says what was decided, or cannot say otherwise.
fn agrees(live: &Live, on: &Decision, verdict: Verdict, unknown: &[NotKnown]) -> bool {
    let is_unknown = |by: &str| unknown.iter().any(|unknown| unknown.by == by);
    match (&on.what, verdict) {
        (What::Wait(by, _), Verdict::Dispatch(_)) => is_unknown(by),
        (What::Refuse(_, Some(by)), Verdict::Dispatch(_) | Verdict::Wait(_) | Verdict::WaitFor(..)) => is_unknown(by),
        (What::Wait(..), Verdict::Wait(_) | Verdict::WaitFor(..)) => true,
        (What::Refuse(..), Verdict::Refuse(..) | Verdict::End(..)) => true,
        (What::Go(calls, _), Verdict::Dispatch(fits)) => {
            let went = calls - (live.next - on.first).min(*calls);
            fits == went || fits > went && (!live.turn.is_whole || !unknown.is_empty())
        }
        _ => false,
    }
}

impl Replay<'_> {
    /// The counters of an agent and the day of its tenant as they are now; and since when tick and day are known.
    pub(super) fn budgets(
        &mut self,
        whose: &Whose<'_>,
        turn: &Turn,
        caps: Caps,
        on: Option<&Decision>,
        now_ms: i64,
    ) -> (AgentBudgets, Budget, (i64, i64)) {
        let name = agent_of(turn);
        let (day_ms, day_end_ms) = self.books.day(self.fleet.policy.time_zone(whose.owner), now_ms);
        let mut agent = self.books.agents.get(&name).copied().unwrap_or_default();
        let stagger_ms = (self.fleet.agent_stagger)(&whose.tenant, &whose.agent, caps.tick_ms);
        agent.roll(now_ms, stagger_ms, caps.tick_ms, (day_ms, day_end_ms));
        let mut tenant_day = self.books.tenant_days.get(&turn.tenant).copied().unwrap_or_default();
        tenant_day.roll_day(now_ms, (day_ms, day_end_ms));
        if let Some(What::Go(_, note)) = on.map(|on| &on.what)
            && !self.apart.contains(&name)
        {
            // What the shard wrote holds, as long as everything was decided as it decided.
            if agent.tick.end_ms == note.tick.2 {
                agent.tick.used = agent.tick.used.max(note.tick.0.saturating_sub(note.calls));
            }
            agent.day.used = agent.day.used.max(note.day.0.saturating_sub(note.calls));
            self.anchored.insert(name.clone());
        }
        let is_known = self.anchored.contains(&name);
        let known_day_ms = if is_known && caps.tenant_calls_per_day.is_none() { i64::MAX } else { day_ms };
        let known_tick_ms = if is_known { i64::MAX } else { agent.tick_began_ms };
        (agent, tenant_day, (known_tick_ms, known_day_ms))
    }

    /// What the policy says of the next `wanted` calls. `on`: what the fleet decided now; `lane`: that on which the turn is the
    /// first.
    pub(super) fn ask(
        &mut self,
        whose: &Whose<'_>,
        live: &Live,
        (on, wanted): (Option<&Decision>, usize),
        lane: Option<&str>,
        now_ms: i64,
    ) -> Said {
        let turn = &live.turn;
        let (mut caps, name) = (self.fleet.policy.caps(whose.owner, whose.policy), agent_of(turn));
        let paused_ms = self.pauses.until(turn, on, now_ms);
        if paused_ms.is_some() {
            // As schedulers have it.
            caps.calls_per_tick = 0;
        }
        let (mut agent, mut tenant_day, known_ms) = self.budgets(whose, turn, caps, on, now_ms);
        let fleet = self.fleet;
        let (mut sides, unknown) = self.books.sides(&fleet, whose, turn, live.next, now_ms);
        for side in &mut sides {
            side.debit.others_wait = lane != Some(side.name.as_str()) && self.lanes.contains_key(&side.name);
        }
        let is_behind = lane != Some(name.as_str()) && self.lanes.contains_key(&name);
        let rules = Rules { caps, epoch_ms: 0, room: !is_behind };
        let mut counters = Counters { agent, tenant_day, task: self.tasks.of(turn) };
        let knows_task = counters.task.is_some();
        let (rolled, before) = (counters, sides.clone());
        let (mut verdict, mut stop) = counters.decide(wanted, rules, &mut sides);
        if sides.iter().any(|side| side.given_back > 0) && !on.is_some_and(|on| agrees(live, on, verdict, &unknown)) {
            (counters, sides) = (rolled, before);
            for side in sides.iter_mut().filter(|side| side.given_back > 0) {
                side.debit.counter.used = side.debit.counter.used.saturating_sub(side.given_back);
                self.books.free(&side.name);
            }
            (verdict, stop) = counters.decide(wanted, rules, &mut sides);
        }
        (agent, tenant_day) = (counters.agent, counters.tenant_day);
        let day_is_full =
            agent.day.used >= caps.calls_per_day || caps.tenant_calls_per_day.is_some_and(|cap| tenant_day.used >= cap);
        let is_task = matches!(verdict, Verdict::End(Reason::TaskBudgetReached, _));
        let (by, lane, until_ms) = match (stop.and_then(|at| sides.get(at)), day_is_full) {
            (Some(side), _) => (side.by.clone(), side.name.clone(), side.debit.counter.end_ms),
            _ if is_task => (TASK.to_owned(), name.clone(), now_ms),
            (None, true) => (DAY.to_owned(), name.clone(), agent.day.end_ms),
            (None, false) if paused_ms.is_some() => {
                let tick_ms = agent.tick.end_ms;
                (TICK.to_owned(), name.clone(), paused_ms.map_or(tick_ms, |until_ms| tick_ms.max(until_ms)))
            }
            // In no tick is there any room: it would wait until it expires.
            (None, false) if caps.calls_per_tick == 0 => (TICK.to_owned(), name.clone(), now_ms + WAIT_MS_MAX + 1),
            (None, false) => (TICK.to_owned(), name.clone(), agent.tick.end_ms),
        };
        // Nothing has gone yet: a wait may stand although there would be room.
        self.books.agents.insert(name, rolled.agent);
        self.books.tenant_days.insert(turn.tenant.clone(), rolled.tenant_day);
        let debited = (agent, tenant_day);
        Said { verdict, by, lane, until_ms, sides, unknown, known_ms, knows_task, debited }
    }
}
