//! The states of a turn and their transitions. `R` is whatever stands for one call's result.
//!
//! ```text
//!              Release(Dispatch)             Settle (last call)
//!   Queued ───────────────────────▶ Out ───────────────────────▶ Ended
//!     ▲ │ ◀──────────────────────── │ ▲                            ▲
//!     │ │   Settle (calls left)     │ │ Timer                      │
//!     │ │               Retry, Wait ▼ │                            │
//!     │ │ ◀──────────────────────  Parked                          │
//!     │ │  Timer (gave places back)                                │
//!     │ │ Timer, Release(End)       │  Timer (expired, cancelled)  │
//!     │ └─────────────▶ Ending ◀────┴── Reap (quarantine)          │
//!     └───────────────────┴────────────────────────────────────────┘
//!        Settle (calls left)            Settle (last call)
//! ```

use super::admission::Verdict;
use super::state::{Answer, Effects, Ending, Event, Fence, Illegal, LaneMove, Live, Reason, Slice, State};

/// How long whoever is given an ending has it.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// The lease, ms.
    pub ms: i64,
    /// When this epoch of Redis began, ms; 0 in the first. For a lease from then on, whoever has begun something says so,
    /// and nothing is given out.
    pub epoch_ms: i64,
}

/// The transition. Endings that are given out come back when their lease is over.
///
/// # Errors
/// [`Illegal`]: the event cannot happen in this state. A lost race is no error but an answer.
pub fn next<R: Clone>(
    state: State<R>,
    event: Event<R>,
    now_ms: i64,
    lease_of_ending: Lease,
) -> Result<(State<R>, Effects), Illegal> {
    match event {
        Event::Release(verdict) => release(state, verdict, now_ms, lease_of_ending),
        Event::Lease => lease(state),
        Event::Begin { fence, position, nonce, hold } => Ok(begin(state, fence, position, nonce, hold, now_ms)),
        Event::Settle { fence, first, results } => Ok(settle(state, fence, first, results, now_ms)),
        Event::Retry { fence, position, delay_ms, attempt } => {
            Ok(retry(state, fence, position, now_ms + delay_ms, attempt))
        }
        Event::Wait { fence, position, delay_ms, gives } => {
            Ok(wait(retry(state, fence, position, now_ms + delay_ms, 0), position, gives))
        }
        Event::HandBack { fence } => Ok(hand_back(state, fence)),
        Event::Reap { fence, crashes_max } => Ok(reap(state, fence, crashes_max, now_ms, lease_of_ending)),
        Event::Lose => lose(state),
        Event::Timer { crashes_max } => Ok(timer(state, crashes_max, now_ms, lease_of_ending)),
        Event::Cancel => Ok(cancel(state, now_ms)),
    }
}

fn give_out<R>(
    mut live: Live<R>,
    (reason, info): (Reason, i64),
    upto: usize,
    begun: Option<usize>,
    (now_ms, lease): (i64, Lease),
) -> (State<R>, Effects) {
    live.admitted = live.admitted.max(live.paid.min(upto));
    let ending = Ending { fence: live.fence(), reason, upto, info, begun };
    let spoken_ms = if lease.epoch_ms > 0 { lease.epoch_ms + lease.ms } else { 0 };
    let (answer, timer_ms) =
        if now_ms < spoken_ms { (Answer::Later, spoken_ms) } else { (Answer::GivenOut, now_ms + lease.ms) };
    let effects = Effects { timer_ms: Some(timer_ms), ..Effects::only(answer) };
    (State::Ending(live, ending), effects)
}

fn release<R>(state: State<R>, verdict: Verdict, now_ms: i64, lease: Lease) -> Result<(State<R>, Effects), Illegal> {
    let State::Queued(mut live) = state else { return Err(Illegal("only a queued turn is released")) };
    let upto = live.calls;
    match verdict {
        Verdict::Wait(_) | Verdict::WaitFor(..) => Ok((State::Queued(live), Effects::only(Answer::Later))),
        Verdict::Refuse(_, _, count) if count == 0 || live.admitted + count > upto => {
            Err(Illegal("more calls than wait"))
        }
        Verdict::Refuse(reason, info, count) => {
            let upto = live.admitted + count;
            let (state, effects) = give_out(live, (reason, info), upto, None, (now_ms, lease));
            Ok((state, Effects { lane: Some(LaneMove::Leave), ..effects }))
        }
        Verdict::End(reason, info) => {
            let (state, effects) = give_out(live, (reason, info), upto, None, (now_ms, lease));
            Ok((state, Effects { lane: Some(LaneMove::Leave), ..effects }))
        }
        Verdict::Dispatch(count) if count == 0 || live.admitted + count > upto => Err(Illegal("more calls than wait")),
        Verdict::Dispatch(count) => {
            let (first, fence) = (live.admitted, live.fence());
            live.admitted += count;
            let slice = Slice { fence, first, ..Slice::default() };
            Ok((
                State::Out(live, slice),
                Effects { out: 1, lane: Some(LaneMove::Leave), ..Effects::only(Answer::Queued) },
            ))
        }
    }
}

fn lease<R>(state: State<R>) -> Result<(State<R>, Effects), Illegal> {
    match state {
        State::Out(live, slice) if !slice.held && slice.lost.is_none() => {
            Ok((State::Out(live, Slice { held: true, ..slice }), Effects::only(Answer::Ok)))
        }
        _ => Err(Illegal("an entry was delivered that is not waiting on its queue")),
    }
}

fn begin<R>(
    state: State<R>,
    fence: Fence,
    position: usize,
    nonce: Option<u64>,
    hold: bool,
    now_ms: i64,
) -> (State<R>, Effects) {
    let (live, mut slice) = match state {
        State::Out(live, slice) if slice.fence == fence => (live, slice),
        other => return (other, Effects::only(Answer::Stale)),
    };
    // A later one was begun behind this one.
    let begun = slice.begun.filter(|(at, _)| *at >= position);
    let answer = if position < live.results.len() {
        Answer::ResultThere
    } else if nonce.is_some() && begun == nonce.map(|nonce| (position, nonce)) {
        Answer::Ok
    } else if nonce.is_some() && begun.is_some() {
        // Whoever knows what came of it may still say so.
        if hold { Answer::Hold } else { Answer::Unknown }
    } else if nonce.is_some() && hold {
        Answer::Hold
    } else if live.cancelled {
        Answer::Cancelled
    } else if live.deadline_ms <= now_ms {
        Answer::Expired
    } else {
        slice.started = true;
        slice.begun = nonce.map(|nonce| (position, nonce)).or(slice.begun);
        Answer::Ok
    };
    (State::Out(live, slice), Effects::only(answer))
}

fn settle<R: Clone>(state: State<R>, fence: Fence, first: usize, results: Vec<R>, now_ms: i64) -> (State<R>, Effects) {
    if state.fence() != Some(fence) {
        let own = match &state {
            State::Ended { fence: last, .. } => *last == fence,
            other => other.live().and_then(|live| live.settled) == Some(fence),
        };
        return (state, Effects::only(if own { Answer::Already } else { Answer::Stale }));
    }
    let done = state.live().map_or(0, |live| live.results.len());
    if done < first {
        return (state, Effects::only(Answer::Gap));
    }
    if done > first && done - first >= results.len() {
        return (state, Effects::only(Answer::Already));
    }
    let fresh = results.into_iter().skip(done - first);
    match state {
        State::Out(mut live, slice) => {
            live.results.extend(fresh);
            if live.results.len() < live.admitted {
                let answer = if live.cancelled { Answer::Cancelled } else { Answer::Continue };
                return (State::Out(live, slice), Effects::only(answer));
            }
            end_slice(live, fence, -1, now_ms)
        }
        State::Ending(mut live, ending) => {
            live.results.extend(fresh);
            if live.results.len() < ending.upto {
                let answer = if live.cancelled { Answer::Cancelled } else { Answer::Continue };
                return (State::Ending(live, ending), Effects::only(answer));
            }
            end_slice(live, fence, 0, now_ms)
        }
        other => (other, Effects::only(Answer::Stale)),
    }
}

/// The one ending of every slice (rule 3): the turn has ended, or it is on its lane with its timer set.
fn end_slice<R>(mut live: Live<R>, fence: Fence, out: i64, now_ms: i64) -> (State<R>, Effects) {
    if live.results.len() >= live.calls {
        return (State::Ended { results: live.results, fence }, Effects { out, ..Effects::only(Answer::Done) });
    }
    live.settled = Some(fence);
    live.admitted = live.admitted.max(live.results.len());
    let timer_ms = Some(if live.cancelled { now_ms } else { live.deadline_ms });
    let effects = Effects { answer: Answer::Laned, out, lane: Some(LaneMove::Join), timer_ms };
    (State::Queued(live), effects)
}

fn retry<R>(state: State<R>, fence: Fence, position: usize, due_ms: i64, attempt: u32) -> (State<R>, Effects) {
    let (mut live, slice) = match state {
        State::Out(live, slice) if slice.fence == fence => (live, slice),
        other => {
            let own = other.live().and_then(|live| live.parked) == Some(fence);
            return (other, Effects::only(if own { Answer::Already } else { Answer::Stale }));
        }
    };
    if live.results.len() != position {
        return (State::Out(live, slice), Effects::only(Answer::Gap));
    }
    if live.cancelled {
        return (State::Out(live, slice), Effects::only(Answer::Cancelled));
    }
    live.parked = Some(fence);
    let timer_ms = Some(due_ms.min(live.deadline_ms));
    let effects = Effects { out: -1, timer_ms, ..Effects::only(Answer::Ok) };
    (State::Parked { live, attempt, crashes: slice.crashes }, effects)
}

/// What else becomes of a slice that was parked, for its next call waits for somebody else: of crashes and tries nothing is known
/// any more, and places are given back.
fn wait<R>((state, effects): (State<R>, Effects), position: usize, gives: bool) -> (State<R>, Effects) {
    match state {
        State::Parked { mut live, .. } if effects.answer == Answer::Ok => {
            if gives {
                live.paid = live.paid.max(live.admitted);
                live.admitted = position;
            }
            (State::Parked { live, attempt: 0, crashes: 0 }, effects)
        }
        other => (other, effects),
    }
}

/// The slice under a fresh fence on its queue, less what is settled.
fn requeue<R>(mut live: Live<R>, slice: &Slice, crashes: u32) -> State<R> {
    let first = slice.first.max(live.results.len());
    let attempt = if first > slice.first { 0 } else { slice.attempt };
    let fence = live.fence();
    State::Out(live, Slice { fence, first, crashes, attempt, begun: slice.begun, ..Slice::default() })
}

fn hand_back<R>(state: State<R>, fence: Fence) -> (State<R>, Effects) {
    match state {
        State::Out(live, slice) if slice.fence == fence => {
            // What somebody has begun is asked for as after a crash.
            let begun = slice.crashes == 0 && unsettled(&live, slice.begun).is_some();
            let crashes = slice.crashes + u32::from(begun);
            (requeue(live, &slice, crashes), Effects::only(Answer::Ok))
        }
        other => (other, Effects::only(Answer::Stale)),
    }
}

fn reap<R>(state: State<R>, fence: Fence, crashes_max: u32, now_ms: i64, lease: Lease) -> (State<R>, Effects) {
    let (live, slice) = match state {
        State::Out(live, slice) if slice.fence == fence => (live, slice),
        other => return (other, Effects::only(Answer::Stale)),
    };
    // The first crash counts for all that the worker held; from then on a slice is started alone.
    let crashes = slice.crashes + u32::from(slice.crashes == 0 || slice.started);
    if crashes < crashes_max {
        return (requeue(live, &slice, crashes), Effects::only(Answer::Queued));
    }
    let (upto, begun) = (live.admitted, unsettled(&live, slice.begun));
    let (state, effects) = give_out(live, (Reason::Internal, i64::from(crashes)), upto, begun, (now_ms, lease));
    (state, Effects { out: -1, ..effects })
}

/// The call that was begun and has no result.
fn unsettled<R>(live: &Live<R>, begun: Option<(usize, u64)>) -> Option<usize> {
    begun.map(|(position, _)| position).filter(|position| *position >= live.results.len())
}

fn lose<R>(state: State<R>) -> Result<(State<R>, Effects), Illegal> {
    let State::Out(live, slice) = state else { return Err(Illegal("only what is out is lost")) };
    let lost = slice.lost.or(Some(None));
    Ok((State::Out(live, Slice { held: false, lost, ..slice }), Effects::only(Answer::Ok)))
}

/// Whether whoever holds a lost slice all the same may still end it.
fn is_lease_of_lost(slice: &Slice, now_ms: i64, lease_ms: i64) -> bool {
    slice.lost.is_some_and(|since_ms| since_ms.unwrap_or(now_ms) + lease_ms > now_ms)
}

/// A lost slice whose lease is over is dispatched anew.
fn restore<R>(live: Live<R>, slice: Slice, crashes_max: u32, (now_ms, lease): (i64, Lease)) -> (State<R>, Effects) {
    let deadline_ms = live.deadline_ms;
    let begun = unsettled(&live, slice.begun);
    let crashes = slice.crashes + u32::from(slice.started || begun.is_some());
    if crashes >= crashes_max {
        let upto = live.admitted;
        let (state, effects) = give_out(live, (Reason::Internal, i64::from(crashes)), upto, begun, (now_ms, lease));
        return (state, Effects { out: -1, ..effects });
    }
    let effects = Effects { timer_ms: Some(deadline_ms), ..Effects::only(Answer::Restored) };
    (requeue(live, &slice, crashes), effects)
}

fn timer<R>(state: State<R>, crashes_max: u32, now_ms: i64, lease: Lease) -> (State<R>, Effects) {
    let lease_ms = lease.ms;
    let at = |timer_ms| Effects { timer_ms: Some(timer_ms), ..Effects::only(Answer::Later) };
    match state {
        State::Ended { .. } => (state, Effects::only(Answer::Done)),
        State::Ending(live, old) => {
            let (upto, begun) = (old.upto, old.begun);
            give_out(live, (old.reason, old.info), upto, begun, (now_ms, lease))
        }
        State::Out(live, slice) => match live.over(now_ms) {
            Some(_) if slice.held => (State::Out(live, slice), at(now_ms + lease_ms)),
            over if is_lease_of_lost(&slice, now_ms, lease_ms) => {
                let since_ms = slice.lost.flatten().unwrap_or(now_ms);
                let until_ms = since_ms + lease_ms;
                let due_ms = if over.is_some() { until_ms } else { until_ms.min(live.deadline_ms) };
                (State::Out(live, Slice { lost: Some(Some(since_ms)), ..slice }), at(due_ms))
            }
            None if slice.lost.is_some() => restore(live, slice, crashes_max, (now_ms, lease)),
            None => {
                let deadline_ms = live.deadline_ms;
                (State::Out(live, slice), at(deadline_ms))
            }
            Some(over) => {
                let (upto, begun) = (live.calls, unsettled(&live, slice.begun));
                let (state, effects) = give_out(live, over, upto, begun, (now_ms, lease));
                (state, Effects { out: -1, ..effects })
            }
        },
        State::Parked { live, attempt, crashes } => match live.over(now_ms) {
            Some(over) => leave(live, over, (now_ms, lease)),
            None if live.results.len() >= live.admitted => {
                let (answer, lane, timer_ms) = (Answer::Queues, Some(LaneMove::Join), Some(live.deadline_ms));
                (State::Queued(live), Effects { answer, out: 0, lane, timer_ms })
            }
            None => {
                let mut live = live;
                let (first, fence, deadline_ms) = (live.results.len(), live.fence(), live.deadline_ms);
                let slice = Slice { fence, first, crashes, attempt, ..Slice::default() };
                let effects = Effects { out: 1, timer_ms: Some(deadline_ms), ..Effects::only(Answer::Queued) };
                (State::Out(live, slice), effects)
            }
        },
        State::Queued(live) => match live.over(now_ms) {
            Some(over) => leave(live, over, (now_ms, lease)),
            None => {
                let deadline_ms = live.deadline_ms;
                (State::Queued(live), at(deadline_ms))
            }
        },
    }
}

/// All calls that are left end, from wherever the turn waits.
fn leave<R>(live: Live<R>, over: (Reason, i64), at: (i64, Lease)) -> (State<R>, Effects) {
    let upto = live.calls;
    let (state, effects) = give_out(live, over, upto, None, at);
    (state, Effects { lane: Some(LaneMove::Leave), ..effects })
}

fn cancel<R>(state: State<R>, now_ms: i64) -> (State<R>, Effects) {
    let mut state = state;
    match &mut state {
        State::Ended { .. } => return (state, Effects::only(Answer::Done)),
        State::Queued(live) | State::Out(live, _) | State::Parked { live, .. } | State::Ending(live, _) => {
            live.cancelled = true;
        }
    }
    let at_once = |answer| Effects { timer_ms: Some(now_ms), ..Effects::only(answer) };
    match state {
        State::Out(live, slice) if slice.held => (State::Out(live, slice), at_once(Answer::Flagged)),
        // Whether anybody has read it is not known.
        State::Out(live, slice) if slice.lost.is_some() => (State::Out(live, slice), at_once(Answer::Ok)),
        // Nobody has read it, and nobody shall: it is taken back, and promote gives the ending out.
        State::Out(live, slice) => {
            let (upto, begun) = (live.calls, unsettled(&live, slice.begun));
            let (state, _) =
                give_out(live, (Reason::Cancelled, now_ms), upto, begun, (now_ms, Lease { ms: 0, epoch_ms: 0 }));
            (state, Effects { out: -1, ..at_once(Answer::Ok) })
        }
        other => (other, at_once(Answer::Ok)),
    }
}
