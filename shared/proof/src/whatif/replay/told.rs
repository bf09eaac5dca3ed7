//! Dispatches and ends calls in the replay, and reports the differences.

use super::ask::Said;
use super::{LIMIT, LIMITS_BESIDE_CAPS, Live, Next, Replay, agent_of};
use crate::whatif::turns::{Decision, Turn, What};
use crate::whatif::{DAY, Difference, Kind, TICK};

impl Replay<'_> {
    /// Dispatches the next calls.
    pub(super) fn go(&mut self, live: &mut Live, calls: usize, said: Said, now_ms: i64) {
        let upto = live.next + calls;
        let places = self.books.debit(said.sides, calls);
        self.tasks.go(&live.turn, calls);
        // The shard's own time of the end of a slice has precedence, if the log has it.
        let (mut ends_ms, mut over_ms) = (now_ms, None);
        let shown: &Live = live;
        for at in shown.next..upto {
            let recorded = fate_of(&shown.turn, at);
            if let Some((began_ms, What::Go(..))) = recorded {
                let call = &shown.turn.calls[at];
                ends_ms = ends_ms.max(now_ms + (call.written_ms - began_ms).max(0));
                over_ms = over_ms.max(call.over_ms.map(|over_ms| now_ms + (over_ms - began_ms).max(0)));
            }
            self.went(shown, at, recorded, now_ms);
        }
        let first = live.next;
        live.next = upto;
        let ends_ms = over_ms.unwrap_or(ends_ms);
        live.busy_ms = ends_ms;
        if self.with_gaps(&live.turn, (first, calls), &places, (now_ms, ends_ms)) {
            return;
        }
        for (counter, taken) in places {
            self.at(ends_ms, 0, 0, Next::Free(counter, taken));
        }
    }

    /// Reports a call that is dispatched now, if the fleet did not dispatch it, or did so at another time.
    pub(super) fn went(&mut self, live: &Live, at: usize, recorded: Option<(i64, &What)>, now_ms: i64) {
        let apart = live.apart.as_ref().map(|apart| apart.by.clone());
        let difference = match recorded {
            Some((then_ms, What::Go(..))) if then_ms == now_ms => None,
            Some((then_ms, What::Go(..))) if then_ms < now_ms => {
                Some((Kind::Delayed, apart.unwrap_or_default(), now_ms - then_ms))
            }
            Some((then_ms, What::Go(..))) => {
                let by = apart.or_else(|| waited_for(&live.turn, at)).unwrap_or_else(|| LIMIT.to_owned());
                Some((Kind::Sooner, by, then_ms - now_ms))
            }
            Some((_, What::Refuse(_, by))) => Some((Kind::LetGo, by.clone().unwrap_or_default(), 0)),
            Some((_, What::Wait(..))) | None => None,
        };
        if let Some((kind, by, by_ms)) = difference {
            self.tell(live, at, kind, &by, if by_ms > 0 { Some(by_ms) } else { None }, recorded);
        }
    }

    /// Ends calls up to this one without running them.
    pub(super) fn end(&mut self, live: &mut Live, upto: usize, by: &str, reason: &str) {
        let shown: &Live = live;
        for at in shown.next..upto.min(shown.turn.calls.len()) {
            match fate_of(&shown.turn, at) {
                Some((_, What::Refuse(_, was))) if was.as_deref().is_none_or(|was| was == by) => {}
                Some(recorded @ (_, What::Refuse(..))) => {
                    self.tell(shown, at, Kind::Otherwise, by, None, Some(recorded));
                }
                Some(recorded) => self.tell_refused(shown, at, by, reason, recorded),
                None => {}
            }
        }
        live.next = upto.min(live.turn.calls.len());
    }

    pub(super) fn tell_refused(&mut self, live: &Live, at: usize, by: &str, reason: &str, recorded: (i64, &What)) {
        let mut difference = difference(&live.turn, at, Kind::Capped, by, None, Some(recorded));
        difference.would = format!("{reason} ({by})");
        self.is_held_up(&live.turn, by);
        self.differs(&live.turn, difference);
    }

    pub(super) fn tell(
        &mut self,
        live: &Live,
        at: usize,
        kind: Kind,
        by: &str,
        by_ms: Option<i64>,
        recorded: Option<(i64, &What)>,
    ) {
        self.differs(&live.turn, difference(&live.turn, at, kind, by, by_ms, recorded));
    }

    /// Reports a difference, unless it is undecidable.
    fn differs(&mut self, turn: &Turn, difference: Difference) {
        let agent = agent_of(turn);
        let is_by_both = self.held_up.is_by_both(&agent);
        self.apart.insert(agent);
        if is_by_both {
            self.summary.cannot_say(LIMITS_BESIDE_CAPS, 1);
        } else {
            (self.tell)(difference);
        }
    }
}

/// When and how the fleet finally decided about a call; `None` if the call ended otherwise.
pub(super) fn fate_of(turn: &Turn, at: usize) -> Option<(i64, &What)> {
    let about = |decision: &&Decision| match &decision.what {
        What::Go(calls, _) | What::Refuse(calls, _) => (decision.first..decision.first + calls).contains(&at),
        What::Wait(..) => false,
    };
    turn.decisions.iter().find(about).map(|decision| (decision.at_ms, &decision.what))
}

/// The cause for which a call waited in the fleet, as far as the log shows it: a wait of its own, or the cap or limit
/// that the slice before it had used up.
pub(super) fn waited_for(turn: &Turn, at: usize) -> Option<String> {
    let before = turn.decisions.iter().rev().filter(|decision| decision.first <= at);
    for decision in before {
        match &decision.what {
            What::Wait(by, _) => return Some(by.clone()),
            What::Go(calls, note) if decision.first + calls <= at => {
                let is_full = |(used, cap): (u32, u32)| used >= cap;
                return match (is_full((note.tick.0, note.tick.1)), is_full(note.day)) {
                    (true, _) => Some(TICK.to_owned()),
                    (false, true) => Some(DAY.to_owned()),
                    (false, false) => Some(LIMIT.to_owned()),
                };
            }
            What::Go(..) | What::Refuse(..) => {}
        }
    }
    None
}

pub(super) fn difference(
    turn: &Turn,
    at: usize,
    kind: Kind,
    by: &str,
    by_ms: Option<i64>,
    recorded: Option<(i64, &What)>,
) -> Difference {
    let was = match recorded {
        Some((_, What::Refuse(_, Some(by)))) => format!("refused ({by})"),
        Some((_, What::Refuse(_, None))) => "refused".to_owned(),
        Some((_, What::Go(..))) => match waited_for(turn, at) {
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
            (Kind::Delayed, Some(ms)) => format!("admitted {ms} ms later ({by})"),
            (Kind::Sooner, Some(ms)) => format!("admitted {ms} ms earlier ({by})"),
            (Kind::LetGo, _) => "admitted".to_owned(),
            _ => format!("refused ({by})"),
        },
        by_ms,
    }
}
