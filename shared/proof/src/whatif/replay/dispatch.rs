//! Dispatches and ends calls in the replay, and reports the differences.

use super::evaluate::TurnEvaluation;
use super::{LIMIT, LIMITS_BESIDE_CAPS, Replay, ReplayEvent, ReplayTurn, agent_of};
use crate::whatif::turns::{Decision, DispatchDecision, Turn};
use crate::whatif::{DAY, Difference, DifferenceKind, TICK};

impl Replay<'_> {
    pub(super) fn dispatch(&mut self, live: &mut ReplayTurn, calls: usize, evaluation: TurnEvaluation, now_ms: i64) {
        let upto = live.next + calls;
        let permits = self.ledger.debit(evaluation.counter_debits, calls);
        self.tasks.count_dispatched(&live.turn, calls);
        // Use the shard's own time for the end of the slice, if the log has this time.
        let mut ends_ms = now_ms;
        let mut over_ms = None;
        let shown: &ReplayTurn = live;
        for at in shown.next..upto {
            let recorded = recorded_decision(&shown.turn, at);
            if let Some((began_ms, DispatchDecision::Go(..))) = recorded {
                let call = &shown.turn.calls[at];
                ends_ms = ends_ms.max(now_ms + (call.written_ms - began_ms).max(0));
                over_ms = over_ms.max(call.over_ms.map(|over_ms| now_ms + (over_ms - began_ms).max(0)));
            }
            self.report_dispatch(shown, at, recorded, now_ms);
        }
        let first = live.next;
        live.next = upto;
        let ends_ms = over_ms.unwrap_or(ends_ms);
        live.busy_ms = ends_ms;
        if self.with_gaps(&live.turn, (first, calls), &permits, (now_ms, ends_ms)) {
            return;
        }
        for (counter, taken) in permits {
            self.at(ends_ms, 0, 0, ReplayEvent::Free(counter, taken));
        }
    }

    pub(super) fn report_dispatch(
        &mut self,
        live: &ReplayTurn,
        at: usize,
        recorded: Option<(i64, &DispatchDecision)>,
        now_ms: i64,
    ) {
        let apart = live.divergence.as_ref().map(|apart| apart.by.clone());
        let difference = match recorded {
            Some((then_ms, DispatchDecision::Go(..))) if then_ms == now_ms => None,
            Some((then_ms, DispatchDecision::Go(..))) if then_ms < now_ms => {
                Some((DifferenceKind::Delayed, apart.unwrap_or_default(), now_ms - then_ms))
            }
            Some((then_ms, DispatchDecision::Go(..))) => {
                let by = apart.or_else(|| recorded_wait_cause(&live.turn, at)).unwrap_or_else(|| LIMIT.to_owned());
                Some((DifferenceKind::Sooner, by, then_ms - now_ms))
            }
            Some((_, DispatchDecision::Refuse(_, by))) => {
                Some((DifferenceKind::NotRejected, by.clone().unwrap_or_default(), 0))
            }
            Some((_, DispatchDecision::Wait(..))) | None => None,
        };
        if let Some((kind, by, by_ms)) = difference {
            self.report(live, at, kind, &by, if by_ms > 0 { Some(by_ms) } else { None }, recorded);
        }
    }

    pub(super) fn end(&mut self, live: &mut ReplayTurn, upto: usize, by: &str, reason: &str) {
        let shown: &ReplayTurn = live;
        for at in shown.next..upto.min(shown.turn.calls.len()) {
            match recorded_decision(&shown.turn, at) {
                Some((_, DispatchDecision::Refuse(_, was))) if was.as_deref().is_none_or(|was| was == by) => {}
                Some(recorded @ (_, DispatchDecision::Refuse(..))) => {
                    self.report(shown, at, DifferenceKind::Otherwise, by, None, Some(recorded));
                }
                Some(recorded) => self.report_refused(shown, at, by, reason, recorded),
                None => {}
            }
        }
        live.next = upto.min(live.turn.calls.len());
    }

    pub(super) fn report_refused(
        &mut self,
        live: &ReplayTurn,
        at: usize,
        by: &str,
        reason: &str,
        recorded: (i64, &DispatchDecision),
    ) {
        let mut difference = difference(&live.turn, at, DifferenceKind::Capped, by, None, Some(recorded));
        difference.would = format!("{reason} ({by})");
        self.record_delay(&live.turn, by);
        self.report_difference(&live.turn, difference);
    }

    pub(super) fn report(
        &mut self,
        live: &ReplayTurn,
        at: usize,
        kind: DifferenceKind,
        by: &str,
        by_ms: Option<i64>,
        recorded: Option<(i64, &DispatchDecision)>,
    ) {
        self.report_difference(&live.turn, difference(&live.turn, at, kind, by, by_ms, recorded));
    }

    /// If a cap and a limit both delayed calls of the agent, only counts the difference as undecidable.
    fn report_difference(&mut self, turn: &Turn, difference: Difference) {
        let agent = agent_of(turn);
        let is_by_both = self.delay_groups.is_by_both(&agent);
        self.apart.insert(agent);
        if is_by_both {
            self.summary.count_undecidable(LIMITS_BESIDE_CAPS, 1);
        } else {
            (self.report)(difference);
        }
    }
}

/// The fleet's final decision about a call, with its time. `None` if the call ended without such a decision.
pub(super) fn recorded_decision(turn: &Turn, at: usize) -> Option<(i64, &DispatchDecision)> {
    let about = |decision: &&Decision| match &decision.what {
        DispatchDecision::Go(calls, _) | DispatchDecision::Refuse(calls, _) => {
            (decision.first..decision.first + calls).contains(&at)
        }
        DispatchDecision::Wait(..) => false,
    };
    turn.decisions.iter().find(about).map(|decision| (decision.at_ms, &decision.what))
}

/// The cap or limit for which the call waited: the cause of the last recorded wait. Without such a wait, the cap that
/// the previous slice used up, or else an unnamed limit. `None` for the first slice.
pub(super) fn recorded_wait_cause(turn: &Turn, at: usize) -> Option<String> {
    let before = turn.decisions.iter().rev().filter(|decision| decision.first <= at);
    for decision in before {
        match &decision.what {
            DispatchDecision::Wait(by, _) => return Some(by.clone()),
            DispatchDecision::Go(calls, note) if decision.first + calls <= at => {
                let is_full = |(used, cap): (u32, u32)| used >= cap;
                return match (is_full((note.tick.0, note.tick.1)), is_full(note.day)) {
                    (true, _) => Some(TICK.to_owned()),
                    (false, true) => Some(DAY.to_owned()),
                    (false, false) => Some(LIMIT.to_owned()),
                };
            }
            DispatchDecision::Go(..) | DispatchDecision::Refuse(..) => {}
        }
    }
    None
}

pub(super) fn difference(
    turn: &Turn,
    at: usize,
    kind: DifferenceKind,
    by: &str,
    by_ms: Option<i64>,
    recorded: Option<(i64, &DispatchDecision)>,
) -> Difference {
    let was = match recorded {
        Some((_, DispatchDecision::Refuse(_, Some(by)))) => format!("refused ({by})"),
        Some((_, DispatchDecision::Refuse(_, None))) => "refused".to_owned(),
        Some((_, DispatchDecision::Go(..))) => match recorded_wait_cause(turn, at) {
            Some(by) => format!("admitted after a wait ({by})"),
            None => "admitted".to_owned(),
        },
        _ => "not admitted".to_owned(),
    };
    Difference {
        kind,
        by: by.to_owned(),
        tenant: turn.tenant.clone(),
        agent: turn.agent.clone(),
        tool: turn.calls[at].tool.clone(),
        call: format!("{}/{}", turn.id, turn.first + at),
        was,
        would: match (kind, by_ms) {
            (DifferenceKind::Delayed, Some(ms)) => format!("admitted {ms} ms later ({by})"),
            (DifferenceKind::Sooner, Some(ms)) => format!("admitted {ms} ms earlier ({by})"),
            (DifferenceKind::NotRejected, _) => "admitted".to_owned(),
            _ => format!("refused ({by})"),
        },
        by_ms,
    }
}
