//! Heartbeats and orderly shutdown of consumers.

use serde::{Deserialize, Serialize};
use tickfleet_model::ConsumerId;
use tickfleet_model::policy::Pause;

use super::{Consumer, NOTICES_MAX, SILENT_MS, consumers, key, leave_silent_set};
use crate::decision::{Context, Decision, Step};
use crate::keys::{TurnName, canceled};
use crate::record::Stored;
use crate::settings::drain::{self, DrainFlag};
use crate::transaction::{Guard, Transaction, Write};
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "k", rename_all = "snake_case")]
pub enum Role {
    Scheduler,
    Worker {
        /// Stays the same after a restart of the worker. Drain flags refer to this name.
        worker: String,
        slots: Slots,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slots {
    #[serde(rename = "b")]
    pub busy: usize,
    #[serde(rename = "a")]
    pub all: usize,
}

impl Role {
    fn worker(&self) -> Option<&str> {
        match self {
            Self::Scheduler => None,
            Self::Worker { worker, .. } => Some(worker),
        }
    }
}

/// Must be sent before the consumer takes new work. Also deletes the cancel notices that it returns.
#[derive(Debug, Clone)]
pub struct Heartbeat {
    pub consumer: ConsumerId,
    pub role: Role,
    pub lease_ms: i64,
    /// The start of the digest of the consumer's policy.
    pub policy: String,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeartbeatReport {
    pub drained: Option<Pause>,
    pub canceled: Vec<TurnName>,
    /// If true, the next heartbeat should follow at once.
    pub more: bool,
    pub before: LeaseBefore,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LeaseBefore {
    /// The consumer had no lease, or the store has lost the consumer's record.
    #[default]
    None,
    Running,
    /// The consumer's entries may have been redelivered.
    Ended,
}

impl Heartbeat {
    /// Maximum time (ms) from the decision to the commit. With this extra time, a lease lasts at least `lease_ms` after
    /// the commit.
    const fn slack_ms(&self) -> i64 {
        let slack_ms = self.lease_ms / 8;
        if slack_ms > 0 { slack_ms } else { 1 }
    }

    fn drain_note(&self, view: &View) -> Result<Option<Pause>, Undecided> {
        let Some(worker) = self.role.worker() else { return Ok(None) };
        let flag: Option<Stored<DrainFlag>> = view.record(&drain::key(worker))?;
        Ok(match flag.map(|stored| stored.value) {
            Some(DrainFlag::Drained { note }) => Some(note),
            Some(DrainFlag::Lifted { .. }) | None => None,
        })
    }
}

impl Decision for Heartbeat {
    type Output = HeartbeatReport;

    fn reads(&self) -> Vec<Query> {
        let mut reads = vec![
            Query::Record(key(self.consumer.as_str())),
            Query::First { set: canceled(self.consumer.as_str()), upto: None, count: NOTICES_MAX },
        ];
        reads.extend(self.role.worker().map(|worker| Query::Record(drain::key(worker))));
        reads
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<HeartbeatReport>, Undecided> {
        let name = self.consumer.as_str();
        let now_ms = context.now_ms;
        let drained = self.drain_note(view)?;
        let notices = view.first(&canceled(name), None, NOTICES_MAX)?;
        let (mut transaction, stored) = context.update::<Consumer>(view, &key(name))?;
        transaction.guard(Guard::Before(now_ms + self.slack_ms()));
        transaction.dedupe_record = Some(key(name));
        let consumer = Consumer {
            lease_ends_ms: now_ms + self.slack_ms() + self.lease_ms,
            lease_ms: self.lease_ms,
            heartbeat_ms: now_ms,
            role: self.role.clone(),
            policy: self.policy.clone(),
            drained: drained.is_some(),
        };
        transaction.put_for(&key(name), &consumer, self.slack_ms() + self.lease_ms + SILENT_MS).join(
            consumers(),
            name,
            consumer.lease_ends_ms,
        );
        if stored.as_ref().is_none_or(|stored| stored.lease_ends_ms <= now_ms) {
            leave_silent_set(name, &mut transaction);
        }
        for (member, _) in notices {
            transaction.leave(canceled(name), member.clone());
        }
        let report = HeartbeatReport {
            drained,
            canceled: notices.iter().filter_map(|(member, _)| TurnName::parse(member)).collect(),
            more: notices.len() == NOTICES_MAX,
            before: match &stored {
                None => LeaseBefore::None,
                Some(stored) if stored.lease_ends_ms > now_ms => LeaseBefore::Running,
                Some(_) => LeaseBefore::Ended,
            },
        };
        Ok(Step::Commit(transaction, report))
    }
}

/// The next check of a reaper redelivers the consumer's remaining entries.
#[derive(Debug, Clone)]
pub struct EndLease {
    pub consumer: ConsumerId,
    pub role: Role,
}

impl Decision for EndLease {
    type Output = ();

    fn reads(&self) -> Vec<Query> {
        self.role.worker().map(|worker| Query::Record(drain::key(worker))).into_iter().collect()
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<()>, Undecided> {
        let name = self.consumer.as_str();
        let mut transaction = Transaction::new(context.version.clone());
        if let Some(worker) = self.role.worker() {
            let flag: Option<Stored<DrainFlag>> = view.record(&drain::key(worker))?;
            if let Some(Stored { value: DrainFlag::Drained { .. }, version, .. }) = flag {
                transaction.guard(Guard::Version(drain::key(worker), version));
                drain::forget(worker, &mut transaction);
            }
        }
        leave_silent_set(name, &mut transaction);
        // [`RemoveDeadConsumer`](super::RemoveDeadConsumer) removes the consumer after a redelivery of the entries.
        transaction.write(Write::Delete(key(name))).join(consumers(), name, context.now_ms);
        Ok(Step::Commit(transaction, ()))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::Conflict;
    use crate::audit::AuditAppend;
    use crate::settings::drain::{ChangeDrain, DrainChange};
    use crate::trial::Trial;
    use crate::workers::{dead, notify_cancel};

    fn consumer() -> ConsumerId {
        ConsumerId::new("w-1-a-0").unwrap()
    }

    fn heartbeat() -> Heartbeat {
        let role = Role::Worker { worker: "w-1".into(), slots: Slots { busy: 1, all: 4 } };
        Heartbeat { consumer: consumer(), role, lease_ms: 800, policy: "abc".into() }
    }

    fn end_lease() -> EndLease {
        EndLease { consumer: consumer(), role: heartbeat().role }
    }

    fn drain() -> ChangeDrain {
        let entry = AuditAppend { text: Bytes::from_static(b"{}"), entries_max: 10 };
        let note = Pause { by: "op".into(), reason: "upgrade".into(), since_ms: 1 };
        ChangeDrain { worker: "w-1".into(), change: DrainChange::Drain { note, gone: vec![], entry } }
    }

    fn cancel(shard: &mut Trial, turn: &str) {
        let mut transaction = Transaction::new(shard.context().version);
        notify_cancel(&TurnName::parse(turn).unwrap(), "w-1-a-0", shard.now_ms, &mut transaction);
        shard.commit(&transaction).unwrap();
    }

    #[test]
    fn a_heartbeat_renews_the_lease_and_returns_new_notices() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&heartbeat()), HeartbeatReport::default());
        assert_eq!(shard.run(&heartbeat()).before, LeaseBefore::Running);
        assert_eq!(shard.members(&consumers()), ["w-1-a-0"]);
        cancel(&mut shard, "acme:t1");
        shard.receipt(&drain());
        let report = shard.run(&heartbeat());
        assert_eq!(report.canceled, [TurnName::parse("acme:t1").unwrap()]);
        assert_eq!(report.drained.unwrap().reason, "upgrade");
        assert!(shard.run(&heartbeat()).canceled.is_empty(), "a notice is delivered once");
        let stored: Consumer = shard.record(&key("w-1-a-0")).unwrap();
        assert!(stored.drained && stored.lease_ends_ms == 1_900);
    }

    #[test]
    fn a_cancel_notice_during_a_heartbeat_waits_for_the_next_one() {
        let mut shard = Trial::at(1_000);
        cancel(&mut shard, "acme:t1");
        let decided = shard.step(&heartbeat());
        cancel(&mut shard, "acme:t2");
        assert_eq!(shard.finish(&heartbeat(), decided).result.canceled, [TurnName::parse("acme:t1").unwrap()]);
        assert_eq!(shard.run(&heartbeat()).canceled, [TurnName::parse("acme:t2").unwrap()]);
    }

    #[test]
    fn a_stale_heartbeat_does_not_restore_a_departed_worker() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&heartbeat());
        let Step::Commit(late, _) = shard.step(&heartbeat()) else { panic!("nothing to commit") };
        shard.receipt(&drain());
        shard.receipt(&end_lease());
        assert!(matches!(shard.commit(&late), Err(Conflict::Record { stored: None, .. })));
        assert_eq!(shard.record::<DrainFlag>(&drain::key("w-1")), None);
        assert_eq!(shard.members(&consumers()), ["w-1-a-0"], "what it holds is taken back");
        shard.receipt(&end_lease());
    }

    #[test]
    fn a_resume_during_a_departure_is_not_lost() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&heartbeat());
        shard.receipt(&drain());
        let decided = shard.step(&end_lease());
        let entry = AuditAppend { text: Bytes::from_static(b"{}"), entries_max: 10 };
        shard.receipt(&ChangeDrain { worker: "w-1".into(), change: DrainChange::Resume { entry } });
        shard.finish(&end_lease(), decided);
        assert_eq!(shard.record(&drain::key("w-1")), Some(DrainFlag::Lifted { at_ms: 1_000 }));
        assert_eq!(shard.record::<Consumer>(&key("w-1-a-0")), None);
    }

    #[test]
    fn many_notices_are_split_across_heartbeats() {
        let mut shard = Trial::at(1_000);
        for turn in 0..=NOTICES_MAX {
            cancel(&mut shard, &format!("acme:t{turn}"));
        }
        let first = shard.run(&heartbeat());
        let second = shard.run(&heartbeat());
        assert!(first.more && !second.more);
        assert_eq!((first.canceled.len(), second.canceled.len()), (NOTICES_MAX, 1));
    }

    proptest! {
        /// The heartbeat may be committed late.
        #[test]
        fn a_lease_lasts_its_full_length_after_the_commit(late_ms in 0..2_000i64, lease_ms in 1..2_000i64) {
            let mut shard = Trial::at(1_000);
            let heartbeat = Heartbeat { lease_ms, ..heartbeat() };
            let decided = shard.step(&heartbeat);
            shard.now_ms += late_ms;
            shard.finish(&heartbeat, decided);
            let stored: Consumer = shard.record(&key("w-1-a-0")).unwrap();
            prop_assert!(stored.lease_ends_ms >= shard.now_ms + lease_ms);
            let ends = stored.lease_ends_ms;
            prop_assert_eq!(shard.sets[&consumers()]["w-1-a-0"], ends.unsigned_abs());
            let Query::First { upto, .. } = dead(ends - 1, 10) else { return Ok(()) };
            prop_assert!(upto < Some(ends.unsigned_abs()));
        }
    }
}
