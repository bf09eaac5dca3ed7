//! The walk through a shard that looks for what does not agree. It only gathers names, in many small steps; whether
//! something is wrong, the script says, in which nothing changes meanwhile.

use std::collections::BTreeSet;

use redis::Value;

use super::repair::{Fault, FaultFound, Kind};
use crate::connection::question::Question;
use crate::keys::{GROUP, Queue, streams};
use crate::script::reply::text_of;
use crate::{Store, StoreError};

/// Keys, or members of one, that one step looks at, about.
const PER_STEP: usize = 128;
/// Entries of a queue that are looked at: the oldest that wait, and as many that are held.
const ENTRIES_MAX: usize = 1_000;
/// Faults that are named; of the others it is told how many there are.
const FOUND_MAX: usize = 1_000;

/// What came of a look at a shard.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Repaired {
    /// The faults, in the order in which they were found; of very many the first.
    pub found: Vec<FaultFound>,
    /// How many more there are.
    pub more: usize,
    /// The things that were looked at.
    pub looked: usize,
    /// True if the counters of all tenants were compared with the records: not, where that is too much for one script, or
    /// where turns of theirs cannot be counted.
    pub counted: bool,
}

/// A walk under way.
struct Walk<'a> {
    store: &'a Store,
    /// The audit entry, if faults are to be mended.
    entry: Option<&'a str>,
    tenants: BTreeSet<String>,
    /// Of those, whose counters have a turn that nobody can count.
    uncounted: BTreeSet<String>,
    told: Repaired,
}

impl Store {
    /// Looks at everything in the shard for what does not agree. With `entry`, mends what can be mended safely, beside
    /// a fleet that works: an audit entry as JSON, whose last member is an object, both still open; what was mended is
    /// written behind it, by each script that mended something.
    ///
    /// # Errors
    /// [`StoreError`]; what was mended until then is.
    pub async fn faults(&self, entry: Option<&str>) -> Result<Repaired, StoreError> {
        let (tenants, uncounted) = (BTreeSet::new(), BTreeSet::new());
        let mut walk = Walk { store: self, entry, tenants, uncounted, told: Repaired::default() };
        walk.look(Kind::Group, streams().collect()).await?;
        walk.keys().await?;
        for (set, kind) in [("timers", Kind::Timer), ("delayed", Kind::Delayed)] {
            walk.members("ZSCAN", set, kind).await?;
        }
        for (hash, kind) in
            [("queued", Kind::Queued), ("beats", Kind::Beat), ("nodes", Kind::Node), ("budgets", Kind::Budget)]
        {
            walk.members("HSCAN", hash, kind).await?;
        }
        for queue in Queue::of_workers() {
            walk.queue(&queue.to_string()).await?;
        }
        walk.tenants().await?;
        Ok(walk.told)
    }
}

impl Walk<'_> {
    /// All keys of the shard.
    async fn keys(&mut self) -> Result<(), StoreError> {
        let (mut cursor, prefix) = (0_u64, self.store.keys.key(""));
        // Braces are no pattern, but a namespace may have brackets.
        let pattern: String = prefix.chars().flat_map(|c| ['\\', c]).chain(['*']).collect();
        loop {
            let mut command = redis::cmd("SCAN");
            command.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(PER_STEP);
            let (next, found): (u64, Vec<Value>) = self.store.connection.query(Question::Sweep, &command).await?;
            let names: Vec<String> = found.iter().filter_map(text_of).collect();
            self.keys_of(names.iter().filter_map(|key| key.strip_prefix(&prefix))).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// Some keys, by the beginnings of their names.
    async fn keys_of(&mut self, names: impl Iterator<Item = &str>) -> Result<(), StoreError> {
        let (mut turns, mut lanes, mut ids) = (Vec::new(), Vec::new(), Vec::new());
        let (mut limits, mut effects, mut held, mut externals) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut approvals, mut others) = (Vec::new(), Vec::new());
        for name in names {
            let Some((kind, rest)) = name.split_once(':') else {
                others.push(name.to_owned());
                continue;
            };
            match kind {
                "turn" => turns.push(rest.to_owned()),
                "lane" => lanes.push(rest.to_owned()),
                "id" => ids.push(rest.to_owned()),
                "counters" => limits.push(rest.to_owned()),
                "effect" => effects.push(rest.to_owned()),
                "approval" => approvals.push(rest.to_owned()),
                "held" => {
                    held.push(rest.to_owned());
                    others.push(name.to_owned());
                }
                "external" => externals.push(name.to_owned()),
                "tenant" => drop(self.tenants.insert(rest.to_owned())),
                _ => others.push(name.to_owned()),
            }
        }
        self.tenants.extend(turns.iter().filter_map(|turn| Some(turn.split_once(':')?.0.to_owned())));
        self.look(Kind::Holder, turns.clone()).await?;
        for (kind, items) in [
            (Kind::Turn, turns),
            (Kind::Lane, lanes),
            (Kind::Id, ids),
            (Kind::Limit, limits.clone()),
            (Kind::Effect, effects),
            (Kind::Approval, approvals),
            (Kind::External, externals.clone()),
            (Kind::Key, others),
        ] {
            self.look(kind, items).await?;
        }
        for limit in limits {
            self.members("HSCAN", &format!("counters:{limit}"), Kind::Counter).await?;
        }
        for counter in held {
            self.members("ZSCAN", &format!("held:{counter}"), Kind::Place).await?;
        }
        for stream in externals {
            self.queue(&stream).await?;
        }
        Ok(())
    }

    /// All members of a sorted set, or fields of a hash.
    async fn members(&mut self, scan: &str, name: &str, kind: Kind) -> Result<(), StoreError> {
        let mut cursor = 0_u64;
        loop {
            let mut command = redis::cmd(scan);
            command.arg(self.store.keys.key(name)).arg(cursor).arg("COUNT").arg(PER_STEP);
            let (next, found): (u64, Vec<Value>) = match self.store.connection.query(Question::Sweep, &command).await {
                // Something else has that name; whoever uses it says so.
                Err(StoreError::Verb { source, .. }) if !source.is_io_error() => return Ok(()),
                found => found?,
            };
            let members = found.iter().step_by(2).filter_map(text_of);
            let item = |member: String| match kind {
                Kind::Timer => member.strip_prefix("t:").map(str::to_owned),
                Kind::Place => Some(format!("{} {member}", name.strip_prefix("held:")?)),
                Kind::Counter => Some(format!("{} {member}", name.strip_prefix("counters:")?)),
                _ => Some(member),
            };
            self.look(kind, members.filter_map(item).collect()).await?;
            cursor = next;
            if cursor == 0 {
                return Ok(());
            }
        }
    }

    /// The oldest entries of a queue, and the oldest that are held.
    async fn queue(&mut self, queue: &str) -> Result<(), StoreError> {
        let key = self.store.keys.key(queue);
        let mut command = redis::cmd("XPENDING");
        command.arg(&key).arg(GROUP).arg("-").arg("+").arg(ENTRIES_MAX);
        let mut ids: BTreeSet<String> = self.entries(&command).await?.into_iter().collect();
        // What waits to be read is looked at a few at a time: entries may be large.
        let mut from = "-".to_owned();
        for _ in 0..ENTRIES_MAX / Kind::Entry.together() {
            let mut command = redis::cmd("XRANGE");
            command.arg(&key).arg(&from).arg("+").arg("COUNT").arg(Kind::Entry.together());
            let next = self.entries(&command).await?;
            let Some(last) = next.last() else { break };
            from = format!("({last}");
            ids.extend(next);
        }
        self.look(Kind::Entry, ids.into_iter().map(|id| format!("{queue} {id}")).collect()).await
    }

    /// The ids of the entries that a command lists; none where Redis refuses, for a stream or its group is gone.
    async fn entries(&self, command: &redis::Cmd) -> Result<Vec<String>, StoreError> {
        match self.store.connection.query::<Value>(Question::Sweep, command).await {
            Ok(found) => Ok(ids_of(found)),
            Err(StoreError::StateLost(_)) => Ok(Vec::new()),
            Err(StoreError::Verb { source, .. }) if !source.is_io_error() => Ok(Vec::new()),
            Err(error) => Err(error),
        }
    }

    /// The counters of tenants, all in one step: they are compared with all that is under way.
    async fn tenants(&mut self) -> Result<(), StoreError> {
        self.told.counted = self.uncounted.is_empty();
        // Of one that is not counted, it is at least told whether it can be read.
        let uncounted = self.tenants.intersection(&self.uncounted).map(|tenant| format!("tenant:{tenant}")).collect();
        self.look(Kind::Key, uncounted).await?;
        let tenants = self.tenants.difference(&self.uncounted).cloned().collect();
        self.look(Kind::Tenant, tenants).await
    }

    async fn look(&mut self, kind: Kind, items: Vec<String>) -> Result<(), StoreError> {
        self.told.looked += items.len();
        for some in items.chunks(kind.together()) {
            let Some(found) = self.store.repair(kind, some, self.entry).await? else {
                self.told.counted = false;
                return Ok(());
            };
            // By its timer a turn is counted. One whose record cannot be read has none: it was put aside, and its tenant still
            // has it.
            let is_uncounted =
                |f: &&FaultFound| !f.mended && matches!(f.fault, Fault::TurnWithoutTimer | Fault::TurnUnreadable);
            let item = |found: &FaultFound| found.item.strip_prefix("turn:").unwrap_or(&found.item).to_owned();
            let turns: Vec<String> = found.iter().filter(is_uncounted).map(item).collect();
            let turns = turns.iter().filter_map(|turn| turn.split_once(':'));
            self.uncounted.extend(turns.map(|(tenant, _)| tenant.to_owned()));
            let room = FOUND_MAX.saturating_sub(self.told.found.len());
            self.told.more += found.len().saturating_sub(room);
            self.told.found.extend(found.into_iter().take(room));
        }
        Ok(())
    }
}

/// The ids of entries, as `XRANGE` and `XPENDING` list them.
fn ids_of(found: Value) -> Vec<String> {
    let Value::Array(entries) = found else { return Vec::new() };
    let id = |entry: Value| match entry {
        Value::Array(parts) => parts.first().and_then(text_of),
        _ => None,
    };
    entries.into_iter().filter_map(id).collect()
}
