//! Makes decisions in batches. All items that arrived during the last round trip go into the next batch.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_core::call::CallName;
use tickfleet_core::call::approval::{AskApproval, RequestApproval};
use tickfleet_core::call::begin::{Begin, BeginResult, ConsentCheck, StreakCheck};
use tickfleet_core::call::cache::CacheName;
use tickfleet_core::call::claim::{ClaimEffect, WaitForClaim};
use tickfleet_core::call::facts::{CheckFacts, WaitForFacts};
use tickfleet_core::task::spend::BudgetWait;
use tickfleet_core::turn::end::{RenderedCall, ReplyFrame};
use tickfleet_core::turn::state::EndReason;
use tickfleet_core::turn::{
    Park, ParkReason, ParkResult, RequeueReason, RequeueResult, RequeueSlice, Settle, SettleResult, Slice,
};
use tickfleet_core::{Decision as _, Guard, Query, Receipt, RecordKey, Section, View};
use tickfleet_engine::retry_until::{Attempt, NeverStop, retry_until};
use tickfleet_model::{Durability, limits};
use tickfleet_store::seam::RunError;
use tickfleet_store::{Confirmed, Store, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::calls::end_effects::SettleSections;

/// Called for every failed attempt.
pub(crate) type OnError = Arc<dyn Fn(&'static str, &(dyn std::error::Error + 'static)) + Send + Sync>;

const ITEMS_MAX: usize = limits::BATCH_TURNS_USUAL;
/// Approximate bytes of an item that carries only IDs.
const IDS_BYTES: usize = 128;
/// The pause between two attempts of a rejected item that must not be dropped ([`BatchItem::OWED`]).
const OWED_EVERY: Duration = Duration::from_secs(2);
/// After this number of batches with conflicts, an item counts as rejected.
const CONTENDED_MAX: usize = 20;
/// Failures of one kind of item are logged at most this often.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// One result per item, in order.
type BatchResults<R> = Result<Vec<Result<R, RunError>>, StoreError>;

pub(crate) trait BatchItem: Sized + Send + Sync + 'static {
    const NAME: &'static str;
    type Reply: Send + 'static;
    /// True if only this process has the item's results, so that the item must not be dropped.
    const OWED: bool = false;
    const BYTES_MAX: usize = limits::BATCH_BYTES_MAX;
    fn decide(store: &Store, batch: &[Self]) -> impl Future<Output = BatchResults<Self::Reply>> + Send;
    /// Approximate bytes of the item's transaction.
    fn bytes(&self) -> usize {
        IDS_BYTES
    }
    fn calls(&self) -> usize {
        1
    }
    /// The records that the item changes, except the turn's own record. Items that change the same record are never in
    /// one batch.
    fn shared(&self) -> Vec<RecordKey> {
        Vec::new()
    }
}

async fn fill(store: &Store, view: &mut View, queries: impl Iterator<Item = Query> + Send) -> Result<(), StoreError> {
    let missing: HashSet<Query> = queries.filter(|query| view.get(query).is_err()).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let missing: Vec<Query> = missing.into_iter().collect();
    let values = store.seam().read(&missing).await?;
    for (query, value) in missing.into_iter().zip(values) {
        view.insert(query, value);
    }
    Ok(())
}

fn union<'v>(views: impl Iterator<Item = &'v View>) -> View {
    let mut all = View::default();
    views.for_each(|view| all.extend(view.clone()));
    all
}

fn result_of<T>(receipt: Result<Receipt<T>, RunError>) -> Result<T, RunError> {
    receipt.map(|receipt| receipt.result)
}

pub(crate) struct SettleResults {
    pub(crate) slice: Arc<Slice>,
    /// The results of the calls from the slice's position onward.
    pub(crate) results: Vec<RenderedCall>,
    pub(crate) frame: ReplyFrame,
    pub(crate) sections: SettleSections,
    /// Set if the turn ends before its calls have run.
    pub(crate) reason: Option<EndReason>,
    /// Why the turn was canceled, if the worker received a notice.
    pub(crate) canceled: Option<String>,
    pub(crate) view: View,
}

impl BatchItem for SettleResults {
    const NAME: &'static str = "settle";
    const OWED: bool = true;
    const BYTES_MAX: usize = limits::SETTLE_BYTES_MAX;
    type Reply = SettleResult;
    async fn decide(store: &Store, batch: &[Self]) -> BatchResults<SettleResult> {
        let mut view = union(batch.iter().map(|item| &item.view));
        fill(store, &mut view, batch.iter().flat_map(|item| item.sections.queries())).await?;
        let (bounds, sections): (_, Vec<Vec<&dyn Section>>) =
            (store.bounds(), batch.iter().map(|item| item.sections.all()).collect());
        let settles: Vec<Settle<'_>> = batch
            .iter()
            .zip(&sections)
            .map(|(item, sections)| Settle {
                slice: &item.slice,
                results: &item.results,
                frame: &item.frame,
                sections,
                reason: item.reason.as_ref(),
                canceled: item.canceled.as_deref(),
                bounds: &bounds,
            })
            .collect();
        Ok(store.decide_with(&mut view, &settles).await?.into_iter().map(result_of).collect())
    }
    /// Also estimates the results of earlier slices, which the last slice of a turn reads.
    fn bytes(&self) -> usize {
        let sent = self.results.iter().map(|c| c.result.len() + c.message.len() + c.audit.len()).sum::<usize>();
        IDS_BYTES + sent + sent / self.results.len().max(1) * self.slice.turn.position
    }
    fn calls(&self) -> usize {
        self.results.len() + self.slice.turn.position
    }
    fn shared(&self) -> Vec<RecordKey> {
        self.sections.records()
    }
}

pub(crate) struct BeginCall {
    pub(crate) slice: Arc<Slice>,
    pub(crate) position: usize,
    /// The ID of the attempt.
    pub(crate) by: String,
    pub(crate) once: bool,
    pub(crate) is_durable: bool,
    /// The restart epoch to which the worker has reported its journal.
    pub(crate) epoch: u64,
    pub(crate) streak: Option<StreakCheck>,
    pub(crate) facts: Option<CheckFacts>,
    pub(crate) consent: Option<ConsentCheck>,
    pub(crate) claim: Option<ClaimEffect>,
    pub(crate) cache: Option<CacheName>,
    pub(crate) view: View,
}

impl BeginCall {
    pub(crate) fn begin(&self, lease_ms: i64) -> Begin<'_> {
        Begin {
            slice: &self.slice,
            position: self.position,
            by: &self.by,
            once: self.once,
            is_durable: self.is_durable,
            epoch: self.epoch,
            lease_ms,
            streak: self.streak.clone(),
            facts: self.facts.clone(),
            consent: self.consent.clone(),
            claim: self.claim.clone(),
            cache: self.cache.clone(),
        }
    }

    fn shared(&self) -> Vec<RecordKey> {
        let facts = self.facts.iter().map(|facts| facts.session.key());
        facts.chain(self.claim.iter().map(|claim| claim.effect.key())).collect()
    }
}

pub(crate) type BeginReply = (BeginResult, View);

async fn begins<'b>(
    store: &Store,
    batch: impl Iterator<Item = &'b BeginCall> + Clone + Send,
) -> Result<(View, Vec<Begin<'b>>), StoreError> {
    let mut view = union(batch.clone().map(|item| &item.view));
    let begins: Vec<Begin<'b>> = batch.map(|item| item.begin(store.options().lease_ms)).collect();
    fill(store, &mut view, begins.iter().flat_map(|begin| begin.reads())).await?;
    Ok((view, begins))
}

fn begun(
    view: &View,
    begin: &Begin<'_>,
    result: Result<Receipt<BeginResult>, RunError>,
) -> Result<BeginReply, RunError> {
    let reads = begin.reads();
    result_of(result).map(|result| (result, view.pick(&reads)))
}

impl BatchItem for BeginCall {
    const NAME: &'static str = "begin";
    type Reply = BeginReply;
    async fn decide(store: &Store, batch: &[Self]) -> BatchResults<BeginReply> {
        let (mut view, begins) = begins(store, batch.iter()).await?;
        let results = store.decide_with(&mut view, &begins).await?;
        Ok(begins.iter().zip(results).map(|(begin, result)| begun(&view, begin, result)).collect())
    }
    fn shared(&self) -> Vec<RecordKey> {
        Self::shared(self)
    }
}

/// Begins a call that runs only after the begin record is durable. All items of a batch need the same durability.
pub(crate) struct DurableBegin {
    pub(crate) begin: BeginCall,
    pub(crate) durability: Durability,
    pub(crate) at_most: Duration,
}

impl BatchItem for DurableBegin {
    const NAME: &'static str = "begin";
    type Reply = (BeginReply, Confirmed);
    async fn decide(store: &Store, batch: &[Self]) -> BatchResults<Self::Reply> {
        let Some(first) = batch.first() else { return Ok(Vec::new()) };
        let (mut view, begins) = begins(store, batch.iter().map(|item| &item.begin)).await?;
        let (results, confirmed) = store.decide_durably(&mut view, &begins, first.durability, first.at_most).await?;
        let all = begins
            .iter()
            .zip(results)
            .map(|(begin, result)| begun(&view, begin, result).map(|begun| (begun, confirmed.clone())));
        Ok(all.collect())
    }
    fn shared(&self) -> Vec<RecordKey> {
        self.begin.shared()
    }
}

pub(crate) enum WaitFor {
    /// An event may wake the call earlier, but no record of the wait is written.
    Timer,
    /// The end of other calls of the session, which may still change facts that this call checks.
    Facts(CheckFacts, CallName),
    /// The end of an equal call that holds the claim of the effect.
    Claim(ClaimEffect),
    /// The transaction that parks the call also requests the approval.
    Approval(Box<AskApproval>),
    Budget(BudgetWait),
}

pub(crate) struct ParkSlice {
    pub(crate) slice: Arc<Slice>,
    pub(crate) reason: ParkReason,
    /// True if later calls ran in parallel and their results were dropped.
    pub(crate) had_parallel_reads: bool,
    pub(crate) waits_while: Vec<Guard>,
    pub(crate) wait: WaitFor,
    pub(crate) view: View,
}

enum ParkSection<'a> {
    Facts(WaitForFacts<'a>),
    Claim(WaitForClaim<'a>),
    Approval(RequestApproval<'a>),
    Budget(&'a BudgetWait),
}

impl ParkSection<'_> {
    fn section(&self) -> &dyn Section {
        match self {
            Self::Facts(section) => section,
            Self::Claim(section) => section,
            Self::Approval(section) => section,
            Self::Budget(section) => *section,
        }
    }
}

impl ParkSlice {
    fn section(&self) -> Option<ParkSection<'_>> {
        let own = &self.slice.turn;
        Some(match &self.wait {
            WaitFor::Timer => return None,
            WaitFor::Facts(asks, call) => ParkSection::Facts(WaitForFacts { asks, call, own }),
            WaitFor::Claim(claim) => ParkSection::Claim(WaitForClaim(claim)),
            WaitFor::Approval(ask) => {
                ParkSection::Approval(RequestApproval { ask, tenant: &self.slice.name.tenant, turn: own })
            }
            WaitFor::Budget(wait) => ParkSection::Budget(wait),
        })
    }
}

impl BatchItem for ParkSlice {
    const NAME: &'static str = "park";
    type Reply = ParkResult;
    async fn decide(store: &Store, batch: &[Self]) -> BatchResults<ParkResult> {
        let mut view = union(batch.iter().map(|item| &item.view));
        let sections: Vec<Option<ParkSection<'_>>> = batch.iter().map(Self::section).collect();
        let sections: Vec<Vec<&dyn Section>> =
            sections.iter().map(|section| section.iter().map(ParkSection::section).collect()).collect();
        let parks: Vec<Park<'_>> = batch
            .iter()
            .zip(&sections)
            .map(|(item, sections)| Park {
                slice: &item.slice,
                reason: &item.reason,
                had_parallel_reads: item.had_parallel_reads,
                waits_while: &item.waits_while,
                sections,
            })
            .collect();
        Ok(store.decide_with(&mut view, &parks).await?.into_iter().map(result_of).collect())
    }
    fn bytes(&self) -> usize {
        let asked = match &self.wait {
            WaitFor::Approval(ask) => 2 * (ask.shown.arguments.len() + ask.shown.why.len()) + ask.exact.len(),
            _ => 0,
        };
        let calls = self.slice.calls.iter().map(|call| call.arguments.len()).sum::<usize>();
        2 * IDS_BYTES + asked + calls
    }
    fn shared(&self) -> Vec<RecordKey> {
        match &self.wait {
            WaitFor::Facts(asks, _) => vec![asks.session.key()],
            WaitFor::Claim(claim) => vec![claim.effect.key()],
            WaitFor::Timer | WaitFor::Approval(_) | WaitFor::Budget(_) => Vec::new(),
        }
    }
}

pub(crate) struct ReturnSlice {
    pub(crate) slice: Arc<Slice>,
    pub(crate) why: RequeueReason,
}

impl BatchItem for ReturnSlice {
    const NAME: &'static str = "requeue";
    type Reply = RequeueResult;
    async fn decide(store: &Store, batch: &[Self]) -> BatchResults<RequeueResult> {
        let returns: Vec<RequeueSlice<'_>> =
            batch.iter().map(|item| RequeueSlice { slice: &item.slice, reason: &item.why }).collect();
        Ok(store.decide_all(&returns).await?.into_iter().map(result_of).collect())
    }
    fn bytes(&self) -> usize {
        IDS_BYTES + self.slice.calls.iter().map(|call| call.arguments.len()).sum::<usize>()
    }
}

/// Repeats an item until the store has responded, so that results are never dropped while the store is unavailable.
pub(crate) struct Batcher<I: BatchItem> {
    sender: mpsc::Sender<(I, oneshot::Sender<I::Reply>)>,
}

impl<I: BatchItem> Batcher<I> {
    /// After the batcher is dropped, its task ends when all items are handled. After `give_up`, only
    /// [`BatchItem::OWED`] items are repeated.
    pub(crate) fn new(store: &Store, capacity: usize, give_up: &CancellationToken, on_error: OnError) -> Self {
        let (sender, receiver) = mpsc::channel(capacity);
        let work = BatchLoop { store: store.clone(), give_up: give_up.clone(), on_error };
        tokio::spawn(work.run(receiver));
        Self { sender }
    }

    /// `None` if the store rejects the item, or if the worker had to stop before the store responded.
    pub(crate) async fn submit(&self, item: I) -> Option<I::Reply> {
        let (answer, answered) = oneshot::channel();
        self.sender.send((item, answer)).await.ok()?;
        answered.await.ok()
    }
}

#[derive(Debug, Default)]
struct LogThrottle {
    logged: Option<Instant>,
    held_back: u64,
}

impl LogThrottle {
    /// If the next message is due, returns the number of messages suppressed before. Otherwise counts the message as
    /// suppressed.
    fn allow(&mut self) -> Option<u64> {
        if self.logged.is_some_and(|logged| logged.elapsed() < LOG_EVERY) {
            self.held_back += 1;
            return None;
        }
        self.logged = Some(Instant::now());
        Some(std::mem::take(&mut self.held_back))
    }
}

pub(crate) fn log_throttled() -> OnError {
    let logged: Mutex<HashMap<&'static str, LogThrottle>> = Mutex::default();
    Arc::new(move |decision, error| {
        let mut logged = logged.lock();
        if let Some(silent) = logged.entry(decision).or_default().allow() {
            tracing::warn!(decision, error, silent, "store write failed; retrying");
        }
    })
}

#[derive(Clone)]
struct BatchLoop {
    store: Store,
    give_up: CancellationToken,
    on_error: OnError,
}

type PendingItem<I> = (I, oneshot::Sender<<I as BatchItem>::Reply>);

impl BatchLoop {
    async fn run<I: BatchItem>(self, mut receiver: mpsc::Receiver<PendingItem<I>>) {
        let mut gathered = Vec::with_capacity(ITEMS_MAX);
        while receiver.recv_many(&mut gathered, ITEMS_MAX).await > 0 {
            while !gathered.is_empty() {
                let batch = take_batch(&mut gathered);
                self.send(batch).await;
            }
        }
    }

    async fn send<I: BatchItem>(&self, mut batch: Vec<PendingItem<I>>) {
        for _ in 0..CONTENDED_MAX {
            let (items, answers): (Vec<I>, Vec<_>) = batch.into_iter().unzip();
            let results = match self.persist(&items).await {
                Ok(results) => results,
                // One item causes the failure, so the items are sent one by one. The other items then succeed.
                Err(()) if items.len() > 1 => {
                    for (item, to) in items.into_iter().zip(answers) {
                        Box::pin(self.send(vec![(item, to)])).await;
                    }
                    return;
                }
                Err(()) => {
                    items.into_iter().zip(answers).for_each(|(item, to)| self.reject(item, to));
                    return;
                }
            };
            batch = Vec::new();
            for ((item, to), result) in items.into_iter().zip(answers).zip(results) {
                match result {
                    Ok(reply) => {
                        // Drop the item first, so that the receiver can change the shared slice without a copy.
                        drop(item);
                        drop(to.send(reply));
                    }
                    Err(RunError::Contended(_)) => batch.push((item, to)),
                    Err(error) => {
                        (self.on_error)(I::NAME, &error);
                        self.reject(item, to);
                    }
                }
            }
            if batch.is_empty() {
                return;
            }
        }
        batch.into_iter().for_each(|(item, to)| self.reject(item, to));
    }

    /// Fails if an item of the batch causes a failure, or if the worker must stop.
    async fn persist<I: BatchItem>(&self, items: &[I]) -> Result<Vec<Result<I::Reply, RunError>>, ()> {
        // `OWED` items are retried even when the worker must stop. Other items get at least one attempt.
        let answered = retry_until(&NeverStop, || async {
            match I::decide(&self.store, items).await {
                Ok(results) => Attempt::Done(Ok(results)),
                Err(error) => {
                    (self.on_error)(I::NAME, &error);
                    if error.is_script_error() || (self.give_up.is_cancelled() && !I::OWED) {
                        return Attempt::Done(Err(()));
                    }
                    Attempt::Failed
                }
            }
        });
        answered.await.unwrap_or(Err(()))
    }

    /// Repeats an `OWED` item in the background, because no other process has the results.
    fn reject<I: BatchItem>(&self, item: I, to: oneshot::Sender<I::Reply>) {
        if !I::OWED {
            tracing::error!(decision = I::NAME, "store rejected an item; its turn's timer retries");
            return;
        }
        tracing::error!(decision = I::NAME, "store rejected an item; retrying");
        let this = self.clone();
        tokio::spawn(async move {
            while !to.is_closed() {
                tokio::time::sleep(OWED_EVERY).await;
                match I::decide(&this.store, std::slice::from_ref(&item)).await.map(|mut results| results.pop()) {
                    Ok(Some(Ok(reply))) => {
                        drop(item);
                        drop(to.send(reply));
                        return;
                    }
                    Ok(Some(Err(error))) => (this.on_error)(I::NAME, &error),
                    Ok(None) => return,
                    Err(error) => (this.on_error)(I::NAME, &error),
                }
            }
        });
    }
}

/// Takes the next batch, in which no two items change the same record. The other items stay in `gathered`, in order.
fn take_batch<I: BatchItem, A>(gathered: &mut Vec<(I, A)>) -> Vec<(I, A)> {
    let mut bytes = 0;
    let mut calls = 0;
    let mut records = HashSet::new();
    let mut is_full = false;
    let mut fits = |item: &I| {
        let shared = item.shared();
        if is_full || shared.iter().any(|record| records.contains(record)) {
            // Later items that change one of these records must not overtake this item.
            records.extend(shared);
            return false;
        }
        bytes += item.bytes();
        calls += item.calls();
        is_full = calls > item.calls() && (bytes > I::BYTES_MAX || calls > limits::BATCH_CALLS_MAX);
        records.extend(shared);
        !is_full
    };
    let (batch, rest): (Vec<_>, Vec<_>) =
        gathered.drain(..).map(|one| (fits(&one.0), one)).partition(|(fits, _)| *fits);
    gathered.extend(rest.into_iter().map(|(_, one)| one));
    batch.into_iter().map(|(_, one)| one).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    struct Weight {
        bytes: usize,
        calls: usize,
        record: Option<&'static str>,
    }

    impl BatchItem for Weight {
        const NAME: &'static str = "sized";
        type Reply = ();
        async fn decide(_: &Store, batch: &[Self]) -> BatchResults<()> {
            Ok(batch.iter().map(|_| Ok(())).collect())
        }
        fn bytes(&self) -> usize {
            self.bytes
        }
        fn calls(&self) -> usize {
            self.calls
        }
        fn shared(&self) -> Vec<RecordKey> {
            self.record.map(RecordKey::new).into_iter().collect()
        }
    }

    #[test]
    fn a_batch_is_bounded_in_bytes_and_calls() {
        let first = |bytes, calls| {
            let mut all: Vec<_> = (0..256).map(|_| (Weight { bytes, calls, record: None }, ())).collect();
            let batch = take_batch(&mut all);
            assert_eq!(batch.len() + all.len(), 256);
            batch.len()
        };
        assert_eq!(first(300, 1), 256);
        assert_eq!(first(limits::BATCH_BYTES_MAX, 8), 1);
        assert_eq!(first(limits::BATCH_BYTES_MAX / 7, 1), 7);
        assert_eq!(first(100, 10), limits::BATCH_CALLS_MAX / 10);
        assert_eq!(first(2 * limits::BATCH_BYTES_MAX, 1), 1, "an item that is too large goes alone");
    }

    #[test]
    fn items_that_share_a_record_go_to_separate_batches_in_order() {
        let item = |(number, record)| (Weight { bytes: 1, calls: 1, record }, number);
        let mut all: Vec<_> =
            [(0, Some("a")), (1, None), (2, Some("a")), (3, Some("b")), (4, Some("a"))].map(item).into();
        let mut next = || take_batch(&mut all).iter().map(|(_, number)| *number).collect::<Vec<i32>>();
        assert_eq!((next(), next(), next(), next()), (vec![0, 1, 3], vec![2], vec![4], vec![]));
    }
}
