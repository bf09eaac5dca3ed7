//! Invariants that hold at any time, and invariants at the end of a game.

use super::*;

impl Game {
    pub(super) fn check(&self) -> Result<(), TestCaseError> {
        let mut out = 0;
        for turn in 0..self.calls.len() {
            let Some(record) = self.record(turn) else { continue };
            out += u64::from(record.state.in_flight_upto().is_some());
            let Value::Score(due) = self.read(&Query::Score(keys::timers(), name(turn).timer().into())) else {
                unreachable!()
            };
            let due = due.and_then(|due| i64::try_from(due).ok());
            let bound = record.head.deadline_ms + 2 * LEASE_MS + self.shard().epoch_began_ms;
            prop_assert!(
                due.is_some_and(|due| due <= bound.max(record.head.deadline_ms + 10_000)),
                "{record:?} has no timer"
            );
            let is_canceled = self.canceled.contains(&turn);
            let soon = self.shard().now_ms + LEASE_MS;
            prop_assert!(!is_canceled || due.unwrap() <= soon, "the cancel of {turn} is lost until {due:?}");
            if let (State::Waiting { reason: WaitReason::Child { .. }, .. }, Some(child)) =
                (&record.state, self.waits_for.get(&turn))
            {
                let has_ended = self.record(*child).is_none();
                prop_assert!(
                    !has_ended || due.unwrap() <= self.shard().now_ms,
                    "{turn} waits for {child}, which has ended"
                );
            }
        }
        prop_assert_eq!(self.used(&counter(limits::IN_FLIGHT)), out);
        Ok(())
    }

    pub(super) fn finish(&mut self) {
        self.clock.step(LEASE_MS);
        for worker in 0..WORKERS {
            self.crash(worker);
        }
        for _ in 0..20 {
            self.clock.step(DEADLINE_MS);
            for turn in 0..self.calls.len() {
                if self.is_due(turn) {
                    self.fire(turn, None);
                }
            }
        }
        // All turns have ended, so the slices that workers still have are stale. Their results must change nothing.
        for worker in 0..WORKERS {
            for held in (0..self.workers[worker].len()).rev() {
                self.settle(worker, held, 4);
            }
        }
    }

    pub(super) fn check_end(&self) -> Result<(), TestCaseError> {
        for turn in 0..self.calls.len() {
            prop_assert!(self.record(turn).is_none(), "turn {turn} did not end");
        }
        for limit in [limits::IN_FLIGHT, limits::UNFINISHED, limits::BYTES] {
            prop_assert_eq!(self.used(&counter(limit)), 0, "{}", limit);
        }
        prop_assert_eq!(self.used(&permit()), 0);
        for queue in queues() {
            let backlog = block_on(self.store.backlog(&queue)).unwrap();
            prop_assert_eq!((backlog.waiting, backlog.held), (0, 0), "{}", queue);
        }
        let tick = keys::throttle_queue(&CounterKey::new(limits::TICK, "acme:kelly"));
        prop_assert!(matches!(self.read(&Query::Size(tick)), Value::Size(0)));
        self.check_replies()
    }

    /// Each turn has one reply, and each call one result and one audit entry. No call that ran is reported as not run.
    pub(super) fn check_replies(&self) -> Result<(), TestCaseError> {
        let inbox = tickfleet_core::StreamKey::new("replies:acme:inbox");
        let Value::Entries(replies) = self.read(&Query::Entries { stream: inbox, after: None, count: 100 }) else {
            unreachable!()
        };
        prop_assert_eq!(replies.len(), self.calls.len());
        let log = Query::Entries { stream: keys::audit(), after: None, count: 1_000 };
        let Value::Entries(audit) = self.read(&log) else { unreachable!() };
        prop_assert_eq!(audit.len(), self.calls.iter().sum::<usize>());
        for (turn, calls) in self.calls.iter().enumerate() {
            let mut view = View::default();
            let key = name(turn).finished();
            let query = Query::Record(name(turn).finished());
            view.insert(query.clone(), self.read(&query));
            let finished = view.record::<tickfleet_core::turn::state::Finished>(&key).unwrap().unwrap().value;
            let reply: serde_json::Value = serde_json::from_str(&finished.reply).unwrap();
            let results = reply["results"].as_array().unwrap();
            prop_assert_eq!(results.len(), *calls);
            for (position, result) in results.iter().enumerate() {
                prop_assert_eq!(result["p"].as_u64(), Some(position as u64));
                let has_run = self.ran.contains(&(turn, position));
                prop_assert!(!(result["is"] == "not_run" && has_run), "call {turn}/{position} ran: {result}");
                prop_assert!(result["is"] != "ran" || has_run, "call {turn}/{position} did not run: {result}");
                prop_assert!(result["known"] != false, "call {turn}/{position} was lost");
            }
        }
        Ok(())
    }
}
