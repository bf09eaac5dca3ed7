//! The referee's `release`: what leaves the lanes of agents and counters whose window has begun.

use super::*;
use crate::interleavings::worlds::spec::Policy;

/// What lanes are looked at with.
pub struct Releasing<'a> {
    pub rows: &'a Rows,
    pub policy: &'a Policy,
    /// Whether agents are no longer configured.
    pub gone: bool,
}

/// Per lane: turns, calls, endings.
pub type Released = (u64, u64, Vec<Name>);

impl World {
    /// What `release` does to lanes that are due.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn release(
        &mut self,
        raw_ms: i64,
        by: Generations,
        with: &Releasing<'_>,
        lanes: &[Name],
    ) -> Result<Batch<Released>, String> {
        let now_ms = self.clock(raw_ms);
        if let Some(outdated) = self.outdated(by) {
            return Ok(outdated);
        }
        if stale(with.rows, now_ms) {
            return Ok(Batch::DayStale);
        }
        let mut waited = self.waited_for();
        let heads: BTreeMap<&Name, Vec<Name>> = lanes.iter().map(|lane| (lane, self.heads(lane))).collect();
        let released = lanes.iter().map(|lane| {
            // Where no limit counts what an agent does, its lane is looked at as it is.
            let is_any = !with.rows.is_limited() && !lane.contains('@');
            let turns = if is_any { self.heads(lane) } else { heads[lane].clone() };
            self.release_lane(lane, turns, with, &mut waited, now_ms)
        });
        Ok(Batch::Decided(released.collect::<Result<_, _>>()?))
    }

    /// The first turns of a lane.
    pub fn heads(&self, lane: &str) -> Vec<Name> {
        self.lanes.get(lane).map_or_else(Vec::new, |lane| lane.values().take(RELEASE_BOUND).cloned().collect())
    }

    fn release_lane(
        &mut self,
        lane: &Name,
        turns: Vec<Name>,
        with: &Releasing<'_>,
        waited: &mut BTreeMap<Name, u64>,
        now_ms: i64,
    ) -> Result<Released, String> {
        let mut reply = (0, 0, Vec::new());
        if self.lane_timers.get(lane).is_none_or(|due| *due > now_ms) {
            return Ok(reply);
        }
        let mut again_ms = now_ms;
        for name in turns {
            let (verdict, cut, spec, next) = self.verdict(&name, lane, with, waited, now_ms);
            let waits = match verdict {
                Verdict::Wait(until_ms) => Some((None, until_ms)),
                Verdict::WaitFor(at, until_ms) => {
                    Some((Some(counter_of(with.rows, &spec, next, at)), until_ms.unwrap_or(now_ms)))
                }
                _ => None,
            };
            if let Some((counter, until_ms)) = waits {
                if *lane == counter.clone().unwrap_or_else(|| self.turns[&name].lane.clone()) {
                    again_ms = until_ms;
                    break;
                }
                self.hop(&name, counter.as_ref(), until_ms);
                if let Some((counter, place)) = counter.zip(self.turns[&name].seq) {
                    let first = waited.entry(counter).or_insert(place);
                    *first = place.min(*first);
                }
                continue;
            }
            let turn = &self.turns[&name];
            let was_paid = turn.state.live().is_some_and(|live| live.paid > next);
            let waited_on = turn.waits.clone();
            let answer = self.apply(&name, Event::Release(verdict), now_ms)?;
            if let (Verdict::Dispatch(_) | Verdict::Refuse(..), Some(turn)) = (verdict, self.turns.get_mut(&name)) {
                // What is left of one that takes places again waits where it waited.
                let stays = (was_paid && matches!(verdict, Verdict::Dispatch(_))).then_some(waited_on).flatten();
                turn.back = cut.map(|at| counter_of(with.rows, &spec, next, at)).or(stays);
            }
            match verdict {
                Verdict::Dispatch(_) if was_paid => reply.0 += 1,
                Verdict::Dispatch(count) => (reply.0, reply.1) = (reply.0 + 1, reply.1 + count as u64),
                _ if answer == Answer::Later => {}
                _ => reply.2.push(name),
            }
        }
        if self.is_waiting(lane) {
            self.lane_timers.insert(lane.to_owned(), again_ms);
        } else {
            self.lane_timers.remove(lane);
        }
        Ok(reply)
    }

    fn verdict(
        &mut self,
        name: &str,
        on: &Name,
        with: &Releasing<'_>,
        waited: &BTreeMap<Name, u64>,
        now_ms: i64,
    ) -> (Verdict, Option<usize>, Spec, usize) {
        let turn = &self.turns[name];
        let (spec, lane) = (self.specs[turn.spec].clone(), turn.lane.clone());
        let Some(live) = turn.state.live() else { return (Verdict::Wait(now_ms), None, spec, 0) };
        let (next, cancelled, deadline_ms) = (live.admitted.max(live.results.len()), live.cancelled, live.deadline_ms);
        let paid = live.paid.saturating_sub(next);
        if !with.gone {
            let row = with.rows[number_of(spec.tenant)];
            self.roll(&lane, with.policy.stagger_ms(spec.tenant, spec.agent), row, now_ms);
        }
        let task = spec.task.as_ref().map(|task| format!("{}:{task}", spec.tenant));
        let orphan = task.as_ref().is_some_and(|task| self.live(task).is_none() || self.is_over(task));
        let (verdict, cut) = match () {
            () if with.gone => (Verdict::End(Reason::Rejected, now_ms), None),
            () if cancelled => (Verdict::End(Reason::Cancelled, now_ms), None),
            () if deadline_ms <= now_ms => (Verdict::End(Reason::Expired, deadline_ms), None),
            () if paid > 0 => {
                let place = self.turns[name].seq;
                let limited = Limited { rows: with.rows, next, own: Some(on), waited, place, now_ms };
                self.take_again((name, &spec), paid, &limited)
            }
            () if orphan => (Verdict::End(Reason::Cancelled, now_ms), None),
            () => {
                let place = self.turns[name].seq;
                let limited = Limited { rows: with.rows, next, own: Some(on), waited, place, now_ms };
                self.decide((name, &spec), &lane, task.as_deref(), &limited)
            }
        };
        (verdict, cut, spec, next)
    }
}
