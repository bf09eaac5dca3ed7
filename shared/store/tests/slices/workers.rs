use super::*;

impl Game {
    pub(super) fn take(&mut self, worker: usize) {
        let take =
            TakeRequest { consumer: format!("w{worker}").into(), queues: queues().to_vec(), count: 1, wait_ms: 0 };
        for taken in block_on(self.store.take(&take)).unwrap() {
            let slice = Slice::read(taken.queue, taken.entry, &taken.fields).unwrap();
            self.nonce += 1;
            let nonce = format!("n{}", self.nonce);
            let epoch = self.shard().epoch;
            self.workers[worker].push(HeldSlice {
                slice,
                ran: BTreeSet::new(),
                begun: None,
                nonce,
                epoch,
                taken_epoch: epoch,
            });
        }
    }

    pub(super) fn held(&self, worker: usize, held: usize) -> Option<HeldSlice> {
        self.workers[worker].get(held).cloned()
    }

    pub(super) fn drop_held(&mut self, worker: usize, held: usize) {
        self.workers[worker].remove(held);
    }

    pub(super) fn index(slice: &Slice) -> usize {
        slice.name.turn.as_str()[1..].parse().unwrap()
    }

    pub(super) fn note_run(&mut self, worker: usize, held: usize, position: usize) {
        let one = &mut self.workers[worker][held];
        one.ran.insert(position);
        let call = (Self::index(&one.slice), position);
        self.ran.insert(call);
        self.journal.push((call.0, position, one.nonce.clone()));
    }

    /// If `once` is true, the call is recorded as begun before it runs.
    pub(super) fn run_call(&mut self, worker: usize, held: usize, once: bool, sent: bool) {
        let Some(one) = self.held(worker, held) else { return };
        let slice = &one.slice;
        let position = one.slice.turn.position;
        if one.ran.contains(&position) || one.begun.is_some() {
            return;
        }
        let mut turn = slice.turn.clone();
        // A call that another worker began is resolved, and not run again.
        let Some(upto) = turn.state.in_flight_upto().filter(|_| turn.begun.is_none()) else { return };
        // A redelivered slice must be recorded as begun before any call of the slice runs. The same applies to a slice
        // from before a restart.
        let is_begun = turn.crashes == 0 || matches!(turn.state, State::Running { .. });
        let is_begun = is_begun && one.epoch == self.shard().epoch;
        if !once && is_begun {
            return self.note_run(worker, held, position);
        }
        turn.state = State::Running { upto };
        turn.begun = once.then(|| Begun::new(position, one.nonce.clone()));
        turn.entry = Some(slice.entry.clone());
        let mut transaction = Transaction::new(self.versions.draw());
        let version = transaction.version.clone();
        transaction.guard(Guard::Version(slice.name.record(), slice.version.clone()));
        transaction.guard(Guard::Absent(slice.name.cancellation()));
        if once {
            let shard = self.shard();
            transaction.guard(Guard::Epoch { number: shard.epoch, lease_ms: LEASE_MS });
            if self.is_recovered(&slice.name, position) {
                return;
            }
        }
        transaction.put(&slice.name.record(), &turn);
        let epoch = self.shard().epoch;
        match self.commit(transaction) {
            Ok(()) => {
                let one = &mut self.workers[worker][held];
                one.slice.advance(version, turn);
                one.begun = once.then_some((position, sent));
                one.epoch = epoch;
                if once && sent {
                    let call = (Self::index(&one.slice), position);
                    assert!(self.sent.insert(call), "call {call:?} is sent twice");
                }
                if sent || !once {
                    self.note_run(worker, held, position);
                }
            }
            Err(Conflict::Record { key, .. }) if key == slice.name.record() => self.drop_held(worker, held),
            Err(_) => {}
        }
    }

    pub(super) fn is_recovered(&self, name: &TurnName, position: usize) -> bool {
        let key = keys::recovered_calls(name);
        let mut view = View::default();
        let query = Query::Record(key.clone());
        view.insert(query.clone(), self.read(&query));
        view.record::<RecoveredCalls>(&key)
            .unwrap()
            .is_some_and(|recovered| recovered.value.calls.contains_key(&position))
    }

    pub(super) fn run_beside(&mut self, worker: usize, held: usize, offset: usize) {
        let Some(one) = self.held(worker, held) else { return };
        let next = one.slice.turn.position;
        let is_read = !is_once(next) && !is_once(next + offset);
        let is_own = one.epoch == self.shard().epoch;
        if one.ran.contains(&next) && is_read && is_own && offset < one.slice.calls.len() {
            self.note_run(worker, held, next + offset);
        }
    }

    pub(super) fn settle(&mut self, worker: usize, held: usize, count: usize) {
        let Some(one) = self.held(worker, held) else { return };
        let next = one.slice.turn.position;
        let results: Vec<RenderedCall> =
            (next..next + count.min(one.slice.calls.len())).take_while(|at| one.ran.contains(at)).map(result).collect();
        if results.is_empty() {
            return;
        }
        let settle = Settle {
            slice: &one.slice,
            results: &results,
            frame: &frame(),
            sections: &[],
            reason: None,
            canceled: None,
            bounds: &bounds(),
        };
        match self.decide(&settle) {
            SettleResult::Continues { version, turn } => {
                let one = &mut self.workers[worker][held];
                one.begun = None;
                one.slice.advance(version, *turn);
            }
            SettleResult::Ended | SettleResult::Throttled | SettleResult::Stale | SettleResult::Unsure => {
                self.drop_held(worker, held)
            }
        }
    }

    pub(super) fn park(&mut self, worker: usize, held: usize, reason: &ParkReason) {
        let Some(one) = self.held(worker, held) else { return };
        let next = one.slice.turn.position;
        let had_parallel_reads = one.ran.iter().any(|at| *at > next) || one.taken_epoch != self.shard().epoch;
        let park = Park { slice: &one.slice, reason, had_parallel_reads, waits_while: &[], sections: &[] };
        match self.decide(&park) {
            ParkResult::Until(_) => {
                if let ParkReason::Wait { reason: WaitReason::Child { turn }, .. } = reason {
                    self.waits_for.insert(Self::index(&one.slice), turn.as_str()[1..].parse().unwrap());
                }
                self.drop_held(worker, held);
            }
            ParkResult::Stale => self.drop_held(worker, held),
            ParkResult::Canceled => {}
        }
    }

    pub(super) fn wait(&mut self, worker: usize, held: usize, for_turn: usize, begins: bool) {
        let Some(one) = self.held(worker, held) else { return };
        let next = one.slice.turn.position;
        let is_begun = one.begun.is_some() || one.slice.turn.begun.is_some();
        let has_run = one.ran.contains(&next);
        if is_begun
            || !begins && Self::index(&one.slice) == for_turn
            || begins && Self::index(&one.slice) + 1 == self.calls.len()
            || begins != has_run
        {
            return;
        }
        // If the call begins a turn, this is the next turn by index, and its end wakes the call.
        let turn = name(if begins { Self::index(&one.slice) + 1 } else { for_turn }).turn;
        let reason = if begins { WaitReason::Child { turn } } else { WaitReason::EqualCall { turn } };
        let cause = String::new();
        self.park(worker, held, &ParkReason::Wait { reason, most_ms: 500, has_begun: begins, cause });
    }

    pub(super) fn requeue(&mut self, worker: usize, held: usize) {
        let Some(one) = self.held(worker, held) else { return };
        let next = one.slice.turn.position;
        let reason = match one.begun {
            Some((_, true)) => return,
            _ if one.taken_epoch != self.shard().epoch => RequeueReason::ParallelReads,
            Some((_, false)) => RequeueReason::Unsent { nonce: Some(one.nonce.clone()) },
            None if one.ran.iter().any(|at| *at > next) => RequeueReason::ParallelReads,
            None if one.ran.contains(&next) => RequeueReason::Interrupted,
            None => RequeueReason::Unsent { nonce: Some(one.nonce.clone()) },
        };
        let requeued = self.decide(&RequeueSlice { slice: &one.slice, reason: &reason });
        assert!(matches!(requeued, RequeueResult::Redelivered | RequeueResult::Stale));
        self.drop_held(worker, held);
    }

    pub(super) fn requeue_untouched(&mut self, worker: usize, held: usize, unreadable: bool) {
        let slice = self.workers[worker].remove(held).slice;
        if !unreadable {
            let requeued = self.decide(&RequeueSlice { slice: &slice, reason: &RequeueReason::Unknown });
            assert!(matches!(requeued, RequeueResult::Redelivered | RequeueResult::Stale));
            return;
        }
        let Value::Entry(fields) = self.read(&Query::Entry(slice.queue.clone(), slice.entry.clone())) else {
            unreachable!()
        };
        let fields = fields.unwrap_or_default();
        let entry = HeldEntry { queue: slice.queue, entry: slice.entry, fields };
        self.decide(&RequeueUnreadable { entry: &entry, name: &slice.name, attempts_max: 3 });
    }
}
