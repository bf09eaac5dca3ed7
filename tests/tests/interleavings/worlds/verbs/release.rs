//! The referee's `release`: what leaves the lanes of agents whose window has begun.

use super::*;

impl World {
    /// What `release` does to lanes that are due; per lane: turns, calls, endings.
    ///
    /// # Errors
    /// See [`World::apply`].
    pub fn release(
        &mut self,
        raw_ms: i64,
        by: Generations,
        rows: &Rows,
        lanes: &[(Name, Option<i64>)],
    ) -> Result<Batch<(u64, u64, Vec<Name>)>, String> {
        let now_ms = self.clock(raw_ms);
        if let Some(outdated) = self.outdated(by) {
            return Ok(outdated);
        }
        if stale(rows, now_ms) {
            return Ok(Batch::DayStale);
        }
        let row = |lane: &str| rows[number_of(tenant_of(lane))];
        let released = lanes.iter().map(|(lane, stagger)| self.release_lane(lane, *stagger, row(lane), now_ms));
        Ok(Batch::Decided(released.collect::<Result<_, _>>()?))
    }

    fn release_lane(
        &mut self,
        lane: &str,
        stagger_ms: Option<i64>,
        row: PolicyRow,
        now_ms: i64,
    ) -> Result<(u64, u64, Vec<Name>), String> {
        let mut reply = (0, 0, Vec::new());
        if self.lane_timers.get(lane).is_none_or(|due| *due > now_ms) {
            return Ok(reply);
        }
        if let Some(stagger_ms) = stagger_ms {
            self.roll(lane, stagger_ms, row, now_ms);
        }
        let waiting: Vec<Name> =
            self.lanes.get(lane).map_or_else(Vec::new, |l| l.values().take(RELEASE_BOUND).cloned().collect());
        let mut again_ms = now_ms;
        for name in waiting {
            let verdict = self.verdict(&name, lane, stagger_ms.map(|_| row), now_ms);
            if let Verdict::Wait(until_ms) = verdict {
                again_ms = until_ms;
                break;
            }
            let answer = self.apply(&name, Event::Release(verdict), now_ms)?;
            match verdict {
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

    fn verdict(&mut self, name: &str, lane: &str, row: Option<PolicyRow>, now_ms: i64) -> Verdict {
        let Some(turn) = self.live(name) else { return Verdict::Wait(now_ms) };
        let Some(live) = turn.state.live() else { return Verdict::Wait(now_ms) };
        let (wanted, cancelled, deadline_ms) = (live.calls - live.admitted, live.cancelled, live.deadline_ms);
        let spec = &self.specs[turn.spec];
        let task = spec.task.as_ref().map(|task| format!("{}:{task}", spec.tenant));
        let orphan = task.as_ref().is_some_and(|task| self.live(task).is_none());
        match row {
            None => Verdict::End(Reason::Rejected, now_ms),
            Some(_) if cancelled => Verdict::End(Reason::Cancelled, now_ms),
            Some(_) if deadline_ms <= now_ms => Verdict::End(Reason::Expired, deadline_ms),
            Some(_) if orphan => Verdict::End(Reason::Cancelled, now_ms),
            Some(row) => self.decide(name, lane, task.as_deref(), wanted, row),
        }
    }
}
