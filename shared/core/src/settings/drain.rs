//! Drained workers take no new work, complete the work that they hold, and keep running.
//!
//! A drain flag belongs to a worker, so it survives a restart of the worker. Each start is a new consumer, with the
//! worker's name as prefix. The worker receives the flag with its next heartbeat. If the store has lost the flag, the
//! worker restores it, unless an operator has resumed the worker.

use serde::{Deserialize, Serialize};
use tickfleet_model::limits;
use tickfleet_model::policy::Pause;

use crate::audit::AuditAppend;
use crate::decision::{Context, Decision, Step};
use crate::record::Record;
use crate::transaction::{RecordKey, SetKey, Transaction, Write};
use crate::view::{Query, Undecided, Value, View};

const LIFTED_MS: i64 = 24 * 3_600_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "s", rename_all = "snake_case")]
pub enum DrainFlag {
    Drained {
        note: Pause,
    },
    /// The drain has ended. The worker may keep its flag until it receives this state.
    Lifted {
        at_ms: i64,
    },
}

impl Record for DrainFlag {
    const SCHEMA: u32 = 1;
}

#[must_use]
pub fn key(worker: &str) -> RecordKey {
    RecordKey::new(format!("drain:{worker}"))
}

/// The score is the time of the drain (ms).
#[must_use]
pub fn drained() -> SetKey {
    SetKey::new("drains")
}

pub(crate) fn forget(worker: &str, transaction: &mut Transaction) {
    transaction.write(Write::Delete(key(worker))).leave(drained(), worker);
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DrainChange {
    Drain {
        note: Pause,
        /// Workers that no longer run. The change removes the flags of at most [`limits::DRAINS_FORGOTTEN_MAX`] of
        /// them.
        gone: Vec<String>,
        entry: AuditAppend,
    },
    Resume {
        entry: AuditAppend,
    },
    Restore {
        note: Pause,
    },
}

#[derive(Debug, Clone)]
pub struct ChangeDrain {
    pub worker: String,
    pub change: DrainChange,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainResult {
    Done,
    Unchanged,
    Full,
    Lifted,
}

impl Decision for ChangeDrain {
    type Output = DrainResult;

    fn reads(&self) -> Vec<Query> {
        vec![Query::Record(key(&self.worker)), Query::Size(drained())]
    }

    fn decide(&self, view: &View, context: &Context) -> Result<Step<DrainResult>, Undecided> {
        let (mut transaction, flag) = context.update::<DrainFlag>(view, &key(&self.worker))?;
        transaction.dedupe_record = Some(key(&self.worker));
        let (note, gone, entry) = match &self.change {
            DrainChange::Resume { entry } => return Ok(self.resume(flag, entry, context.now_ms, transaction)),
            DrainChange::Drain { note, gone, entry } => (note, gone.as_slice(), Some(entry)),
            DrainChange::Restore { note } => (note, [].as_slice(), None),
        };
        match flag {
            Some(DrainFlag::Drained { .. }) => return Ok(Step::Return(DrainResult::Unchanged)),
            Some(DrainFlag::Lifted { at_ms }) if entry.is_none() && at_ms >= note.since_ms => {
                return Ok(Step::Return(DrainResult::Lifted));
            }
            _ => {}
        }
        let gone = &gone[..gone.len().min(limits::DRAINS_FORGOTTEN_MAX)];
        // Concurrent drains may slightly exceed the maximum. This is acceptable, because operators rarely drain
        // workers.
        if let Value::Size(size) = view.get(&Query::Size(drained()))?
            && size.saturating_sub(gone.len() as u64) >= limits::DRAINS_MAX as u64
        {
            return Ok(Step::Return(DrainResult::Full));
        }
        for worker in gone.iter().filter(|worker| **worker != self.worker) {
            forget(worker, &mut transaction);
        }
        transaction
            .join(drained(), self.worker.as_str(), note.since_ms)
            .put(&key(&self.worker), &DrainFlag::Drained { note: note.clone() });
        if let Some(entry) = entry {
            entry.append_to(&mut transaction);
        }
        Ok(Step::Commit(transaction, DrainResult::Done))
    }
}

impl ChangeDrain {
    /// Records the resume even without a stored flag. Otherwise a worker would restore a flag that the store has lost.
    fn resume(
        &self,
        flag: Option<DrainFlag>,
        entry: &AuditAppend,
        now_ms: i64,
        mut transaction: Transaction,
    ) -> Step<DrainResult> {
        let (since_ms, result) = match flag {
            Some(DrainFlag::Drained { note }) => (note.since_ms, DrainResult::Done),
            Some(DrainFlag::Lifted { at_ms }) => (at_ms, DrainResult::Unchanged),
            None => (now_ms, DrainResult::Unchanged),
        };
        if result == DrainResult::Done {
            entry.append_to(&mut transaction);
        }
        let lifted = DrainFlag::Lifted { at_ms: now_ms.max(since_ms) };
        transaction.leave(drained(), self.worker.as_str()).put_for(&key(&self.worker), &lifted, LIFTED_MS);
        Step::Commit(transaction, result)
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::keys;
    use crate::trial::Trial;

    fn entry() -> AuditAppend {
        AuditAppend { text: Bytes::from_static(b"{}"), entries_max: 100 }
    }

    fn note(since_ms: i64) -> Pause {
        Pause { by: "op".into(), reason: "upgrade".into(), since_ms }
    }

    fn change(change: DrainChange) -> ChangeDrain {
        ChangeDrain { worker: "w-1".into(), change }
    }

    fn drain(since_ms: i64, gone: Vec<String>) -> ChangeDrain {
        change(DrainChange::Drain { note: note(since_ms), gone, entry: entry() })
    }

    fn resume() -> ChangeDrain {
        change(DrainChange::Resume { entry: entry() })
    }

    fn restore(since_ms: i64) -> ChangeDrain {
        change(DrainChange::Restore { note: note(since_ms) })
    }

    #[test]
    fn a_worker_is_drained_and_resumed() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&drain(1_000, vec![])), DrainResult::Done);
        assert_eq!(shard.run(&drain(1_000, vec![])), DrainResult::Unchanged);
        assert_eq!(shard.members(&drained()), ["w-1"]);
        shard.pass(10);
        assert_eq!(shard.run(&resume()), DrainResult::Done);
        assert_eq!(shard.run(&resume()), DrainResult::Unchanged);
        assert!(shard.members(&drained()).is_empty());
        assert_eq!(shard.log(&keys::audit()).len(), 2);
        shard.pass(LIFTED_MS);
        assert_eq!(shard.record::<DrainFlag>(&key("w-1")), None);
    }

    #[test]
    fn a_drain_flag_is_restored_unless_the_worker_was_resumed() {
        let mut shard = Trial::at(1_000);
        assert_eq!(shard.run(&restore(900)), DrainResult::Done);
        assert!(shard.log(&keys::audit()).is_empty(), "the log has it already");
        assert_eq!(shard.run(&restore(900)), DrainResult::Unchanged);
        shard.receipt(&resume());
        assert_eq!(shard.run(&restore(900)), DrainResult::Lifted);
        assert_eq!(shard.run(&restore(1_001)), DrainResult::Done, "it was drained again since");
    }

    #[test]
    fn a_resume_overrides_the_restore_of_a_lost_drain_flag() {
        let mut shard = Trial::at(1_000);
        let decided = shard.step(&restore(900));
        assert_eq!(shard.run(&resume()), DrainResult::Unchanged);
        assert_eq!(shard.finish(&restore(900), decided).result, DrainResult::Lifted);
        assert!(shard.members(&drained()).is_empty());
    }

    #[test]
    fn drain_flags_are_bounded_and_gone_workers_make_room() {
        let mut shard = Trial::at(1_000);
        let members = (0..limits::DRAINS_MAX).map(|worker| (format!("w-x{worker}").into(), 1)).collect();
        shard.sets.insert(drained(), members);
        assert_eq!(shard.run(&drain(1_000, vec![])), DrainResult::Full);
        assert_eq!(shard.run(&restore(1_000)), DrainResult::Full);
        assert_eq!(shard.run(&drain(1_000, vec!["w-x7".into()])), DrainResult::Done);
        let set = shard.members(&drained());
        assert!(
            set.len() == limits::DRAINS_MAX && set.contains(&"w-1".to_owned()) && !set.contains(&"w-x7".to_owned())
        );
    }
}
