//! Removes dead consumers from the set of consumers that may hold something.

use tickfleet_model::ConsumerId;

use super::{Liveness, NOTICES_MAX, cancels, consumers};
use crate::decision::{Context, Decision, Step};
use crate::transaction::{Transaction, Write};
use crate::view::{Undecided, View};

/// Removes a dead consumer that holds nothing any more, and its undelivered notices. Its record stays until it expires,
/// because a silent consumer may return.
#[derive(Debug, Clone)]
pub struct Bury {
    /// The consumer.
    pub consumer: ConsumerId,
}

/// The result of [`Bury`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Burial {
    /// It is removed.
    Done,
    /// Some of its notices are removed. There are more.
    Partly,
    /// It lives.
    Alive {
        /// The end of its lease, ms.
        lease_ends_ms: i64,
    },
}

impl Decision for Bury {
    type Output = Burial;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<Burial>, Undecided> {
        let name = self.consumer.as_str();
        let liveness = Liveness::of(&self.consumer, view, context.now_ms)?;
        if let Liveness::Alive { lease_ends_ms } = liveness {
            return Ok(Step::Return(Burial::Alive { lease_ends_ms }));
        }
        let notices = view.first(&cancels(name), None, NOTICES_MAX)?;
        let mut transaction = Transaction::new(context.version.clone());
        liveness.guard_dead(&self.consumer, &mut transaction);
        for (member, _) in notices {
            transaction.write(Write::Leave { set: cancels(name), member: member.clone(), queue_of: None });
        }
        if notices.len() == NOTICES_MAX {
            return Ok(Step::Commit(transaction, Burial::Partly));
        }
        transaction.write(Write::Leave { set: consumers(), member: name.into(), queue_of: None });
        Ok(Step::Commit(transaction, Burial::Done))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::TurnName;
    use crate::paper::Paper;
    use crate::workers::{Beat, LeaseBefore, Leave, Role, notify_cancel};

    fn consumer() -> ConsumerId {
        ConsumerId::new("s-1-a-0").unwrap()
    }

    fn beat() -> Beat {
        Beat { consumer: consumer(), role: Role::Scheduler, lease_ms: 800, policy: "abc".into() }
    }

    fn bury() -> Bury {
        Bury { consumer: consumer() }
    }

    fn is_listed(shard: &Paper) -> bool {
        !shard.set(&consumers()).is_empty()
    }

    #[test]
    fn the_living_are_not_buried() {
        let mut shard = Paper::at(1_000);
        shard.run(&beat());
        assert_eq!(shard.result(&bury()), Burial::Alive { lease_ends_ms: 1_900 });
        shard.pass(900);
        assert_eq!(shard.result(&bury()), Burial::Done);
        assert!(!is_listed(&shard));
        assert_eq!(shard.result(&beat()).before, LeaseBefore::Ended, "it was silent, but had not left");
        assert!(is_listed(&shard), "it is back");
    }

    /// A heartbeat between the decision and the commit keeps the consumer.
    #[test]
    fn a_heartbeat_in_between_prevents_it() {
        let mut shard = Paper::at(1_000);
        shard.run(&beat());
        shard.pass(900);
        let decided = shard.decide(&bury());
        shard.run(&beat());
        assert!(matches!(shard.finish(&bury(), decided).result, Burial::Alive { .. }));
        assert!(is_listed(&shard));
        let gone = Bury { consumer: ConsumerId::new("s-2-a-0").unwrap() };
        let decided = shard.decide(&gone);
        shard.run(&Beat { consumer: gone.consumer.clone(), ..beat() });
        assert!(matches!(shard.finish(&gone, decided).result, Burial::Alive { .. }));
    }

    #[test]
    fn who_has_left_is_buried_at_once_with_its_notices() {
        let mut shard = Paper::at(1_000);
        shard.run(&beat());
        let mut transaction = Transaction::new(shard.context().version);
        for turn in 0..300 {
            let name = TurnName::parse(&format!("acme:t{turn}")).unwrap();
            notify_cancel(&name, "s-1-a-0", 1_000, &mut transaction);
        }
        shard.commit(&transaction).unwrap();
        shard.run(&Leave { consumer: consumer(), role: Role::Scheduler });
        assert_eq!(shard.result(&bury()), Burial::Partly);
        assert_eq!(shard.result(&bury()), Burial::Done);
        assert!(shard.set(&cancels("s-1-a-0")).is_empty() && !is_listed(&shard));
    }
}
