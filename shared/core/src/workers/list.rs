//! Adds a consumer that holds entries to the set of consumers.

use tickfleet_model::ConsumerId;

use super::{Liveness, consumers};
use crate::decision::{Context, Decision, Step};
use crate::transaction::Transaction;
use crate::view::{Query, Undecided, View};

/// A dead consumer outside the set would never be reaped. The set can lack a consumer after a restart of the store, or
/// after a removal of the consumer.
#[derive(Debug, Clone)]
pub struct ListHolder {
    pub consumer: ConsumerId,
}

impl Decision for ListHolder {
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Score(consumers(), self.consumer.as_str().into())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        let name = self.consumer.as_str();
        if view.score(&consumers(), name)?.is_some() {
            return Ok(Step::Return(false));
        }
        let liveness = Liveness::of(&self.consumer, view, context.now_ms)?;
        if liveness.is_alive() {
            // The next heartbeat adds the consumer.
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        liveness.guard_dead(&self.consumer, &mut transaction);
        transaction.join(consumers(), name, context.now_ms);
        Ok(Step::Commit(transaction, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;
    use crate::workers::{Heartbeat, RemoveDeadConsumer, RemoveDeadConsumerResult, Role};

    fn consumer() -> ConsumerId {
        ConsumerId::new("w-1-a-0").unwrap()
    }

    fn heartbeat() -> Heartbeat {
        Heartbeat { consumer: consumer(), role: Role::Scheduler, lease_ms: 800, policy: "abc".into() }
    }

    fn list() -> ListHolder {
        ListHolder { consumer: consumer() }
    }

    #[test]
    fn a_removed_or_unknown_holder_is_listed() {
        let mut shard = Trial::at(1_000);
        assert!(shard.run(&list()), "its heartbeat was lost");
        assert!(!shard.run(&list()));
        shard.receipt(&heartbeat());
        assert!(!shard.run(&list()));
        shard.pass(900);
        assert_eq!(shard.run(&RemoveDeadConsumer { consumer: consumer() }), RemoveDeadConsumerResult::Done);
        assert!(shard.members(&consumers()).is_empty());
        assert!(shard.run(&list()));
        assert_eq!(shard.members(&consumers()), ["w-1-a-0"]);
    }

    #[test]
    fn listing_a_holder_keeps_a_concurrent_heartbeat() {
        let mut shard = Trial::at(1_000);
        let decided = shard.step(&list());
        shard.receipt(&heartbeat());
        assert!(!shard.finish(&list(), decided).result);
        assert_eq!(shard.sets[&consumers()]["w-1-a-0"], 1_900);
    }
}
