//! Waiting for replies: however many callers wait, one reader a tenant asks Redis, and hands each reply to those who wait
//! for it. What it does not bring (the turn went through another gateway, or to an inbox of its own) is in the turn's
//! record, which is looked at once in a while.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_client::{Client, Reply, ReplyStatus, StoreError, private_inbox};
use tickfleet_model::{InboxName, RejectionCode, TenantId, TurnId};
use tickfleet_store::{TurnName, TurnView};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::caller::Caller;
use crate::owners::{agent_of, sees_reply};
use crate::problem::Problem;
use crate::serving::shares::{Bounds, Share, Shares};
use crate::verbs::Holder;

/// Requests that wait at once, of one tenant and of one caller: each costs some kilobytes, and a connection of its caller's.
const WAITING_MAX: Bounds = Bounds { all: 10_000, tenant: 2_500, caller: 2_000 };
/// The first look at the record of a turn whose reply does not come, and the longest time between two.
const LOOKS: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(4));
/// One blocking read of an inbox.
const READ: Duration = Duration::from_secs(5);
/// A reader of a tenant for whom nobody has waited for so long ends, and its connection with it.
const IDLE: Duration = Duration::from_secs(300);
/// After a read that failed.
const READ_AGAIN: Duration = Duration::from_millis(500);
/// Refusals that are kept for whoever asks later: nothing else keeps them.
const REFUSALS_MAX: usize = 1_000;

type Told = watch::Sender<Option<Arc<Reply>>>;

/// What is known of a turn or task.
#[derive(Debug, Clone)]
pub(crate) enum Found {
    /// It has ended, with this reply.
    Ended(Arc<Reply>),
    /// It has not.
    UnderWay,
    /// It has, while memory was short: its reply went to its inbox alone.
    InInbox,
    /// Nothing: it was not admitted yet, was refused, or ended longer ago than records are kept.
    Unknown,
}

/// One of the places to wait in, given back when it is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    _share: Share,
}

/// Those who wait on this process.
#[derive(Clone)]
pub(crate) struct Waiting {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    /// Where the replies to what this process submits go, of each tenant.
    inbox: InboxName,
    tenants: Mutex<HashMap<TenantId, Tenant>>,
    places: Shares,
    draining: CancellationToken,
    readers: TaskTracker,
}

/// Those who wait for replies of one tenant.
struct Tenant {
    turns: HashMap<TurnId, Told>,
    refusals: VecDeque<Arc<Reply>>,
    used: Instant,
}

/// One who waits. When it has gone, nothing of it stays.
struct Waiter<'a> {
    inner: &'a Inner,
    name: &'a TurnName,
    told: Option<watch::Receiver<Option<Arc<Reply>>>>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut tenants = self.inner.tenants.lock();
        self.told = None;
        let Some(tenant) = tenants.get_mut(&self.name.tenant) else { return };
        if tenant.turns.get(&self.name.turn).is_some_and(|told| told.receiver_count() == 0) {
            tenant.turns.remove(&self.name.turn);
        }
    }
}

impl Waiting {
    pub(crate) fn new(client: Client, draining: CancellationToken) -> Self {
        let (inbox, places) = (private_inbox("gw"), Shares::new(WAITING_MAX));
        let (tenants, readers) = (Mutex::default(), TaskTracker::new());
        Self { inner: Arc::new(Inner { client, inbox, tenants, places, draining, readers }) }
    }

    /// The inbox for the replies to what a tenant submits here; it is read from now on.
    pub(crate) fn inbox(&self, tenant: &TenantId) -> InboxName {
        self.read(tenant);
        self.inner.inbox.clone()
    }

    /// What is known of a turn without reading what waits for a decision, but where a refusal is known; none where that may be
    /// all. So who looks often reads no message again and again.
    ///
    /// # Errors
    /// Redis does not answer.
    pub(crate) async fn glance(&self, name: &TurnName) -> Result<Option<Found>, Problem> {
        self.inner.glance(name, None).await
    }

    /// A place to wait in, for one caller. Whoever submits takes it first: what is taken in is not refused afterwards.
    ///
    /// # Errors
    /// Too many wait already.
    pub(crate) fn place(&self, holder: &Holder) -> Result<Place, Problem> {
        self.inner
            .places
            .take(holder)
            .map(|share| Place { _share: share })
            .ok_or_else(|| Problem::too_many_wait(WAITING_MAX))
    }

    /// What is known of a turn or task now; to a caller, what its key does not cover is unknown.
    ///
    /// # Errors
    /// Redis does not answer.
    pub(crate) async fn look(&self, name: &TurnName, caller: Option<&Caller>) -> Result<Found, Problem> {
        self.inner.look(name, caller).await
    }

    /// The reply to a turn or task, waited for at most so long; for a caller, what its key does not cover is waited for as what
    /// is unknown.
    ///
    /// # Errors
    /// Redis does not answer.
    pub(crate) async fn reply(
        &self,
        name: &TurnName,
        wait: Duration,
        _place: &Place,
        caller: Option<&Caller>,
    ) -> Result<Found, Problem> {
        let inner = &*self.inner;
        self.read(&name.tenant);
        // Before the first look: a reply that comes meanwhile is not missed.
        let mut waiter = inner.waiter(name);
        let deadline = Instant::now() + wait;
        let (mut every, longest) = LOOKS;
        let is_for = |reply: &Reply| caller.is_none_or(|caller| sees_reply(caller, reply));
        let mut heard: Option<Arc<Reply>> = None;
        let found = loop {
            let found = match (inner.look(name, caller).await?, &heard) {
                // Nothing else is known of it: the refusal that came counts.
                (Found::Unknown, Some(refusal)) if is_for(refusal) => Found::Ended(Arc::clone(refusal)),
                (found, _) => found,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if matches!(found, Found::Ended(_) | Found::InInbox) || left.is_zero() || inner.draining.is_cancelled() {
                break found;
            }
            match inner.told(&mut waiter, every.min(left), heard.as_ref()).await {
                // The caller waits on, as for an id that does not exist.
                Some(reply) if !is_for(&reply) => heard = Some(reply),
                Some(reply) if reply.status == ReplyStatus::Done => break Found::Ended(reply),
                // It may be of an earlier try, or of another message that had the id: the next look says what it is worth.
                Some(refusal) => {
                    heard = Some(refusal);
                    continue;
                }
                None => {}
            }
            every = (every * 2).min(longest);
        };
        drop(waiter);
        Ok(found)
    }

    /// How many requests wait now.
    pub(crate) fn count(&self) -> usize {
        self.inner.places.count()
    }

    /// Waits until the readers have ended, and left nothing in Redis.
    pub(crate) async fn ended(&self) {
        self.inner.readers.close();
        self.inner.readers.wait().await;
    }

    fn read(&self, tenant: &TenantId) {
        let mut tenants = self.inner.tenants.lock();
        if let Some(known) = tenants.get_mut(tenant) {
            known.used = Instant::now();
            return;
        }
        let (turns, refusals) = (HashMap::new(), VecDeque::new());
        tenants.insert(tenant.clone(), Tenant { turns, refusals, used: Instant::now() });
        self.inner.readers.spawn(Arc::clone(&self.inner).read_inbox(tenant.clone()));
    }
}

impl Inner {
    fn waiter<'a>(&'a self, name: &'a TurnName) -> Waiter<'a> {
        let mut tenants = self.tenants.lock();
        let told = tenants
            .get_mut(&name.tenant)
            .map(|tenant| tenant.turns.entry(name.turn.clone()).or_insert_with(|| watch::channel(None).0).subscribe());
        Waiter { inner: self, name, told }
    }

    /// The reply, if the reader brings another than was heard within this time; `None` too where the process drains.
    async fn told(&self, waiter: &mut Waiter<'_>, within: Duration, but: Option<&Arc<Reply>>) -> Option<Arc<Reply>> {
        let told = waiter.told.as_mut()?;
        let is_heard = |reply: &Arc<Reply>| but.is_some_and(|heard| Arc::ptr_eq(heard, reply));
        let is_news = |reply: &Option<Arc<Reply>>| reply.as_ref().is_some_and(|reply| !is_heard(reply));
        let heard = async { told.wait_for(is_news).await.ok().and_then(|reply| reply.clone()) };
        self.draining.run_until_cancelled(timeout(within, heard)).await?.ok().flatten()
    }

    /// What is known of a turn without reading what waits for a decision: none where that may be all.
    async fn glance(&self, name: &TurnName, caller: Option<&Caller>) -> Result<Option<Found>, Problem> {
        let found = self.recorded(name, caller).await?;
        if !matches!(found, Found::Unknown) {
            return Ok(Some(found));
        }
        // What was refused leaves its id free: it may have been taken in again since.
        let refusal = self.refusal(name).filter(|reply| caller.is_none_or(|caller| sees_reply(caller, reply)));
        let Some(refusal) = refusal else { return Ok(None) };
        if self.is_undecided(name, caller).await? {
            return Ok(Some(Found::UnderWay));
        }
        Ok(Some(match self.recorded(name, caller).await? {
            Found::Unknown => Found::Ended(refusal),
            found => found,
        }))
    }

    /// Whether it was taken in, and nobody has decided about it so far. Cheap for those with an id of their own; the rest is in
    /// the stream.
    async fn is_undecided(&self, name: &TurnName, caller: Option<&Caller>) -> Result<bool, Problem> {
        let waits = self.client.store(&name.tenant).waits_for_admission(name).await?;
        let Some(caller) = caller.filter(|caller| !caller.sees(None)) else {
            return Ok(waits || self.client.undecided(name).await?.is_some());
        };
        let agent = self.client.undecided(name).await?.and_then(|waits| waits.agent);
        Ok(agent.is_some_and(|agent| caller.sees(Some(agent.as_str()))))
    }

    async fn look(&self, name: &TurnName, caller: Option<&Caller>) -> Result<Found, Problem> {
        if let Some(found) = self.glance(name, caller).await? {
            return Ok(found);
        }
        if self.is_undecided(name, caller).await? {
            return Ok(Found::UnderWay);
        }
        // It may have been admitted between the two looks.
        match self.recorded(name, caller).await? {
            Found::Unknown if self.client.store(&name.tenant).is_absent(&name.tenant).await? => {
                Ok(absent(name).map_or(Found::Unknown, Found::Ended))
            }
            found => Ok(found),
        }
    }

    async fn recorded(&self, name: &TurnName, caller: Option<&Caller>) -> Result<Found, Problem> {
        let sees_all = caller.is_none_or(|caller| caller.sees(None));
        let view = match self.client.store(&name.tenant).record(name).await.map_err(Problem::from) {
            // Whose it is cannot be read, either.
            Err(problem) if problem.is_damaged() && !sees_all => return Ok(Found::Unknown),
            view => view?,
        };
        if !sees_all && !caller.is_some_and(|caller| agent_of(&view).is_some_and(|agent| caller.sees(Some(&agent)))) {
            return Ok(Found::Unknown);
        }
        Ok(match view {
            TurnView::Finished(finished) if finished.reply.is_empty() => Found::InInbox,
            TurnView::Finished(finished) => Found::Ended(Arc::new(
                serde_json::from_str(&finished.reply)
                    .map_err(|error| StoreError::Reply { verb: "replies", found: format!("{name}: {error}") })?,
            )),
            TurnView::Live(_) => Found::UnderWay,
            TurnView::Unknown => Found::Unknown,
        })
    }

    fn refusal(&self, name: &TurnName) -> Option<Arc<Reply>> {
        let tenants = self.tenants.lock();
        let refusals = &tenants.get(&name.tenant)?.refusals;
        refusals.iter().rev().find(|reply| reply.id() == Some(&name.turn)).cloned()
    }

    /// Reads the replies of one tenant, until nobody has waited for them for a while.
    async fn read_inbox(self: Arc<Self>, tenant: TenantId) {
        let mut replies = self.client.replies(&tenant, &self.inbox);
        loop {
            let Some(read) = self.draining.run_until_cancelled(replies.next(READ)).await else { break };
            match read {
                Ok(Some(reply)) => self.tell(&tenant, reply),
                Ok(None) if self.is_idle(&tenant) => break,
                Ok(None) => {}
                // It is skipped: whoever waits finds the turn's record.
                Err(error @ StoreError::Reply { .. }) => tracing::error!(%error, "cannot read a reply"),
                Err(error) => {
                    tracing::warn!(%error, %tenant, "cannot read replies; retrying");
                    self.draining.run_until_cancelled(tokio::time::sleep(READ_AGAIN)).await;
                }
            }
        }
        if let Err(error) = replies.forget().await {
            tracing::warn!(%error, %tenant, "failed to remove the gateway's inbox; it expires by itself");
        }
    }

    fn tell(&self, tenant: &TenantId, reply: Reply) {
        // Before the end, people are asked: whoever waits waits on.
        if reply.status == ReplyStatus::PendingApproval {
            return;
        }
        let reply = Arc::new(reply);
        let mut tenants = self.tenants.lock();
        let (Some(id), Some(tenant)) = (reply.id(), tenants.get_mut(tenant)) else { return };
        if let Some(told) = tenant.turns.get(id) {
            told.send_replace(Some(Arc::clone(&reply)));
        }
        if reply.status != ReplyStatus::Done {
            tenant.refusals.push_back(reply);
            if tenant.refusals.len() > REFUSALS_MAX {
                tenant.refusals.pop_front();
            }
        }
    }

    /// Takes a tenant out for whom nobody waits any more, in the step that says so: who comes then begins anew.
    fn is_idle(&self, tenant: &TenantId) -> bool {
        let mut tenants = self.tenants.lock();
        let idle = tenants.get(tenant).is_none_or(|known| known.turns.is_empty() && known.used.elapsed() > IDLE);
        if idle {
            tenants.remove(tenant);
        }
        idle
    }
}

/// The refusal of a message whose tenant is not configured, and so has no inbox.
fn absent(name: &TurnName) -> Option<Arc<Reply>> {
    let message = format!("tenant {:?} is not configured", name.tenant.as_str());
    let reply = serde_json::json!({
        "turn_id": name.turn, "tenant": name.tenant, "agent": "", "status": "rejected", "dialect": "raw",
        "error": {"code": RejectionCode::UnknownTenant.as_str(), "message": message}, "results": [],
    });
    serde_json::from_value(reply).map(Arc::new).ok()
}
