//! START HERE: one slice of a turn, end to end. Its calls are carried out one by one, in order; every result is
//! settled; a transient failure parks the slice; whatever happens, nothing is lost and nothing is written twice.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use tickfleet_engine::one_suspect::OneSuspect;
use tickfleet_engine::report::{self, ReportOptions, Reported};
use tickfleet_model::policy::{FactRow, ShadowDenial};
use tickfleet_model::{Call, CallId, CallResult, Context, Effect, Outcome};
use tickfleet_ops::metrics::Metrics;
use tickfleet_ops::traces;
use tickfleet_store::{
    Begin, Begun, Returned, Settled, SettledCall, Settlement, Shade, ShardClock, SliceEntry, Store, entry_ms,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span};

use crate::Common;
use crate::calls::call::Calls;
use crate::calls::effects;
use crate::calls::governed::facts;
use crate::calls::trying::{Disposition, Trying};
use crate::claims::Claims;
use crate::config::{WorkerConfig, WorkerConfigs};
use crate::held::{HeldSlices, Hold};
use crate::lane::Slot;
use crate::outbox::Outbox;

/// Executions shorter than this are settled with the next result of their slice: a commit of their own would
/// cost more than running them again after a crash.
const COMMIT_ALONE_MS: u64 = 100;

/// Reads of one slice that run at the same time at most; they share the slice's slot.
const READS_AT_ONCE_MAX: usize = 8;

/// A slice that is held, with the results that it has so far. It is spent when it is settled, parked or handed back.
pub(super) struct Holding {
    pub(super) slice: SliceEntry,
    /// Rendered results from the slice's first call on, kept until the slice ends: should Redis lose a commit,
    /// they are written again (rule 8).
    pub(super) results: Vec<SettledCall>,
    /// The number of them that Redis has.
    pub(super) committed: usize,
}

/// The outcome of a commit.
pub(super) enum Commit {
    Ok,
    Cancelled,
    Lost,
}

/// Carries out slices, end to end.
pub(crate) struct Pipeline {
    store: Store,
    clock: Arc<ShardClock>,
    pub(super) configs: Arc<WorkerConfigs>,
    pub(super) claims: Arc<Claims>,
    slices: Arc<HeldSlices>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) calls: Calls,
    pub(super) metrics: Arc<Metrics>,
    /// The way in which results are reported.
    report: ReportOptions,
    /// One at a time in the whole process.
    suspects: OneSuspect,
    /// Cancelled when running calls must stop at once.
    now: CancellationToken,
}

impl Pipeline {
    /// Carries calls out by `calls`, and reports them by `report`.
    pub(crate) fn new(
        common: &Common,
        claims: &Arc<Claims>,
        slices: &Arc<HeldSlices>,
        outbox: &Arc<Outbox>,
        calls: Calls,
        report: ReportOptions,
    ) -> Self {
        Self {
            store: common.store.clone(),
            clock: common.clock.clone(),
            configs: common.configs.clone(),
            claims: claims.clone(),
            slices: slices.clone(),
            outbox: outbox.clone(),
            calls,
            metrics: common.metrics.clone(),
            report,
            suspects: common.suspects.clone(),
            now: common.now.clone(),
        }
    }

    /// Carries out a slice. `slot` is given back when its last call has run; the results may still be on their way.
    pub(crate) async fn slice(self: Arc<Self>, slice: SliceEntry, hold: Hold, slot: Slot, held: OwnedSemaphorePermit) {
        let (name, fence) = (slice.name.clone(), slice.fence.clone());
        let positions = slice.first..slice.first + slice.calls.len();
        let span = span_of(&slice);
        // A task is copied several times on its way to where it runs: what is large of it is in a box.
        if slice.crashes == 0 {
            Box::pin(self.run_slice(slice, &hold, slot)).instrument(span).await;
        } else {
            Box::pin(self.suspect(slice, &hold, slot)).instrument(span).await;
        }
        self.claims.let_go(&name, positions);
        self.slices.let_go(&name, &fence);
        drop(held);
    }

    /// Carries out a slice that a worker has died with, when this process carries out no other such slice: it waits
    /// unmarked, for until then no crash counts against it.
    async fn suspect(&self, slice: SliceEntry, hold: &Hold, slot: Slot) {
        let look = tokio::select! {
            look = self.suspects.look() => look,
            // Others may carry it out at once.
            () = self.now.cancelled() => return self.outbox.hand_back(&slice, Returned::Unsent).await,
        };
        if self.started(&slice).await {
            self.run_slice(slice, hold, slot.with(look)).await;
        }
    }

    /// Marks that a suspect slice is really started now: only then does another crash count against it.
    async fn started(&self, slice: &SliceEntry) -> bool {
        let mark = Begin {
            name: slice.name.clone(),
            fence: slice.fence.clone(),
            position: slice.first,
            nonce: None,
            digest: slice.meta.digest.clone(),
            knows: None,
        };
        // A cancelled or expired turn goes on, to be ended call by call.
        !matches!(self.outbox.begin(mark).await, None | Some(Begun::Stale | Begun::Done))
    }

    async fn run_slice(&self, slice: SliceEntry, hold: &Hold, slot: Slot) {
        // By one clock: the id of the slice's entry is the time of its dispatch.
        let dispatched_ms = entry_ms(&slice.fence).unwrap_or_else(|| self.clock.now_ms());
        self.metrics.started(self.since(dispatched_ms));
        let context = Arc::new(slice.meta.context.clone());
        let mut holding = Holding { results: Vec::with_capacity(slice.calls.len()), committed: 0, slice };
        while holding.results.len() < holding.slice.calls.len() {
            let (config, mut alone) = (self.config_for(&holding.slice).await, false);
            let mut carried = self.carry_out_next(&holding, hold, &context, &config).await.into_iter();
            while let Some((attempt, disposition)) = carried.next() {
                // What ran beside it and came later in the turn is dropped, and read again.
                let beside = carried.len() > 0;
                match disposition {
                    Disposition::Ended(result, shadow) => {
                        let at = holding.results.len();
                        alone |= commits_alone(&config, &holding.slice, at, &result);
                        let rendered = self.render(&config, &holding.slice, holding.results.len(), (&result, &shadow));
                        holding.results.push(rendered);
                    }
                    // Redis lost it, and somebody knew: it is a result like any other.
                    Disposition::Kept(rendered) => {
                        alone = true;
                        holding.results.push(*rendered);
                    }
                    Disposition::Rests(resting) => {
                        match Box::pin(self.rest(holding, &config, attempt, *resting, beside)).await {
                            Some(going_on) => holding = going_on,
                            None => return,
                        }
                    }
                    other => return Box::pin(self.leave(holding, other, (attempt, beside), &config)).await,
                }
            }
            // The result of a `once` call is committed before the next call begins (rule 6).
            if alone && holding.results.len() < holding.slice.calls.len() {
                match self.commit(&mut holding).await {
                    Commit::Ok => {}
                    Commit::Cancelled => hold.cancel.cancel(),
                    Commit::Lost => return,
                }
            }
        }
        drop(slot);
        self.commit(&mut holding).await;
    }

    /// The configuration that the slice is judged by. Its tenant may have been set after our last heartbeat, and the
    /// scheduler knew it.
    async fn config_for(&self, slice: &SliceEntry) -> Arc<WorkerConfig> {
        let config = self.configs.load();
        if config.active.policy.look_up(&slice.name.tenant, &slice.meta.agent).is_ok() {
            return config;
        }
        if let Err(error) = self.configs.hear_of_new_tenants(&self.store).await {
            tracing::warn!(%error, "failed to read run-time settings; the last ones read stay in force");
        }
        self.configs.load()
    }

    /// One try of the next call, or of the next calls if they may run at the same time: which try it was and what
    /// became of it, in call order.
    async fn carry_out_next(
        &self,
        holding: &Holding,
        hold: &Hold,
        context: &Arc<Context>,
        config: &WorkerConfig,
    ) -> Vec<(u32, Disposition)> {
        let (slice, first) = (&holding.slice, holding.results.len());
        let one = |index: usize| async move {
            let trying = Trying {
                slice,
                call: &slice.calls[index],
                id: CallId { turn: slice.name.turn.clone(), position: slice.first + index },
                attempt: if index == 0 { slice.attempt + 1 } else { 1 },
                waited: index == 0 && slice.waited,
                context: Arc::clone(context),
                hold,
                config,
            };
            let span = trying.span();
            let carried = self.calls.carry_out(&trying).instrument(span.clone()).await;
            span.record("outcome", carried.word());
            (trying.attempt, carried)
        };
        match at_once(config, slice, first) {
            1 => vec![one(first).await],
            count => join_all((first..first + count).map(one)).await,
        }
    }

    /// Time since `at_ms` of shard time.
    fn since(&self, at_ms: i64) -> Duration {
        Duration::from_millis((self.clock.now_ms() - at_ms).max(0).unsigned_abs())
    }

    pub(super) fn render(
        &self,
        config: &WorkerConfig,
        slice: &SliceEntry,
        index: usize,
        (result, shadow): (&CallResult, &[ShadowDenial]),
    ) -> SettledCall {
        let call = &slice.calls[index];
        let selectors = config.active.policy.agents.get(&slice.meta.agent).map(|agent| &agent.tool_versions);
        let named = config.registry.resolve(&call.tool);
        let tool = named.and_then(|tool| {
            config.registry.select(tool, selectors.and_then(|all| all.get(&tool.spec.name)).map(String::as_str))
        });
        if result.attempts == 0 {
            let tool = named.map_or(call.tool.as_str(), |tool| tool.spec.name.as_str());
            self.metrics.call_ended(tool, result.outcome, None);
        }
        let ran = result.ran();
        // Somebody who is gone had begun it: a call that may have run was tried. One that repeats another was not.
        let tried = result.attempts == 0 && result.outcome == Outcome::OutcomeUnknown && result.repeats.is_none();
        let tried = tried.then(|| CallResult { attempts: 1, ..result.clone() });
        let result = tried.as_ref().unwrap_or(result);
        let mut all = Vec::new();
        let shadow = if slice.shades.is_empty() {
            shadow
        } else {
            all.extend_from_slice(shadow);
            all.extend(shades(config, slice, slice.first + index));
            &all
        };
        let effect = tool.and_then(|tool| effects::note_of(tool, slice, call, result));
        let reported = Reported {
            tenant: &slice.name.tenant,
            agent: &slice.meta.agent,
            delegated: report::delegated(&slice.meta),
            turn: slice.name.turn.as_str(),
            dialect: slice.meta.dialect,
            tool_name: named.map(|tool| tool.spec.name.as_str()),
            tool_id: tool.map(|tool| tool.spec.id.as_str()),
            arguments: &call.arguments,
            result,
            ran,
            shadow,
            meta: &slice.meta,
            effect: effect.as_ref(),
            now_ms: self.clock.now_ms(),
        };
        let facts = facts::end_of(config, slice, index, result);
        SettledCall { facts, ..report::settled_call(&config.report(&self.report), &reported) }
    }

    /// Settles the results that Redis does not have yet.
    pub(super) async fn commit(&self, holding: &mut Holding) -> Commit {
        loop {
            let settlement = Settlement {
                name: holding.slice.name.clone(),
                fence: holding.slice.fence.clone(),
                queue: Some(holding.slice.queue.clone()),
                first: holding.slice.first + holding.committed,
                reply_to: holding.slice.meta.reply_to.clone(),
                frame: report::frame(&holding.slice.name, &holding.slice.meta),
                calls: holding.results[holding.committed..].to_vec(),
            };
            let settled = self.outbox.settle(settlement).await;
            if let (Some(Settled::Done), Some(submitted_ms)) = (&settled, holding.slice.meta.submitted()) {
                self.metrics.turn_ended(self.since(submitted_ms));
            }
            match settled {
                Some(Settled::Done | Settled::Laned | Settled::Continue | Settled::Already) => {
                    self.confirmed(holding);
                    return Commit::Ok;
                }
                Some(Settled::Cancelled) => {
                    self.confirmed(holding);
                    return Commit::Cancelled;
                }
                // Redis lost an earlier commit: all results of the slice once more.
                Some(Settled::Gap) if holding.committed > 0 => holding.committed = 0,
                Some(Settled::Gap | Settled::Stale) => {
                    self.metrics.fenced("settle");
                    tracing::warn!(turn = %holding.slice.name, "results discarded; another worker holds the turn");
                    self.claims.leave_for_others(&holding.slice.name, holding.slice.first, &holding.results).await;
                    return Commit::Lost;
                }
                None => return Commit::Lost,
            }
        }
    }

    /// Redis has all results so far.
    fn confirmed(&self, holding: &mut Holding) {
        self.claims.settled(
            &holding.slice.name,
            holding.slice.first + holding.committed,
            &holding.results[holding.committed..],
        );
        holding.committed = holding.results.len();
    }
}

/// The limits in shadow that would have held up the call at this position.
fn shades(config: &WorkerConfig, slice: &SliceEntry, position: usize) -> impl Iterator<Item = ShadowDenial> {
    let of_call = slice.shades.iter().filter(move |shade| shade.calls.contains(&position));
    of_call.map(|Shade { limit: name, .. }| {
        let limit = config.active.policy.limits.iter().find(|limit| limit.name == *name);
        let words = limit.map_or_else(String::new, |limit| format!(" ({limit})"));
        ShadowDenial {
            rule: format!("limits.{name}"),
            reason: "limit_reached",
            message: format!("the limit {name}{words} had no room for it"),
        }
    })
}

/// Returns how many calls run at the same time, from the one at `first` on: one, but for consecutive reads of a turn
/// that asks for it. A call of any other effect is a barrier: it begins when everything before it has ended, and
/// nothing after it begins before it has. A slice whose holder has died is carried out one by one.
fn at_once(config: &WorkerConfig, slice: &SliceEntry, first: usize) -> usize {
    if !slice.meta.parallel_reads || slice.meta.is_task || slice.crashes > 0 {
        return 1;
    }
    // Calls that go by facts come one after the other: their order counts.
    let reads = |call: &&Call| {
        config.registry.effect(&call.tool) == Some(Effect::Read) && facts::row_of(config, slice, &call.tool).is_none()
    };
    slice.calls[first..].iter().take(READS_AT_ONCE_MAX).take_while(reads).count().max(1)
}

/// Returns true if a result should not wait for the slice's other results. What a lost worker began has to be committed
/// too: the next begin replaces the mark that says so, and a third worker would begin it again.
fn commits_alone(config: &WorkerConfig, slice: &SliceEntry, index: usize, result: &CallResult) -> bool {
    if result.outcome == Outcome::OutcomeUnknown {
        return true;
    }
    // The next call begins by what this one did to facts.
    if facts::row_of(config, slice, &slice.calls[index].tool).is_some_and(FactRow::changes) {
        return true;
    }
    let once = config.registry.effect(&result.tool).is_none_or(|effect| effect == Effect::Once);
    (once && result.attempts > 0) || result.duration_ms >= COMMIT_ALONE_MS
}

/// A slice's span: a child of the one that admitted its turn, else of the producer's.
fn span_of(slice: &SliceEntry) -> Span {
    let (meta, context) = (&slice.meta, &slice.meta.context);
    let span = tracing::debug_span!(
        target: traces::TARGET, "slice", turn = %slice.name, agent = %meta.agent, first = slice.first,
        calls = slice.calls.len(), crashes = slice.crashes,
    );
    traces::follow(&span, meta.span.as_deref().or(context.traceparent.as_deref()), context.tracestate.as_deref());
    span
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The size of what a function answers, bytes.
    fn size_of_answer<A, B, C, D, E, F>(_: impl Fn(A, B, C, D, E) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn a_slice_is_a_small_task() {
        // It had 12 kB, and 85 kB were copied for each turn.
        let bytes = size_of_answer(Pipeline::slice);
        assert!(bytes <= 2_048, "{bytes} bytes");
    }
}
