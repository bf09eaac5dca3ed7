//! Batching without lingering: whatever gathered during the last round trip goes into the next (rule 16).

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_engine::retry_until::{Attempt, Endless, retry_until};
use tickfleet_model::{Durability, limits};
use tickfleet_store::{
    Answer, AskApproval, Asked, Begin, Begun, Claimed, Concluded, Conclusion, Confirmed, Consent, EffectClaim,
    EffectEnd, EnteredAt, FactsEntry, HandBack, KeptAnswer, Parked, ReadName, Repeat, Repeated, Rest, Rested, Retry,
    RowCall, Settled, Settlement, Store, StoreError, UseApproval, Wait,
};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Told of every failed attempt.
pub(crate) type OnError = Arc<dyn Fn(&'static str, &StoreError) + Send + Sync>;

/// Items of one batch.
const ITEMS_MAX: usize = limits::SCRIPT_TURNS_USUAL;
/// Bytes of an item that carries ids only.
const IDS_BYTES: usize = 128;
/// The time between two tries of an item that Redis refuses alone, and that must not be dropped.
const OWED_EVERY: Duration = Duration::from_secs(2);
/// The time between two reports of trouble with Redis, per verb: it lasts, and every batch meets it.
const SAY_EVERY: Duration = Duration::from_secs(10);

/// A verb of the store that is asked for item by item and called in batches.
pub(crate) trait Verb: Sized + Send + Sync + 'static {
    /// The verb's name.
    const NAME: &'static str;
    /// The answer to one item.
    type Reply: Send + 'static;
    /// True if an item is never given up while the process lives: what it says happened, and nobody else knows.
    const OWED: bool = false;
    /// Calls it for a batch.
    fn call(store: &Store, batch: &[Self]) -> impl Future<Output = Result<Vec<Self::Reply>, StoreError>> + Send;
    /// Bytes of one batch.
    const BYTES_MAX: usize = limits::BATCH_BYTES_MAX;
    /// About how many bytes the script handles for the item.
    fn bytes(&self) -> usize {
        IDS_BYTES
    }
    /// Returns the number of calls that the item is about.
    fn calls(&self) -> usize {
        1
    }
}

impl Verb for Settlement {
    const NAME: &'static str = "settle";
    const OWED: bool = true;
    type Reply = Settled;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Settled>, StoreError> {
        store.settle(batch).await
    }
    const BYTES_MAX: usize = limits::SETTLE_BYTES_MAX;
    /// The results of the turn's earlier slices are read again when it ends: about as much a call as these.
    fn bytes(&self) -> usize {
        let sent = self.calls.iter().map(|c| c.result.len() + c.message.len() + c.audit.len()).sum::<usize>();
        IDS_BYTES + sent + sent / self.calls.len().max(1) * self.first
    }
    fn calls(&self) -> usize {
        self.calls.len() + self.first
    }
}

impl Verb for Begin {
    const NAME: &'static str = "begin";
    type Reply = Begun;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Begun>, StoreError> {
        store.begin(batch).await
    }
}

/// A begin that has to be durable before its call runs. A batch has those of one durability.
pub(crate) struct DurableBegin {
    pub(crate) begin: Begin,
    pub(crate) durability: Durability,
    /// The longest wait.
    pub(crate) at_most: Duration,
}

impl Verb for DurableBegin {
    const NAME: &'static str = "begin";
    type Reply = (Begun, Confirmed);
    /// One wait confirms the whole batch: what gathers meanwhile goes with the next.
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Self::Reply>, StoreError> {
        let Some(first) = batch.first() else { return Ok(Vec::new()) };
        let calls: Vec<Begin> = batch.iter().map(|item| item.begin.clone()).collect();
        let (begun, confirmed) = store.begin_durably(&calls, first.durability, first.at_most).await?;
        Ok(begun.into_iter().map(|begun| (begun, confirmed.clone())).collect())
    }
}

impl Verb for FactsEntry {
    const NAME: &'static str = "enter";
    type Reply = EnteredAt;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<EnteredAt>, StoreError> {
        store.enter(batch).await
    }
    fn bytes(&self) -> usize {
        IDS_BYTES * (1 + self.conditions.len() + self.changes.len())
    }
}

impl Verb for EffectClaim {
    const NAME: &'static str = "claim";
    type Reply = Claimed;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Claimed>, StoreError> {
        store.claim(batch).await
    }
}

impl Verb for Conclusion {
    const NAME: &'static str = "conclude";
    type Reply = Concluded;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Concluded>, StoreError> {
        store.conclude(batch).await
    }
    fn bytes(&self) -> usize {
        match &self.end {
            EffectEnd::Ended(result) | EffectEnd::Unknown(result) => IDS_BYTES + result.len(),
            EffectEnd::Undone | EffectEnd::Open => IDS_BYTES,
        }
    }
}

impl Verb for AskApproval {
    const NAME: &'static str = "ask_approval";
    type Reply = Asked;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Asked>, StoreError> {
        store.ask_approval(batch).await
    }
    fn bytes(&self) -> usize {
        let early = self.early.as_ref().map_or(0, |(_, reply)| reply.len());
        2 * IDS_BYTES + 2 * (self.arguments.len() + self.why.len()) + early
    }
}

impl Verb for UseApproval {
    const NAME: &'static str = "use_approval";
    type Reply = Consent;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Consent>, StoreError> {
        store.use_approval(batch).await
    }
}

impl Verb for ReadName {
    const NAME: &'static str = "lookup";
    type Reply = Option<KeptAnswer>;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Self::Reply>, StoreError> {
        store.lookup(batch).await
    }
    /// The answer, which Redis writes out.
    fn bytes(&self) -> usize {
        limits::CACHED_OUTPUT_BYTES_MAX
    }
}

impl Verb for Answer {
    const NAME: &'static str = "fill";
    type Reply = bool;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<bool>, StoreError> {
        store.fill(batch).await
    }
    fn bytes(&self) -> usize {
        IDS_BYTES + self.output.len()
    }
}

impl Verb for RowCall {
    const NAME: &'static str = "brake";
    type Reply = Option<i64>;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Option<i64>>, StoreError> {
        store.brake(batch).await
    }
}

impl Verb for Repeat {
    const NAME: &'static str = "count_repeat";
    type Reply = Repeated;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Repeated>, StoreError> {
        store.count_repeat(batch).await
    }
}

impl Verb for Retry {
    const NAME: &'static str = "retry";
    type Reply = Parked;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Parked>, StoreError> {
        store.retry(batch).await
    }
}

impl Verb for Rest {
    const NAME: &'static str = "rest";
    type Reply = Rested;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Rested>, StoreError> {
        store.rest(batch).await
    }
}

impl Verb for Wait {
    const NAME: &'static str = "wait";
    type Reply = Parked;
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<Parked>, StoreError> {
        store.wait(batch).await
    }
}

impl Verb for HandBack {
    const NAME: &'static str = "hand_back";
    type Reply = ();
    async fn call(store: &Store, batch: &[Self]) -> Result<Vec<()>, StoreError> {
        store.hand_back(batch).await.map(|_| vec![(); batch.len()])
    }
}

/// Asks for one verb. An item is repeated until Redis has answered: a result is never dropped because Redis was away.
pub(crate) struct Batcher<V: Verb> {
    sender: mpsc::Sender<(V, oneshot::Sender<V::Reply>)>,
}

impl<V: Verb> Batcher<V> {
    /// Starts the verb's batcher. It ends when it is dropped and all that was asked is answered, or when `give_up`
    /// is cancelled and Redis does not answer.
    pub(crate) fn new(store: &Store, capacity: usize, give_up: &CancellationToken, on_error: OnError) -> Self {
        let (sender, receiver) = mpsc::channel(capacity);
        let work = Work { store: store.clone(), give_up: give_up.clone(), on_error };
        tokio::spawn(work.run(receiver));
        Self { sender }
    }

    /// Asks for one item and waits for its answer; none if Redis refuses the item itself, or if the worker
    /// had to stop before Redis answered.
    pub(crate) async fn ask(&self, item: V) -> Option<V::Reply> {
        let (answer, answered) = oneshot::channel();
        self.sender.send((item, answer)).await.ok()?;
        answered.await.ok()
    }

    /// Asks for one item that nobody waits for. Where no more can wait, it is left out.
    pub(crate) fn tell(&self, item: V) {
        if self.sender.try_send((item, oneshot::channel().0)).is_err() {
            tracing::debug!(verb = V::NAME, "write queue to Redis is full; dropping one item");
        }
    }
}

/// Says how often it was called since it spoke last; nothing while that is not long ago.
#[derive(Debug, Default)]
struct Seldom {
    said: Option<Instant>,
    silent: u64,
}

impl Seldom {
    /// Returns how many times nothing was said, if it is time to speak again.
    fn speaks(&mut self) -> Option<u64> {
        if self.said.is_some_and(|said| said.elapsed() < SAY_EVERY) {
            self.silent += 1;
            return None;
        }
        self.said = Some(Instant::now());
        Some(std::mem::take(&mut self.silent))
    }
}

/// A hook that logs what goes wrong with a verb, now and then.
pub(crate) fn tell_seldom() -> OnError {
    let spoken: Mutex<HashMap<&'static str, Seldom>> = Mutex::default();
    Arc::new(move |verb, error| {
        let mut spoken = spoken.lock();
        if let Some(silent) = spoken.entry(verb).or_default().speaks() {
            tracing::warn!(verb, %error, silent, "Redis write failed; retrying");
        }
    })
}

#[derive(Clone)]
struct Work {
    store: Store,
    give_up: CancellationToken,
    on_error: OnError,
}

impl Work {
    async fn run<V: Verb>(self, mut receiver: mpsc::Receiver<(V, oneshot::Sender<V::Reply>)>) {
        let mut gathered = Vec::with_capacity(ITEMS_MAX);
        while receiver.recv_many(&mut gathered, ITEMS_MAX).await > 0 {
            while !gathered.is_empty() {
                let rest = gathered.split_off(length(&gathered));
                let (items, answers): (Vec<V>, Vec<_>) = gathered.drain(..).unzip();
                self.send(items, answers).await;
                gathered = rest;
            }
        }
    }

    async fn send<V: Verb>(&self, items: Vec<V>, answers: Vec<oneshot::Sender<V::Reply>>) {
        match self.persist(&items).await {
            Ok(replies) => answer(answers, replies),
            // Rule 11: one of them is at fault; the others must not suffer for it.
            Err(()) if items.len() > 1 => {
                for (item, to) in items.into_iter().zip(answers) {
                    match self.persist(std::slice::from_ref(&item)).await {
                        Ok(replies) => answer(vec![to], replies),
                        Err(()) => self.refused(item, to),
                    }
                }
            }
            Err(()) => {
                for (item, to) in items.into_iter().zip(answers) {
                    self.refused(item, to);
                }
            }
        }
    }

    /// Calls until Redis has answered. An error means that the batch itself is at fault, or that we must stop.
    async fn persist<V: Verb>(&self, items: &[V]) -> Result<Vec<V::Reply>, ()> {
        // Each batch has its own say: what is owed goes on, and the rest has one attempt at least while we stop.
        let answered = retry_until(&Endless, || async {
            match V::call(&self.store, items).await {
                Ok(replies) => Attempt::Done(Ok(replies)),
                Err(error) => {
                    (self.on_error)(V::NAME, &error);
                    if error.is_script_error() || (self.give_up.is_cancelled() && !V::OWED) {
                        return Attempt::Done(Err(()));
                    }
                    Attempt::Failed
                }
            }
        });
        answered.await.unwrap_or(Err(()))
    }

    /// Redis refuses this very item. What is owed is tried again beside everything else for as long as the process
    /// lives: whatever stands in its way may be mended, and until then nobody else holds what it says.
    fn refused<V: Verb>(&self, item: V, to: oneshot::Sender<V::Reply>) {
        if !V::OWED {
            tracing::error!(verb = V::NAME, "Redis rejected an item; its turn's timer retries");
            return;
        }
        tracing::error!(verb = V::NAME, "Redis rejected an item; retrying");
        let this = self.clone();
        tokio::spawn(async move {
            while !to.is_closed() {
                tokio::time::sleep(OWED_EVERY).await;
                match V::call(&this.store, std::slice::from_ref(&item)).await {
                    Ok(replies) => return answer(vec![to], replies),
                    Err(error) => (this.on_error)(V::NAME, &error),
                }
            }
        });
    }
}

/// Counts the items that fit one batch by bytes and calls; at least one.
fn length<V: Verb, A>(gathered: &[(V, A)]) -> usize {
    let (mut bytes, mut calls) = (0, 0);
    let fits = |item: &&(V, A)| {
        bytes += item.0.bytes();
        calls += item.0.calls();
        bytes <= V::BYTES_MAX && calls <= limits::BATCH_CALLS_MAX
    };
    gathered.iter().take_while(fits).count().max(1)
}

/// Whoever asked may be gone: then nobody needs the answer.
fn answer<R>(to: Vec<oneshot::Sender<R>>, replies: Vec<R>) {
    for (to, reply) in to.into_iter().zip(replies) {
        drop(to.send(reply));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_store::{ReplyFrame, SettledCall, TurnName};

    use super::*;

    fn settlement(first: usize, calls: usize, bytes: usize) -> (Settlement, ()) {
        let call = SettledCall { result: "x".repeat(bytes), ..SettledCall::default() };
        let settlement = Settlement {
            name: TurnName::parse("acme:t").unwrap(),
            fence: "1-0".into(),
            queue: None,
            first,
            reply_to: None,
            frame: ReplyFrame::default(),
            calls: vec![call; calls],
        };
        (settlement, ())
    }

    #[test]
    fn a_batch_of_results_is_bounded_by_what_its_script_handles() {
        let all = |one: (usize, usize, usize)| length(&vec![settlement(one.0, one.1, one.2); 256]);
        assert_eq!(all((0, 1, 300)), 256, "what is usual comes together");
        assert_eq!(all((0, 8, 64 * 1024)), 1, "one turn as long as any may be");
        assert_eq!(all((0, 1, 64 * 1024)), 7);
        assert_eq!(all((0, 10, 100)), limits::BATCH_CALLS_MAX / 10);
        assert_eq!(all((120, 8, 4_000)), 1, "its last slice reads what the others have written");
    }
}
