//! The calls that the worker has begun, and their results, remembered for a while: if Redis has lost its last seconds,
//! nobody else knows (rule 8). Only calls are remembered that must not happen twice.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::limits;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::{Asserted, Assertion, Beat, Claim, SettledCall, ShardClock, Store, StoreError, TurnName};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::Common;
use crate::claimed::ClaimedEffects;
use crate::said_facts::SaidFacts;

/// The time for which a result is remembered that Redis has: longer than what an append-only file can lose, and at
/// least a lease.
const REMEMBERED: Duration = Duration::from_secs(60);
/// Ended calls that are remembered at most, the newest.
const ENDED_MAX: usize = 100_000;
/// Bytes of their results; beyond, older ones are remembered without their results.
const ENDED_BYTES_MAX: usize = 32 * 1024 * 1024;
/// The time that a mark outlives its turn's deadline by, ms. A turn that Redis lost and that comes again may get a later
/// deadline, and may wait for the next day, which has 25 hours at most.
const KEPT_AFTER_DEADLINE_MS: i64 = 2 * 86_400_000;

/// A call that was begun.
#[derive(Debug, Clone)]
struct Begun {
    digest: String,
    nonce: String,
    deadline_ms: i64,
}

/// A call whose result Redis has confirmed.
#[derive(Debug)]
struct Ended {
    name: TurnName,
    position: usize,
    begun: Begun,
    /// None if the bound on bytes was reached.
    result: Option<SettledCall>,
    at: Instant,
}

#[derive(Debug, Default)]
struct Memory {
    under_way: HashMap<TurnName, BTreeMap<usize, Begun>>,
    ended: VecDeque<Ended>,
    /// The number of the first of `ended`, counted from the beginning.
    first: u64,
    /// The number of `ended`, from the front, that have been stripped of their results.
    bare: usize,
    bytes: usize,
    /// The Redis that all of this was told to.
    run_id: Option<String>,
    /// The number of times that all of this was asserted.
    rounds: u64,
}

/// The calls that the worker has begun, and what came of them.
pub(crate) struct Claims {
    store: Store,
    metrics: Arc<Metrics>,
    clock: Arc<ShardClock>,
    /// Cancelled when nothing more may be waited for.
    now: CancellationToken,
    memory: Mutex<Memory>,
    /// What these calls have claimed, where their tools have an effect key.
    pub(crate) effects: ClaimedEffects,
    /// What the ends of calls did to facts, whatever their effect.
    pub(crate) facts: SaidFacts,
    /// Until when calls may be marked as begun by somebody whom Redis has forgotten, ms of shard time.
    marks_ms: AtomicI64,
}

impl Begun {
    fn assertion(&self, name: &TurnName, position: usize, now_ms: i64, claim: Claim) -> Assertion {
        Assertion {
            name: name.clone(),
            position,
            digest: self.digest.clone(),
            nonce: self.nonce.clone(),
            kept_ms: (self.deadline_ms - now_ms).max(0) + KEPT_AFTER_DEADLINE_MS,
            claim,
        }
    }
}

fn bytes(result: &SettledCall) -> usize {
    result.result.len() + result.message.len() + result.audit.len()
}

impl Memory {
    fn take(&mut self, name: &TurnName, position: usize) -> Option<Begun> {
        let calls = self.under_way.get_mut(name)?;
        let begun = calls.remove(&position);
        if calls.is_empty() {
            self.under_way.remove(name);
        }
        begun
    }

    fn push(&mut self, ended: Ended) {
        self.bytes += ended.result.as_ref().map_or(0, bytes);
        self.ended.push_back(ended);
        while self.bytes > ENDED_BYTES_MAX && self.bare < self.ended.len() {
            let stripped = self.ended[self.bare].result.take();
            self.bytes -= stripped.as_ref().map_or(0, bytes);
            self.bare += 1;
        }
        if self.ended.len() > ENDED_MAX {
            self.pop();
        }
    }

    fn pop(&mut self) {
        if let Some(gone) = self.ended.pop_front() {
            self.bytes -= gone.result.as_ref().map_or(0, bytes);
            self.bare = self.bare.saturating_sub(1);
            self.first += 1;
        }
    }
}

impl Claims {
    /// Nothing is begun yet.
    pub(crate) fn new(common: &Common) -> Self {
        Self {
            store: common.store.clone(),
            metrics: common.metrics.clone(),
            clock: common.clock.clone(),
            now: common.now.clone(),
            memory: Mutex::default(),
            effects: ClaimedEffects::default(),
            facts: SaidFacts::default(),
            marks_ms: AtomicI64::default(),
        }
    }

    /// Until when calls may be marked as begun by somebody whom Redis has forgotten, ms of shard time, as a heartbeat
    /// says.
    pub(crate) fn expect_marks_until(&self, marks_ms: i64) {
        self.marks_ms.store(marks_ms, Ordering::Relaxed);
    }

    /// Returns true if calls may be marked as begun by somebody whom Redis has forgotten.
    pub(crate) fn expects_marks(&self) -> bool {
        self.clock.now_ms() < self.marks_ms.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.memory.lock()
    }

    /// Returns how often everything was asserted: if that has changed since a begin was asked for, Redis may have lost
    /// it.
    pub(crate) fn rounds(&self) -> u64 {
        self.lock().rounds
    }

    /// The Redis that all of this was told to.
    pub(crate) fn told_to(&self) -> Option<String> {
        self.lock().run_id.clone()
    }

    /// A call was begun.
    pub(crate) fn begun(&self, name: &TurnName, position: usize, digest: &str, nonce: &str, deadline_ms: i64) {
        let begun = Begun { digest: digest.to_owned(), nonce: nonce.to_owned(), deadline_ms };
        self.lock().under_way.entry(name.clone()).or_default().insert(position, begun);
    }

    /// Redis has these results, the first of them at `first`.
    pub(crate) fn settled(&self, name: &TurnName, first: usize, results: &[SettledCall]) {
        self.facts.settled(name, first, results, self.clock.now_ms());
        let mut memory = self.lock();
        // Most turns begin nothing, and are not in here.
        if !memory.under_way.contains_key(name) {
            return;
        }
        for (position, result) in (first..).zip(results) {
            if let Some(begun) = memory.take(name, position) {
                let (result, at) = (Some(result.clone()), Instant::now());
                memory.push(Ended { name: name.clone(), position, begun, result, at });
            }
        }
    }

    /// Redis does not take these results any more: what it should be told of them.
    fn unsettled(
        &self,
        name: &TurnName,
        first: usize,
        results: &[SettledCall],
        now_ms: i64,
    ) -> Vec<(Ended, Assertion)> {
        let mut memory = self.lock();
        let ended = |(position, result): (usize, &SettledCall)| {
            let begun = memory.take(name, position)?;
            let assertion = begun.assertion(name, position, now_ms, Claim::Ended(result.clone()));
            let (name, result, at) = (name.clone(), Some(result.clone()), Instant::now());
            Some((Ended { name, position, begun, result, at }, assertion))
        };
        (first..).zip(results).filter_map(ended).collect()
    }

    /// Redis knows these results by us alone: the next one may have lost them. False if it has been another since
    /// `rounds`, and was told everything but these.
    fn remember(&self, rounds: u64, left: &mut Vec<(Ended, Assertion)>, said: &[Asserted]) -> bool {
        let mut memory = self.lock();
        if memory.rounds != rounds {
            return false;
        }
        for ((ended, _), asserted) in left.drain(..).zip(said) {
            if *asserted == Asserted::Marked {
                memory.push(ended);
            }
        }
        true
    }

    /// A call did nothing after all, or is held by nobody here any more. Answers what to say if it was asserted.
    pub(crate) fn undone(&self, name: &TurnName, position: usize) -> Option<Assertion> {
        let mut memory = self.lock();
        let begun = memory.take(name, position)?;
        (memory.rounds > 0).then(|| begun.assertion(name, position, 0, Claim::Undone))
    }

    /// A call that was begun goes on with whoever takes its slice next.
    pub(crate) fn left_begun(&self, name: &TurnName, position: usize) {
        let mut memory = self.lock();
        if let Some(begun) = memory.take(name, position) {
            memory.push(Ended { name: name.clone(), position, begun, result: None, at: Instant::now() });
        }
    }

    /// The calls of a slice are held no more. Those that were begun, and whose results Redis has not confirmed, may have taken
    /// effect, and nobody else may know of them.
    pub(crate) fn let_go(&self, name: &TurnName, positions: Range<usize>) {
        if !self.lock().under_way.contains_key(name) {
            return;
        }
        for position in positions {
            self.left_begun(name, position);
        }
    }

    /// Whatever Redis says of itself, it has lost something.
    pub(crate) fn doubt(&self) {
        let mut memory = self.lock();
        if memory.run_id.is_some() {
            memory.run_id = Some("in doubt".to_owned());
        }
    }

    /// Returns true if Redis is another than all of this was told to. If it is not, what is old is forgotten: only
    /// while Redis answers, for what it loses is older by as long as it was away.
    fn is_another(&self, run_id: &str, remembered: Duration) -> bool {
        let mut memory = self.lock();
        if memory.run_id.as_deref().is_some_and(|known| known != run_id) {
            return true;
        }
        if memory.run_id.is_none() {
            memory.run_id = Some(run_id.to_owned());
        }
        while memory.ended.front().is_some_and(|ended| ended.at.elapsed() > remembered) {
            memory.pop();
        }
        false
    }

    /// Everything without the results, what runs first and then the newest, each with its number if it has ended.
    fn all(&self, now_ms: i64) -> Vec<(Option<u64>, Assertion)> {
        let mut memory = self.lock();
        memory.rounds += 1;
        let mut all = Vec::new();
        for (name, calls) in &memory.under_way {
            all.extend(calls.iter().map(|(at, begun)| (None, begun.assertion(name, *at, now_ms, Claim::Begun))));
        }
        let numbered = (memory.first..).zip(&memory.ended);
        let ended: Vec<_> = numbered
            .map(|(number, e)| (Some(number), e.begun.assertion(&e.name, e.position, now_ms, Claim::Begun)))
            .collect();
        all.extend(ended.into_iter().rev());
        all
    }

    /// The result of an ended call, where it is remembered still.
    fn with_result(&self, number: u64, now_ms: i64) -> Option<Assertion> {
        let memory = self.lock();
        let ended = memory.ended.get(usize::try_from(number.checked_sub(memory.first)?).ok()?)?;
        let claim = Claim::Ended(ended.result.clone()?);
        Some(ended.begun.assertion(&ended.name, ended.position, now_ms, claim))
    }

    fn told(&self, run_id: &str) {
        self.lock().run_id = Some(run_id.to_owned());
    }

    /// Rule 8: if Redis is another than it was, says what was begun and what came of it, before the heartbeat that
    /// brought the news counts. Nobody begins such a call for a lease, so all that a living worker knows comes first.
    pub(crate) async fn assert_after(&self, beat: &Beat) -> Result<(), StoreError> {
        let lease = Duration::from_millis(self.store.options().lease_ms.unsigned_abs());
        if !self.is_another(&beat.run_id, REMEMBERED.max(lease)) {
            self.effects.forget(REMEMBERED.max(lease));
            self.facts.forget(REMEMBERED.max(lease));
            return Ok(());
        }
        let all = self.all(beat.now_ms);
        let (mut marked, mut late) = (Vec::new(), 0_usize);
        // Even nothing is said: that this is another epoch is news to a Redis that has lost everything.
        let nothing = all.is_empty().then_some(&all[..]);
        for chunk in all.chunks(limits::BATCH_ENTRIES_MAX).chain(nothing) {
            let calls: Vec<Assertion> = chunk.iter().map(|(_, call)| call.clone()).collect();
            for ((number, call), asserted) in chunk.iter().zip(self.say(&calls).await?) {
                match asserted {
                    Some(Asserted::Marked) => marked.push(*number),
                    Some(Asserted::Late) => {
                        late += 1;
                        self.metrics.fenced("assert");
                        tracing::error!(turn = %call.name, position = call.position, "Redis lost a begin record, and the call began again before this worker could restore it");
                    }
                    Some(Asserted::Known | Asserted::Unmarked) | None => {}
                }
            }
        }
        self.assert_results(&marked, beat.now_ms).await?;
        for _ in 0..self.effects.assert(&self.store, beat.now_ms).await? {
            late += 1;
            self.metrics.fenced("assert");
        }
        self.facts.assert(&self.store, beat.now_ms).await?;
        self.told(&beat.run_id);
        tracing::warn!(
            remembered = all.len(),
            lost = marked.len(),
            late,
            "Redis restarted or failed over; repeated this worker's begin records"
        );
        Ok(())
    }

    /// The second round: results of what Redis did not know, in batches that are bounded by bytes.
    async fn assert_results(&self, marked: &[Option<u64>], now_ms: i64) -> Result<(), StoreError> {
        let (mut batch, mut size) = (Vec::new(), 0);
        for number in marked.iter().copied().flatten() {
            let Some(call) = self.with_result(number, now_ms) else { continue };
            size += match &call.claim {
                Claim::Ended(result) => bytes(result),
                Claim::Begun | Claim::Undone => 0,
            };
            batch.push(call);
            if size >= limits::TURN_BYTES_MAX || batch.len() >= limits::BATCH_ENTRIES_MAX {
                self.say(&batch).await?;
                (batch, size) = (Vec::new(), 0);
            }
        }
        if !batch.is_empty() {
            self.say(&batch).await?;
        }
        Ok(())
    }

    /// Says a batch. One call that Redis refuses costs itself alone: a heartbeat must not wait for it for ever.
    async fn say(&self, calls: &[Assertion]) -> Result<Vec<Option<Asserted>>, StoreError> {
        match self.store.assert(calls, true).await {
            Err(error) if error.is_script_error() => {}
            said => return Ok(said?.into_iter().map(Some).collect()),
        }
        let mut said = Vec::with_capacity(calls.len());
        for call in calls {
            match self.store.assert(std::slice::from_ref(call), true).await {
                Err(error) if error.is_script_error() => {
                    tracing::error!(%error, turn = %call.name, position = call.position, "Redis rejected a restored begin record");
                    said.push(None);
                }
                asserted => said.push(asserted?.pop()),
            }
        }
        Ok(said)
    }

    /// Results that came too late for their slice: whoever has it now finds those of calls that must not happen twice,
    /// if it has not begun them.
    pub(crate) async fn leave_for_others(&self, name: &TurnName, first: usize, results: &[SettledCall]) {
        let mut left = self.unsettled(name, first, results, self.clock.now_ms());
        while !left.is_empty() && !self.now.is_cancelled() {
            let rounds = self.rounds();
            let calls: Vec<Assertion> = left.iter().map(|(_, call)| call.clone()).collect();
            let said = self.say_until_heard(&calls).await;
            if self.remember(rounds, &mut left, &said) {
                return;
            }
        }
    }

    /// The call did nothing: it may be begun again.
    pub(crate) async fn take_back(&self, name: &TurnName, position: usize) {
        let undone = self.undone(name, position);
        self.say_until_heard(undone.as_slice()).await;
    }

    /// Says of one call that it was begun, if Redis may have lost that between its answer and our memory. False if
    /// somebody else has begun it.
    pub(crate) async fn begun_for_sure(&self, name: &TurnName, position: usize) -> bool {
        let call = {
            let memory = self.lock();
            let begun = memory.under_way.get(name).and_then(|calls| calls.get(&position));
            begun.map(|begun| begun.assertion(name, position, self.clock.now_ms(), Claim::Begun))
        };
        let said = self.say_until_heard(call.as_slice()).await;
        // Nobody has answered where the worker must stop: then nothing is sure.
        said.len() == call.as_slice().len() && said.iter().all(|asserted| *asserted == Asserted::Marked)
    }

    async fn say_until_heard(&self, calls: &[Assertion]) -> Vec<Asserted> {
        if calls.is_empty() || self.now.is_cancelled() {
            return Vec::new();
        }
        let said = retry_until(&self.now, || async {
            match self.store.assert(calls, false).await {
                Ok(asserted) => Attempt::Done(asserted),
                Err(error) => {
                    tracing::debug!(%error, "failed to restore begin records; retrying");
                    Attempt::Failed
                }
            }
        });
        said.await.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_store::StoreOptions;

    use super::*;

    /// Of a worker whose Redis nobody listens for.
    fn claims() -> Claims {
        Claims {
            store: Store::open("redis://127.0.0.1:1", 0, Arc::new(StoreOptions::default())).unwrap(),
            metrics: Arc::new(Metrics::new().unwrap()),
            clock: Arc::default(),
            now: CancellationToken::new(),
            memory: Mutex::default(),
            effects: ClaimedEffects::default(),
            facts: SaidFacts::default(),
            marks_ms: AtomicI64::default(),
        }
    }

    #[tokio::test]
    async fn nothing_is_begun_for_sure_if_the_worker_stops_before_redis_answers() {
        let (claims, name) = (claims(), TurnName::parse("acme:t1").unwrap());
        claims.now.cancel();
        assert!(claims.begun_for_sure(&name, 0).await, "there is nothing to say of a call that nobody remembers");
        claims.begun(&name, 0, "digest", "w.1", i64::MAX / 2);
        assert!(!claims.begun_for_sure(&name, 0).await, "somebody else may have begun it");
    }

    #[tokio::test]
    async fn a_call_that_was_under_way_when_its_slice_was_lost_is_said_to_the_next_redis() {
        let (claims, name) = (claims(), TurnName::parse("acme:t1").unwrap());
        claims.begun(&name, 1, "digest", "w.1", i64::MAX / 2);
        // An earlier result of the slice came too late: Redis has lost the turn, and this call was not told of.
        claims.let_go(&name, 0..3);
        let said: Vec<usize> = claims.all(0).iter().map(|(_, call)| call.position).collect();
        assert_eq!(said, [1]);
        claims.undone(&name, 1);
        assert_eq!(claims.all(0).len(), 1, "nobody takes that back: whoever held it has gone");
    }
}
