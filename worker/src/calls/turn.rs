//! START HERE: one slice of a turn, end to end. The calls run in order, and a transient failure parks the slice.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tickfleet_core::call::facts::CallEndReport;
use tickfleet_core::call::streak::{CountCalls, Repeat, StreakBounds, StreakName};
use tickfleet_core::record::Debited;
use tickfleet_core::turn::end::RenderedCall;
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{Note, RequeueReason, SettleResult, Slice};
use tickfleet_core::{CounterKey, View};
use tickfleet_engine::report::{self, ReportOptions, ReportedCall, limit_words};
use tickfleet_model::policy::{FactRow, ShadowDenial};
use tickfleet_model::{Call, CallId, CallResult, Context, Durability, Effect, Outcome, limits};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::traces;
use tickfleet_store::{Store, entry_ms};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::Common;
use crate::batch::{BeginCall, SettleResults};
use crate::calls::begin::RESTART_WAIT;
use crate::calls::call_attempt::{AttemptOutcome, AttemptProgress, CallAttempt};
use crate::calls::claims;
use crate::calls::end_effects::{EndEffects, SettleSections};
use crate::calls::governed::facts;
use crate::calls::state::Calls;
use crate::config::{WorkerConfig, WorkerConfigs};
use crate::decision_queues::DecisionQueues;
use crate::held_slices::{HeldSlices, SliceLease};
use crate::journal::WorkerJournal;
use crate::slot_pool::Slot;

/// A call that ran at least this long gets its own commit. Running a shorter call again after a crash costs less than a
/// commit.
const COMMIT_ALONE_MS: u64 = 100;

/// The maximum number of reads that run in parallel. These reads share the slice's slot.
const READS_AT_ONCE_MAX: usize = 8;

pub(super) struct SliceRun {
    pub(super) slice: Arc<Slice>,
    pub(super) lease: SliceLease,
    /// The results from the slice's position onward.
    pub(super) results: Vec<UncommittedResult>,
    pub(super) view: View,
    /// Only for calls that count for a streak.
    pub(super) repeats: Vec<(StreakName, StreakBounds, Repeat)>,
    pub(super) canceled: Option<String>,
    /// Set if the last adopted attempt has begun its call.
    pub(super) begun_by: Option<String>,
}

#[derive(Clone)]
pub(super) struct UncommittedResult {
    rendered: RenderedCall,
    effects: EndEffects,
    /// Set if the call was not run because the turn ended.
    reason: Option<EndReason>,
}

struct FinishedAttempt {
    /// Counted from 1.
    number: u32,
    progress: AttemptProgress,
    outcome: AttemptOutcome,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommitOutcome {
    Ok,
    /// The store refused the commit, because calls that were reported as not run may have run. These calls are handled
    /// again.
    Again,
    /// The slice is finished, or another worker holds the slice.
    Over,
}

pub(crate) struct Pipeline {
    pub(super) store: Store,
    pub(super) configs: Arc<WorkerConfigs>,
    pub(super) journal: Arc<WorkerJournal>,
    slices: Arc<HeldSlices>,
    pub(super) decisions: Arc<DecisionQueues>,
    pub(super) calls: Calls,
    pub(super) metrics: Arc<Metrics>,
    report: ReportOptions,
    pub(super) now: CancellationToken,
}

impl Pipeline {
    pub(crate) fn new(
        common: &Common,
        journal: &Arc<WorkerJournal>,
        slices: &Arc<HeldSlices>,
        decisions: &Arc<DecisionQueues>,
        calls: Calls,
        report: ReportOptions,
    ) -> Self {
        Self {
            store: common.store.clone(),
            configs: common.configs.clone(),
            journal: journal.clone(),
            slices: slices.clone(),
            decisions: decisions.clone(),
            calls,
            metrics: common.metrics.clone(),
            report,
            now: common.now.clone(),
        }
    }

    /// Runs the slice. Releases `slot` after the last call, perhaps before the store has the results.
    pub(crate) fn run_slice(
        self: Arc<Self>,
        slice: Slice,
        lease: SliceLease,
        slot: Slot,
        held: OwnedSemaphorePermit,
    ) -> impl Future<Output = ()> + Send {
        // A spawned future is copied several times before it runs, so its large parts are in boxes.
        let slice = Arc::new(slice);
        async move {
            let name = slice.name.clone();
            let entry = slice.entry.clone();
            let span = span_of(&slice);
            Box::pin(self.run_calls(slice, lease, slot)).instrument(span).await;
            self.slices.remove(&name, &entry);
            drop(held);
        }
    }

    /// Marks a slice of a crashed worker as started. Only then does another crash count against the slice. `None` if
    /// the slice must not run here.
    pub(crate) async fn mark_started(&self, slice: Slice) -> Option<Slice> {
        use tickfleet_core::call::begin::BeginResult;
        let mut slice = Arc::new(slice);
        loop {
            let begin = BeginCall {
                slice: Arc::clone(&slice),
                position: slice.turn.position,
                by: self.store.versions().draw().to_string(),
                once: false,
                is_durable: false,
                epoch: self.journal.epoch(),
                streak: None,
                facts: None,
                consent: None,
                claim: None,
                cache: None,
                view: View::default(),
            };
            let ((begun, _), _) = self.decisions.begin(begin, Durability::None, Duration::ZERO).await?;
            match begun {
                BeginResult::Started(started) => {
                    Arc::make_mut(&mut slice).advance(started.version, started.turn);
                    break;
                }
                BeginResult::Stale => return None,
                BeginResult::Hold => tokio::select! {
                    () = self.now.cancelled() => break,
                    () = tokio::time::sleep(RESTART_WAIT) => {}
                },
                // In all other cases the slice runs: each call gets its own outcome.
                _ => break,
            }
        }
        Some(Arc::unwrap_or_clone(slice))
    }

    async fn run_calls(&self, slice: Arc<Slice>, lease: SliceLease, slot: Slot) {
        // The ID of the slice's entry contains the time of the dispatch, by the store's clock.
        let dispatched_ms = entry_ms(slice.entry.as_str()).unwrap_or_else(|| self.store.state().now_ms);
        self.metrics.started(self.since(dispatched_ms));
        let context = Arc::new(slice.turn.head.context.clone());
        let mut run = SliceRun::new(slice, lease);
        while !run.is_done() {
            if self.journal.epoch() != run.lease.epoch {
                // The store may have lost the record of the take, so another worker may also hold the slice.
                return self.return_slice(run, RequeueReason::ParallelReads).await;
            }
            let config = self.config_for(&run.slice).await;
            let mut alone = false;
            let mut finished = self.run_next_calls(&run, &context, &config).await.into_iter();
            while let Some(FinishedAttempt { number, progress, outcome }) = finished.next() {
                // If this call has no result yet, the results of later parallel reads are dropped, and these reads are
                // repeated.
                let had_parallel_reads = finished.len() > 0;
                let effects = run.adopt(progress);
                match outcome {
                    AttemptOutcome::Ended(result, shadow) => {
                        let at = run.results.len();
                        alone |= commits_alone(&config, &run.slice, at, &result);
                        self.end_call(&mut run, &config, *result, &shadow, effects);
                    }
                    // The store had lost the result, and a worker has reported it again.
                    AttemptOutcome::Reported(rendered) => {
                        alone = true;
                        self.add_reported(&mut run, &config, *rendered);
                    }
                    AttemptOutcome::ToolUnavailable(unavailable) => {
                        match Box::pin(self.wait_for_tool(run, &config, number, *unavailable, had_parallel_reads)).await
                        {
                            Some(continued) => run = continued,
                            None => return,
                        }
                    }
                    other => {
                        return Box::pin(self.park_or_return(run, other, number, had_parallel_reads, &config)).await;
                    }
                }
            }
            // Invariant 6: the result of a `once` call is committed before the next call begins.
            let is_last = run.is_done();
            if is_last && run.needs_no_recheck() {
                drop(slot);
                self.commit(&mut run).await;
                return;
            }
            if (alone || is_last) && self.commit(&mut run).await == CommitOutcome::Over {
                return;
            }
        }
    }

    /// Reads the settings again for an unknown tenant: the tenant may be newer than this worker's last heartbeat.
    async fn config_for(&self, slice: &Slice) -> Arc<WorkerConfig> {
        let config = self.configs.load();
        if config.active.policy.look_up(&slice.name.tenant, &slice.turn.head.agent).is_ok() {
            return config;
        }
        if let Err(error) = self.configs.refresh_if_changed(&self.store).await {
            tracing::warn!(%error, "failed to read run-time settings; the last ones read stay in force");
        }
        self.configs.load()
    }

    /// Makes one attempt of each of the next calls. The outcomes are in call order.
    async fn run_next_calls(
        &self,
        run: &SliceRun,
        context: &Arc<Context>,
        config: &WorkerConfig,
    ) -> Vec<FinishedAttempt> {
        let slice = &run.slice;
        let first = run.results.len();
        let one = |index: usize| async move {
            let attempt = run.attempt(index, context, config, self.calls.settings.output_bytes_max);
            let span = attempt.span();
            let outcome = self.calls.run_call(&attempt).instrument(span.clone()).await;
            span.record("outcome", outcome.as_str());
            FinishedAttempt { number: attempt.number, progress: attempt.progress.into_inner(), outcome }
        };
        match at_once(config, slice, first) {
            1 => vec![one(first).await],
            count => join_all((first..first + count).map(one)).await,
        }
    }

    fn since(&self, at_ms: i64) -> Duration {
        Duration::from_millis((self.store.state().now_ms - at_ms).max(0).unsigned_abs())
    }

    pub(super) fn end_call(
        &self,
        run: &mut SliceRun,
        config: &WorkerConfig,
        mut result: CallResult,
        shadow: &[ShadowDenial],
        mut effects: EndEffects,
    ) {
        if let Some(repeat) = effects.repeat.clone() {
            run.repeats.push(repeat);
            let count = run.count(self.store.state().now_ms);
            result.note = count.and_then(|count| self.calls.loops.note(count));
        }
        let index = run.results.len();
        let slice = &run.slice;
        let reason = match result.outcome {
            Outcome::Cancelled => Some(EndReason::Canceled),
            Outcome::Expired => Some(EndReason::Expired),
            _ => None,
        };
        let rendered = self.render(config, slice, index, &result, shadow);
        let call = &slice.calls[index];
        effects.facts = facts::end_of(config, slice, index, &result);
        effects.claim = claims::end_of(config, slice, index, &result).or(effects.claim);
        effects.unused = unused_approval(slice, index, &result);
        let once = config.registry.effect(&call.tool).is_none_or(|effect| effect == Effect::Once);
        if once && result.attempts > 0 {
            // If the store restarts and loses the commit, the worker reports the result again.
            self.journal.end(slice, slice.turn.position + index, &rendered);
        }
        if let Some(claim) = &effects.claim {
            self.journal.record_claim(claim.clone(), slice.turn.head.deadline_ms);
        }
        run.results.push(UncommittedResult { rendered, effects, reason });
    }

    pub(super) fn add_reported(&self, run: &mut SliceRun, config: &WorkerConfig, rendered: RenderedCall) {
        let index = run.results.len();
        let slice = &run.slice;
        let effects = serde_json::from_slice::<CallResult>(&rendered.result).map(|result| EndEffects {
            facts: facts::end_of(config, slice, index, &result),
            claim: claims::end_of(config, slice, index, &result),
            unused: unused_approval(slice, index, &result),
            ..EndEffects::default()
        });
        run.results.push(UncommittedResult { rendered, effects: effects.unwrap_or_default(), reason: None });
    }

    pub(super) fn render(
        &self,
        config: &WorkerConfig,
        slice: &Slice,
        index: usize,
        result: &CallResult,
        shadow: &[ShadowDenial],
    ) -> RenderedCall {
        let call = &slice.calls[index];
        let head = &slice.turn.head;
        let selectors = config.active.policy.agents.get(&head.agent).map(|agent| &agent.tool_versions);
        let named = config.registry.resolve(&call.tool);
        let tool = named.and_then(|tool| {
            config.registry.select(tool, selectors.and_then(|all| all.get(&tool.spec.name)).map(String::as_str))
        });
        if result.attempts == 0 {
            let tool = named.map_or(call.tool.as_str(), |tool| tool.spec.name.as_str());
            self.metrics.call_ended(tool, result.outcome, None);
        }
        let ran = result.ran();
        // A lost worker began the call. A call that may have run counts as attempted, unless its result is that of
        // another call.
        let tried = result.attempts == 0 && result.outcome == Outcome::OutcomeUnknown && result.repeats.is_none();
        let tried = tried.then(|| CallResult { attempts: 1, ..result.clone() });
        let result = tried.as_ref().unwrap_or(result);
        let mut all = shadow.to_vec();
        all.extend(shadow_limit_denials(config, slice, index));
        let effect = tool.and_then(|tool| claims::note_of(tool, slice, call, result));
        let reported = ReportedCall {
            name: &slice.name,
            head,
            tool_name: named.map(|tool| tool.spec.name.as_str()),
            tool_id: tool.map(|tool| tool.spec.id.as_str()),
            arguments: &call.arguments,
            result,
            ran,
            shadow: &all,
            effect: effect.as_ref(),
            now_ms: self.store.state().now_ms,
        };
        report::rendered_call(&config.report(&self.report), &reported)
    }

    pub(super) async fn commit(&self, run: &mut SliceRun) -> CommitOutcome {
        if run.results.is_empty() {
            return CommitOutcome::Ok;
        }
        let slice = &run.slice;
        let name = slice.name.clone();
        let first = slice.turn.position;
        let results = std::mem::take(&mut run.results);
        let upto = first + results.len();
        run.repeats.clear();
        let unsure = results.iter().position(|result| result.effects.unrun.is_some());
        let kept = unsure.map_or_else(Vec::new, |first| results[..first].to_vec());
        let facts = results.iter().filter_map(|result| result.effects.facts.clone()).collect::<Vec<_>>();
        let reason = results.iter().find_map(|result| result.reason.clone());
        let canceled = match (&run.canceled, run.lease.cancel.is_cancelled()) {
            (Some(why), _) => Some(why.clone()),
            (None, true) => self.calls.canceled_because(slice).await.or_else(|| Some(String::new())),
            (None, false) => None,
        };
        let (rendered, effects): (Vec<_>, Vec<_>) =
            results.into_iter().map(|result| (result.rendered, result.effects)).unzip();
        let settled = self
            .decisions
            .settle(SettleResults {
                slice: Arc::clone(slice),
                results: rendered,
                frame: report::frame(&name, &slice.turn.head),
                sections: SettleSections::of(effects),
                reason,
                canceled,
                view: std::mem::take(&mut run.view),
            })
            .await;
        match settled {
            Some(SettleResult::Unsure) => {
                run.results = kept;
                return CommitOutcome::Again;
            }
            Some(SettleResult::Stale) => {
                self.metrics.fenced("settle");
                tracing::warn!(turn = %name, "results discarded; another worker holds the turn");
                self.journal.report_results(&run.slice, first..upto).await;
                self.journal.release(&run.slice);
                return CommitOutcome::Over;
            }
            None => {
                self.journal.release(&run.slice);
                return CommitOutcome::Over;
            }
            Some(_) => {}
        }
        self.journal.confirm(&run.slice, upto);
        let ended_ms = self.store.state().now_ms;
        for (session, ended) in facts {
            if let Some(changes) = ended.changes.filter(|changes| !changes.is_empty()) {
                self.journal.record_fact_changes(&session, CallEndReport { call: ended.call, changes, ended_ms });
            }
        }
        match settled {
            Some(SettleResult::Continues { version, turn }) => {
                Arc::make_mut(&mut run.slice).advance(version, *turn);
                CommitOutcome::Ok
            }
            Some(SettleResult::Ended) => {
                let submitted_ms = run.slice.turn.head.submitted_ms;
                if submitted_ms > 0 {
                    self.metrics.turn_ended(self.since(submitted_ms));
                }
                CommitOutcome::Over
            }
            _ => CommitOutcome::Over,
        }
    }
}

impl SliceRun {
    fn new(slice: Arc<Slice>, lease: SliceLease) -> Self {
        let results = Vec::with_capacity(slice.calls.len());
        let view = View::default();
        let repeats = Vec::new();
        Self { slice, lease, results, view, repeats, canceled: None, begun_by: None }
    }

    fn is_done(&self) -> bool {
        self.results.len() >= self.slice.calls.len()
    }

    pub(super) fn has_results(&self) -> bool {
        !self.results.is_empty()
    }

    /// If false, the commit checks again whether the calls that were reported as not run have run.
    fn needs_no_recheck(&self) -> bool {
        self.results.iter().all(|result| result.effects.unrun.is_none())
    }

    pub(super) fn position(&self) -> usize {
        self.slice.turn.position + self.results.len()
    }

    pub(super) fn attempt<'a>(
        &'a self,
        index: usize,
        context: &Arc<Context>,
        config: &'a WorkerConfig,
        output_bytes_max: u64,
    ) -> CallAttempt<'a> {
        let slice = &self.slice;
        CallAttempt {
            slice,
            call: &slice.calls[index],
            id: CallId { turn: slice.name.turn.clone(), position: slice.turn.position + index },
            number: if index == 0 { slice.turn.attempts + 1 } else { 1 },
            waited: index == 0 && slice.turn.began_child,
            context: Arc::clone(context),
            lease: &self.lease,
            config,
            canceled: self.canceled.as_deref(),
            output_bytes_max: limits::output_bytes_max(
                slice.turn.head.calls,
                usize::try_from(output_bytes_max).unwrap_or(usize::MAX),
            ),
            unsettled: &self.repeats,
            view: &self.view,
            progress: Mutex::default(),
        }
    }

    fn adopt(&mut self, progress: AttemptProgress) -> EndEffects {
        let AttemptProgress { written, begun_by, view, effects, canceled } = progress;
        self.begun_by = begun_by;
        if let Some(written) = written {
            let (version, turn) = *written;
            Arc::make_mut(&mut self.slice).advance(version, turn);
        }
        self.view.extend(view);
        if self.canceled.is_none() {
            self.canceled = canceled;
        }
        effects
    }

    fn count(&self, now_ms: i64) -> Option<tickfleet_core::call::streak::StreakCount> {
        let (name, bounds, _) = self.repeats.last()?;
        let of_streak = self.repeats.iter().filter(|(of, _, _)| of == name);
        let calls = of_streak.map(|(_, _, repeat)| repeat.clone()).collect();
        let counts = CountCalls { name: name.clone(), bounds: *bounds, calls }.preview(&self.view, now_ms).ok()?;
        counts.last().copied()
    }
}

/// `None` if the call used the approval. Only the first call of a slice can have an approval.
fn unused_approval(slice: &Slice, index: usize, result: &CallResult) -> Option<(tickfleet_model::TenantId, String)> {
    let requested = slice.turn.approval.clone().filter(|_| index == 0)?;
    let is_used = result.approval.as_ref().is_some_and(|approval| approval.id == requested);
    (!is_used).then(|| (slice.name.tenant.clone(), requested))
}

/// The limits in shadow mode that would have delayed the call. If an admission exceeds a maximum by n calls, the limit
/// would have delayed the last n calls of the admission.
fn shadow_limit_denials(config: &WorkerConfig, slice: &Slice, index: usize) -> Vec<ShadowDenial> {
    let admitted = slice.turn.notes.iter().rev().find_map(|note| match note {
        Note::Admitted { limits, debited, .. } => Some(limits.iter().zip(debited)),
        _ => None,
    });
    let of_call = |((counter, max), debited): (&(CounterKey, u64), &Debited)| {
        let beyond = usize::try_from(debited.used.saturating_sub(*max)).unwrap_or(usize::MAX);
        (beyond > 0 && beyond >= slice.calls.len() - index).then(|| counter.limit.clone())
    };
    let over = admitted.into_iter().flatten().filter_map(of_call);
    over.map(|name| {
        let words = limit_words(&config.active.policy, &slice.name.tenant, &name);
        let words = words.map_or_else(String::new, |words| format!(" ({words})"));
        ShadowDenial {
            rule: format!("limits.{name}"),
            reason: "limit_reached".into(),
            message: format!("the limit {name}{words} had no room for it"),
        }
    })
    .collect()
}

/// The number of calls that run at the same time: more than one only for consecutive reads. After a crash, the calls
/// run one by one.
fn at_once(config: &WorkerConfig, slice: &Slice, first: usize) -> usize {
    if !slice.turn.head.parallel_reads || slice.turn.is_task() || slice.turn.crashes > 0 {
        return 1;
    }
    // The order of calls that use facts matters, and durable begins write the turn's record one after the other. So
    // such reads run alone.
    let reads =
        |call: &&Call| config.registry.is_parallel(&call.tool) && facts::row_of(config, slice, &call.tool).is_none();
    slice.calls[first..].iter().take(READS_AT_ONCE_MAX).take_while(reads).count().max(1)
}

/// True for an unknown outcome: the next call's intent record would replace the record of a call that may have begun.
fn commits_alone(config: &WorkerConfig, slice: &Slice, index: usize, result: &CallResult) -> bool {
    if result.outcome == Outcome::OutcomeUnknown {
        return true;
    }
    // The next call may depend on the facts that this call changed.
    if facts::row_of(config, slice, &slice.calls[index].tool).is_some_and(FactRow::changes) {
        return true;
    }
    let once = config.registry.effect(&result.tool).is_none_or(|effect| effect == Effect::Once);
    (once && result.attempts > 0) || result.duration_ms >= COMMIT_ALONE_MS
}

/// The parent is the span that admitted the turn, or else the producer's span.
fn span_of(slice: &Slice) -> Span {
    let turn = &slice.turn;
    let head = &slice.turn.head;
    let span = tracing::debug_span!(
        target: traces::TARGET, "slice", turn = %slice.name, agent = %head.agent, first = turn.position,
        calls = slice.calls.len(), crashes = turn.crashes,
    );
    traces::follow(
        &span,
        head.span.as_deref().or(head.context.traceparent.as_deref()),
        head.context.tracestate.as_deref(),
    );
    span
}

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_answer<A, B, C, D, E, F>(_: impl Fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_slice_future_stays_small() {
        // Spawning copies a future several times: with futures of 12 kB, 85 kB were copied for each turn.
        let bytes = size_of_answer(Pipeline::run_slice);
        assert!(bytes <= 2_048, "{bytes} bytes");
    }
}
