//! Consumers that hold entries and are missing from the set of consumers.

use tickfleet_model::ConsumerId;

use super::{Liveness, consumers};
use crate::decision::{Context, Decision, Step};
use crate::transaction::{Transaction, Write};
use crate::view::{Query, Undecided, View};

/// Lists a consumer that holds entries of a queue, so that it is reaped. It may have been suspended and taken them after it
/// was buried, or the store lost its heartbeat in a restart. Without this, a crash before its next heartbeat would leave its
/// entries unreaped. Schedulers check all holders of all queues once per lease.
#[derive(Debug, Clone)]
pub struct ListHolder {
    /// The consumer.
    pub consumer: ConsumerId,
}

impl Decision for ListHolder {
    /// True if it was not listed.
    type Output = bool;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Place(consumers(), self.consumer.as_str().into())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<bool>, Undecided> {
        let name = self.consumer.as_str();
        if view.place(&consumers(), name)?.is_some() {
            return Ok(Step::Return(false));
        }
        let liveness = Liveness::of(&self.consumer, view, context.now_ms)?;
        if liveness.is_alive() {
            // The consumer's heartbeat lists it.
            return Ok(Step::Return(false));
        }
        let mut transaction = Transaction::new(context.version.clone());
        liveness.guard_dead(&self.consumer, &mut transaction);
        let place = context.now_ms.max(0).unsigned_abs();
        transaction.write(Write::Join { set: consumers(), member: name.into(), place, queue_of: None });
        Ok(Step::Commit(transaction, true))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::paper::Paper;
    use crate::workers::{Beat, Burial, Bury, Role};

    fn consumer() -> ConsumerId {
        ConsumerId::new("w-1-a-0").unwrap()
    }

    fn beat() -> Beat {
        Beat { consumer: consumer(), role: Role::Scheduler, lease_ms: 800, policy: "abc".into() }
    }

    fn list() -> ListHolder {
        ListHolder { consumer: consumer() }
    }

    #[test]
    fn a_holder_that_was_buried_or_is_unknown_is_listed() {
        let mut shard = Paper::at(1_000);
        assert!(shard.result(&list()), "its heartbeat was lost");
        assert!(!shard.result(&list()));
        shard.run(&beat());
        assert!(!shard.result(&list()));
        shard.pass(900);
        assert_eq!(shard.result(&Bury { consumer: consumer() }), Burial::Done);
        assert!(shard.set(&consumers()).is_empty());
        assert!(shard.result(&list()));
        assert_eq!(shard.set(&consumers()), ["w-1-a-0"]);
    }

    /// A concurrent heartbeat sets the end of the lease.
    #[test]
    fn a_heartbeat_in_between_stays() {
        let mut shard = Paper::at(1_000);
        let decided = shard.decide(&list());
        shard.run(&beat());
        assert!(!shard.finish(&list(), decided).result);
        assert_eq!(shard.sets[&consumers()]["w-1-a-0"], 1_900);
    }
}
