//! START HERE: one slice of a turn, end to end. Its calls are carried out one by one, in order; every result is
//! settled; a transient failure parks the slice; whatever happens, nothing is lost and nothing is written twice.

use std::sync::Arc;

use shared::model::{CallId, CallResult, Outcome};
use shared::report::{self, Reported};
use shared::store::{
    Begin, Begun, EndReason, HandBack, Parked, Retry, Settled, SettledCall, Settlement, SliceEntry, TurnName,
};
use tokio::sync::OwnedSemaphorePermit;
use tokio_util::sync::CancellationToken;

use crate::call::{Carried, Trying};
use crate::{Held, Lease, Worker};

/// Executions shorter than this are settled with the next result of their slice: a commit of their own would
/// cost more than running them again after a crash.
const COMMIT_ALONE_MS: u64 = 100;

/// A slice that is held, with the results that it has so far. It is spent when it is settled, parked or handed back.
struct Holding {
    slice: SliceEntry,
    /// Rendered results from the slice's first call on, kept until the slice ends: should Redis lose a commit,
    /// they are written again (rule 8).
    results: Vec<SettledCall>,
    /// How many of them Redis has.
    committed: usize,
}

/// How a commit ended.
enum Commit {
    Ok,
    Cancelled,
    Lost,
}

impl Worker {
    /// Carries out a slice. `slot` is given back when its last call has run; the results may still be on their way.
    pub(crate) async fn slice(
        self: Arc<Self>,
        slice: SliceEntry,
        lease: Lease,
        slot: OwnedSemaphorePermit,
        held: OwnedSemaphorePermit,
    ) {
        let (name, fence) = (slice.name.clone(), slice.fence.clone());
        if slice.crashes == 0 {
            let _with_others = self.alone.read().await;
            self.run_slice(slice, &lease, slot).await;
        } else {
            // A slice whose holder has died runs alone, so that innocents do not die with it.
            let _alone = self.alone.write().await;
            if self.started(&slice).await {
                self.run_slice(slice, &lease, slot).await;
            }
        }
        self.let_go(&name, &fence);
        drop(held);
    }

    /// Marks that a suspect slice is really started now: only then does another crash count against it.
    async fn started(&self, slice: &SliceEntry) -> bool {
        let mark = Begin { name: slice.name.clone(), fence: slice.fence.clone(), position: slice.first, nonce: None };
        // A cancelled or expired turn goes on, to be ended call by call.
        !matches!(self.begins.ask(mark).await, None | Some(Begun::Stale | Begun::Done))
    }

    async fn run_slice(&self, slice: SliceEntry, lease: &Lease, slot: OwnedSemaphorePermit) {
        let context = Arc::new(slice.meta.context.clone());
        let mut holding = Holding { results: Vec::with_capacity(slice.calls.len()), committed: 0, slice };
        for index in 0..holding.slice.calls.len() {
            let trying = Trying {
                slice: &holding.slice,
                call: &holding.slice.calls[index],
                id: CallId { turn: holding.slice.name.turn.clone(), position: holding.slice.first + index },
                attempt: if index == 0 { holding.slice.attempt + 1 } else { 1 },
                context: context.clone(),
                lease,
            };
            match self.carry_out(&trying).await {
                Carried::Ended(result) => {
                    let last = index + 1 == holding.slice.calls.len();
                    let alone = self.commits_alone(&result);
                    let rendered = self.render(&holding.slice, index, &result);
                    holding.results.push(rendered);
                    if last {
                        break;
                    }
                    // The result of a `once` call is committed before the next call begins (rule 6).
                    if alone {
                        match self.commit(&mut holding).await {
                            Commit::Ok => {}
                            Commit::Cancelled => lease.cancel.cancel(),
                            Commit::Lost => return,
                        }
                    }
                }
                Carried::Again(wait) => {
                    let delay_ms = i64::try_from(wait.as_millis()).unwrap_or(i64::MAX);
                    let attempt = trying.attempt;
                    return self.park(holding, delay_ms, attempt).await;
                }
                Carried::HandBack => return self.give_back(holding).await,
                Carried::Lost => return,
            }
        }
        drop(slot);
        self.commit(&mut holding).await;
    }

    /// Whether a result should not wait for the slice's other results. What a lost worker began has to be committed
    /// too: the next begin replaces the mark that says so, and a third worker would begin it again.
    fn commits_alone(&self, result: &CallResult) -> bool {
        if result.outcome == Outcome::OutcomeUnknown {
            return true;
        }
        let once = self.registry.resolve(&result.tool).is_none_or(|t| t.spec.effect == shared::model::Effect::Once);
        (once && result.attempts > 0) || result.duration_ms >= COMMIT_ALONE_MS
    }

    fn render(&self, slice: &SliceEntry, index: usize, result: &CallResult) -> SettledCall {
        let call = &slice.calls[index];
        let tool = self.registry.resolve(&call.tool);
        if result.attempts == 0 {
            self.metrics.call_ended(&call.tool, result.outcome, None);
        }
        let reported = Reported {
            tenant: &slice.name.tenant,
            agent: &slice.meta.agent,
            turn: slice.name.turn.as_str(),
            dialect: slice.meta.dialect,
            tool_id: tool.map(|t| t.spec.id.as_str()),
            arguments: &call.arguments,
            result,
            now_ms: self.clock.now_ms(),
        };
        report::settled_call(&self.options.report, &reported)
    }

    /// Settles the results that Redis does not have yet.
    async fn commit(&self, holding: &mut Holding) -> Commit {
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
            match self.settles.ask(settlement).await {
                Some(Settled::Done | Settled::Laned | Settled::Continue | Settled::Already) => {
                    holding.committed = holding.results.len();
                    return Commit::Ok;
                }
                Some(Settled::Cancelled) => {
                    holding.committed = holding.results.len();
                    return Commit::Cancelled;
                }
                // Redis lost an earlier commit: all results of the slice once more.
                Some(Settled::Gap) if holding.committed > 0 => holding.committed = 0,
                Some(Settled::Gap | Settled::Stale) => {
                    self.metrics.fenced("settle");
                    tracing::warn!(turn = %holding.slice.name, "results came too late; somebody else holds the turn");
                    return Commit::Lost;
                }
                None => return Commit::Lost,
            }
        }
    }

    /// Parks the slice until its call may be tried again. What is in memory is committed first.
    async fn park(&self, mut holding: Holding, delay_ms: i64, attempt: u32) {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return;
        }
        let retry = Retry {
            name: holding.slice.name.clone(),
            fence: holding.slice.fence.clone(),
            queue: holding.slice.queue.clone(),
            position: holding.slice.first + holding.results.len(),
            delay_ms,
            attempt,
        };
        match self.retries.ask(retry).await {
            Some(Parked::Ok | Parked::Already) | None => {}
            Some(Parked::Cancelled) => self.end_rest(holding).await,
            Some(Parked::Stale | Parked::Gap) => self.metrics.fenced("retry"),
        }
    }

    /// The turn was cancelled while its call failed: the calls that are left end as cancelled.
    async fn end_rest(&self, mut holding: Holding) {
        let never = Lease { cancel: CancellationToken::new(), term: 0 };
        for index in holding.results.len()..holding.slice.calls.len() {
            let trying = Trying {
                slice: &holding.slice,
                call: &holding.slice.calls[index],
                id: CallId { turn: holding.slice.name.turn.clone(), position: holding.slice.first + index },
                attempt: 0,
                context: Arc::default(),
                lease: &never,
            };
            if let Carried::Ended(result) = trying.ended(EndReason::Cancelled) {
                let rendered = self.render(&holding.slice, index, &result);
                holding.results.push(rendered);
            }
        }
        self.commit(&mut holding).await;
    }

    /// Returns the slice with its progress: another worker leases it at once.
    async fn give_back(&self, mut holding: Holding) {
        if holding.committed < holding.results.len() && matches!(self.commit(&mut holding).await, Commit::Lost) {
            return;
        }
        self.hand_back(&holding.slice).await;
    }

    /// Returns a slice that nothing was written for since its last commit.
    pub(crate) async fn hand_back(&self, slice: &SliceEntry) {
        let back = HandBack { name: slice.name.clone(), fence: slice.fence.clone(), queue: slice.queue.clone() };
        if self.hand_backs.ask(back).await.is_none() {
            tracing::warn!(turn = %slice.name, "a slice could not be handed back; it is taken back when our lease ends");
        }
    }

    /// Remembers that the slice is held; the answer is cancelled when somebody cancels its turn.
    pub(crate) fn hold(&self, slice: &SliceEntry) -> Lease {
        let lease = Lease { cancel: CancellationToken::new(), term: self.pulse.term() };
        let held = Held { fence: slice.fence.clone(), lease: lease.clone() };
        let mut running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        running.insert(slice.name.clone(), held);
        lease
    }

    /// Whether the slice is held.
    pub(crate) fn holds(&self, slice: &SliceEntry) -> bool {
        let running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        running.get(&slice.name).is_some_and(|held| held.fence == slice.fence)
    }

    fn let_go(&self, name: &TurnName, fence: &str) {
        let mut running = self.running.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // A later slice of the same turn may be held already.
        if running.get(name).is_some_and(|held| held.fence == fence) {
            running.remove(name);
        }
    }
}
