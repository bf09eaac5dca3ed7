//! Removes a dead consumer from the set of consumers that may hold entries.

use tickfleet_model::ConsumerId;

use super::{Liveness, NOTICES_MAX, SILENT_MS, consumers, leave_silent_set, silent};
use crate::decision::{Context, Decision, Step};
use crate::keys::canceled;
use crate::transaction::Transaction;
use crate::view::{Undecided, View};

/// Each removal drops at most this many expired members of [`silent`](super::silent).
const SILENT_DROPPED_MAX: usize = 8;

/// The consumer must hold no entries. The record stays until it expires, because a silent consumer may return.
#[derive(Debug, Clone)]
pub struct RemoveDeadConsumer {
    pub consumer: ConsumerId,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoveDeadConsumerResult {
    Done,
    /// Some notices may remain, so the consumer is still in the set.
    Partly,
    Alive {
        lease_ends_ms: i64,
    },
}

impl Decision for RemoveDeadConsumer {
    type Output = RemoveDeadConsumerResult;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<RemoveDeadConsumerResult>, Undecided> {
        let name = self.consumer.as_str();
        let liveness = Liveness::of(&self.consumer, view, context.now_ms)?;
        if let Liveness::Alive { lease_ends_ms } = liveness {
            return Ok(Step::Return(RemoveDeadConsumerResult::Alive { lease_ends_ms }));
        }
        let notices = view.first(&canceled(name), None, NOTICES_MAX)?;
        let mut transaction = Transaction::new(context.version.clone());
        liveness.guard_dead(&self.consumer, &mut transaction);
        for (member, _) in notices {
            transaction.leave(canceled(name), member.clone());
        }
        if notices.len() == NOTICES_MAX {
            return Ok(Step::Commit(transaction, RemoveDeadConsumerResult::Partly));
        }
        transaction.leave(consumers(), name);
        if let Liveness::Silent { lease_ends_ms, .. } = liveness {
            let old = u64::try_from(context.now_ms - SILENT_MS).unwrap_or(0);
            for (member, _) in view.first(&silent(), Some(old), SILENT_DROPPED_MAX)? {
                leave_silent_set(member, &mut transaction);
            }
            transaction.join(silent(), name, lease_ends_ms);
        }
        Ok(Step::Commit(transaction, RemoveDeadConsumerResult::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::TurnName;
    use crate::trial::Trial;
    use crate::workers::{EndLease, Heartbeat, LeaseBefore, Role, notify_cancel};

    fn consumer() -> ConsumerId {
        ConsumerId::new("s-1-a-0").unwrap()
    }

    fn heartbeat() -> Heartbeat {
        Heartbeat { consumer: consumer(), role: Role::Scheduler, lease_ms: 800, policy: "abc".into() }
    }

    fn remove_dead_consumer() -> RemoveDeadConsumer {
        RemoveDeadConsumer { consumer: consumer() }
    }

    fn is_listed(shard: &Trial) -> bool {
        !shard.members(&consumers()).is_empty()
    }

    #[test]
    fn a_silent_consumer_is_listed_until_it_returns_or_departs_or_for_a_day() {
        let mut shard = Trial::at(1_000);
        let remove_silent = |shard: &mut Trial| {
            shard.receipt(&heartbeat());
            shard.pass(2_000);
            assert_eq!(shard.run(&remove_dead_consumer()), RemoveDeadConsumerResult::Done);
            assert_eq!(shard.members(&silent()), ["s-1-a-0"]);
        };
        remove_silent(&mut shard);
        shard.receipt(&heartbeat());
        assert!(shard.members(&silent()).is_empty());
        remove_silent(&mut shard);
        shard.receipt(&EndLease { consumer: consumer(), role: Role::Scheduler });
        assert!(shard.members(&silent()).is_empty());
        remove_silent(&mut shard);
        let other = ConsumerId::new("s-2-b-0").unwrap();
        shard.pass(SILENT_MS);
        shard.receipt(&Heartbeat { consumer: other.clone(), ..heartbeat() });
        shard.pass(2_000);
        shard.receipt(&RemoveDeadConsumer { consumer: other });
        assert_eq!(shard.members(&silent()), ["s-2-b-0"]);
    }

    #[test]
    fn a_consumer_with_a_valid_lease_is_not_removed() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&heartbeat());
        assert_eq!(shard.run(&remove_dead_consumer()), RemoveDeadConsumerResult::Alive { lease_ends_ms: 1_900 });
        shard.pass(900);
        assert_eq!(shard.run(&remove_dead_consumer()), RemoveDeadConsumerResult::Done);
        assert!(!is_listed(&shard));
        assert_eq!(shard.run(&heartbeat()).before, LeaseBefore::Ended, "it was silent, but had not left");
        assert!(is_listed(&shard), "it is back");
    }

    #[test]
    fn a_concurrent_heartbeat_prevents_removal() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&heartbeat());
        shard.pass(900);
        let decided = shard.step(&remove_dead_consumer());
        shard.receipt(&heartbeat());
        assert!(matches!(
            shard.finish(&remove_dead_consumer(), decided).result,
            RemoveDeadConsumerResult::Alive { .. }
        ));
        assert!(is_listed(&shard));
        let gone = RemoveDeadConsumer { consumer: ConsumerId::new("s-2-a-0").unwrap() };
        let decided = shard.step(&gone);
        shard.receipt(&Heartbeat { consumer: gone.consumer.clone(), ..heartbeat() });
        assert!(matches!(shard.finish(&gone, decided).result, RemoveDeadConsumerResult::Alive { .. }));
    }

    #[test]
    fn a_departed_consumer_is_removed_with_its_notices() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&heartbeat());
        let mut transaction = Transaction::new(shard.context().version);
        for turn in 0..300 {
            let name = TurnName::parse(&format!("acme:t{turn}")).unwrap();
            notify_cancel(&name, "s-1-a-0", 1_000, &mut transaction);
        }
        shard.commit(&transaction).unwrap();
        shard.receipt(&EndLease { consumer: consumer(), role: Role::Scheduler });
        assert_eq!(shard.run(&remove_dead_consumer()), RemoveDeadConsumerResult::Partly);
        assert_eq!(shard.run(&remove_dead_consumer()), RemoveDeadConsumerResult::Done);
        assert!(shard.members(&canceled("s-1-a-0")).is_empty() && !is_listed(&shard));
    }
}
