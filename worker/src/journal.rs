//! The worker's journal of begun calls. If the store lost writes in a restart, the worker reports the entries again.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tickfleet_core::call::claim::{EffectEnd, EndClaim, EndClaimResult};
use tickfleet_core::call::facts::{CallEndReport, ReportCallEnds, SessionName};
use tickfleet_core::recovery::epoch::{JournaledOutcome, ReportBegunCall, ReportBegunResult};
use tickfleet_core::recovery::journal::{Journal as Entries, JournalCall, Report};
use tickfleet_core::turn::Slice;
use tickfleet_core::turn::end::RenderedCall;
use tickfleet_core::{Decision, Receipt};
use tickfleet_engine::retry_until::{Attempt, retry_until};
use tickfleet_model::limits;
use tickfleet_ops::metrics::Metrics;
use tickfleet_store::seam::RunError;
use tickfleet_store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

use crate::Common;

/// A confirmed entry is kept for this time, or for the length of a lease if that is longer. With an append-only file,
/// Redis loses only newer writes.
const KEPT_MS: i64 = 60_000;
/// The maximum bytes of results in the journal. The oldest results are dropped first.
const RESULT_BYTES_MAX: usize = 32 * 1024 * 1024;
/// A begun call is reported until this time after its turn's deadline. A turn that is submitted again may get a later
/// deadline. It may also wait for the next day, which has at most 25 hours.
const KEPT_AFTER_DEADLINE_MS: i64 = 2 * 86_400_000;

#[derive(Debug, Clone)]
enum Change {
    Facts(SessionName, CallEndReport),
    /// The claim, the time of the report, and the deadline of the call's turn, both in milliseconds.
    Claim(EndClaim, i64, i64),
}

pub(crate) struct WorkerJournal {
    store: Store,
    metrics: Arc<Metrics>,
    now: CancellationToken,
    entries: Mutex<Entries<Change>>,
    /// Locked while a report is sent, so that two reports never overlap.
    reporting: tokio::sync::Mutex<()>,
}

impl WorkerJournal {
    pub(crate) fn new(common: &Common) -> Self {
        let store = common.store.clone();
        let entries = Entries::new(KEPT_MS.max(store.options().lease_ms), RESULT_BYTES_MAX);
        Self {
            store,
            metrics: common.metrics.clone(),
            now: common.now.clone(),
            entries: Mutex::new(entries),
            reporting: tokio::sync::Mutex::default(),
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.entries.lock().epoch()
    }

    /// For a store that has lost data: the next heartbeat reports everything again.
    pub(crate) fn mark_unreported(&self) {
        self.entries.lock().reported(0);
    }

    /// Records that a call is about to run. Must follow the commit that begins the call. If false, the store may have
    /// lost this commit: do not run the call.
    pub(crate) fn begin(&self, slice: &Slice, position: usize, by: &str, once: bool, epoch: u64) -> bool {
        let head = &slice.turn.head;
        let call = JournalCall {
            delivery: slice.delivery(),
            digest: head.digest.clone(),
            position,
            by: by.to_owned(),
            once,
            until_ms: head.deadline_ms.saturating_add(KEPT_AFTER_DEADLINE_MS),
        };
        self.entries.lock().begin(call, epoch)
    }

    /// Records the result of a call. Must precede the commit of the result.
    pub(crate) fn end(&self, slice: &Slice, position: usize, result: &RenderedCall) {
        self.entries.lock().end(&slice.delivery(), position, result.clone());
    }

    /// If the call was reported as begun, reports to the store that the call did nothing.
    pub(crate) async fn undo(&self, slice: &Slice, position: usize) {
        let undone = self.entries.lock().undo(&slice.delivery(), position);
        let Some(undone) = undone else { return };
        // Another task may still be reporting the call as begun.
        let reported = self.now.run_until_cancelled(self.reporting.lock()).await;
        self.report_until_answered(&[undone]).await;
        drop(reported);
    }

    pub(crate) fn confirm(&self, slice: &Slice, upto: usize) {
        self.entries.lock().confirm(&slice.delivery(), upto, self.now_ms());
    }

    pub(crate) fn release(&self, slice: &Slice) {
        self.confirm(slice, usize::MAX);
    }

    /// Only for changes that the store has confirmed.
    pub(crate) fn record_fact_changes(&self, session: &SessionName, end: CallEndReport) {
        let now_ms = end.ended_ms;
        self.entries.lock().change(Change::Facts(session.clone(), end), 0, now_ms);
    }

    /// Only for a claim, or an end of a claim, that the store has confirmed. The deadline is that of the call's turn.
    pub(crate) fn record_claim(&self, claim: EndClaim, deadline_ms: i64) {
        let now_ms = self.now_ms();
        let bytes = bytes_of(&claim.end);
        self.entries.lock().change(Change::Claim(claim, now_ms, deadline_ms), bytes, now_ms);
    }

    /// Reports results of a slice that this worker has lost. After a restart of the store, the new holder may lack the
    /// intent records.
    pub(crate) async fn report_results(&self, slice: &Slice, positions: std::ops::Range<usize>) {
        let state = self.store.state();
        if state.epoch_began_ms == 0 {
            return;
        }
        let delivery = slice.delivery();
        let left: Vec<ReportBegunCall> = {
            let entries = self.entries.lock();
            let reports = positions.filter_map(|position| entries.report_of(&delivery, position, state.now_ms));
            reports.filter(|report| report.once && matches!(report.outcome, JournaledOutcome::Ended(_))).collect()
        };
        self.report_until_answered(&left).await;
    }

    /// If the store has restarted, reports all entries of the journal to it. Must be called with each heartbeat, and no
    /// call may begin before the report succeeds.
    pub(crate) async fn report(&self) -> Result<(), StoreError> {
        self.entries.lock().forget(self.now_ms());
        let _reporting = self.reporting.lock().await;
        loop {
            let state = self.store.state();
            if state.epoch == self.epoch() {
                return Ok(());
            }
            let reports: Vec<Report<Change>> = self.entries.lock().reports(state.now_ms).collect();
            self.report_all(reports, state.now_ms).await?;
            self.entries.lock().reported(state.epoch);
        }
    }

    async fn report_all(&self, reports: Vec<Report<Change>>, now_ms: i64) -> Result<(), StoreError> {
        let reported = reports.len();
        let mut calls = Vec::new();
        let mut facts = BTreeMap::<_, Vec<_>>::new();
        let mut claims = BTreeMap::new();
        for report in reports {
            match report {
                Report::Call(call) => calls.push(call),
                Report::Change(Change::Facts(session, end)) => facts.entry(session).or_default().push(end),
                // The last report of an effect counts.
                Report::Change(Change::Claim(claim, at_ms, deadline_ms)) => {
                    claims.insert(claim.effect.key(), (claim, at_ms, deadline_ms));
                }
            }
        }
        let (lost, late) = self.report_calls(&calls).await?;
        let late = late + self.report_claims(claims.into_values(), now_ms).await?;
        let facts: Vec<ReportCallEnds> =
            facts.into_iter().map(|(session, ends)| report_call_ends(session, ends, now_ms)).collect();
        let mut lost_facts = 0;
        for batch in facts.chunks(limits::BATCH_ENTRIES_MAX) {
            let restored = self.decide(batch, |one| one.session.session.clone()).await?;
            lost_facts += restored.into_iter().flatten().filter(|receipt| receipt.result).count();
        }
        if reported > 0 || late > 0 {
            tracing::warn!(
                reported,
                lost,
                late,
                sessions = lost_facts,
                "store restarted or failed over; reported this worker's journal"
            );
        }
        Ok(())
    }

    /// Returns the number of calls that the store had lost, and of `once` calls that another attempt has begun since.
    async fn report_calls(&self, calls: &[ReportBegunCall]) -> Result<(usize, usize), StoreError> {
        let mut lost = 0;
        let mut late = 0;
        for batch in batches(calls, |call| match &call.outcome {
            JournaledOutcome::Ended(result) => result.result.len() + result.message.len() + result.audit.len(),
            JournaledOutcome::Begun | JournaledOutcome::Undone => 0,
        }) {
            let asserted = self.decide(batch, |call| format!("{}/{}", call.name, call.position)).await?;
            for (call, receipt) in batch.iter().zip(asserted) {
                match receipt.map(|receipt| receipt.result) {
                    Some(ReportBegunResult::Recorded) => lost += 1,
                    Some(ReportBegunResult::Late) if call.once => {
                        late += 1;
                        self.metrics.fenced("assert");
                        tracing::error!(turn = %call.name, position = call.position, "store lost a begin record, and the call began again before this worker could restore it");
                    }
                    _ => {}
                }
            }
        }
        Ok((lost, late))
    }

    /// Returns the number of effects that another call has claimed since.
    async fn report_claims(
        &self,
        claims: impl Iterator<Item = (EndClaim, i64, i64)>,
        now_ms: i64,
    ) -> Result<usize, StoreError> {
        let claims: Vec<EndClaim> =
            claims.filter_map(|(claim, at_ms, deadline_ms)| remaining(claim, at_ms, deadline_ms, now_ms)).collect();
        let mut late = 0;
        for batch in batches(&claims, |claim| bytes_of(&claim.end)) {
            let ended = self.decide(batch, |claim| claim.by.call.to_string()).await?;
            for (claim, receipt) in batch.iter().zip(ended) {
                let is_others = receipt.is_some_and(|receipt| receipt.result == EndClaimResult::Others);
                if is_others && claim.end != EffectEnd::Undone {
                    late += 1;
                    self.metrics.fenced("assert");
                    tracing::error!(call = %claim.by.call, effect = claim.effect.hash, "store lost an effect claim, and an equal call claimed it before this worker could restore it");
                }
            }
        }
        Ok(late)
    }

    /// A rejected decision affects only itself, and does not delay the heartbeat.
    async fn decide<D: Decision + Sync>(
        &self,
        batch: &[D],
        name: impl Fn(&D) -> String + Send,
    ) -> Result<Vec<Option<Receipt<D::Output>>>, StoreError>
    where
        D::Output: Send,
    {
        let results = self.store.decide_all(batch).await?;
        let receipt = |(one, result): (&D, Result<Receipt<D::Output>, RunError>)| {
            result
                .inspect_err(
                    |error| tracing::error!(%error, call = name(one), "store rejected an entry of the journal"),
                )
                .ok()
        };
        Ok(batch.iter().zip(results).map(receipt).collect())
    }

    async fn report_until_answered(&self, calls: &[ReportBegunCall]) {
        if calls.is_empty() || self.now.is_cancelled() {
            return;
        }
        let reported = retry_until(&self.now, || async {
            match self.store.decide_all(calls).await {
                Ok(_) => Attempt::Done(()),
                Err(error) => {
                    tracing::debug!(%error, "failed to report begun calls; retrying");
                    Attempt::Failed
                }
            }
        });
        reported.await;
    }

    fn now_ms(&self) -> i64 {
        self.store.state().now_ms
    }
}

fn bytes_of(end: &EffectEnd) -> usize {
    match end {
        EffectEnd::Ended(result) | EffectEnd::Unknown(result) => result.len(),
        EffectEnd::Undone | EffectEnd::Open => 0,
    }
}

fn report_call_ends(session: SessionName, mut ends: Vec<CallEndReport>, now_ms: i64) -> ReportCallEnds {
    for end in &mut ends {
        let age_ms = now_ms - end.ended_ms;
        end.changes.retain_mut(|change| {
            change.kept_ms -= age_ms;
            change.kept_ms > 0
        });
    }
    ReportCallEnds { session, ends }
}

/// `None` if the claim's lifetime is over. An open claim lives until its turn's deadline, plus its window.
fn remaining(claim: EndClaim, at_ms: i64, deadline_ms: i64, now_ms: i64) -> Option<EndClaim> {
    let window_ms = match claim.end {
        EffectEnd::Open => (deadline_ms - now_ms).max(0).saturating_add(claim.window_ms),
        _ => claim.window_ms - (now_ms - at_ms),
    };
    (window_ms > 0).then_some(EndClaim { window_ms, ..claim })
}

fn batches<T>(all: &[T], bytes_of: impl Fn(&T) -> usize) -> impl Iterator<Item = &[T]> {
    let mut bytes = 0;
    let mut number = 0;
    all.chunk_by(move |item, _| {
        bytes += bytes_of(item);
        number += 1;
        let continues = number < limits::BATCH_ENTRIES_MAX && bytes < limits::TURN_BYTES_MAX;
        if !continues {
            (bytes, number) = (0, 0);
        }
        continues
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_core::call::CallName;
    use tickfleet_core::call::claim::{Claimant, EffectName};
    use tickfleet_model::{TenantId, TurnId};

    use super::*;

    #[test]
    fn a_claim_is_reported_with_its_remaining_window() {
        let by = CallName::new(TurnId::new("t1").unwrap(), 0);
        let effect = EffectName { tenant: TenantId::new("acme").unwrap(), tool: "pay".into(), hash: "0a".into() };
        let by = Claimant { call: by, digest: "d".into(), admitted_ms: 1 };
        let claim = |end| EndClaim { effect: effect.clone(), by: by.clone(), end, window_ms: 1_000 };
        let window_ms = |end, now_ms| remaining(claim(end), 100, 500, now_ms).map(|claim| claim.window_ms);
        assert_eq!(window_ms(EffectEnd::Open, 200), Some(1_300));
        assert_eq!(window_ms(EffectEnd::Open, 600), Some(1_000), "its turn may still be in its last slice");
        assert_eq!(window_ms(EffectEnd::Undone, 600), Some(500));
        assert_eq!(window_ms(EffectEnd::Ended("1".into()), 1_100), None);
    }
}
