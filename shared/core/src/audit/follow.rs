//! Positions of processes that follow a log, such as exporters of the audit log.

use serde::{Deserialize, Serialize};

use crate::decision::{Context, Decision, Step};
use crate::leases::{Candidate, Lease};
use crate::record::Record;
use crate::transaction::RecordKey;
use crate::view::{Query, Undecided, View};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Followed {
    #[serde(rename = "le")]
    pub lease: Lease,
    /// In the follower's format; empty at the start.
    #[serde(rename = "at")]
    pub position: String,
}

impl Record for Followed {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key(name: &str) -> RecordKey {
    RecordKey::new(format!("follow:{name}"))
}

/// If `after` equals `before`, only takes the lease.
#[derive(Debug, Clone)]
pub struct Follow {
    pub name: String,
    pub candidate: Candidate,
    pub before: String,
    pub after: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FollowResult {
    Done,
    /// The stored position is not `before`, so nothing was written.
    Stale {
        position: String,
    },
    Held,
}

impl Decision for Follow {
    type Output = FollowResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key(&self.name))]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<FollowResult>, Undecided> {
        let key = key(&self.name);
        let (mut transaction, stored) = context.update::<Followed>(view, &key)?;
        let lease = self.candidate.take(stored.as_ref().map(|one| &one.lease), context.now_ms, &mut transaction);
        let Some(lease) = lease else { return Ok(Step::Return(FollowResult::Held)) };
        let position = stored.map(|one| one.position).unwrap_or_default();
        if position != self.before {
            return Ok(Step::Return(FollowResult::Stale { position }));
        }
        transaction.put(&key, &Followed { lease, position: self.after.clone() });
        transaction.dedupe_record = Some(key);
        Ok(Step::Commit(transaction, FollowResult::Done))
    }
}

#[cfg(test)]
mod tests {
    use tickfleet_model::ConsumerId;

    use super::*;
    use crate::trial::Trial;

    fn follow(process: &str, before: &str, after: &str) -> Follow {
        let candidate = Candidate { process: ConsumerId::new(process).unwrap(), lease_ms: 100 };
        Follow { name: "siem".into(), candidate, before: before.into(), after: after.into() }
    }

    #[test]
    fn a_follower_advances_only_from_the_stored_position() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&follow("a", "", "5-0")), FollowResult::Done);
        assert_eq!(shard.run(&follow("a", "", "6-0")), FollowResult::Stale { position: "5-0".into() });
        assert_eq!(shard.run(&follow("b", "5-0", "6-0")), FollowResult::Held);
        shard.pass(100);
        assert_eq!(shard.run(&follow("b", "5-0", "5-0")), FollowResult::Done, "the lease has ended");
        assert_eq!(shard.run(&follow("a", "5-0", "7-0")), FollowResult::Held);
        assert_eq!(shard.record::<Followed>(&key("siem")).unwrap().position, "5-0");
    }

    #[test]
    fn two_followers_never_advance_from_the_same_position() {
        let mut shard = Trial::at(1_000);
        shard.receipt(&follow("a", "", "5-0"));
        shard.pass(100);
        let late = follow("a", "5-0", "6-0");
        let new = follow("b", "5-0", "7-0");
        let decided = shard.step(&late);
        assert_eq!(shard.run(&new), FollowResult::Done);
        assert_eq!(shard.finish(&late, decided).result, FollowResult::Held);
        assert_eq!(shard.record::<Followed>(&key("siem")).unwrap().position, "7-0");
    }

    #[test]
    fn a_repeated_commit_is_recognized() {
        let mut shard = Trial::at(1_000);
        let Step::Commit(transaction, _) = shard.step(&follow("a", "", "5-0")) else { panic!("nothing to commit") };
        assert!(!shard.commit(&transaction).unwrap().was_committed);
        assert!(shard.commit(&transaction).unwrap().was_committed);
    }
}
