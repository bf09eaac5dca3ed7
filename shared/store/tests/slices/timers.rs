//! Operations of schedulers and operators, and restarts of the store.

use super::*;

impl Game {
    /// A worker that was only slow continues with its slices, which are stale.
    pub(super) fn crash(&mut self, worker: usize) {
        let consumer: Arc<str> = format!("w{worker}").into();
        let heartbeat = RecordKey::new(format!("beat:{consumer}"));
        loop {
            let mut held = Vec::new();
            for queue in queues() {
                let query = Query::Holds { stream: queue.clone(), consumer: consumer.clone(), count: 100 };
                let Value::Holds(entries) = self.read(&query) else { unreachable!() };
                for entry in entries {
                    let Value::Entry(fields) = self.read(&Query::Entry(queue.clone(), entry.clone())) else {
                        unreachable!()
                    };
                    held.push(HeldEntry { queue: queue.clone(), entry, fields: fields.unwrap_or_default() });
                }
            }
            let lease = Lease { heartbeat: heartbeat.clone(), version: None, ends_ms: 0 };
            let reap = Reap { consumer: consumer.clone(), lease, held, bounds: &bounds() };
            if !matches!(
                self.decide(&reap),
                ReapResult::Redelivered(_) | ReapResult::Quarantined(_) | ReapResult::Removed { .. }
            ) {
                return;
            }
        }
    }

    /// Reads a turn for a later decision. The view may then be stale.
    pub(super) fn look(&mut self, turn: usize) {
        let name = name(turn);
        let mut view = View::default();
        for query in [Query::Record(name.record()), Query::Record(name.cancellation())] {
            view.insert(query.clone(), self.read(&query));
        }
        self.stale.insert(turn, (view, self.shard()));
    }

    pub(super) fn is_due(&self, turn: usize) -> bool {
        let score = self.read(&Query::Score(keys::timers(), name(turn).timer().into()));
        matches!(score, Value::Score(Some(score)) if i64::try_from(score).unwrap() <= self.shard().now_ms)
    }

    pub(super) fn fire(&mut self, turn: usize, view: Option<(View, ShardState)>) {
        let name = name(turn);
        let (mut view, shard) = view.unwrap_or_else(|| (View::default(), self.shard()));
        let due = Due { name: &name, render: &TestRenderer, sections: &[], bounds: &bounds() };
        let fired = self.decide_from(&due, &mut view, shard);
        if fired == DueResult::Ended {
            let shard = self.shard();
            let spoken_ms = if shard.epoch_began_ms > 0 { shard.epoch_began_ms + LEASE_MS } else { 0 };
            assert!(shard.now_ms >= spoken_ms, "a turn ends before workers could report what it ran");
        }
    }

    /// After the restart, workers report the calls that they ran.
    pub(super) fn restart(&mut self, lost_ms: i64) {
        self.store.lose(lost_ms);
        for (turn, position, by) in &self.journal {
            let name = name(*turn);
            let digest = "d".to_owned();
            let outcome = JournaledOutcome::Ended(Box::new(result(*position)));
            self.decide(&ReportBegunCall {
                name,
                digest,
                position: *position,
                by: by.clone(),
                once: true,
                outcome,
                keep_ms: 100_000,
            });
        }
        let is_known =
            |turn: &usize| !matches!(self.read(&Query::Record(name(*turn).cancellation())), Value::Record(None));
        self.canceled = self.canceled.iter().copied().filter(is_known).collect();
    }

    pub(super) fn cancel(&mut self, turn: usize) {
        let name = name(turn);
        let Some(record) = self.record(turn) else { return };
        if !self.canceled.insert(turn) {
            return;
        }
        let mut transaction = Transaction::new(self.versions.draw());
        transaction.guard(Guard::Present(name.record()));
        let cancellation = Cancellation { reason: "no".to_owned(), admitted_ms: Some(record.admitted_ms) };
        transaction.put_for(&name.cancellation(), &cancellation, DEADLINE_MS * 2);
        transaction.timer(name.timer(), self.shard().now_ms, TimerRule::Earlier);
        self.commit(transaction).unwrap();
    }
}
