//! Decides when dead consumers may be reaped.

use serde::{Deserialize, Serialize};

use crate::decision::{Context, Decision, Step};
use crate::record::{Record, Stored};
use crate::transaction::{RecordKey, Transaction};
use crate::view::{Undecided, View};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReapState {
    #[serde(rename = "t")]
    pub seen_ms: i64,
    /// No consumer counts as dead before this time.
    #[serde(rename = "ho")]
    pub hold_until_ms: i64,
}

impl Record for ReapState {
    const SCHEMA: u32 = 1;
}

/// Without a check in the last half of a lease, the store was probably unreachable. Consumers then get one lease to
/// send heartbeats again.
#[derive(Debug, Clone, Copy)]
pub struct RequestReapPermit {
    pub lease_ms: i64,
    pub every_ms: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReapPermit {
    /// A consumer counts as dead when its lease has ended.
    Granted,
    /// The last check is less than `every_ms` old.
    Recent,
    /// No consumer counts as dead before `until_ms`.
    Hold { until_ms: i64 },
}

fn key() -> RecordKey {
    RecordKey::new("reaping")
}

impl Decision for RequestReapPermit {
    type Output = ReapPermit;

    fn decide(&self, view: &View, context: &Context) -> Result<Step<ReapPermit>, Undecided> {
        let now_ms: i64 = context.now_ms;
        let stored: Option<Stored<ReapState>> = view.record(&key())?;
        let before = stored.as_ref().map(|stored| stored.value);
        if before.is_some_and(|before| now_ms - before.seen_ms < self.every_ms) {
            return Ok(Step::Return(ReapPermit::Recent));
        }
        let mut hold_until_ms = before.map_or(0, |before| before.hold_until_ms);
        if before.is_none_or(|before| now_ms - before.seen_ms > self.lease_ms / 2) {
            hold_until_ms = now_ms + self.lease_ms;
        }
        if context.epoch_began_ms > 0 {
            hold_until_ms = hold_until_ms.max(context.epoch_began_ms + self.lease_ms);
        }
        let mut transaction = Transaction::new(context.version.clone());
        transaction.guard_read(&key(), stored.as_ref()).put(&key(), &ReapState { seen_ms: now_ms, hold_until_ms });
        let permit =
            if now_ms < hold_until_ms { ReapPermit::Hold { until_ms: hold_until_ms } } else { ReapPermit::Granted };
        Ok(Step::Commit(transaction, permit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trial::Trial;

    #[test]
    fn reaping_waits_for_one_lease_after_an_outage() {
        let mut shard = Trial::at(1_000);
        let may = RequestReapPermit { lease_ms: 800, every_ms: 100 };
        assert_eq!(shard.run(&may), ReapPermit::Hold { until_ms: 1_800 });
        assert_eq!(shard.run(&may), ReapPermit::Recent);
        for _ in 0..2 {
            shard.pass(400);
            shard.receipt(&may);
        }
        shard.pass(100);
        assert_eq!(shard.run(&may), ReapPermit::Granted);
        shard.pass(401);
        assert_eq!(shard.run(&may), ReapPermit::Hold { until_ms: shard.now_ms + 800 }, "the store was away");
    }

    /// The outage is between the decision and the commit.
    #[test]
    fn a_reap_permit_does_not_survive_an_outage() {
        let mut shard = Trial::at(1_000);
        let may = RequestReapPermit { lease_ms: 800, every_ms: 0 };
        for _ in 0..3 {
            shard.receipt(&may);
            shard.pass(400);
        }
        let decided = shard.step(&may);
        assert!(matches!(decided, Step::Commit(_, ReapPermit::Granted)));
        shard.pass(5_000);
        let hold = ReapPermit::Hold { until_ms: shard.now_ms + 800 };
        assert_eq!(shard.run(&may), hold);
        assert_eq!(shard.finish(&may, decided).result, hold);
    }

    #[test]
    fn reaping_waits_for_one_lease_after_a_store_restart() {
        let may = RequestReapPermit { lease_ms: 800, every_ms: 100 };
        let key = crate::view::Query::Record(key());
        let mut view = View::default();
        let state = ReapState { seen_ms: 4_900, hold_until_ms: 0 };
        let stored = crate::record::RecordText::render(&crate::Version::new("v"), None, &[], &state.encode());
        view.insert(key, crate::view::Value::Record(Some(stored)));
        let mut context = Trial::at(5_000).context();
        assert!(matches!(may.decide(&view, &context), Ok(Step::Commit(_, ReapPermit::Granted))));
        context.epoch_began_ms = 4_800;
        let held = ReapPermit::Hold { until_ms: 5_600 };
        assert!(matches!(may.decide(&view, &context), Ok(Step::Commit(_, permit)) if permit == held));
    }
}
