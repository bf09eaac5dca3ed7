//! The one who looks at the turns that somebody follows: a turn is looked at once, however many follow it, some hundred of
//! them in two round trips, and nobody looks while nobody follows.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures::future::join_all;
use parking_lot::Mutex;
use tickfleet_client::stands::{CallEnded, Standing, Stood, stands};
use tickfleet_client::{Client, Reply};
use tickfleet_store::TurnName;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::problem::Problem;
use crate::waiting::{Found, Waiting};

/// Between two looks.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// After a look that failed.
const LOOK_AGAIN: Duration = Duration::from_secs(2);
/// The message of one that waits for its decision is read with each so many looks: it may be large.
const READ_EVERY: u32 = 8;
/// Turns in one question to Redis.
const TOGETHER: usize = 100;
/// What was seen of a turn last.
#[derive(Debug, Clone)]
pub(super) enum Seen {
    /// Nobody has looked yet.
    Nothing,
    /// Nobody has decided about it so far.
    Queued,
    /// It is under way.
    Underway {
        /// The agent that makes its calls.
        agent: String,
        /// Where it stands.
        standing: Standing,
        /// The calls that have ended, in their order.
        ended: Arc<Vec<CallEnded>>,
    },
    /// It has ended, with this reply.
    Ended(Arc<Reply>),
    /// Nothing is known of it any more; of one that has ended while memory was short, its inbox alone knows.
    Gone,
    /// What is kept of it cannot be read: the gateway's log says why. It is not looked at again.
    Damaged,
    /// It could not be looked at: the gateway's log says why.
    Away,
}

impl Seen {
    const fn is_last(&self) -> bool {
        matches!(self, Self::Ended(_) | Self::Gone | Self::Damaged)
    }

    fn ended(&self) -> usize {
        if let Self::Underway { ended, .. } = self { ended.len() } else { 0 }
    }

    /// What it is after another look.
    fn after(&self, stood: Stood) -> Self {
        let Stood { agent, standing, results } = stood;
        let ended = match self {
            Self::Underway { ended, .. } if results.is_empty() => Arc::clone(ended),
            Self::Underway { ended, .. } => Arc::new(ended.iter().cloned().chain(results).collect()),
            _ => Arc::new(results),
        };
        Self::Underway { agent, standing, ended }
    }
}

/// A turn that is followed: what was seen of it, and who wants to know.
pub(super) struct Following {
    pub(super) seen: watch::Receiver<Seen>,
}

/// The turns that somebody follows through this process.
#[derive(Clone)]
pub(crate) struct Followed {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    waiting: Waiting,
    turns: Mutex<HashMap<TurnName, watch::Sender<Seen>>>,
    somebody: Notify,
    /// How often was looked.
    looks: AtomicU32,
}

impl Followed {
    pub(crate) fn new(client: Client, waiting: Waiting) -> Self {
        let (turns, somebody) = (Mutex::default(), Notify::new());
        Self { inner: Arc::new(Inner { client, waiting, turns, somebody, looks: AtomicU32::new(0) }) }
    }

    /// What is seen of a turn from now on.
    pub(super) fn follow(&self, name: &TurnName) -> Following {
        let mut turns = self.inner.turns.lock();
        let known = turns.get(name).filter(|seen| seen.receiver_count() > 0);
        let mut seen = match known {
            Some(seen) => seen.subscribe(),
            // What was seen when somebody followed it last need not be so now.
            None => {
                let (sender, seen) = watch::channel(Seen::Nothing);
                turns.insert(name.clone(), sender);
                seen
            }
        };
        drop(turns);
        // What is there already is as good as a look.
        seen.mark_changed();
        self.inner.somebody.notify_one();
        Following { seen }
    }

    /// Looks while somebody follows, until `stop`.
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
    /// The turns to look at, each with the number of ends of calls that are known. Those that nobody follows are forgotten.
    fn names(&self) -> Vec<(TurnName, usize)> {
        let mut turns = self.turns.lock();
        turns.retain(|_, seen| seen.receiver_count() > 0);
        let known = turns.iter().filter(|(_, seen)| !seen.borrow().is_last());
        known.map(|(name, seen)| (name.clone(), seen.borrow().ended())).collect()
    }

    /// Looks at these turns. False where some could not be looked at.
    async fn look_at(&self, names: Vec<(TurnName, usize)>) -> bool {
        let mut shards: HashMap<u32, Vec<(TurnName, usize)>> = HashMap::new();
        for (name, known) in names {
            shards.entry(self.client.store(&name.tenant).shard()).or_default().push((name, known));
        }
        // A shard that does not answer holds up none of the others, and is asked once.
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

    /// Looks at turns of one shard.
    async fn look_at_some(&self, names: &[(TurnName, usize)]) -> bool {
        let Some((first, _)) = names.first() else { return true };
        let stood = match stands(self.client.store(&first.tenant), names).await {
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

    /// Looks for a turn that is not under way: it has ended, or has not been admitted.
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
            // It may have been admitted between the two looks: the next one tells.
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
        // What has ended is not looked at any more, and told to whoever comes while another one still follows it.
        followed.inner.saw(&name("demo", "two"), |_| Seen::Gone);
        assert!(followed.inner.names().is_empty());
        let mut late = followed.follow(&name("demo", "two"));
        assert!(late.seen.has_changed().unwrap() && matches!(*late.seen.borrow_and_update(), Seen::Gone));
        drop((other, late));
        // Whoever comes when all have gone is told what is so then.
        let anew = followed.follow(&name("demo", "two"));
        assert!(matches!(*anew.seen.borrow(), Seen::Nothing));
    }

    #[test]
    fn ends_of_calls_are_added_and_kept_in_their_order() {
        let ended = |call: &str| CallEnded {
            call: call.into(),
            tool_call_id: None,
            tool: "echo".into(),
            success: true,
            outcome: Outcome::Ok,
            attempts: 1,
        };
        let stood = |results: &[&str]| Stood {
            agent: "kelly".into(),
            standing: Standing::Dispatched,
            results: results.iter().map(|call| ended(call)).collect(),
        };
        let first = Seen::Nothing.after(stood(&["t/0", "t/1"]));
        let Seen::Underway { ended, .. } = first.after(stood(&[])).after(stood(&["t/2"])) else { panic!() };
        let calls: Vec<&str> = ended.iter().map(|ended| ended.call.as_str()).collect();
        assert_eq!(calls, ["t/0", "t/1", "t/2"]);
        // After a time in which it could not be looked at, they are asked for from the beginning.
        assert_eq!(Seen::Away.ended(), 0);
    }
}
