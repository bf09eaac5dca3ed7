//! Turns that wait only in the replay, or longer or shorter than recorded. They are dispatched when there is room, in
//! the order in which they came.

use super::ask::{Said, Verdict};
use super::told::fate_of;
use super::{Apart, Live, Next, Replay, TOO_MANY, WAIT_MS_MAX, WAITING_MAX, whose};

impl Replay<'_> {
    /// Makes a turn wait that did not wait in the fleet, or not as long.
    pub(super) fn wait(&mut self, number: u64, live: &mut Live, apart: Apart, until_ms: i64) {
        if self.waiting >= WAITING_MAX && live.apart.is_none() {
            self.summary.cannot_say(TOO_MANY, (live.turn.calls.len() - live.next) as u64);
            live.next = live.turn.calls.len();
            return;
        }
        self.is_held_up(&live.turn, &apart.by);
        let since_ms = live.apart.as_ref().map_or(apart.since_ms, |before| before.since_ms);
        let lane = apart.lane.clone();
        live.apart = Some(Apart { since_ms, ..apart });
        self.waiting += 1;
        self.lanes.entry(lane.clone()).or_default().insert(number, ());
        self.at(until_ms, 5, 0, Next::Room(lane));
    }

    /// There may be room for the turns that wait in this throttle queue only in the replay. Dispatches as many as may
    /// run, in order.
    pub(super) fn room(&mut self, lane: &str, now_ms: i64) {
        loop {
            let Some(number) = self.lanes.get(lane).and_then(|waiting| waiting.keys().next().copied()) else { return };
            let Some(mut live) = self.turns.remove(&number) else {
                self.leave(lane, number);
                continue;
            };
            let look_again_ms = self.look(number, &mut live, lane, now_ms);
            if live.left > 0 || live.apart.is_some() {
                self.turns.insert(number, live);
            }
            if let Some(again_ms) = look_again_ms {
                return self.at(again_ms.max(now_ms + 1), 5, 0, Next::Room(lane.to_owned()));
            }
        }
    }

    pub(super) fn leave(&mut self, lane: &str, number: u64) {
        let Some(waiting) = self.lanes.get_mut(lane) else { return };
        if waiting.remove(&number).is_some() {
            self.waiting = self.waiting.saturating_sub(1);
        }
        if waiting.is_empty() {
            self.lanes.remove(lane);
        }
    }

    /// Evaluates the first turn of a throttle queue. Returns when to evaluate it again, if it stays there.
    pub(super) fn look(&mut self, number: u64, live: &mut Live, lane: &str, now_ms: i64) -> Option<i64> {
        let Some((since_ms, by)) = live.apart.as_ref().map(|apart| (apart.since_ms, apart.by.clone())) else {
            self.leave(lane, number);
            return None;
        };
        if live.busy_ms > now_ms {
            return Some(live.busy_ms);
        }
        let Ok(whose) = whose(&self.fleet, &live.turn) else {
            self.leave(lane, number);
            live.apart = None;
            return None;
        };
        if now_ms - since_ms > WAIT_MS_MAX {
            self.leave(lane, number);
            let all = live.turn.calls.len();
            self.end(live, all, &by, "expired");
            live.apart = None;
            return None;
        }
        // Calls with a later recorded dispatch keep that time, unless no other calls are left.
        let is_due = |at: &usize| fate_of(&live.turn, *at).is_none_or(|(then_ms, _)| then_ms <= now_ms);
        let left = live.next..live.turn.calls.len();
        let wanted = match left.clone().take_while(is_due).count() {
            0 => left.len(),
            due => due,
        };
        let said = self.ask(&whose, live, (None, wanted), Some(lane), now_ms);
        self.look_at(number, live, (lane, wanted), (since_ms, by), said, now_ms)
    }

    /// Continues [`Self::look`] with the result for the `wanted` calls.
    pub(super) fn look_at(
        &mut self,
        number: u64,
        live: &mut Live,
        (lane, wanted): (&str, usize),
        (since_ms, by): (i64, String),
        said: Said,
        now_ms: i64,
    ) -> Option<i64> {
        match said.verdict {
            Verdict::Wait { .. } if said.lane == lane => return Some(said.until_ms),
            Verdict::Wait { .. } => {
                self.leave(lane, number);
                let apart = Apart { by: said.by, lane: said.lane, since_ms };
                self.wait(number, live, apart, said.until_ms.max(now_ms + 1));
                return None;
            }
            Verdict::Refuse(ref reason, calls) => {
                let upto = live.next + calls;
                self.end(live, upto, &said.by, reason.word());
            }
            Verdict::End(ref reason) => {
                let all = live.turn.calls.len();
                self.end(live, all, &said.by, reason.word());
            }
            Verdict::Dispatch(calls) => {
                let (by, lane_of_rest) =
                    if calls < wanted { (said.by.clone(), said.lane.clone()) } else { (by, lane.to_owned()) };
                self.go(live, calls, said, now_ms);
                self.leave(lane, number);
                live.apart = None;
                if self.is_ahead(live, now_ms) {
                    let until_ms = live.busy_ms;
                    self.wait(number, live, Apart { by, lane: lane_of_rest, since_ms: now_ms }, until_ms);
                }
                return None;
            }
        }
        if live.next >= live.turn.calls.len() {
            self.leave(lane, number);
            live.apart = None;
            return None;
        }
        Some(now_ms + 1)
    }

    /// Returns true if calls are left and their recorded decision is not in the future.
    pub(super) fn is_ahead(&self, live: &Live, now_ms: i64) -> bool {
        live.next < live.turn.calls.len()
            && fate_of(&live.turn, live.next).is_some_and(|(then_ms, _)| then_ms <= now_ms.max(live.busy_ms))
    }
}
