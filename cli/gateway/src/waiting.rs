//! Waits for replies. All waiting requests of a tenant share one reader of replies. The reader misses replies to turns
//! of other gateways and of other inboxes, so waiting requests also read the turn's record.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tickfleet_client::{Client, Reply, ReplyStatus, StoreError, private_inbox};
use tickfleet_model::retry::DoublingDelay;
use tickfleet_model::{InboxName, RejectionCode, TenantId, TurnId};
use tickfleet_store::{TurnName, TurnView};
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::caller::Caller;
use crate::owners::{agent_of, may_see_reply};
use crate::problem::Problem;
use crate::serving::permits::{Permit, PermitBounds, PermitPool};
use crate::verbs::CallerIdentity;

/// Each waiting request takes a few kilobytes and a connection.
const WAITING_MAX: PermitBounds = PermitBounds { all: 10_000, tenant: 2_500, caller: 2_000 };
/// The first and longest interval between reads of the turn's record.
const LOOKUP_INTERVALS: DoublingDelay = DoublingDelay::new(Duration::from_millis(250), Duration::from_secs(4));
const READ: Duration = Duration::from_secs(5);
/// A reader ends, with its connection, after its tenant has been unused for this long.
const IDLE: Duration = Duration::from_secs(300);
const READ_RETRY_PAUSE: Duration = Duration::from_millis(500);
/// The maximum per tenant. Redis has no records of rejections, so this process keeps them for later requests.
const REJECTIONS_MAX: usize = 1_000;

type ReplySender = watch::Sender<Option<Arc<Reply>>>;

#[derive(Debug, Clone)]
pub(crate) enum TurnLookup {
    Ended(Arc<Reply>),
    UnderWay,
    /// Ended while Redis memory was short: the reply went only to the inbox.
    InInbox,
    /// Not admitted yet, rejected, or ended longer ago than records are kept.
    Unknown,
}

#[derive(Debug)]
pub(crate) struct WaitPermit {
    _share: Permit,
}

#[derive(Clone)]
pub(crate) struct ReplyWaiters {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    /// This process has the same inbox name in every tenant.
    inbox: InboxName,
    tenants: Mutex<HashMap<TenantId, TenantWaiters>>,
    permits: PermitPool,
    draining: CancellationToken,
    readers: TaskTracker,
}

struct TenantWaiters {
    turns: HashMap<TurnId, ReplySender>,
    rejections: VecDeque<Arc<Reply>>,
    used: Instant,
}

struct Waiter<'a> {
    inner: &'a Inner,
    name: &'a TurnName,
    replies: Option<watch::Receiver<Option<Arc<Reply>>>>,
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut tenants = self.inner.tenants.lock();
        self.replies = None;
        let Some(tenant) = tenants.get_mut(&self.name.tenant) else { return };
        if tenant.turns.get(&self.name.turn).is_some_and(|replies| replies.receiver_count() == 0) {
            tenant.turns.remove(&self.name.turn);
        }
    }
}

impl ReplyWaiters {
    pub(crate) fn new(client: Client, draining: CancellationToken) -> Self {
        let inbox = private_inbox("gw");
        let permits = PermitPool::new(WAITING_MAX);
        let tenants = Mutex::default();
        let readers = TaskTracker::new();
        Self { inner: Arc::new(Inner { client, inbox, tenants, permits, draining, readers }) }
    }

    pub(crate) fn inbox(&self, tenant: &TenantId) -> InboxName {
        self.start_reader(tenant);
        self.inner.inbox.clone()
    }

    /// Avoids reading large messages that wait for admission. `None` if only such a message shows the state.
    pub(crate) async fn peek(&self, name: &TurnName) -> Result<Option<TurnLookup>, Problem> {
        self.inner.peek(name, None).await
    }

    /// Call this before a turn is sent: the wait for an accepted turn must not be refused.
    pub(crate) fn reserve(&self, holder: &CallerIdentity) -> Result<WaitPermit, Problem> {
        self.inner
            .permits
            .take(holder)
            .map(|share| WaitPermit { _share: share })
            .ok_or_else(|| Problem::too_many_wait(WAITING_MAX))
    }

    /// Returns `Unknown` if the caller's key does not cover the turn.
    pub(crate) async fn look_up(&self, name: &TurnName, caller: Option<&Caller>) -> Result<TurnLookup, Problem> {
        self.inner.look_up(name, caller).await
    }

    /// If the caller's key does not cover the turn, the wait is as long as for an unknown id.
    pub(crate) async fn reply(
        &self,
        name: &TurnName,
        wait: Duration,
        _permit: &WaitPermit,
        caller: Option<&Caller>,
    ) -> Result<TurnLookup, Problem> {
        let inner = &*self.inner;
        self.start_reader(&name.tenant);
        // Start to wait before the first lookup, so that a reply that arrives in between is not lost.
        let mut waiter = inner.waiter(name);
        let deadline = Instant::now() + wait;
        let mut intervals = LOOKUP_INTERVALS;
        let mut every = intervals.next_wait();
        let is_for = |reply: &Reply| caller.is_none_or(|caller| may_see_reply(caller, reply));
        let mut previous: Option<Arc<Reply>> = None;
        let found = loop {
            let found = match (inner.look_up(name, caller).await?, &previous) {
                // Without a record, the rejection that arrived is the result.
                (TurnLookup::Unknown, Some(rejection)) if is_for(rejection) => TurnLookup::Ended(Arc::clone(rejection)),
                (found, _) => found,
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if matches!(found, TurnLookup::Ended(_) | TurnLookup::InInbox)
                || left.is_zero()
                || inner.draining.is_cancelled()
            {
                break found;
            }
            match inner.next_reply(&mut waiter, every.min(left), previous.as_ref()).await {
                // The caller may not see the agent of this reply, so the wait continues as for an unknown id.
                Some(reply) if !is_for(&reply) => previous = Some(reply),
                Some(reply) if reply.status == ReplyStatus::Done => break TurnLookup::Ended(reply),
                // The rejection may belong to an earlier attempt or to another message with this id. The next lookup
                // shows whether the rejection counts.
                Some(rejection) => {
                    previous = Some(rejection);
                    continue;
                }
                None => {}
            }
            every = intervals.next_wait();
        };
        drop(waiter);
        Ok(found)
    }

    pub(crate) fn count(&self) -> usize {
        self.inner.permits.count()
    }

    /// Waits for the end of all readers. They remove their inboxes when they end.
    pub(crate) async fn ended(&self) {
        self.inner.readers.close();
        self.inner.readers.wait().await;
    }

    fn start_reader(&self, tenant: &TenantId) {
        let mut tenants = self.inner.tenants.lock();
        if let Some(tenant_waiters) = tenants.get_mut(tenant) {
            tenant_waiters.used = Instant::now();
            return;
        }
        let turns = HashMap::new();
        let rejections = VecDeque::new();
        tenants.insert(tenant.clone(), TenantWaiters { turns, rejections, used: Instant::now() });
        self.inner.readers.spawn(Arc::clone(&self.inner).read_inbox(tenant.clone()));
    }
}

impl Inner {
    fn waiter<'a>(&'a self, name: &'a TurnName) -> Waiter<'a> {
        let mut tenants = self.tenants.lock();
        let replies = tenants
            .get_mut(&name.tenant)
            .map(|tenant| tenant.turns.entry(name.turn.clone()).or_insert_with(|| watch::channel(None).0).subscribe());
        Waiter { inner: self, name, replies }
    }

    /// `None` after `within`, when the process drains, or if the tenant has no reader. Never returns `previous`.
    async fn next_reply(
        &self,
        waiter: &mut Waiter<'_>,
        within: Duration,
        previous: Option<&Arc<Reply>>,
    ) -> Option<Arc<Reply>> {
        let replies = waiter.replies.as_mut()?;
        let is_previous = |reply: &Arc<Reply>| previous.is_some_and(|previous| Arc::ptr_eq(previous, reply));
        let is_new = |reply: &Option<Arc<Reply>>| reply.as_ref().is_some_and(|reply| !is_previous(reply));
        let next = async { replies.wait_for(is_new).await.ok().and_then(|reply| reply.clone()) };
        self.draining.run_until_cancelled(timeout(within, next)).await?.ok().flatten()
    }

    async fn peek(&self, name: &TurnName, caller: Option<&Caller>) -> Result<Option<TurnLookup>, Problem> {
        let found = self.look_up_record(name, caller).await?;
        if !matches!(found, TurnLookup::Unknown) {
            return Ok(Some(found));
        }
        // A rejected id can be used again, so another message with this id may have been accepted since.
        let rejection = self.rejection(name).filter(|reply| caller.is_none_or(|caller| may_see_reply(caller, reply)));
        let Some(rejection) = rejection else { return Ok(None) };
        if self.is_undecided(name, caller).await? {
            return Ok(Some(TurnLookup::UnderWay));
        }
        Ok(Some(match self.look_up_record(name, caller).await? {
            TurnLookup::Unknown => TurnLookup::Ended(rejection),
            found => found,
        }))
    }

    /// True if the turn was accepted, no scheduler has admitted or rejected it yet, and `caller` may see its agent. The
    /// check may search the stream for the id.
    async fn is_undecided(&self, name: &TurnName, caller: Option<&Caller>) -> Result<bool, Problem> {
        let waits = self.client.store(&name.tenant).waits_for_admission(name).await?;
        let Some(caller) = caller.filter(|caller| !caller.can_read_agent(None)) else {
            return Ok(waits || self.client.undecided(name).await?.is_some());
        };
        let agent = self.client.undecided(name).await?.and_then(|waits| waits.agent);
        Ok(agent.is_some_and(|agent| caller.can_read_agent(Some(agent.as_str()))))
    }

    async fn look_up(&self, name: &TurnName, caller: Option<&Caller>) -> Result<TurnLookup, Problem> {
        if let Some(found) = self.peek(name, caller).await? {
            return Ok(found);
        }
        if self.is_undecided(name, caller).await? {
            return Ok(TurnLookup::UnderWay);
        }
        // A scheduler may have admitted the turn between the two reads, so read the record again.
        match self.look_up_record(name, caller).await? {
            TurnLookup::Unknown if self.client.store(&name.tenant).is_absent(&name.tenant).await? => {
                Ok(unknown_tenant_reply(name).map_or(TurnLookup::Unknown, TurnLookup::Ended))
            }
            found => Ok(found),
        }
    }

    async fn look_up_record(&self, name: &TurnName, caller: Option<&Caller>) -> Result<TurnLookup, Problem> {
        let sees_all = caller.is_none_or(|caller| caller.can_read_agent(None));
        let view = match self.client.store(&name.tenant).record(name).await.map_err(Problem::from) {
            // The agent of a damaged record is unknown, so the caller may not see it.
            Err(problem) if problem.is_damaged() && !sees_all => return Ok(TurnLookup::Unknown),
            view => view?,
        };
        if !sees_all
            && !caller.is_some_and(|caller| agent_of(&view).is_some_and(|agent| caller.can_read_agent(Some(&agent))))
        {
            return Ok(TurnLookup::Unknown);
        }
        Ok(match view {
            TurnView::Finished(finished) if finished.reply.is_empty() => TurnLookup::InInbox,
            TurnView::Finished(finished) => TurnLookup::Ended(Arc::new(
                serde_json::from_str(&finished.reply)
                    .map_err(|error| StoreError::Reply { verb: "replies", found: format!("{name}: {error}") })?,
            )),
            TurnView::Live(_) => TurnLookup::UnderWay,
            TurnView::Unknown => TurnLookup::Unknown,
        })
    }

    fn rejection(&self, name: &TurnName) -> Option<Arc<Reply>> {
        let tenants = self.tenants.lock();
        let rejections = &tenants.get(&name.tenant)?.rejections;
        rejections.iter().rev().find(|reply| reply.id() == Some(&name.turn)).cloned()
    }

    async fn read_inbox(self: Arc<Self>, tenant: TenantId) {
        let mut replies = self.client.replies(&tenant, &self.inbox);
        loop {
            let Some(read) = self.draining.run_until_cancelled(replies.next(READ)).await else { break };
            match read {
                Ok(Some(reply)) => self.deliver(&tenant, reply),
                Ok(None) if self.is_idle(&tenant) => break,
                Ok(None) => {}
                Err(error @ StoreError::Reply { .. }) => tracing::error!(%error, "cannot read a reply"),
                Err(error) => {
                    tracing::warn!(%error, %tenant, "cannot read replies; retrying");
                    self.draining.run_until_cancelled(tokio::time::sleep(READ_RETRY_PAUSE)).await;
                }
            }
        }
        if let Err(error) = replies.forget().await {
            tracing::warn!(%error, %tenant, "failed to remove the gateway's inbox; it expires by itself");
        }
    }

    fn deliver(&self, tenant: &TenantId, reply: Reply) {
        // Requests keep waiting for the reply that ends the turn.
        if reply.status == ReplyStatus::PendingApproval {
            return;
        }
        let reply = Arc::new(reply);
        let mut tenants = self.tenants.lock();
        let (Some(id), Some(tenant)) = (reply.id(), tenants.get_mut(tenant)) else { return };
        if let Some(replies) = tenant.turns.get(id) {
            replies.send_replace(Some(Arc::clone(&reply)));
        }
        if reply.status != ReplyStatus::Done {
            tenant.rejections.push_back(reply);
            if tenant.rejections.len() > REJECTIONS_MAX {
                tenant.rejections.pop_front();
            }
        }
    }

    /// True if the tenant was idle and is now removed. Check and removal share one lock, so a later caller starts a new
    /// reader.
    fn is_idle(&self, tenant: &TenantId) -> bool {
        let mut tenants = self.tenants.lock();
        let idle = tenants
            .get(tenant)
            .is_none_or(|tenant_waiters| tenant_waiters.turns.is_empty() && tenant_waiters.used.elapsed() > IDLE);
        if idle {
            tenants.remove(tenant);
        }
        idle
    }
}

/// A tenant that is not configured has no inbox for a rejection, so the gateway makes the rejection itself.
fn unknown_tenant_reply(name: &TurnName) -> Option<Arc<Reply>> {
    let message = format!("tenant {:?} is not configured", name.tenant.as_str());
    let reply = serde_json::json!({
        "turn_id": name.turn, "tenant": name.tenant, "agent": "", "status": "rejected", "dialect": "raw",
        "error": {"code": RejectionCode::UnknownTenant.as_str(), "message": message}, "results": [],
    });
    serde_json::from_value(reply).map(Arc::new).ok()
}
