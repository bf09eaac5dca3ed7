//! Where a limit that cannot be asked may have stopped calls: what was decided stays as it was.

use super::Live;
use super::ask::{Said, Verdict};
use crate::whatif::turns::{Decision, What};

/// How many calls went out together, where the policy lets more of them go, and it may have been others that cut them short or
/// made the rest wait: what the log does not have, or a limit that cannot be asked.
pub(super) fn cut_by_others(live: &Live, decision: &Decision, said: &Said) -> Option<usize> {
    let Verdict::Dispatch(fits) = said.verdict else { return None };
    let turn = &live.turn;
    let mut gone = turn.decisions.iter().filter_map(|other| match &other.what {
        What::Go(calls, note) if other.first + calls > live.next => Some((other.first + calls, note)),
        _ => None,
    });
    let (end, note) = match &decision.what {
        What::Go(calls, note) => (decision.first + calls, note),
        What::Wait(..) => gone.next()?,
        What::Refuse(..) => return None,
    };
    let went = end.checked_sub(live.next).filter(|went| (1..fits).contains(went))?;
    let is_go = matches!(decision.what, What::Go(..));
    let is_other = !note.is_full() && said.unknown.iter().any(|unknown| unknown.counts(went));
    (is_go && !turn.is_whole || is_other).then_some(went)
}

/// Whether a turn that would go now waited for a limit that cannot be asked, after this and before it went.
pub(super) fn waits_for_unknown(live: &Live, decision: &Decision, said: &Said) -> bool {
    let behind = live.turn.decisions.iter().skip_while(|other| *other != decision).skip(1);
    let waits = behind.map_while(|other| match &other.what {
        What::Wait(by, _) => Some(by),
        What::Go(..) | What::Refuse(..) => None,
    });
    matches!(said.verdict, Verdict::Dispatch(_)) && waits.into_iter().any(|by| said.is_unknown(by))
}
