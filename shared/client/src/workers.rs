//! Lists, drains and resumes workers.

use std::collections::BTreeMap;

use serde::Serialize;
use tickfleet_core::settings::drain::{ChangeDrain, DrainChange, DrainResult};
use tickfleet_model::policy::Pause;
use tickfleet_model::suggest::{list, nearest};
use tickfleet_protocol::{AuditAction, OperatorAct};
use tickfleet_store::{ShardWorkers, Slots, Store, StoreError, worker_of};

use crate::held_slices::held_slices;
use crate::operate::Operator;

/// Age (ms) after which the drain flag of a vanished worker is removed, when another worker is drained.
const GONE_MS: i64 = 24 * 3_600 * 1_000;
const RUNNING_MAX: usize = 100;

/// A worker process in all its shards.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WorkerSummary {
    /// `w-`, the name of the host or pod, and the number of the process.
    pub name: String,
    /// True if the worker has a valid lease in at least one shard.
    pub alive: bool,
    /// The number of shards with a valid lease.
    pub shards: usize,
    /// The number of slots in use.
    pub busy: usize,
    /// The number of slots. For a drained worker, the number of slots in use.
    pub slots: usize,
    /// Age (ms) of the last heartbeat. `None` if no heartbeat is stored.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub heartbeat_age_ms: Option<i64>,
    /// The operator, the reason and the time of the drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drained: Option<Pause>,
    /// False until the worker's heartbeat has read the latest drain or resume.
    pub drain_applied: bool,
    /// The calls in progress, the oldest first. `None` in lists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running: Option<Vec<RunningCall>>,
}

/// The calls in one slot of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunningCall {
    /// The turn or task: `tenant:id`.
    pub turn: String,
    /// The tool of the current call.
    pub tool: String,
    /// Time at which the worker took the turn (ms of shard time).
    pub since_ms: i64,
}

/// The result of a drain or resume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkerDrainResult {
    /// At least one shard has changed.
    Ok,
    /// Every shard already had the requested state.
    None,
    /// No worker, running or drained, has this name.
    Unknown,
    /// A shard has too many drained workers. The worker may be drained in other shards.
    Full,
}

/// The workers by name, and the shard time (ms). Includes drained workers that no longer run.
pub async fn workers(shards: &[Store]) -> Result<(Vec<WorkerSummary>, i64), StoreError> {
    let mut found = BTreeMap::new();
    let mut now_ms = 0;
    for store in shards {
        let shard = store.workers().await?;
        now_ms = shard.now_ms;
        add(&mut found, &shard);
    }
    Ok((found.into_values().collect(), now_ms))
}

/// One worker with its calls, and the shard time (ms). `None` if no worker has this name.
pub async fn worker(shards: &[Store], requested: &str) -> Result<Option<(WorkerSummary, i64)>, StoreError> {
    let mut known = Vec::with_capacity(shards.len());
    for store in shards {
        known.push(store.workers().await?);
    }
    let Some(name) = resolve_worker(&known, requested) else { return Ok(None) };
    let mut found = BTreeMap::new();
    let mut running = Vec::new();
    let mut now_ms = 0;
    for (store, shard) in shards.iter().zip(&known) {
        now_ms = shard.now_ms;
        add(&mut found, shard);
        for slice in held_slices(store, Some(name), RUNNING_MAX).await? {
            running.push(RunningCall { turn: slice.turn, tool: slice.tool, since_ms: now_ms - slice.held_ms });
        }
    }
    running.sort_by_key(|slice| slice.since_ms);
    running.truncate(RUNNING_MAX);
    let summary = found.remove(name);
    Ok(summary.map(|worker| (WorkerSummary { running: Some(running), ..worker }, now_ms)))
}

fn add(found: &mut BTreeMap<String, WorkerSummary>, shard: &ShardWorkers) {
    let unheard = |name: &str| WorkerSummary {
        name: name.to_owned(),
        alive: false,
        shards: 0,
        busy: 0,
        slots: 0,
        heartbeat_age_ms: None,
        drained: None,
        drain_applied: true,
        running: None,
    };
    for node in &shard.consumers {
        let Some(name) = worker_of(&node.name) else { continue };
        let worker = found.entry(name.to_owned()).or_insert_with(|| unheard(name));
        let Slots { busy, all } = node.slots.unwrap_or_default();
        worker.heartbeat_age_ms = [worker.heartbeat_age_ms, node.heartbeat_age_ms].into_iter().flatten().min();
        if node.lease_left_ms > 0 {
            worker.alive = true;
            worker.shards += 1;
            worker.busy += busy;
            worker.slots += all;
            worker.drain_applied &= node.drained == shard.drained.contains_key(name);
        }
    }
    for (name, note) in &shard.drained {
        found.entry(name.clone()).or_insert_with(|| unheard(name)).drained = Some(note.clone());
    }
}

/// Also accepts the name of a consumer, because `top` shows names of consumers.
fn resolve_worker<'a>(known: &'a [ShardWorkers], requested: &'a str) -> Option<&'a str> {
    let is_known = |name: &str| {
        let mut all = known.iter();
        all.any(|shard| {
            shard.drained.contains_key(name) || shard.consumers.iter().any(|node| worker_of(&node.name) == Some(name))
        })
    };
    [Some(requested), worker_of(requested)].into_iter().flatten().find(|name| is_known(name))
}

/// A message that the worker does not exist, with similar names.
pub async fn no_worker(shards: &[Store], worker: &str) -> Result<String, StoreError> {
    let (found, _) = workers(shards).await?;
    let names = || found.iter().map(|worker| worker.name.as_str());
    let near = nearest(worker, names());
    let near =
        if near.is_empty() { format!("Workers: {}", list(names())) } else { format!("Nearest: {}", near.join(", ")) };
    Ok(format!("unknown worker {worker:?}. {near}."))
}

/// Drains a worker in all shards: it finishes its slices and takes no new ones. The worker reads the drain flag with
/// its next heartbeat.
///
/// # Errors
/// [`StoreError`]; the call can be repeated.
pub async fn drain(shards: &[Store], worker: &str, operator: Operator<'_>) -> Result<WorkerDrainResult, StoreError> {
    change(shards, worker, operator, true).await
}

/// Resumes a drained worker in all shards.
///
/// # Errors
/// [`StoreError`]; the call can be repeated.
pub async fn resume(shards: &[Store], worker: &str, operator: Operator<'_>) -> Result<WorkerDrainResult, StoreError> {
    change(shards, worker, operator, false).await
}

async fn change(
    shards: &[Store],
    requested: &str,
    operator: Operator<'_>,
    drains: bool,
) -> Result<WorkerDrainResult, StoreError> {
    let mut known = Vec::with_capacity(shards.len());
    for store in shards {
        known.push(store.workers().await?);
    }
    let Some(worker) = resolve_worker(&known, requested) else { return Ok(WorkerDrainResult::Unknown) };
    let (action, verb) =
        if drains { (AuditAction::DrainWorker, "drained") } else { (AuditAction::ResumeWorker, "resumed") };
    let act = OperatorAct {
        action,
        entity_type: "worker",
        entity_id: worker,
        did: &format!("{verb} {worker}"),
        tenant: None,
        details: &[],
    };
    let mut set = WorkerDrainResult::None;
    let mut is_full = false;
    for (store, shard) in shards.iter().zip(&known) {
        let entry = store.audit_append(&act, operator, shard.now_ms);
        let change = if drains {
            DrainChange::Drain { note: operator.note(shard.now_ms), gone: gone(shard, worker), entry }
        } else {
            DrainChange::Resume { entry }
        };
        match store.decide(ChangeDrain { worker: worker.to_owned(), change }).await?.result {
            DrainResult::Done => set = WorkerDrainResult::Ok,
            DrainResult::Full => is_full = true,
            DrainResult::Unchanged | DrainResult::Lifted => {}
        }
    }
    Ok(if is_full { WorkerDrainResult::Full } else { set })
}

fn gone(shard: &ShardWorkers, but: &str) -> Vec<String> {
    let is_heard = |name: &str| shard.consumers.iter().any(|node| worker_of(&node.name) == Some(name));
    let old = shard.drained.iter().filter(|(_, note)| shard.now_ms - note.since_ms > GONE_MS);
    old.map(|(name, _)| name.clone()).filter(|name| name != but && !is_heard(name)).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use tickfleet_store::NodeView;

    use super::*;

    fn consumer(name: &str, lease_left_ms: i64, busy: usize, drained: bool) -> NodeView {
        let slots = Some(Slots { busy, all: if drained { busy } else { 8 } });
        NodeView { name: name.into(), heartbeat_age_ms: Some(100), lease_left_ms, slots, drained }
    }

    #[test]
    fn a_worker_is_listed_once_across_shards_and_kept_while_drained() {
        let note = Pause { by: "anna".into(), reason: "a new kernel".into(), since_ms: 5 };
        let drained = BTreeMap::from([("w-a-1f".to_owned(), note.clone()), ("w-old-9".to_owned(), note.clone())]);
        let shard = |consumers| ShardWorkers { consumers, drained: drained.clone(), now_ms: 10 };
        let one = shard(vec![consumer("w-a-1f-62f-0", 900, 2, true), consumer("w-b-20-62f-0", 900, 1, false)]);
        let other = shard(vec![consumer("w-a-1f-62f-1", 900, 3, false), consumer("w-a-1f-61f-0", -900, 7, false)]);
        let mut found = BTreeMap::new();
        add(&mut found, &one);
        add(&mut found, &other);
        let [a, b, old] = <[WorkerSummary; 3]>::try_from(found.into_values().collect::<Vec<_>>()).unwrap();
        assert_eq!((a.name.as_str(), a.alive, a.shards, a.busy, a.slots), ("w-a-1f", true, 2, 5, 10));
        assert_eq!((a.drained, a.drain_applied), (Some(note), false), "one shard does not have the flag yet");
        assert_eq!((b.name.as_str(), b.drained, b.drain_applied), ("w-b-20", None, true));
        assert_eq!((old.name.as_str(), old.alive, old.heartbeat_age_ms), ("w-old-9", false, None));
        let known = [one, other];
        assert_eq!(resolve_worker(&known, "w-b-20"), Some("w-b-20"));
        assert_eq!(resolve_worker(&known, "w-b-20-62f-0"), Some("w-b-20"));
        assert_eq!((resolve_worker(&known, "w-old-9"), resolve_worker(&known, "w-c-1")), (Some("w-old-9"), None));
        assert_eq!(gone(&ShardWorkers { now_ms: 5 + GONE_MS + 1, ..known[0].clone() }, "w-b-20"), ["w-old-9"]);
        assert!(gone(&known[0], "w-b-20").is_empty(), "it was drained a moment ago");
    }
}
