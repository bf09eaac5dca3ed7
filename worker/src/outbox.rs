//! The way of results, begins, retries and hand-backs to Redis: in batches, one queue a verb.

use std::time::Duration;

use tickfleet_model::Durability;
use tickfleet_store::{
    Answer, AskApproval, Asked, Begin, Begun, Claimed, Concluded, Conclusion, Confirmed, Consent, EffectClaim,
    EnteredAt, FactsEntry, HandBack, KeptAnswer, Parked, Queue, ReadName, Repeat, Repeated, Rest, Rested, Retry,
    Returned, RowCall, Settled, Settlement, SliceEntry, Store, TurnName, UseApproval, Wait,
};
use tokio_util::sync::CancellationToken;

use crate::batch::{self, Batcher, DurableBegin};

/// The messages of a worker about its slices. None is the answer if Redis refuses an item, or did not answer before the
/// worker had to stop.
pub(crate) struct Outbox {
    settles: Batcher<Settlement>,
    begins: Batcher<Begin>,
    /// Begins that have to reach the primary's disk, and those that have to reach a replica: each batch waits.
    begins_local: Batcher<DurableBegin>,
    begins_replica: Batcher<DurableBegin>,
    entries: Batcher<FactsEntry>,
    claims: Batcher<EffectClaim>,
    conclusions: Batcher<Conclusion>,
    asked: Batcher<AskApproval>,
    consents: Batcher<UseApproval>,
    lookups: Batcher<ReadName>,
    answers: Batcher<Answer>,
    brakes: Batcher<RowCall>,
    repeats: Batcher<Repeat>,
    retries: Batcher<Retry>,
    rests: Batcher<Rest>,
    waits: Batcher<Wait>,
    hand_backs: Batcher<HandBack>,
}

impl Outbox {
    /// Starts the batchers, each for up to `capacity` items that wait. What is not owed is given up when `now` is
    /// cancelled and Redis does not answer.
    pub(crate) fn new(store: &Store, capacity: usize, now: &CancellationToken) -> Self {
        let failed = batch::tell_seldom();
        Self {
            settles: Batcher::new(store, capacity, now, failed.clone()),
            begins: Batcher::new(store, capacity, now, failed.clone()),
            begins_local: Batcher::new(store, capacity, now, failed.clone()),
            begins_replica: Batcher::new(store, capacity, now, failed.clone()),
            entries: Batcher::new(store, capacity, now, failed.clone()),
            claims: Batcher::new(store, capacity, now, failed.clone()),
            conclusions: Batcher::new(store, capacity, now, failed.clone()),
            asked: Batcher::new(store, capacity, now, failed.clone()),
            consents: Batcher::new(store, capacity, now, failed.clone()),
            lookups: Batcher::new(store, capacity, now, failed.clone()),
            answers: Batcher::new(store, capacity, now, failed.clone()),
            brakes: Batcher::new(store, capacity, now, failed.clone()),
            repeats: Batcher::new(store, capacity, now, failed.clone()),
            retries: Batcher::new(store, capacity, now, failed.clone()),
            rests: Batcher::new(store, capacity, now, failed.clone()),
            waits: Batcher::new(store, capacity, now, failed.clone()),
            hand_backs: Batcher::new(store, capacity, now, failed),
        }
    }

    /// Commits results.
    pub(crate) async fn settle(&self, settlement: Settlement) -> Option<Settled> {
        self.settles.ask(settlement).await
    }

    /// Records that a call is about to run.
    pub(crate) async fn begin(&self, begin: Begin) -> Option<Begun> {
        self.begins.ask(begin).await
    }

    /// As [`Self::begin`], of a call that runs only when what `durability` names knows of it; waits for that `at_most`.
    pub(crate) async fn begin_durably(
        &self,
        begin: Begin,
        durability: Durability,
        at_most: Duration,
    ) -> Option<(Begun, Confirmed)> {
        let item = DurableBegin { begin, durability, at_most };
        match durability {
            Durability::None => Some((self.begins.ask(item.begin).await?, Confirmed::Yes)),
            Durability::Disk => self.begins_local.ask(item).await,
            Durability::Replica => self.begins_replica.ask(item).await,
        }
    }

    /// A call that is about to begin enters its session.
    pub(crate) async fn enter(&self, entry: FactsEntry) -> Option<EnteredAt> {
        self.entries.ask(entry).await
    }

    /// Claims the effect of a call that is about to begin.
    pub(crate) async fn claim(&self, claim: EffectClaim) -> Option<Claimed> {
        self.claims.ask(claim).await
    }

    /// Says what came of a call that had claimed its effect.
    pub(crate) async fn conclude(&self, conclusion: Conclusion) -> Option<Concluded> {
        self.conclusions.ask(conclusion).await
    }

    /// Asks people about a call, and parks its slice.
    pub(crate) async fn ask_approval(&self, ask: AskApproval) -> Option<Asked> {
        self.asked.ask(ask).await
    }

    /// Asks what people have said about a call, and takes their consent.
    pub(crate) async fn use_approval(&self, question: UseApproval) -> Option<Consent> {
        self.consents.ask(question).await
    }

    /// Looks for the kept answer of a read.
    pub(crate) async fn lookup(&self, read: ReadName) -> Option<Option<KeptAnswer>> {
        self.lookups.ask(read).await
    }

    /// Keeps the answer of a read, if there is room on the way: nobody waits for it.
    pub(crate) fn fill(&self, answer: Answer) {
        self.answers.tell(answer);
    }

    /// Asks whether a call is refused for a while, and until when.
    pub(crate) async fn brake(&self, call: RowCall) -> Option<Option<i64>> {
        self.brakes.ask(call).await
    }

    /// Counts a call that has its result.
    pub(crate) async fn count_repeat(&self, repeat: Repeat) -> Option<Repeated> {
        self.repeats.ask(repeat).await
    }

    /// Parks a slice for another try.
    pub(crate) async fn retry(&self, retry: Retry) -> Option<Parked> {
        self.retries.ask(retry).await
    }

    /// Parks a slice while the tool of its call rests.
    pub(crate) async fn rest(&self, rest: Rest) -> Option<Rested> {
        self.rests.ask(rest).await
    }

    /// Parks a slice until what its call waits for has ended.
    pub(crate) async fn wait(&self, wait: Wait) -> Option<Parked> {
        self.waits.ask(wait).await
    }

    /// Returns a slice that nothing was written for since its last commit.
    pub(crate) async fn hand_back(&self, slice: &SliceEntry, why: Returned) {
        self.return_slice(slice.name.clone(), &slice.queue, &slice.fence, why).await;
    }

    /// Returns a slice of which no more is known than this.
    pub(crate) async fn return_slice(&self, name: TurnName, queue: &Queue, fence: &str, why: Returned) {
        let back = HandBack { name: name.clone(), fence: fence.to_owned(), queue: queue.clone(), why };
        if self.hand_backs.ask(back).await.is_none() {
            tracing::warn!(turn = %name, "failed to return a slice; it is recovered when this worker's lease ends");
        }
    }
}
