//! Finds decisions that may be due to limits that the replay cannot evaluate. Such decisions are kept as recorded.

use super::ReplayTurn;
use super::evaluate::{AdmissionVerdict, TurnEvaluation};
use crate::whatif::turns::{Decision, DispatchDecision};

/// The number of calls that the fleet dispatched, if a limit that cannot be evaluated may have stopped the others.
/// `None` if the policy dispatches no more calls than the fleet, or if the cause of the difference is known.
pub(super) fn cut_by_others(live: &ReplayTurn, decision: &Decision, evaluation: &TurnEvaluation) -> Option<usize> {
    let AdmissionVerdict::Dispatch(fits) = evaluation.verdict else { return None };
    let turn = &live.turn;
    let mut gone = turn.decisions.iter().filter_map(|other| match &other.what {
        DispatchDecision::Go(calls, note) if other.first + calls > live.next => Some((other.first + calls, note)),
        _ => None,
    });
    let (end, note) = match &decision.what {
        DispatchDecision::Go(calls, note) => (decision.first + calls, note),
        DispatchDecision::Wait(..) => gone.next()?,
        DispatchDecision::Refuse(..) => return None,
    };
    let went = end.checked_sub(live.next).filter(|went| (1..fits).contains(went))?;
    let is_go = matches!(decision.what, DispatchDecision::Go(..));
    let is_other = !note.is_full() && evaluation.unknown.iter().any(|unknown| unknown.counts(went));
    (is_go && !turn.is_whole || is_other).then_some(went)
}

pub(super) fn waits_for_unknown(live: &ReplayTurn, decision: &Decision, evaluation: &TurnEvaluation) -> bool {
    let behind = live.turn.decisions.iter().skip_while(|other| *other != decision).skip(1);
    let waits = behind.map_while(|other| match &other.what {
        DispatchDecision::Wait(by, _) => Some(by),
        DispatchDecision::Go(..) | DispatchDecision::Refuse(..) => None,
    });
    matches!(evaluation.verdict, AdmissionVerdict::Dispatch(_)) && waits.into_iter().any(|by| evaluation.is_unknown(by))
}
