//! Workers: they send heartbeats, take slices, begin calls, run tools and settle. Each worker has one journal.

use std::sync::{Arc, Mutex};

use rand::Rng;
use tickfleet_core::Section;
use tickfleet_core::call::begin::{Begin, BeginResult};
use tickfleet_core::call::claim::{Claimant, EffectEnd, EndClaim};
use tickfleet_core::keys;
use tickfleet_core::recovery::epoch::{
    ConfirmedUnrunCalls, JournaledOutcome, QueryUnrunCalls, ReportBegunCall, UnrunCallsResult,
};
use tickfleet_core::recovery::journal::{JournalCall, Report};
use tickfleet_core::turn::end::{EndedCall, ExecutionState, Render, RenderedCall};
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{
    Park, ParkReason, ParkResult, RequeueReason, RequeueSlice, Settle, SettleResult, Slice, WaitReason,
};
use tickfleet_model::{Call, Priority};
use tickfleet_store::seam::{Store, TakeRequest, Versions};

use crate::executor::{Slots, yield_now};
use crate::fleet::{
    DEADLINE_MS, LEASE_MS, Process, ProcessEnded, ProcessState, Shared, TestRenderer, is_once, rendered,
};
use crate::governed::{Governed, unreported};

const SLOTS: u64 = 2;

/// After a lost lease or a failure of the store, the worker continues under another name, with the same journal.
pub async fn work(shared: Arc<Shared>, index: usize, incarnation: u32, seed: u64) {
    let state = Arc::<Mutex<ProcessState>>::default();
    for again in 0.. {
        let kind = if again == 0 { "w".to_owned() } else { format!("w{again}") };
        {
            let mut state = state.lock().unwrap();
            (state.heartbeat_ms, state.ends) = (0, false);
        }
        let slot = |slot| {
            let seed = seed ^ slot << 56;
            let process = Process::new(&shared, &kind, index, incarnation, seed);
            let versions = Versions::new(format!("{}.{slot}.", process.consumer));
            Process { versions, state: Arc::clone(&state), ..process }.work_in_slot()
        };
        Slots::new((0..SLOTS).map(slot), seed ^ again).await;
        yield_now().await;
    }
}

enum Next {
    Run(Box<Slice>),
    /// The store may have lost the record that the call began, so the call must not run.
    Lost(Box<Slice>),
    /// The flag is true if the call ran, and `None` if that is unknown.
    Result(RenderedCall, Option<bool>),
    Waits(WaitReason),
    /// An equal call ended without effect, so this call can begin again.
    Again(Option<Claimant>),
    Ends(EndReason),
    Hold,
    Stale,
}

impl Process {
    async fn work_in_slot(mut self) {
        while !self.state().ends {
            if self.work_once().await.is_err() {
                self.state().ends = true;
            }
        }
    }

    async fn work_once(&mut self) -> Result<(), ProcessEnded> {
        self.heartbeat(true).await?;
        if self.state().beats {
            yield_now().await;
            return Ok(());
        }
        if !self.is_leased() {
            return Err(ProcessEnded);
        }
        let now_ms = self.shard.now_ms;
        self.state().journal.forget(now_ms);
        if self.rng.random_range(0..16) == 0 {
            self.give_back_strays().await?;
        }
        let queues = vec![keys::suspect(Priority::Normal), keys::ready(Priority::Normal)];
        let count = self.rng.random_range(1..=2);
        let take = TakeRequest { consumer: self.consumer.as_str().into(), queues, count, wait_ms: 0 };
        let taken_epoch = self.state().journal.epoch();
        if taken_epoch == 0 {
            yield_now().await;
            return Ok(());
        }
        let taken = self.shared.store.take(&take).await?;
        let slices: Vec<Slice> = taken
            .into_iter()
            .map(|one| Slice::read(one.queue, one.entry, &one.fields).unwrap())
            // After a restart, the store may deliver an entry that the worker still runs.
            .filter(|slice| self.state().running.insert(slice.delivery()))
            .collect();
        let mut ended = Ok(());
        for slice in slices {
            let delivery = slice.delivery();
            if ended.is_ok() {
                ended = self.run_slice(slice, taken_epoch).await;
            }
            let mut state = self.state();
            state.running.remove(&delivery);
            state.canceled.remove(&delivery);
        }
        ended
    }

    /// Requeues slices that this worker holds but does not run. A restart of the store has lost the end of these
    /// slices.
    async fn give_back_strays(&mut self) -> Result<(), ProcessEnded> {
        let queues = [keys::suspect(Priority::Normal), keys::ready(Priority::Normal)];
        let held = self.held(&queues, &self.consumer).await?.into_iter().filter(|one| !one.fields.is_empty());
        let mut slices: Vec<Slice> = held.map(|one| Slice::read(one.queue, one.entry, &one.fields).unwrap()).collect();
        {
            let mut state = self.state();
            slices.retain(|slice| !state.running.contains(&slice.delivery()));
            let seen = slices.iter().map(|slice| slice.entry.clone()).collect();
            let before = std::mem::replace(&mut state.strays, seen);
            // An entry that is new since the last check may belong to a take in progress.
            slices.retain(|slice| before.contains(&slice.entry));
        }
        for slice in slices {
            self.decide(RequeueSlice { slice: &slice, reason: &RequeueReason::Unknown }).await?;
        }
        Ok(())
    }

    pub async fn report(&mut self) -> Result<(), ProcessEnded> {
        while self.shard.epoch > self.state().journal.epoch() {
            let epoch = self.shard.epoch;
            let now_ms = self.shard.now_ms;
            let reports: Vec<Report<()>> = self.state().journal.reports(now_ms).collect();
            for report in reports {
                let Report::Call(assert) = report else { continue };
                self.decide(assert).await?.ok_or(ProcessEnded)?;
            }
            self.state().journal.reported(epoch);
            let losses = usize::try_from(epoch).unwrap_or(1) - 1;
            let worker = self.worker();
            self.shared.oracle.lock().unwrap().reported(&worker, losses, self.shared.clock.now_ms());
        }
        Ok(())
    }

    fn worker(&self) -> String {
        self.consumer.split_once('-').unwrap_or_default().1.to_owned()
    }

    /// `taken_epoch` is the epoch of the worker's journal when the worker took the slice.
    async fn run_slice(&mut self, mut slice: Slice, taken_epoch: u64) -> Result<(), ProcessEnded> {
        let mut results: Vec<RenderedCall> = Vec::new();
        let mut nothing: Option<Claimant> = None;
        while results.len() < slice.calls.len() {
            self.heartbeat(true).await?;
            if self.state().canceled.contains(&slice.delivery()) {
                return self.end(slice, results, EndReason::Canceled).await;
            }
            if !self.is_leased() {
                // The results are not committed. The reaper redelivers the slice, so its calls can run again.
                return Err(ProcessEnded);
            }
            if self.state().journal.epoch() != taken_epoch {
                // The store may have lost the take, so another worker may have the slice, too.
                if !results.is_empty() && self.settle(&slice, &results, None).await?.is_none() {
                    return Ok(());
                }
                if results.is_empty() {
                    self.undo(&slice, slice.turn.position).await?;
                    let now_ms = self.shard.now_ms;
                    self.state().journal.confirm(&slice.delivery(), usize::MAX, now_ms);
                    self.decide(RequeueSlice { slice: &slice, reason: &RequeueReason::ParallelReads }).await?;
                }
                return Ok(());
            }
            let position = slice.turn.position + results.len();
            let call = slice.calls[results.len()].clone();
            let once = is_once(&call.tool);
            if once && !results.is_empty() {
                // Earlier results must be committed before a `once` call begins.
                let Some(next) = self.settle(&slice, &results, None).await? else { return Ok(()) };
                slice = next;
                results.clear();
                continue;
            }
            let mut governed = Governed::of(&slice, position, &call);
            if let Some(claim) = &mut governed.claim {
                claim.nothing = nothing.take();
            }
            match self.begin(&slice, position, (once, taken_epoch), &governed).await? {
                Next::Run(begun) => slice = *begun,
                Next::Lost(begun) => {
                    slice = *begun;
                    continue;
                }
                Next::Result(result, ran) => {
                    let text = String::from_utf8_lossy(&result.result).into_owned();
                    results.push(result);
                    if once {
                        let ends = governed.ends(&slice, ran, &text);
                        let Some(next) = self.settle_with(&slice, &results, None, &ends).await? else { return Ok(()) };
                        slice = next;
                        results.clear();
                    }
                    continue;
                }
                Next::Waits(reason) => {
                    if self.wait(&slice, &governed, reason).await? == ParkResult::Canceled {
                        return self.end(slice, results, EndReason::Canceled).await;
                    }
                    return Ok(());
                }
                Next::Again(claimant) => {
                    nothing = claimant;
                    continue;
                }
                Next::Ends(why) => return self.end(slice, results, why).await,
                Next::Hold => {
                    self.shard = self.shared.store.shard().await?;
                    continue;
                }
                Next::Stale => return Ok(()),
            }
            if !self.is_leased() {
                self.undo(&slice, position).await?;
                return Err(ProcessEnded);
            }
            if !self.execute(&slice, position, &call).await {
                self.undo(&slice, position).await?;
                let Some(next) = self.retry(&slice, &results, &governed).await? else { return Ok(()) };
                slice = next;
                results.clear();
                continue;
            }
            results.push(rendered("ok", false));
            self.state().journal.end(&slice.delivery(), position, rendered("ok", false));
            if once {
                let ends = governed.ends(&slice, Some(true), "\"ok\"");
                let Some(next) = self.settle_with(&slice, &results, None, &ends).await? else { return Ok(()) };
                slice = next;
                results.clear();
            }
        }
        if !results.is_empty() {
            self.settle(&slice, &results, None).await?;
        }
        Ok(())
    }

    /// The journal records every call that runs, even reads. Otherwise, a read would be reported as not run after the
    /// store lost its result.
    async fn begin(
        &mut self,
        slice: &Slice,
        position: usize,
        (once, taken_epoch): (bool, u64),
        governed: &Governed,
    ) -> Result<Next, ProcessEnded> {
        let by = self.versions.draw().to_string();
        let begin = Begin {
            slice,
            position,
            by: &by,
            once,
            is_durable: false,
            epoch: self.state().journal.epoch(),
            lease_ms: LEASE_MS,
            streak: None,
            facts: governed.facts.clone(),
            consent: governed.consent.clone(),
            claim: governed.claim.clone(),
            cache: None,
        };
        let begun = self.decide(begin).await;
        match begun {
            Ok(Some(BeginResult::Started(started))) => {
                let delivery = slice.delivery();
                let digest = slice.turn.head.digest.clone();
                let until_ms = slice.turn.head.deadline_ms + 2 * DEADLINE_MS;
                let mut next = slice.clone();
                next.version = started.version;
                next.turn = started.turn;
                let call = JournalCall { delivery, digest, position, by, once, until_ms };
                let may_run = self.state().journal.begin(call, taken_epoch);
                Ok(if may_run { Next::Run(Box::new(next)) } else { Next::Lost(Box::new(next)) })
            }
            Ok(Some(BeginResult::Unknown)) => Ok(Next::Result(rendered("may_have_run", true), None)),
            Ok(Some(BeginResult::Reported { call })) => Ok(Next::Result(call, Some(true))),
            Ok(Some(BeginResult::Waits(reason))) => Ok(Next::Waits(reason)),
            Ok(Some(BeginResult::Asks { .. })) => {
                let approval = governed.consent.as_ref().map(|consent| consent.uses.id.clone()).unwrap_or_default();
                Ok(Next::Waits(WaitReason::Approval { approval }))
            }
            Ok(Some(BeginResult::Refused(_))) => Ok(Next::Result(rendered("refused", true), Some(false))),
            Ok(Some(BeginResult::AnsweredBy { .. })) => Ok(Next::Result(rendered("same", false), Some(false))),
            Ok(Some(BeginResult::Abandoned { by, result })) => self.take_over(governed, by, result).await,
            Ok(Some(BeginResult::Canceled { .. })) => Ok(Next::Ends(EndReason::Canceled)),
            Ok(Some(BeginResult::Expired)) => Ok(Next::Ends(EndReason::Expired)),
            Ok(Some(BeginResult::Hold)) => Ok(Next::Hold),
            Ok(Some(BeginResult::Stale)) => Ok(Next::Stale),
            Ok(Some(other)) => panic!("a begin ends as {}", other.word()),
            Ok(None) => Err(ProcessEnded),
            Err(ProcessEnded) => Err(ProcessEnded),
        }
    }

    /// If the call was reported as begun, also reports that it did nothing.
    async fn undo(&mut self, slice: &Slice, position: usize) -> Result<(), ProcessEnded> {
        let undone = self.state().journal.undo(&slice.delivery(), position);
        if let Some(assert) = undone {
            self.decide(assert).await?;
        }
        Ok(())
    }

    /// Reports the results in the journal, because another worker may hold the slice and need the results.
    async fn report_results(&mut self, slice: &Slice, upto: usize) -> Result<(), ProcessEnded> {
        if self.shard.epoch_began_ms == 0 {
            return Ok(());
        }
        let now_ms = self.shard.now_ms;
        let reports: Vec<ReportBegunCall> = {
            let state = self.state();
            let positions = slice.turn.position..upto;
            let all = positions.filter_map(|position| state.journal.report_of(&slice.delivery(), position, now_ms));
            all.filter(|report| report.once && matches!(report.outcome, JournaledOutcome::Ended(_))).collect()
        };
        for report in reports {
            self.decide(report).await?;
        }
        Ok(())
    }

    /// If the equal call may have taken effect, this call ends with the same result.
    async fn take_over(
        &mut self,
        governed: &Governed,
        by: Claimant,
        result: Option<String>,
    ) -> Result<Next, ProcessEnded> {
        let did_nothing =
            result.as_deref().is_some_and(|word| ["not_run", "tried", "failed"].contains(&word.trim_matches('"')));
        if did_nothing {
            return Ok(Next::Again(Some(by)));
        }
        let Some(claim) = &governed.claim else { return Ok(Next::Again(None)) };
        let end = EffectEnd::Unknown(result.unwrap_or_else(|| "\"may_have_run\"".to_owned()));
        self.decide(EndClaim { effect: claim.effect.clone(), by, end, window_ms: claim.window_ms }).await?;
        Ok(Next::Again(None))
    }

    /// Returns false if the tool failed and certainly had no effect.
    async fn execute(&mut self, slice: &Slice, position: usize, call: &Call) -> bool {
        // The lease was checked at this time. No worker can check again at the moment of the effect.
        let at_ms = self.shared.clock.now_ms();
        let polls = if self.rng.random_range(0..8) == 0 { self.rng.random_range(1..200) } else { 1 };
        for _ in 0..polls {
            yield_now().await;
        }
        if self.rng.random_range(0..100) < 15 {
            return false;
        }
        let turn = slice.name.turn.as_str();
        let worker = self.worker();
        let one = self.shared.oracle.lock().unwrap().executed(
            turn,
            position,
            &call.tool,
            slice.turn.head.agent.as_str(),
            &worker,
            at_ms,
        );
        yield_now().await;
        self.shared.oracle.lock().unwrap().completed(turn, position, one);
        true
    }

    /// After the last attempt, the call ends. Returns the slice if calls remain.
    async fn retry(
        &mut self,
        slice: &Slice,
        results: &[RenderedCall],
        governed: &Governed,
    ) -> Result<Option<Slice>, ProcessEnded> {
        let mut slice = slice.clone();
        if !results.is_empty() {
            let Some(next) = self.settle(&slice, results, None).await? else { return Ok(None) };
            slice = next;
        }
        let attempts = slice.turn.attempts + 1;
        if attempts >= 4 {
            let ends = governed.ends(&slice, Some(false), "\"failed\"");
            return self.settle_with(&slice, &[rendered("failed", true)], None, &ends).await;
        }
        let delay_ms = 30;
        let cause = "it failed".to_owned();
        let reason = ParkReason::Retry { attempts, delay_ms, cause, keeps_begun: false };
        let park = Park { slice: &slice, reason: &reason, had_parallel_reads: false, waits_while: &[], sections: &[] };
        if let Some(ParkResult::Canceled) = self.decide(park).await? {
            // Another worker may have begun this call, and the store may have lost that record.
            self.end(slice, Vec::new(), EndReason::Canceled).await?;
        }
        Ok(None)
    }

    /// First reads whether another worker has begun one of the calls that did not run.
    async fn end(&mut self, slice: Slice, mut results: Vec<RenderedCall>, why: EndReason) -> Result<(), ProcessEnded> {
        let ran = results.len();
        loop {
            results.truncate(ran);
            let from = slice.turn.position + ran;
            let upto = slice.turn.head.calls;
            let name = &slice.name;
            let digest = slice.turn.head.digest.as_str();
            self.shard = self.shared.store.shard().await?;
            let unrun = self
                .decide(QueryUnrunCalls { name, digest, from, upto, lease_ms: LEASE_MS })
                .await?
                .ok_or(ProcessEnded)?;
            let UnrunCallsResult::Confirmed(known) = unrun else {
                self.heartbeat(true).await?;
                if !self.is_leased() {
                    return Err(ProcessEnded);
                }
                continue;
            };
            results.extend((from..upto).map(|position| self.ended(&slice, position, &why, &known)));
            let mut sections = unreported(&slice);
            sections.push(Box::new(known));
            if self.settled(&slice, &results, Some(&why), &sections).await? != SettleResult::Unsure {
                return Ok(());
            }
        }
    }

    fn ended(&self, slice: &Slice, position: usize, why: &EndReason, known: &ConfirmedUnrunCalls) -> RenderedCall {
        let mark = known.began.get(&position);
        if let Some(reported) = mark.and_then(|mark| mark.result.as_ref()) {
            return reported.into();
        }
        let execution = if mark.is_some() { ExecutionState::MayHaveRun } else { slice.turn.execution_state(position) };
        let name = &slice.name;
        let turn = &slice.turn;
        let now_ms = self.shard.now_ms;
        TestRenderer.ended(&EndedCall { name, turn, position, call: None, reason: why, execution, now_ms })
    }

    async fn settle(
        &mut self,
        slice: &Slice,
        results: &[RenderedCall],
        reason: Option<&EndReason>,
    ) -> Result<Option<Slice>, ProcessEnded> {
        self.settle_with(slice, results, reason, &[]).await
    }

    async fn settle_with(
        &mut self,
        slice: &Slice,
        results: &[RenderedCall],
        reason: Option<&EndReason>,
        ends: &[Box<dyn Section>],
    ) -> Result<Option<Slice>, ProcessEnded> {
        let SettleResult::Continues { version, turn } = self.settled(slice, results, reason, ends).await? else {
            return Ok(None);
        };
        let mut next = slice.clone();
        next.advance(version, *turn);
        Ok(Some(next))
    }

    /// Tries again until the store reports the outcome.
    async fn settled(
        &mut self,
        slice: &Slice,
        results: &[RenderedCall],
        reason: Option<&EndReason>,
        ends: &[Box<dyn Section>],
    ) -> Result<SettleResult, ProcessEnded> {
        let shared = Arc::clone(&self.shared);
        let frame = TestRenderer.frame(&slice.name, &slice.turn.head);
        let canceled = reason.filter(|why| **why == EndReason::Canceled).map(|_| "enough");
        let sections: Vec<&dyn Section> = ends.iter().map(AsRef::as_ref).collect();
        let upto = slice.turn.position + results.len();
        loop {
            let settle =
                Settle { slice, results, frame: &frame, sections: &sections, reason, canceled, bounds: &shared.bounds };
            match self.decide(settle).await {
                Ok(Some(settled)) => {
                    let now_ms = self.shard.now_ms;
                    match settled {
                        SettleResult::Unsure => {}
                        SettleResult::Stale => {
                            self.report_results(slice, upto).await?;
                            self.state().journal.confirm(&slice.delivery(), usize::MAX, now_ms);
                        }
                        _ => self.state().journal.confirm(&slice.delivery(), upto, now_ms),
                    }
                    return Ok(settled);
                }
                Ok(None) => return Err(ProcessEnded),
                Err(ProcessEnded) => {
                    yield_now().await;
                }
            }
        }
    }
}
