//! The processes that could take waiting work.

use serde::Serialize;
use tickfleet_store::{NodeView, Store};

use crate::failure::Failure;
use crate::output::time_format::span;
use crate::output::{is_default, plural};

/// In ms. A runtime's read blocks for seconds, so a runtime that has not asked for this long counts as absent.
const RUNTIME_SILENT_MS: i64 = 60_000;

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "who", rename_all = "snake_case")]
pub(super) enum QueueReaders {
    Workers {
        alive: usize,
        /// Live workers that an operator has drained.
        #[serde(skip_serializing_if = "is_default")]
        drained: usize,
        busy: usize,
        slots: usize,
        /// Time since the last heartbeat of the most recently lost worker.
        #[serde(skip_serializing_if = "Option::is_none")]
        gone_ms: Option<i64>,
    },
    Runtimes {
        stream: String,
        /// Runtimes that have ever read the stream.
        known: usize,
        #[serde(skip_serializing_if = "Option::is_none")]
        requested_ms: Option<i64>,
    },
    /// The process that runs the local call of the turn.
    Caller {
        /// The stream that offers the call.
        stream: String,
    },
    Schedulers {
        alive: usize,
        /// True if schedulers accept no new work, because memory is nearly full.
        pressure: bool,
    },
}

impl QueueReaders {
    pub(super) async fn of_queue(store: &Store, queue: &str, now_ms: i64) -> Result<Self, Failure> {
        if queue.starts_with("external:") {
            let runtimes = store.runtimes(queue).await?;
            let requested_ms = runtimes.iter().map(|runtime| runtime.idle_ms).min();
            return Ok(Self::Runtimes { stream: store.keys().key(queue), known: runtimes.len(), requested_ms });
        }
        if queue.starts_with("local:") {
            return Ok(Self::Caller { stream: store.keys().key(queue) });
        }
        let nodes = store.nodes(now_ms).await?;
        let (alive, gone): (Vec<_>, Vec<_>) = of_kind(&nodes, "w-").partition(|node| node.lease_left_ms > 0);
        let sum =
            |of: fn(&tickfleet_store::Slots) -> usize| alive.iter().filter_map(|n| n.slots.as_ref()).map(of).sum();
        Ok(Self::Workers {
            alive: alive.len(),
            drained: alive.iter().filter(|node| node.drained).count(),
            busy: sum(|slots| slots.busy),
            slots: sum(|slots| slots.all),
            gone_ms: gone.iter().filter_map(|node| node.heartbeat_age_ms).min(),
        })
    }

    pub(super) async fn of_inbound(store: &Store, now_ms: i64) -> Result<Self, Failure> {
        let nodes = store.nodes(now_ms).await?;
        let alive = of_kind(&nodes, "s-").filter(|node| node.lease_left_ms > 0).count();
        Ok(Self::Schedulers { alive, pressure: store.seam().shard_stats().await?.shard.pressure })
    }

    pub(super) fn describe(&self) -> String {
        match self {
            Self::Workers { alive: 0, gone_ms, .. } => {
                let last = gone_ms.map_or_else(
                    || "none has run recently".into(),
                    |ms| format!("the last heartbeat was {} ago", span(ms)),
                );
                format!("No worker is alive ({last}). It waits until one runs: tickfleet worker")
            }
            Self::Workers { alive, drained, .. } if alive == drained => format!(
                "{} alive but drained by an operator, taking no new work: tickfleet workers list shows who and why",
                plural(*alive, "worker")
            ),
            Self::Workers { alive, busy, slots, .. } if busy >= slots && *slots > 0 => {
                format!("All {slots} slots of {} are busy; it starts when one is free", plural(*alive, "worker"))
            }
            Self::Workers { alive, busy, slots, .. } => format!(
                "{} alive, {busy} of {slots} slots busy: it should start now. If it does not, run tickfleet doctor",
                plural(*alive, "worker")
            ),
            Self::Runtimes { stream, known: 0, .. } => format!(
                "No runtime has ever read {stream}, where this agent's tasks are offered: start its runtime"
            ),
            Self::Runtimes { stream, requested_ms, .. } => match requested_ms {
                Some(ms) if *ms < RUNTIME_SILENT_MS => {
                    format!("A runtime reads {stream} (last read {} ago) and has not taken this task yet", span(*ms))
                }
                _ => format!(
                    "No runtime reads {stream} now (last read {} ago). The task waits until one does",
                    span(requested_ms.unwrap_or_default())
                ),
            },
            Self::Caller { stream } => format!(
                "Its next call runs in the process of its caller, which has not claimed it on {stream} yet: start the \
                 process again, with the same turn id"
            ),
            Self::Schedulers { alive: 0, .. } => {
                "It is on the inbound stream, and no scheduler is alive. It waits until one runs: tickfleet scheduler"
                    .into()
            }
            Self::Schedulers { pressure: true, .. } => "It is on the inbound stream: Redis memory is nearly full, so new work is not admitted. Run tickfleet doctor"
                .into(),
            Self::Schedulers { alive, .. } => format!(
                "It is on the inbound stream, waiting for admission; {} alive",
                plural(*alive, "scheduler")
            ),
        }
    }
}

fn of_kind<'a>(nodes: &'a [NodeView], prefix: &'a str) -> impl Iterator<Item = &'a NodeView> {
    nodes.iter().filter(move |node| node.name.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_reader_is_not_reported_as_busy_slots() {
        let workers =
            |alive, busy, slots| QueueReaders::Workers { alive, drained: 0, busy, slots, gone_ms: None }.describe();
        assert!(workers(0, 0, 0).contains("No worker is alive"));
        assert!(workers(2, 8, 8).contains("All 8 slots of 2 workers are busy"));
        assert!(workers(1, 1, 8).contains("1 of 8 slots busy"));
        let runtimes = |known, requested_ms| {
            QueueReaders::Runtimes { stream: "{x:0}:external:a:b".into(), known, requested_ms }.describe()
        };
        assert!(runtimes(0, None).contains("No runtime has ever read {x:0}:external:a:b"));
        assert!(runtimes(1, Some(5_000)).contains("A runtime reads"));
        assert!(runtimes(1, Some(600_000)).contains("No runtime reads"));
        let schedulers = |alive, pressure| QueueReaders::Schedulers { alive, pressure }.describe();
        assert!(schedulers(0, true).contains("no scheduler is alive"));
        assert!(schedulers(1, true).contains("nearly full"));
    }
}
