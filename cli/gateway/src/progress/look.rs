//! Polls the turns that are followed. A turn is read once per poll, regardless of how many followers it has. About a
//! hundred turns take two round trips. Polling stops while nothing is followed.

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
use crate::waiting::{Found, Waiting};

/// Interval between polls.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Pause after a failed poll.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// Polls between two reads of a message that waits for admission: it may be large.
const READ_EVERY: u32 = 8;
/// Maximum turns in one query to Redis.
const TOGETHER: usize = 100;
/// The last known state of a turn.
#[derive(Debug, Clone)]
pub(super) enum Seen {
    /// Not polled yet.
    Nothing,
    /// Accepted; no scheduler has decided it yet.
    Queued,
    /// In progress.
    Underway {
        /// The agent that makes its calls.
        agent: String,
        /// Its state: waiting with a reason, or where it runs.
        standing: TurnPhase,
        /// The calls that have ended, in order.
        ended: Arc<Vec<CallEnd>>,
    },
    /// Ended, with this reply.
    Ended(Arc<Reply>),
    /// Unknown. If it ended while memory was short, its reply is only in its inbox.
    Gone,
    /// Its record cannot be read: the gateway's log has the reason. It is not polled again.
    Damaged,
    /// The poll failed: the gateway's log has the reason.
    Away,
}

impl Seen {
    const fn is_last(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Gone | Self::Damaged)
    }

    fn ended(&self) -> usize {
        if let Self::Underway { ended, .. } = self { ended.len() } else { 0 }
    }

    /// The state after another poll.
    fn after(&self, stood: TurnStatus) -> Self {
        let TurnStatus { agent, standing, results } = stood;
        let ended = match self {
            Self::Underway { ended, .. } if results.is_empty() => Arc::clone(ended),
            Self::Underway { ended, .. } => Arc::new(ended.iter().cloned().chain(results).collect()),
            _ => Arc::new(results),
        };
        Self::Underway { agent, standing, ended }
    }
}

/// A follower's subscription to a turn.
pub(super) struct Following {
    pub(super) seen: watch::Receiver<Seen>,
}

/// The turns that are followed through this process.
#[derive(Clone)]
pub(crate) struct Followed {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    waiting: Waiting,
    turns: Mutex<HashMap<TurnName, watch::Sender<Seen>>>,
    somebody: Notify,
    /// Number of polls.
    looks: AtomicU32,
}

impl Followed {
    pub(crate) fn new(client: Client, waiting: Waiting) -> Self {
        let (turns, somebody) = (Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { client, waiting, turns, somebody, looks: AtomicU32::new(0) }) }
    }

    /// Follows a turn from now on.
    pub(super) fn follow(&self, name: &TurnName) -> Following {
        let mut turns = self.inner.turns.lock();
        let known = turns.get(name).filter(|seen| seen.receiver_count() > 0);
        let mut seen = match known {
            Some(seen) => seen.subscribe(),
            // The state that the last followers saw may be outdated.
            None => {
                let (sender, seen) = watch::channel(Seen::Nothing);
                turns.insert(name.clone(), sender);
                seen
            }
        };
        drop(turns);
        // An existing state is sent without waiting for the next poll.
        seen.mark_changed();
        self.inner.somebody.notify_one();
        Following { seen }
    }

    /// Polls while there are followers, until `stop`.
    pub(crate) async fn look(self, stop: CancellationToken) {
        let looking = async {
            loop {
                let names = self.inner.names();
                if names.is_empty() {
                    self.inner.somebody.notified().await;
                    continue;
                }
                self.inner.looks.fetch_add(1, Ordering::Relaxed);
                let all = self.inner.look_at(names).await;
                tokio::time::sleep(if all { LOOK_EVERY } else { LOOK_AGAIN }).await;
            }
        };
        stop.run_until_cancelled(looking).await;
    }
}

impl Inner {
    /// The turns to poll, each with the number of its known results. Turns without followers are removed.
    fn names(&self) -> Vec<(TurnName, usize)> {
        let mut turns = self.turns.lock();
        turns.retain(|_, seen| seen.receiver_count() > 0);
        let known = turns.iter().filter(|(_, seen)| !seen.borrow().is_last());
        known.map(|(name, seen)| (name.clone(), seen.borrow().ended())).collect()
    }

    /// Polls these turns. Returns false if some of them could not be read.
    async fn look_at(&self, names: Vec<(TurnName, usize)>) -> bool {
        let mut shards: HashMap<u32, Vec<(TurnName, usize)>> = HashMap::new();
        for (name, known) in names {
            shards.entry(self.client.store(&name.tenant).shard()).or_default().push((name, known));
        }
        // A shard that does not respond delays no other shard, and is tried once per poll.
        let looks = shards.into_values().map(async |names| {
            for some in names.chunks(TOGETHER) {
                if !self.look_at_some(some).await {
                    return false;
                }
            }
            true
        });
        join_all(looks).await.into_iter().all(|looked| looked)
    }

    /// Polls turns of one shard.
    async fn look_at_some(&self, names: &[(TurnName, usize)]) -> bool {
        let Some((first, _)) = names.first() else { return true };
        let stood = match turn_statuses(self.client.store(&first.tenant), names).await {
            Ok(stood) => stood,
            Err(error) => {
                tracing::warn!(%error, turns = names.len(), "failed to poll followed turns");
                names.iter().for_each(|(name, _)| self.saw(name, |_| Seen::Away));
                return false;
            }
        };
        let told = names.iter().zip(stood).map(async |((name, _), stood)| match stood {
            Ok(Some(stood)) => {
                self.saw(name, |seen| seen.after(stood));
                true
            }
            Ok(None) => self.look_for(name).await,
            Err(error) => {
                let is_damaged = error.is_script_error();
                tracing::warn!(%error, turn = %name, "failed to poll a followed turn");
                self.saw(name, |_| if is_damaged { Seen::Damaged } else { Seen::Away });
                is_damaged
            }
        });
        join_all(told).await.into_iter().all(|looked| looked)
    }

    /// Looks up a turn that is not in progress: it has ended, or has not been admitted.
    async fn look_for(&self, name: &TurnName) -> bool {
        let is_queued = self.turns.lock().get(name).is_some_and(|seen| matches!(*seen.borrow(), Seen::Queued));
        let found = if is_queued && !self.looks.load(Ordering::Relaxed).is_multiple_of(READ_EVERY) {
            self.waiting.glance(name).await.map(|found| found.unwrap_or(Found::UnderWay))
        } else {
            self.waiting.look(name, None).await
        };
        let looked = found.as_ref().map_or_else(Problem::is_damaged, |_| true);
        self.saw(name, |seen| match found {
            Ok(Found::Ended(reply)) => Seen::Ended(reply),
            // It may have been admitted between the two reads: the next poll shows it.
            Ok(Found::UnderWay) if matches!(seen, Seen::Underway { .. }) => seen.clone(),
            Ok(Found::UnderWay) => Seen::Queued,
            Ok(Found::InInbox | Found::Unknown) => Seen::Gone,
            Err(problem) if problem.is_damaged() => Seen::Damaged,
            Err(_) => Seen::Away,
        });
        looked
    }

    fn saw(&self, name: &TurnName, now: impl FnOnce(&Seen) -> Seen) {
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

    fn followed() -> Followed {
        let client = Client::over(Vec::new());
        Followed::new(client.clone(), Waiting::new(client, CancellationToken::new()))
    }

    fn name(tenant: &str, turn: &str) -> TurnName {
        TurnName { tenant: TenantId::new(tenant).unwrap(), turn: TurnId::new(turn).unwrap() }
    }

    #[tokio::test]
    async fn a_turn_is_looked_at_once_however_many_follow_it_and_not_when_nobody_does() {
        let (followed, turn) = (followed(), name("demo", "one"));
        let many: Vec<_> = (0..20).map(|_| followed.follow(&turn)).collect();
        let other = followed.follow(&name("demo", "two"));
        assert_eq!(followed.inner.names().len(), 2);
        drop(many);
        assert_eq!(followed.inner.names(), [(name("demo", "two"), 0)]);
        // An ended turn is not polled again. A new follower receives its state while another follower remains.
        followed.inner.saw(&name("demo", "two"), |_| Seen::Gone);
        assert!(followed.inner.names().is_empty());
        let mut late = followed.follow(&name("demo", "two"));
        assert!(late.seen.has_changed().unwrap() && matches!(*late.seen.borrow_and_update(), Seen::Gone));
        drop((other, late));
        // After all followers have left, a new follower gets a fresh state.
        let anew = followed.follow(&name("demo", "two"));
        assert!(matches!(*anew.seen.borrow(), Seen::Nothing));
    }

    #[test]
    fn ends_of_calls_are_added_and_kept_in_their_order() {
        let ended = |call: &str| CallEnd {
            call: call.into(),
            tool_call_id: None,
            tool: "echo".into(),
            success: true,
            outcome: Outcome::Ok,
            attempts: 1,
        };
        let stood = |results: &[&str]| TurnStatus {
            agent: "kelly".into(),
            standing: TurnPhase::Dispatched,
            results: results.iter().map(|call| ended(call)).collect(),
        };
        let first = Seen::Nothing.after(stood(&["t/0", "t/1"]));
        let Seen::Underway { ended, .. } = first.after(stood(&[])).after(stood(&["t/2"])) else { panic!() };
        let calls: Vec<&str> = ended.iter().map(|ended| ended.call.as_str()).collect();
        assert_eq!(calls, ["t/0", "t/1", "t/2"]);
        // After a failed poll, the results are read from the beginning.
        assert_eq!(Seen::Away.ended(), 0);
    }
}
