//! Polls each followed turn only once, however many followers it has.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tickfleet_client::turn_status::{CallEnd, TurnPhase, TurnStatus, turn_statuses};
use tickfleet_client::{Client, Reply};
use tickfleet_store::TurnName;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::problem::Problem;
use crate::waiting::{ReplyWaiters, TurnLookup};

const POLL_INTERVAL: Duration = Duration::from_millis(250);
const POLL_RETRY_PAUSE: Duration = Duration::from_secs(2);
/// A message that waits for admission may be large, so only every n-th poll reads it.
const READ_EVERY: u32 = 8;
const TURNS_PER_QUERY: usize = 100;
#[derive(Debug, Clone)]
pub(super) enum PolledState {
    Nothing,
    /// No scheduler has admitted or rejected the turn yet.
    Queued,
    Underway {
        agent: String,
        phase: TurnPhase,
        /// In the order of the calls.
        ended: Arc<Vec<CallEnd>>,
    },
    Ended(Arc<Reply>),
    /// The turn is unknown, or it ended while Redis memory was short and its reply is only in the inbox.
    Gone,
    /// The record cannot be read: the gateway's log has the reason. The turn is not polled again.
    Damaged,
    /// The poll failed: the gateway's log has the reason.
    Away,
}

impl PolledState {
    const fn is_last(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Gone | Self::Damaged)
    }

    fn ended(&self) -> usize {
        if let Self::Underway { ended, .. } = self { ended.len() } else { 0 }
    }

    fn after(&self, status: TurnStatus) -> Self {
        let TurnStatus { agent, phase, results } = status;
        let ended = match self {
            Self::Underway { ended, .. } if results.is_empty() => Arc::clone(ended),
            Self::Underway { ended, .. } => Arc::new(ended.iter().cloned().chain(results).collect()),
            _ => Arc::new(results),
        };
        Self::Underway { agent, phase, ended }
    }
}

pub(super) struct TurnSubscription {
    pub(super) seen: watch::Receiver<PolledState>,
}

#[derive(Clone)]
pub(crate) struct FollowedTurns {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    waiting: ReplyWaiters,
    turns: Mutex<HashMap<TurnName, watch::Sender<PolledState>>>,
    follower_arrived: Notify,
    polls: AtomicU32,
}

impl FollowedTurns {
    pub(crate) fn new(client: Client, waiting: ReplyWaiters) -> Self {
        let turns = Mutex::default();
        let follower_arrived = Notify::new();
        Self { inner: Arc::new(Inner { client, waiting, turns, follower_arrived, polls: AtomicU32::new(0) }) }
    }

    pub(super) fn follow(&self, name: &TurnName) -> TurnSubscription {
        let mut turns = self.inner.turns.lock();
        let known = turns.get(name).filter(|seen| seen.receiver_count() > 0);
        let mut seen = match known {
            Some(seen) => seen.subscribe(),
            // Turns without followers are not polled, so a stored state may be outdated.
            None => {
                let (sender, seen) = watch::channel(PolledState::Nothing);
                turns.insert(name.clone(), sender);
                seen
            }
        };
        drop(turns);
        // A new follower gets the current state at once.
        seen.mark_changed();
        self.inner.follower_arrived.notify_one();
        TurnSubscription { seen }
    }

    pub(crate) async fn poll(self, stop: CancellationToken) {
        let polling = async {
            loop {
                let names = self.inner.names();
                if names.is_empty() {
                    self.inner.follower_arrived.notified().await;
                    continue;
                }
                self.inner.polls.fetch_add(1, Ordering::Relaxed);
                let all = self.inner.poll_turns(names).await;
                tokio::time::sleep(if all { POLL_INTERVAL } else { POLL_RETRY_PAUSE }).await;
            }
        };
        stop.run_until_cancelled(polling).await;
    }
}

impl Inner {
    /// Returns the unfinished turns, each with its number of known results. Removes turns without followers.
    fn names(&self) -> Vec<(TurnName, usize)> {
        let mut turns = self.turns.lock();
        turns.retain(|_, seen| seen.receiver_count() > 0);
        let known = turns.iter().filter(|(_, seen)| !seen.borrow().is_last());
        known.map(|(name, seen)| (name.clone(), seen.borrow().ended())).collect()
    }

    /// False if a turn could not be read.
    async fn poll_turns(&self, names: Vec<(TurnName, usize)>) -> bool {
        let mut shards: HashMap<u32, Vec<(TurnName, usize)>> = HashMap::new();
        for (name, known) in names {
            shards.entry(self.client.store(&name.tenant).shard()).or_default().push((name, known));
        }
        // Shards are polled concurrently, so a shard that does not respond delays no other.
        let polls = shards.into_values().map(async |names| {
            for some in names.chunks(TURNS_PER_QUERY) {
                if !self.poll_shard_turns(some).await {
                    return false;
                }
            }
            true
        });
        join_all(polls).await.into_iter().all(|is_read| is_read)
    }

    async fn poll_shard_turns(&self, names: &[(TurnName, usize)]) -> bool {
        let Some((first, _)) = names.first() else { return true };
        let status = match turn_statuses(self.client.store(&first.tenant), names).await {
            Ok(status) => status,
            Err(error) => {
                tracing::warn!(%error, turns = names.len(), "failed to poll followed turns");
                names.iter().for_each(|(name, _)| self.update_state(name, |_| PolledState::Away));
                return false;
            }
        };
        let polled = names.iter().zip(status).map(async |((name, _), status)| match status {
            Ok(Some(status)) => {
                self.update_state(name, |seen| seen.after(status));
                true
            }
            Ok(None) => self.look_up_inactive(name).await,
            Err(error) => {
                let is_damaged = error.is_script_error();
                tracing::warn!(%error, turn = %name, "failed to poll a followed turn");
                self.update_state(name, |_| if is_damaged { PolledState::Damaged } else { PolledState::Away });
                is_damaged
            }
        });
        join_all(polled).await.into_iter().all(|is_read| is_read)
    }

    /// False if the lookup failed, but a later lookup may succeed.
    async fn look_up_inactive(&self, name: &TurnName) -> bool {
        let is_queued = self.turns.lock().get(name).is_some_and(|seen| matches!(*seen.borrow(), PolledState::Queued));
        let found = if is_queued && !self.polls.load(Ordering::Relaxed).is_multiple_of(READ_EVERY) {
            self.waiting.peek(name).await.map(|found| found.unwrap_or(TurnLookup::UnderWay))
        } else {
            self.waiting.look_up(name, None).await
        };
        let is_read = found.as_ref().map_or_else(Problem::is_damaged, |_| true);
        self.update_state(name, |seen| match found {
            Ok(TurnLookup::Ended(reply)) => PolledState::Ended(reply),
            // A scheduler may have admitted the turn between the two reads. The next poll updates the state.
            Ok(TurnLookup::UnderWay) if matches!(seen, PolledState::Underway { .. }) => seen.clone(),
            Ok(TurnLookup::UnderWay) => PolledState::Queued,
            Ok(TurnLookup::InInbox | TurnLookup::Unknown) => PolledState::Gone,
            Err(problem) if problem.is_damaged() => PolledState::Damaged,
            Err(_) => PolledState::Away,
        });
        is_read
    }

    fn update_state(&self, name: &TurnName, now: impl FnOnce(&PolledState) -> PolledState) {
        let turns = self.turns.lock();
        if let Some(seen) = turns.get(name) {
            seen.send_modify(|seen| *seen = now(seen));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

    use tickfleet_model::{Outcome, TenantId, TurnId};

    use super::*;

    fn followed() -> FollowedTurns {
        let client = Client::over(Vec::new());
        FollowedTurns::new(client.clone(), ReplyWaiters::new(client, CancellationToken::new()))
    }

    fn name(tenant: &str, turn: &str) -> TurnName {
        TurnName { tenant: TenantId::new(tenant).unwrap(), turn: TurnId::new(turn).unwrap() }
    }

    #[tokio::test]
    async fn a_turn_is_polled_once_for_all_its_followers() {
        let followed = followed();
        let turn = name("demo", "one");
        let many: Vec<_> = (0..20).map(|_| followed.follow(&turn)).collect();
        let other = followed.follow(&name("demo", "two"));
        assert_eq!(followed.inner.names().len(), 2);
        drop(many);
        assert_eq!(followed.inner.names(), [(name("demo", "two"), 0)]);
        followed.inner.update_state(&name("demo", "two"), |_| PolledState::Gone);
        assert!(followed.inner.names().is_empty());
        let mut late = followed.follow(&name("demo", "two"));
        assert!(late.seen.has_changed().unwrap() && matches!(*late.seen.borrow_and_update(), PolledState::Gone));
        drop((other, late));
        let second = followed.follow(&name("demo", "two"));
        assert!(matches!(*second.seen.borrow(), PolledState::Nothing));
    }

    #[test]
    fn call_results_accumulate_in_order() {
        let ended = |call: &str| CallEnd {
            call: call.into(),
            tool_call_id: None,
            tool: "echo".into(),
            success: true,
            outcome: Outcome::Ok,
            attempts: 1,
        };
        let status = |results: &[&str]| TurnStatus {
            agent: "kelly".into(),
            phase: TurnPhase::Dispatched,
            results: results.iter().map(|call| ended(call)).collect(),
        };
        let first = PolledState::Nothing.after(status(&["t/0", "t/1"]));
        let PolledState::Underway { ended, .. } = first.after(status(&[])).after(status(&["t/2"])) else { panic!() };
        let calls: Vec<&str> = ended.iter().map(|ended| ended.call.as_str()).collect();
        assert_eq!(calls, ["t/0", "t/1", "t/2"]);
        assert_eq!(PolledState::Away.ended(), 0);
    }
}
